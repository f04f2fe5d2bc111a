"""Values of every kind for the builder's methods: each is taken or refused with a ``ConfigError`` of one line."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from flodl_core import ConfigError, Ddp, DdpBuilder, MultiStepLR, WorkerSpec
from flodl_core.partition import ratio_to_sizes
from flodl_core.policies import ApplyPolicy, AverageBackend
from flodl_core.rounds import choose_deadline_ms
from tests.flodl_core.training import (
    LIMIT_S,
    configure,
    each_backend,
    every_local_way,
    every_way,
    linear,
    mean_squared_error,
    numbered_samples,
    sgd,
)

VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1.5, 10**400, 10**5000, 2**63, 1j, float("nan"), float("inf"), 1e308, 5e-324,
    "", "x", b"x", [], [1], (), {}, object(), np.int64(8), np.float32(0.5), np.array([1, 2]), np.array(3),
    torch.tensor(3), torch.tensor([1, 2]), lambda: 1,
)  # fmt: skip
ARGUMENTS: dict[str, tuple[Callable[[Any], tuple[Any, ...]], ...]] = {
    "speed_hint": (lambda value: (value, 2.0), lambda value: (0, value)),
    "outer_optimizer": (lambda value: (value,), lambda value: (0.7, value), lambda value: (0.7, 0.9, value)),
}
METHODS = sorted(
    name
    for name in vars(DdpBuilder)
    if not name.startswith("_") and name not in ("run", "dataset", "no_divergence_guard")
)


def new_builder() -> DdpBuilder:
    return Ddp.builder(linear, sgd, mean_squared_error).dataset(numbered_samples(40)).batch_size(4).num_epochs(2)


@pytest.mark.parametrize("name", METHODS)
def test_value_of_any_kind_is_taken_or_refused_in_one_line(name: str) -> None:
    refused = 0
    for value, arrange in itertools.product(VALUES, ARGUMENTS.get(name, (lambda value: (value,),))):
        try:
            getattr(new_builder(), name)(*arrange(value))
        except ConfigError as error:
            refused += 1
            text = str(error)
            assert len(text) < 250
            assert "\n" not in text
    assert refused > 0


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("devices", None, r'devices must be a list such as \["cpu", "cuda:0"\], not None'),
        ("devices", 2, r'devices must be a list such as \["cpu", "cuda:0"\], not 2'),
        ("devices", itertools.repeat("cpu"), "at most 1,024 workers: each is a thread"),
        ("batch_size", 2**63, "batch_size must be an integer from 1 to 2\\*\\*63 - 1, not 9223372036854775808"),
        pytest.param(
            "anchor",
            10**5000,
            r"anchor must be an integer from 1 to 2\*\*63 - 1, not one of 16,610 bits",
            id="anchor",
        ),
        pytest.param(
            "max_time_s", 10**400, "max_time_s must be a finite number above 0, not one of 1,329 bits", id="time"
        ),
        ("amp", np.array([1, 2]), "amp must be bfloat16 or None, not array"),
        ("speed_hint", [1, 1e7], "ratio must be a finite number at least 1 and at most 1e[+]06, not 1"),
        ("speed_hint", 5, "the option speed_hint: missing a required argument: 'ratio'"),
        ("speed_hint", (1, 2, 3), "the option speed_hint: too many positional arguments"),
        ("outer_optimizer", {"rate": 1}, "the option outer_optimizer: got an unexpected keyword argument 'rate'"),
    ],
)
def test_what_is_wrong_is_said(name: str, value: object, message: str) -> None:
    options = {"batch_size": 4, "num_epochs": 1, name: value}
    with pytest.raises(ConfigError, match=message):
        Ddp.auto(linear, sgd, mean_squared_error, numbered_samples(8), **options)  # type: ignore[arg-type]


def test_numbers_of_numpy_are_numbers() -> None:
    size, limit_s = np.int64(8), np.float32(30.0)
    builder = new_builder().batch_size(size).max_time_s(limit_s)  # type: ignore[arg-type]  # mypy knows better
    with builder.run() as handle:
        meta = handle.training_meta
    assert (type(meta["batch_size"]), meta["batch_size"]) == (int, 8)
    assert (type(meta["max_time_s"]), meta["max_time_s"]) == (float, 30.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None,), "a worker's device must be a string such as cpu, not None"),
        ((1,), "a worker's device must be a string"),
        (("cpu", "2.5"), "slowdown must be from 1 to 1000, not '2.5'"),
        (("cpu", None), "slowdown must be from 1 to 1000, not None"),
        (("cpu", True), "slowdown must be from 1 to 1000, not True"),
        (("cpu", float("nan")), "slowdown must be from 1 to 1000, not nan"),
        (("cpu", 10**400), "slowdown must be from 1 to 1000, not one of 1,329 bits"),
    ],
)
def test_worker_that_cannot_be_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        WorkerSpec(*arguments)


@pytest.mark.parametrize("milestones", [None, 5, 1.5])
def test_milestones_that_are_none_are_refused(milestones: Any) -> None:
    with pytest.raises(ConfigError, match="milestones must be integers in a list"):
        MultiStepLR(milestones=milestones)


# Values at the end of what is allowed


@every_way
@pytest.mark.parametrize("ratios", [[1e308, 1e308], [1e308, 5e-324], [5e-324, 5e-324]])
def test_ratios_of_any_size_share_out_every_sample(
    policy: ApplyPolicy, backend: AverageBackend, ratios: list[float]
) -> None:
    builder = configure(numbered_samples(40), policy=policy, backend=backend, num_epochs=2, batch_size=4)
    with builder.partition_ratios(ratios).run() as handle:
        handle.join(timeout_s=LIMIT_S)
        assert [epoch.num_samples for epoch in handle.poll_metrics()] == [40, 40]


def test_ratios_whose_sum_is_beyond_all_numbers_keep_their_proportions() -> None:
    assert ratio_to_sizes([1e308, 1e308], 10) == (5, 5)
    assert ratio_to_sizes([1.5e308, 0.5e308, 1e308], 12) == (6, 2, 4)


@every_local_way
@pytest.mark.parametrize(
    "options",
    [
        {"anchor": 2**63 - 1, "max_anchor": 2**63 - 1},
        {"max_anchor": 2**63 - 1, "max_batch_diff": 2**63 - 1},
        {"batch_size": 2**63 - 1, "max_steps": 2**63 - 1},
        {"grad_accumulation": 65536, "max_time_s": 1e308, "snapshot_timeout_s": 1e308},
    ],
    ids=lambda options: "-".join(options),
)
def test_options_at_their_limits_train_every_sample(
    policy: ApplyPolicy, backend: AverageBackend, options: dict[str, float]
) -> None:
    builder = configure(numbered_samples(40), policy=policy, backend=backend, num_epochs=2, batch_size=4)
    for name, value in options.items():
        getattr(builder, name)(value)
    with builder.run() as handle:
        handle.join(timeout_s=LIMIT_S)
        assert [epoch.num_samples for epoch in handle.poll_metrics()] == [40, 40]


@each_backend
def test_speed_hint_at_its_limit_trains_every_sample(backend: AverageBackend) -> None:
    builder = configure(numbered_samples(40), policy=ApplyPolicy.ASYNC, backend=backend, num_epochs=2, batch_size=4)
    with builder.speed_hint(0, 1e6).anchor(2**63 - 1).max_anchor(2**63 - 1).run() as handle:
        handle.join(timeout_s=LIMIT_S)
        assert handle.progress().totals.num_samples == 80


def test_choosing_among_endless_many_deadlines_takes_no_longer_than_among_many() -> None:
    for anchor in (10**5, 10**9, 2**63 - 1):
        deadline_ms = choose_deadline_ms([10.0, 25.0], anchor=anchor, average_ms=3.0)
        assert 0.7 * 25.0 * anchor <= deadline_ms <= 1.3 * 25.0 * anchor
