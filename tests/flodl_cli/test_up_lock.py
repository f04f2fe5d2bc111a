"""One ``flodl up`` for each home."""

from __future__ import annotations

from pathlib import Path

from flodl_cli.up_lock import Addresses, UpLock

ADDRESSES = Addresses(pid=7, dashboard="http://127.0.0.1:8000", prefect_api="http://127.0.0.1:4200/api")


def test_only_one_holds_it_and_the_others_read_where_its_services_are(tmp_path: Path) -> None:
    path = tmp_path / "up.lock"
    with UpLock(path) as first, UpLock(path) as second:
        assert first.take()
        assert not second.take()
        assert second.read() is None
        first.publish(ADDRESSES)
        assert second.read() == ADDRESSES


def test_the_next_one_starts_without_the_addresses_of_the_last(tmp_path: Path) -> None:
    path = tmp_path / "up.lock"
    with UpLock(path) as first:
        assert first.take()
        first.publish(ADDRESSES)
    with UpLock(path) as second:
        assert second.take()
        assert second.read() is None
