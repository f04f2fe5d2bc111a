"""Names of runs."""

from ulid import ULID


def new_run_id() -> str:
    """A new run's name: a ULID, 26 characters of Crockford's base 32, that sorts by the time of its making."""
    return str(ULID())
