"""The log file of a run."""

from __future__ import annotations

import logging
from pathlib import Path

from flows.run_log import logging_to


def test_our_records_and_strangers_warnings_go_into_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    with logging_to(path):
        logging.getLogger("flows.training").info("ours")
        logging.getLogger("a.stranger").info("chatter")
        logging.getLogger("a.stranger").warning("trouble")
    text = path.read_text()
    assert "INFO MainThread flows.training: ours" in text
    assert "WARNING MainThread a.stranger: trouble" in text
    assert "chatter" not in text


def test_everything_is_put_back(tmp_path: Path) -> None:
    root, ours = logging.getLogger(), logging.getLogger("flodl_core")
    before = list(root.handlers), ours.level
    with logging_to(tmp_path / "run.log"):
        assert len(root.handlers) == len(before[0]) + 1
    assert (list(root.handlers), ours.level) == before
