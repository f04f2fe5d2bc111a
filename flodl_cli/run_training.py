"""``flodl train``: one run, from its folder to its result."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from rich.console import Console

from flodl_cli.closing import print_closing
from flodl_cli.failures import CALLER_CAN_MEND, RUN_FAILED, SIGNAL_BASE, CliError, Interrupted, one_line
from flodl_cli.progress import show_progress
from flodl_cli.run_log import logging_to
from flodl_cli.stop_signals import StopSignals
from flodl_core import FlodlError
from flodl_store.errors import StoreError
from flodl_store.home import RunFolder, create_run_folder
from flodl_store.params import RunParams
from flodl_store.plain_json import dump_json
from flodl_store.run_id import new_run_id
from flodl_store.run_record import RunRecord, new_record, utc_now, write_record
from flows.errors import FlowError
from flows.run_results import Prepared, Trained, TrainResult
from flows.training import evaluate, prepare, publish, report, train

logger = logging.getLogger(__name__)


def run_training(params: RunParams, *, started_in: Path, as_json: bool) -> int:
    """Train, save, evaluate, and print what came of it.

    Returns:
        0 where the run completed, 130 or 143 where a signal cancelled it.

    Raises:
        CliError: The run could not start, or failed.
        HomeError: Its folder cannot be written to.
        Interrupted: A signal came before training began.
    """
    folder = create_run_folder(new_run_id())
    record = new_record(folder.run_id, params, version=version("flodl"))
    with logging_to(folder.log_path), StopSignals() as signals, _failures_recorded(folder, record):
        prepared = prepare(params, started_in=started_in)
        record = replace(record, params=prepared.params.model_dump(mode="json"))
        write_record(folder, record)
        signals.defer()
        trained = _train(prepared, folder, signals)
        result, problem = _finish(prepared, trained, folder)
        write_record(folder, _ended(record, result.status, result=result, error=problem))
    _print_result(result, trained, folder, as_json=as_json)
    if problem is not None:
        raise CliError(f"{problem} (log: {folder.log_path})", exit_code=RUN_FAILED)
    return SIGNAL_BASE + signals.requested if result.status == "cancelled" and signals.requested else 0


@contextmanager
def _failures_recorded(folder: RunFolder, record: RunRecord) -> Iterator[None]:
    """What never started leaves no folder; what failed unforeseen leaves its traceback in the log."""
    try:
        yield
    except StoreError:
        raise
    except Interrupted:
        folder.discard()
        raise
    except Exception as error:
        if isinstance(error, FlowError | FlodlError) and isinstance(error, ValueError):
            folder.discard()
            raise CliError(str(error), exit_code=CALLER_CAN_MEND) from error
        logger.exception("the run failed")
        problem = one_line(error)
        write_record(folder, _ended(record, "failed", result=None, error=problem))
        raise CliError(f"{problem} (log: {folder.log_path})", exit_code=RUN_FAILED) from error


def _train(prepared: Prepared, folder: RunFolder, signals: StopSignals) -> Trained:
    with show_progress(Console(stderr=True), prepared.params, folder.run_id, signals.is_requested) as watcher:
        return train(prepared, watcher=watcher, stop_requested=signals.is_requested)


def _finish(prepared: Prepared, trained: Trained, folder: RunFolder) -> tuple[TrainResult, str | None]:
    """Save and evaluate what was trained; the problem is why the run counts as failed."""
    problem = _problem(trained)
    evaluation: Mapping[str, float] = {}
    published = None
    if trained.state is not None:
        published = publish(trained.state, folder)
        try:
            evaluation = evaluate(prepared.recipe, trained.state)
        except Exception as error:
            logger.exception("the evaluation failed")
            problem = problem or f"the state is saved, but its evaluation failed: {one_line(error)}"
    result = report(folder.run_id, prepared, trained, published, evaluation)
    return (result if problem is None else replace(result, status="failed")), problem


def _problem(trained: Trained) -> str | None:
    if trained.error is not None:
        return " ".join(str(trained.error).split()) or type(trained.error).__name__
    if trained.failures:
        lost = "; ".join(" ".join(str(failure).split()) for failure in trained.failures)
        return f"{lost}; the average of the other workers is saved"
    return None


def _ended(record: RunRecord, status: str, *, result: TrainResult | None, error: str | None) -> RunRecord:
    fields = None if result is None else result.as_dict()
    return replace(record, status=status, ended_at=utc_now(), result=fields, error=error)


def _print_result(result: TrainResult, trained: Trained, folder: RunFolder, *, as_json: bool) -> None:
    if as_json:
        print(dump_json(result.as_dict()))
    else:
        print_closing(Console(), result, trained, folder)
