"""An error for people."""


def one_line(error: BaseException) -> str:
    """The kind of an error and the first line of its text."""
    text = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
