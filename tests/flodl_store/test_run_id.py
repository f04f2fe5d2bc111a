"""Run ids are ULIDs."""

from __future__ import annotations

from flodl_store.run_id import new_run_id


def test_an_id_has_26_characters_of_base_32() -> None:
    assert len(new_run_id()) == 26
    assert set(new_run_id()) <= set("0123456789ABCDEFGHJKMNPQRSTVWXYZ")


def test_ids_are_unique() -> None:
    assert len({new_run_id() for _ in range(1000)}) == 1000
