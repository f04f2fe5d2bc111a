from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import SGD, Optimizer

from flodl_core.learning_rate import LearningRate, scale_for


def _optimizer(*rates: float) -> SGD:
    return SGD([{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for rate in rates], lr=1.0)


def _rates(optimizer: Optimizer) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups]


@pytest.mark.parametrize(("world_size", "ratio", "scale"), [(1, 1.0, 1.0), (4, 1.0, 4.0), (4, 0.0, 1.0), (3, 0.5, 2.0)])
def test_scale_follows_the_world_size_by_the_ratio(world_size: int, ratio: float, scale: float) -> None:
    assert scale_for(world_size, ratio) == scale


def test_every_group_is_scaled_from_its_own_base() -> None:
    optimizer = _optimizer(0.25, 0.5)
    lr = LearningRate(optimizer, scale=2.0, schedule=None)
    assert _rates(optimizer) == [0.25, 0.5]
    lr.prepare(0)
    assert _rates(optimizer) == [0.5, 1.0]
    lr.prepare(10)
    assert _rates(optimizer) == [0.5, 1.0]
    assert lr.current == 0.5


def test_schedule_is_a_factor_at_its_position() -> None:
    optimizer = _optimizer(0.5)
    lr = LearningRate(optimizer, scale=2.0, schedule=lambda position: 1 / (1 + position))
    lr.prepare(0)
    assert _rates(optimizer) == [1.0]
    lr.prepare(3)
    assert _rates(optimizer) == [0.25]
    assert (lr.current, lr.position) == (0.25, 3)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=20))
def test_position_never_goes_back(positions: list[int]) -> None:
    optimizer = _optimizer(1.0)
    lr = LearningRate(optimizer, scale=1.0, schedule=float)
    for count, position in enumerate(positions, start=1):
        lr.prepare(position)
        assert lr.position == max(positions[:count])
        assert _rates(optimizer) == [float(lr.position)]


def test_rate_held_in_a_tensor_is_written_in_place() -> None:
    rate = torch.tensor(0.5)
    optimizer = SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate, foreach=False)
    held = optimizer.param_groups[0]["lr"]
    LearningRate(optimizer, scale=3.0, schedule=None).prepare(0)
    assert optimizer.param_groups[0]["lr"] is held
    assert held.item() == 1.5


def test_changes_take_effect_with_the_next_step() -> None:
    optimizer = _optimizer(0.25, 0.5)
    lr = LearningRate(optimizer, scale=2.0, schedule=None)
    lr.prepare(0)
    lr.multiply_base(0.5)
    assert lr.current == 0.25
    assert _rates(optimizer) == [0.5, 1.0]
    lr.prepare(1)
    assert _rates(optimizer) == [0.25, 0.5]
    lr.set_base(1.0)
    lr.prepare(2)
    assert _rates(optimizer) == [2.0, 2.0]
    lr.set_scale(3.0)
    lr.prepare(3)
    assert _rates(optimizer) == [3.0, 3.0]
    lr.set_schedule(lambda position: position / 8)
    lr.prepare(4)
    assert _rates(optimizer) == [1.5, 1.5]
    lr.set_schedule(None)
    lr.prepare(5)
    assert _rates(optimizer) == [3.0, 3.0]


def test_scale_does_not_compound_from_step_to_step() -> None:
    optimizer = _optimizer(0.5)
    lr = LearningRate(optimizer, scale=2.0, schedule=lambda _: 1.0)
    for position in range(5):
        lr.prepare(position)
    assert _rates(optimizer) == [1.0]
