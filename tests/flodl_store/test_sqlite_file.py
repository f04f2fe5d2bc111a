"""The file of SQLite, as several processes use it."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from flodl_store.sqlite_file import prepare_file

OPEN_AND_CLOSE = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("SELECT count(*) FROM t").fetchone()
connection.close()
"""


def test_preparing_a_file_keeps_the_locks_of_connections_that_this_process_has(tmp_path: Path) -> None:
    path = tmp_path / "flodl.db"
    prepare_file(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (x)")
        connection.commit()
        prepare_file(path)
        # A process that could take itself for the last one would remove the log of writes as it closes.
        subprocess.run([sys.executable, "-c", OPEN_AND_CLOSE, str(path)], check=True, timeout=60)
        assert path.with_name("flodl.db-wal").exists()
        connection.execute("INSERT INTO t VALUES (1)")
        connection.commit()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("SELECT x FROM t").fetchall() == [(1,)]
