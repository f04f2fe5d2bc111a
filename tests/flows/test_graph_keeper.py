"""The graph of a run's model finds its way into the database."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from flodl_core import DdpHandle
from flodl_store.database import Database, open_database
from flodl_store.graphs import get_graph
from flodl_store.params import RunParams
from flodl_store.runs import NewRun, create_run, get_run
from flows.graph_keeper import GraphKeeper
from flows.training import prepare

PARAMS = RunParams(recipe="digits", devices=("cpu",), epochs=1, batch_size=500)


@pytest.fixture
def db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    monkeypatch.setenv("FLODL_HOME", str(tmp_path))
    with open_database() as database:
        yield database


@pytest.fixture
def handle(tmp_path: Path) -> Iterator[DdpHandle]:
    with prepare(PARAMS, started_in=tmp_path).builder.run() as running:
        yield running


def test_graph_is_saved_and_belongs_to_the_run(db: Database, handle: DdpHandle) -> None:
    run = create_run(db, NewRun.of(PARAMS))
    keeper = GraphKeeper(db, run.id, handle)
    handle.join()
    keeper.join()
    keeper.join()
    graph = get_graph(db, handle.graph_hash)
    assert graph is not None
    assert (graph.label, graph.svg) == (handle.graph_label, handle.architecture_svg)
    assert get_run(db, run.id).graph_hash == handle.graph_hash


def test_a_graph_that_cannot_be_saved_fails_no_run(
    db: Database, handle: DdpHandle, caplog: pytest.LogCaptureFixture
) -> None:
    run = create_run(db, NewRun.of(PARAMS))
    with db.write() as connection:
        connection.execute(text("DROP TABLE graph"))
    keeper = GraphKeeper(db, run.id, handle)
    handle.join()
    keeper.join()
    assert ("flows.graph_keeper", logging.ERROR, "the model's graph is not saved") in caplog.record_tuples
