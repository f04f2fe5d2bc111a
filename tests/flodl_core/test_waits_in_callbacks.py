"""A function of the user's that asks its own run to wait: it is told, or let go on, and never hangs."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor, nn

from flodl_core import DdpBuilder, DdpHandle, FlodlError
from flodl_core.policies import ApplyPolicy, AverageBackend
from tests.flodl_core.training import LIMIT_S, configure, mean_squared_error, numbered_samples

PLACES = ("train_fn", "epoch_fn", "eval_fn", "metrics_fn", "checkpoint_fn")


class Caller:
    """Does something with the handle at its first call, and keeps what came of it."""

    def __init__(self, act: Callable[[DdpHandle], object]) -> None:
        self._act = act
        self._handle: DdpHandle | None = None
        self._is_known = threading.Event()
        self._once = threading.Lock()
        self.results: list[object] = []

    def __call__(self, *args: Any) -> Any:
        assert self._is_known.wait(LIMIT_S)
        assert self._handle is not None
        if self._once.acquire(blocking=False):
            try:
                self.results.append(self._act(self._handle))
            except FlodlError as error:
                self.results.append(str(error))
        return {"figure": 1.0}

    def run(self, place: str, *, devices: tuple[str, ...] = ("cpu", "cpu")) -> None:
        def train(model: nn.Module, batch: Any) -> Tensor:
            if place == "train_fn":
                self()
            return mean_squared_error(model, batch)

        builder: DdpBuilder = configure(
            numbered_samples(40),
            policy=ApplyPolicy.CADENCE,
            backend=AverageBackend.GLOO,
            num_epochs=3,
            batch_size=8,
            devices=devices,
            train_fn=train,
        )
        if place != "train_fn":
            getattr(builder, place)(self)
        with builder.run() as self._handle:
            self._is_known.set()
            self._handle.join(timeout_s=LIMIT_S)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("wait", "instead"),
    [
        (lambda handle: handle.join(), "join() inside a callback of the run would wait for itself"),
        (lambda handle: list(handle.metrics()), "poll_metrics() takes what is there"),
        (lambda handle: handle.next_metrics(), "poll_metrics() takes what is there"),
        (lambda handle: list(handle.events()), "poll_events() takes what is there"),
    ],
    ids=["join", "metrics", "next_metrics", "events"],
)
def test_waiting_for_the_run_inside_of_it_is_refused(
    place: str, wait: Callable[[DdpHandle], object], instead: str
) -> None:
    caller = Caller(wait)
    caller.run(place)
    (result,) = caller.results
    assert instead in str(result)


@pytest.mark.parametrize("place", PLACES)
def test_what_does_not_wait_works_inside_of_the_run(place: str) -> None:
    def look(handle: DdpHandle) -> str:
        handle.poll_metrics()
        handle.poll_events()
        handle.next_metrics(timeout_s=0.0)
        handle.progress()
        return handle.status

    caller = Caller(look)
    caller.run(place)
    assert caller.results == ["running"]


@pytest.mark.parametrize("place", PLACES)
def test_context_left_inside_of_the_run_stops_it_and_goes_on(place: str) -> None:
    def leave(handle: DdpHandle) -> str:
        with handle:
            pass
        return "left"

    caller = Caller(leave)
    caller.run(place)
    assert caller.results == ["left"]


@pytest.mark.parametrize("place", ["train_fn", "epoch_fn"])
def test_worker_that_asks_for_the_graph_before_the_first_batch_is_told(place: str) -> None:
    caller = Caller(lambda handle: handle.graph_hash)
    caller.run(place, devices=("cpu",))
    assert caller.results == ["the model's graph is known from rank 0's first batch on: a worker cannot wait for that"]


def test_graph_is_there_in_later_callbacks() -> None:
    caller = Caller(lambda handle: handle.graph_hash)
    caller.run("checkpoint_fn")
    (result,) = caller.results
    assert len(str(result)) == 64


@pytest.mark.parametrize("limit_s", [1e300, float("inf")])
def test_limit_beyond_all_clocks_is_none(limit_s: float) -> None:
    builder = configure(
        numbered_samples(40), policy=ApplyPolicy.SYNC, backend=AverageBackend.GLOO, num_epochs=1, batch_size=8
    )
    with builder.run() as handle:
        epoch = handle.next_metrics(timeout_s=limit_s)
        assert epoch is not None
        assert epoch.num_samples == 40
        handle.join(timeout_s=limit_s)
