from __future__ import annotations

import threading

import pytest

from flodl_core.channel import ThreadChannel
from flodl_core.errors import ChannelClosed

LIMIT_S = 30.0


def test_messages_come_out_in_the_order_in_which_they_went_in() -> None:
    channel: ThreadChannel[int] = ThreadChannel()
    assert channel.is_empty()
    for number in range(3):
        channel.send(number)
    assert not channel.is_empty()
    assert [channel.receive() for _ in range(3)] == [0, 1, 2]
    assert channel.is_empty()


def test_drain_takes_what_has_arrived_without_waiting() -> None:
    channel: ThreadChannel[int] = ThreadChannel()
    assert channel.drain() == []
    channel.send(1)
    channel.send(2)
    assert channel.drain() == [1, 2]
    assert channel.drain() == []


def test_receiver_gives_up_after_its_limit() -> None:
    assert ThreadChannel[int]().receive(timeout_s=0.0) is None


def test_what_was_sent_before_the_end_is_still_received() -> None:
    channel: ThreadChannel[int] = ThreadChannel()
    channel.send(1)
    channel.close()
    assert channel.closed
    assert [channel.receive(), channel.receive()] == [1, None]


def test_drain_after_the_end_takes_messages_only() -> None:
    channel: ThreadChannel[int] = ThreadChannel()
    channel.send(1)
    channel.close()
    assert channel.drain() == [1]


def test_nothing_is_sent_into_a_closed_channel() -> None:
    channel: ThreadChannel[str] = ThreadChannel()
    channel.close()
    channel.close()
    with pytest.raises(ChannelClosed, match="cannot send str: the channel is closed"):
        channel.send("late")
    assert channel.drain() == []


def test_receiver_on_another_thread_gets_every_message_and_wakes_at_the_end() -> None:
    channel: ThreadChannel[int] = ThreadChannel()
    received: list[int] = []

    def receive() -> None:
        while (message := channel.receive()) is not None:
            received.append(message)

    thread = threading.Thread(target=receive, daemon=True)
    thread.start()
    for number in range(100):
        channel.send(number)
    channel.close()
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    assert received == list(range(100))


def test_messages_of_many_senders_each_keep_their_order() -> None:
    channel: ThreadChannel[tuple[int, int]] = ThreadChannel()
    start = threading.Barrier(4)

    def send(sender: int) -> None:
        start.wait(LIMIT_S)
        for number in range(200):
            channel.send((sender, number))

    threads = [threading.Thread(target=send, args=(sender,), daemon=True) for sender in range(4)]
    for thread in threads:
        thread.start()
    received = [channel.receive(LIMIT_S) for _ in range(800)]
    for thread in threads:
        thread.join(LIMIT_S)
    for sender in range(4):
        own = [message[1] for message in received if message is not None and message[0] == sender]
        assert own == list(range(200))
