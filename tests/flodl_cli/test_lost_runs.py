"""A training process that is killed: what it did up to then is there, and the run is shown as lost."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta

from flodl_store.database import open_database, utc_clock
from flodl_store.runs import LOST_AFTER_S, get_run
from flodl_store.series import changes_after, steps

PROGRAM = [sys.executable, "-c", "import sys; from flodl_cli.main import main; sys.exit(main())"]
ARGUMENTS = ["train", "digits", "--devices", "cpu,cpu@1.5", "--epochs", "100000"]


def test_a_killed_process_keeps_its_rows_and_is_shown_as_lost() -> None:
    with subprocess.Popen([*PROGRAM, *ARGUMENTS], stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            assert next(line for line in process.stderr if line.startswith("epoch 3/100000"))
        finally:
            process.kill()
    killed_at = datetime.now(UTC)
    with open_database() as db:
        run = get_run(db, "latest")
        changes = changes_after(db, run.id, 0, 10**6)
        with db.read() as connection:
            assert connection.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"
    assert run.status == "running"
    seqs = [row["seq"] for part in (changes.steps, changes.epochs, changes.events) for row in part]
    assert sorted(seqs) == list(range(1, run.last_seq + 1))
    assert len(changes.epochs) >= 2
    assert killed_at - changes.steps[-1]["wall_time"] < timedelta(seconds=1)
    with open_database(clock=lambda: utc_clock() + timedelta(seconds=LOST_AFTER_S + 1)) as later:
        assert get_run(later, run.id).status == "lost"
        assert len(steps(later, run.id, limit=10**6)) == len(changes.steps)
