"""``flodl train``: one run, from its folder to its result."""

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from flodl_cli.closing import print_closing
from flodl_cli.failures import CALLER_CAN_MEND, RUN_FAILED, SIGNAL_BASE, CliError, Interrupted
from flodl_cli.progress import show_progress
from flodl_cli.recording_notice import RecordingNotice
from flodl_cli.stop_signals import StopSignals
from flodl_core import FlodlError
from flodl_store.artifacts import save_artifact
from flodl_store.database import Database, open_database
from flodl_store.errors import StoreError
from flodl_store.home import RunFolder, create_run_folder
from flodl_store.params import RunParams
from flodl_store.plain_json import dump_json
from flodl_store.run_id import new_run_id
from flows.errors import FlowError
from flows.one_line import one_line
from flows.outcome import problem_of
from flows.recording import RecordedRun, Watchers
from flows.run_log import logging_to
from flows.run_results import Prepared, Trained, TrainResult
from flows.training import evaluate, prepare, publish, report, train

logger = logging.getLogger(__name__)


def run_training(params: RunParams, *, started_in: Path, as_json: bool) -> int:
    """Train, record, save, evaluate, and print what came of it.

    Returns:
        0 where the run completed, 130 or 143 where a signal cancelled it.

    Raises:
        CliError: The run could not start, or failed.
        HomeError: Its folder cannot be written to.
        DatabaseUrlError: ``FLODL_DATABASE_URL`` names no database that flodl can use.
        DatabaseUnreachableError: The database does not answer before training.
        SchemaError: Its tables are not this flodl's.
        Interrupted: A signal came before training began.
    """
    with open_database() as db:
        folder = create_run_folder(new_run_id())
        with (
            _log_recorded(db, folder),
            logging_to(folder.log_path),
            StopSignals() as signals,
            _recorded(db, folder, params, started_in) as recorded,
        ):
            prepared = prepare(params, started_in=started_in)
            recorded.prepared(prepared.params)
            signals.defer()
            trained = _train(prepared, recorded, signals)
            result, problem = _finish(prepared, trained, recorded, folder)
    _print_result(result, trained, folder, as_json=as_json)
    if problem is not None:
        raise CliError(f"{problem} (log: {folder.log_path})", exit_code=RUN_FAILED)
    return SIGNAL_BASE + signals.requested if result.status == "cancelled" and signals.requested else 0


@contextmanager
def _log_recorded(db: Database, folder: RunFolder) -> Iterator[None]:
    """Record the log after its last line, so that its checksum holds; a run that never started has none."""
    try:
        yield
    finally:
        if folder.log_path.exists():
            try:
                save_artifact(db, folder.run_id, "log", folder.log_path)
            except StoreError as error:
                logger.warning("the database does not know of the log: %s", error)


@contextmanager
def _recorded(db: Database, folder: RunFolder, params: RunParams, started_in: Path) -> Iterator[RecordedRun]:
    """What never started leaves no row and no folder; what failed unforeseen leaves its traceback in the log."""
    try:
        recorded = RecordedRun.begin(db, params, run_id=folder.run_id, started_in=started_in)
    except BaseException:
        folder.discard()
        raise
    with recorded:
        try:
            yield recorded
        except StoreError as error:
            if not recorded.has_trained:
                raise
            # training is over: nothing that the caller gave was wrong, and the record must say how it ended
            recorded.end("failed", error=str(error))
            raise CliError(str(error), exit_code=RUN_FAILED) from error
        except Interrupted:
            recorded.withdraw()
            folder.discard()
            raise
        except SystemExit as error:
            recorded.end("failed", error="the recipe's own code called sys.exit")
            raise CliError("the recipe's own code called sys.exit: a recipe must not", exit_code=RUN_FAILED) from error
        except Exception as error:
            if isinstance(error, FlowError | FlodlError) and isinstance(error, ValueError):
                recorded.withdraw()
                folder.discard()
                raise CliError(str(error), exit_code=CALLER_CAN_MEND) from error
            logger.exception("the run failed")
            problem = one_line(error)
            recorded.end("failed", error=problem)
            raise CliError(f"{problem} (log: {folder.log_path})", exit_code=RUN_FAILED) from error


def _train(prepared: Prepared, recorded: RecordedRun, signals: StopSignals) -> Trained:
    def is_stopping() -> bool:
        return signals.is_requested() or recorded.cancel_requested

    console = Console(stderr=True)
    with show_progress(console, prepared.params, recorded.run_id, is_stopping) as progress:
        watcher = Watchers(recorded, progress, RecordingNotice(console, recorded))
        return train(prepared, watcher=watcher, stop_requested=is_stopping)


def _finish(
    prepared: Prepared, trained: Trained, recorded: RecordedRun, folder: RunFolder
) -> tuple[TrainResult, str | None]:
    """Save and evaluate what was trained, and record the end; the problem is why the run counts as failed."""
    problem = problem_of(trained)
    evaluation: Mapping[str, float] = {}
    published = None
    if trained.state is not None:
        published = publish(trained.state, folder)
        try:
            evaluation = evaluate(prepared.recipe, trained.state)
        except Exception as error:
            logger.exception("the evaluation failed")
            problem = problem or f"the state is saved, but its evaluation failed: {one_line(error)}"
    status = trained.status if problem is None else "failed"
    not_recorded = recorded.end(status, error=problem, trained=trained, evaluation=evaluation, published=published)
    result = report(folder.run_id, prepared, trained, published, evaluation)
    return replace(result, status=status, not_recorded=not_recorded), problem


def _print_result(result: TrainResult, trained: Trained, folder: RunFolder, *, as_json: bool) -> None:
    if result.not_recorded is not None:
        print(f"flodl: warning: {result.not_recorded}", file=sys.stderr)
    if as_json:
        print(dump_json(result.as_dict()))
    else:
        print_closing(Console(), result, trained, folder)
