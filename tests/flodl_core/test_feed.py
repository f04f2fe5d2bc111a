from __future__ import annotations

import threading

from flodl_core.feed import Feed

LIMIT_S = 30.0


def test_items_are_read_once_in_order_until_the_end() -> None:
    feed: Feed[int] = Feed()
    for number in range(3):
        feed.put(number)
    feed.close()
    assert list(feed) == [0, 1, 2]
    assert list(feed) == []
    assert feed.next() is None


def test_poll_takes_all_that_is_there_without_waiting() -> None:
    feed: Feed[int] = Feed()
    assert feed.poll() == []
    feed.put(1)
    feed.put(2)
    assert feed.poll() == [1, 2]
    assert feed.poll() == []


def test_reader_gives_up_after_its_limit() -> None:
    assert Feed[int]().next(timeout_s=0.0) is None


def test_oldest_items_go_first_where_nobody_reads() -> None:
    feed: Feed[int] = Feed(2)
    for number in range(5):
        feed.put(number)
    assert feed.num_dropped == 3
    assert feed.poll() == [3, 4]
    feed.put(5)
    assert feed.num_dropped == 3


def test_feed_without_a_limit_keeps_all() -> None:
    feed: Feed[int] = Feed()
    for number in range(10_000):
        feed.put(number)
    assert feed.num_dropped == 0
    assert feed.poll() == list(range(10_000))


def test_waiting_readers_share_the_items_and_all_wake_at_the_end() -> None:
    feed: Feed[int] = Feed()
    read: list[int] = []

    def read_all() -> None:
        for item in feed:
            read.append(item)

    readers = [threading.Thread(target=read_all, daemon=True) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(300):
        feed.put(number)
    feed.close()
    feed.close()
    for reader in readers:
        reader.join(LIMIT_S)
    assert not any(reader.is_alive() for reader in readers)
    assert sorted(read) == list(range(300))


def test_item_that_is_false_is_an_item() -> None:
    feed: Feed[int] = Feed()
    feed.put(0)
    assert feed.next(timeout_s=0.0) == 0
