"""No text that comes from outside costs a run its record."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flodl_store.database import Database
from flodl_store.runs import end_run, get_run
from flodl_store.series import events
from flodl_store.storable import storable_json, storable_text
from flodl_store.writer import RunWriter
from tests.flodl_store.rows import event, running

ODD = "nul \0, half a pair \ud800, backslash \\u0000, ü, 😀"


@pytest.mark.parametrize("text", ["plain", "ü", "😀", "\\u0000", "\\", '"', "\n"])
def test_text_that_can_be_stored_is_left_as_it_is(text: str) -> None:
    assert storable_text(text) == text
    assert json.loads(storable_json({"a": text})) == {"a": text}


def test_what_cannot_be_stored_is_seen_to_be_missing() -> None:
    assert storable_text("a\0b") == "a\ufffdb"
    assert storable_text("a\udc80b").startswith("a\ufffd")
    assert json.loads(storable_json(["\\\0", "\\\\u0000"])) == ["\\\ufffd", "\\\\u0000"]


@given(st.text(st.characters(), max_size=20))
def test_any_text_becomes_storable(text: str) -> None:
    for stored in (storable_text(text), json.loads(storable_json(text))):
        assert "\0" not in stored
        stored.encode()


def test_odd_text_reaches_the_database(db: Database) -> None:
    run_id = running(db)
    RunWriter(db, run_id).write([event(payload={"error": ODD, ODD: 1})])
    end_run(db, run_id, "failed", ODD)
    assert events(db, run_id)[0]["payload"] == {"error": storable_text(ODD), storable_text(ODD): 1}
    assert get_run(db, run_id).error == storable_text(ODD)
