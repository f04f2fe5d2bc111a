"""Graphs, shared by the runs of a model."""

from __future__ import annotations

import pytest

from flodl_store.database import Database
from flodl_store.errors import UnknownRunError
from flodl_store.graphs import attach_graph, get_graph, save_graph
from flodl_store.runs import get_run
from tests.flodl_store.rows import new_run


def test_a_graph_is_kept_once_and_as_it_was(db: Database) -> None:
    assert get_graph(db, "h") is None
    save_graph(db, "h", "LeNet", "<svg/>")
    save_graph(db, "h", "other", "<svg></svg>")
    found = get_graph(db, "h")
    assert found is not None
    assert (found.hash, found.label, found.svg) == ("h", "LeNet", "<svg/>")


def test_a_run_is_given_its_graph(db: Database) -> None:
    run = new_run(db)
    save_graph(db, "h", "LeNet", "<svg/>")
    attach_graph(db, run.id, "h")
    assert get_run(db, run.id).graph_hash == "h"


def test_a_run_that_is_not_there_gets_none(db: Database) -> None:
    save_graph(db, "h", "LeNet", "<svg/>")
    with pytest.raises(UnknownRunError):
        attach_graph(db, "01" + 24 * "A", "h")
