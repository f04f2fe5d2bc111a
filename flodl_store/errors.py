"""Every error that flodl_store raises on purpose."""


class StoreError(Exception):
    """Root of flodl_store's errors."""


class HomeError(StoreError):
    """The folder where flodl keeps its files cannot be used; the message says which and what to set."""
