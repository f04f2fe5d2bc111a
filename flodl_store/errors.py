"""Every error that flodl_store raises on purpose."""


class StoreError(Exception):
    """Root of flodl_store's errors."""


class HomeError(StoreError):
    """The folder where flodl keeps its files cannot be used; the message says which and what to set."""


class DatabaseUrlError(StoreError, ValueError):
    """``FLODL_DATABASE_URL`` names no database that flodl can use; the message says what it looks like."""


class DatabaseUnreachableError(StoreError):
    """The database does not answer; the message says where it was looked for."""


class SchemaError(StoreError):
    """The database's tables are not those of this flodl; the message says what to do."""


class UnknownRunError(StoreError, LookupError):
    """No run, or more than one, is meant by a name."""


class CursorError(StoreError, ValueError):
    """A list was asked to go on from something that is no cursor."""


class WriterFencedError(StoreError):
    """Somebody else has written to the run since: two recorders may not feed one run."""


class RunStateError(StoreError):
    """A run cannot take this turn: it exists already, or has started or ended."""
