"""Several processes at one file of SQLite."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from flodl_store.database import open_database
from flodl_store.runs import list_runs
from flodl_store.schema import schema_status
from flodl_store.series import steps
from tests.data_paths import REPOSITORY

LIMIT_S = 120
OPEN = """
from flodl_store.database import open_database
from flodl_store.runs import list_runs
print("ready", flush=True)
input()
with open_database() as db:
    print(len(list_runs(db).items))
"""
WRITE = """
from flodl_store.database import open_database
from flodl_store.writer import RunWriter
from tests.flodl_store.rows import running, step
with open_database() as db:
    run_id = running(db)
    writer = RunWriter(db, run_id)
    print("ready", flush=True)
    input()
    for batch in range(100):
        writer.write([step(20 * batch + number) for number in range(20)])
    print(run_id)
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FLODL_DATABASE_URL", raising=False)
    monkeypatch.setenv("FLODL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]))


def run_at_once(program: str, number: int) -> list[str]:
    """What each of ``number`` processes printed after all of them were ready."""
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            )
            for _ in range(number)
        ]
        try:
            for process in processes:
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n"
            for process in processes:
                assert process.stdin is not None
                process.stdin.write("\n")
                process.stdin.flush()
            printed = [process.communicate(timeout=LIMIT_S)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
    assert [process.returncode for process in processes] == [0] * number
    return printed


def test_several_may_open_a_new_home_at_once() -> None:
    assert run_at_once(OPEN, 5) == ["0\n"] * 5
    with open_database() as db:
        assert schema_status(db).is_current


def test_two_recorders_do_not_disturb_each_other() -> None:
    run_ids = [printed.strip() for printed in run_at_once(WRITE, 2)]
    with open_database() as db:
        assert sorted(run.id for run in list_runs(db).items) == sorted(run_ids)
        for run_id in run_ids:
            rows = steps(db, run_id)
            assert [row["seq"] for row in rows] == list(range(1, 2001))
            assert [row["global_step"] for row in rows] == list(range(2000))
