"""flodl against what people use today, side by side: ``python -m benchmarks.peers``."""
