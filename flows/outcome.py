"""How a run came out, in one line."""

from flows.run_results import Trained


def problem_of(trained: Trained) -> str | None:
    """Why a run counts as failed, or None where it does not."""
    if trained.error is not None:
        return " ".join(str(trained.error).split()) or type(trained.error).__name__
    if trained.failures:
        lost = "; ".join(" ".join(str(failure).split()) for failure in trained.failures)
        return f"{lost}; the average of the other workers is saved"
    return None
