"""From an error to what the caller sees of it: one line on standard error, and an exit code."""

from pydantic import ValidationError
from typer import TyperException

from flodl_store.errors import (
    CursorError,
    DatabaseUnreachableError,
    DatabaseUrlError,
    HomeError,
    RunStateError,
    SchemaError,
    UnknownRunError,
)
from flodl_store.params_errors import describe_errors
from flows.one_line import one_line

RUN_FAILED = 1
CALLER_CAN_MEND = 2
SERVICE_UNREACHABLE = 3
# A shell's convention: 128 and the signal's number.
SIGNAL_BASE = 128


class CliError(Exception):
    """Ends the command with one line.

    Attributes:
        exit_code: 1 where a run failed, 2 where the caller can mend it, 3 where a service is out of reach.
    """

    def __init__(self, message: str, *, exit_code: int = CALLER_CAN_MEND) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Interrupted(BaseException):
    """A signal came before training began. No Exception, so that no recipe's code swallows it.

    Attributes:
        signum: The signal.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


def explain(error: Exception) -> tuple[str, int]:
    """The line to print for ``error``, without its prefix, and the exit code."""
    match error:
        case CliError():
            return str(error), error.exit_code
        case ValidationError():
            return describe_errors(error), CALLER_CAN_MEND
        case HomeError() | DatabaseUrlError() | UnknownRunError() | RunStateError() | CursorError():
            return str(error), CALLER_CAN_MEND
        case DatabaseUnreachableError() | SchemaError():
            return str(error), SERVICE_UNREACHABLE
        case TyperException():
            return error.format_message(), error.exit_code
    return f"{one_line(error)} (a fault of flodl's: FLODL_DEBUG=1 shows where)", RUN_FAILED
