"""The `flodl` command."""
