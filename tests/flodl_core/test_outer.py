from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.optim import SGD

from flodl_core.errors import ConfigError, StateError
from flodl_core.outer import OuterOptimizer, OuterOptions, OuterState, make_outer

SIZE = 5


def step(outer: OuterOptimizer, mean: Tensor, *, has_trained: bool = True) -> Tensor:
    consensus = mean.clone()
    outer.apply(0, 0, consensus, torch.empty_like(consensus), has_trained=has_trained)
    return consensus


def means(num: int, *, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(SIZE, generator=generator, dtype=torch.float64).to(dtype) for _ in range(num)]


@pytest.mark.parametrize(
    ("lr", "momentum", "nesterov"), [(0.7, 0.9, True), (0.7, 0.9, False), (1.3, 0.0, False), (1.0, 0.5, True)]
)
def test_steps_are_those_of_torch_sgd(lr: float, momentum: float, nesterov: bool) -> None:
    start = torch.linspace(-1, 1, SIZE, dtype=torch.float64)
    theta = torch.nn.Parameter(start.clone())
    sgd = SGD([theta], lr=lr, momentum=momentum, nesterov=nesterov)
    outer = OuterOptimizer(OuterOptions(lr=lr, momentum=momentum, nesterov=nesterov), [start])
    for mean in means(8):
        theta.grad = theta.detach() - mean
        sgd.step()
        torch.testing.assert_close(step(outer, mean), theta.detach(), rtol=1e-14, atol=1e-14)


def test_without_momentum_a_factor_of_one_lands_on_the_mean() -> None:
    assert make_outer(OuterOptions(lr=1.0, momentum=0.0, nesterov=False), [torch.zeros(1)]) is None
    assert make_outer(None, [torch.zeros(1)]) is None
    assert make_outer(OuterOptions(), [torch.zeros(1)]) is not None
    half = OuterOptimizer(OuterOptions(lr=0.5, momentum=0.0, nesterov=False), [torch.zeros(SIZE)])
    assert step(half, torch.full((SIZE,), 4.0)).tolist() == [2.0] * SIZE
    assert half.state().velocity == ()


def test_where_nothing_was_trained_the_consensus_stays() -> None:
    outer = OuterOptimizer(OuterOptions(), [torch.zeros(SIZE)])
    first = step(outer, torch.ones(SIZE))
    before = outer.state()
    assert torch.equal(step(outer, torch.full((SIZE,), 9.0), has_trained=False), first)
    assert torch.equal(outer.state().velocity[0], before.velocity[0])
    assert torch.equal(outer.state().consensus[0], before.consensus[0])


def test_rounding_of_half_precision_does_not_look_like_training() -> None:
    start = torch.full((SIZE,), 0.1, dtype=torch.bfloat16)
    outer = OuterOptimizer(OuterOptions(), [start])
    taken = step(outer, torch.full((SIZE,), 0.3)).to(torch.bfloat16)
    assert torch.equal(outer.state().consensus[0], taken)
    still = OuterOptimizer(OuterOptions(momentum=0.0, nesterov=False), [taken])
    assert torch.equal(step(still, taken.to(torch.float32)).to(torch.bfloat16), taken)
    assert outer.state().velocity[0].dtype == torch.float32


def test_initial_parameters_are_copied() -> None:
    start = torch.zeros(SIZE)
    outer = OuterOptimizer(OuterOptions(lr=0.5, momentum=0.0, nesterov=False), [start])
    start.fill_(100.0)
    assert step(outer, torch.ones(SIZE)).tolist() == [0.5] * SIZE


@given(cut=st.integers(1, 6), lr=st.floats(0.1, 2.0), momentum=st.floats(0.01, 0.99))
def test_run_that_goes_on_from_a_state_steps_as_if_never_stopped(cut: int, lr: float, momentum: float) -> None:
    options = OuterOptions(lr=lr, momentum=momentum)
    start = torch.zeros(SIZE, dtype=torch.float64)
    whole, first, second = (OuterOptimizer(options, [start]) for _ in range(3))
    expected = [step(whole, mean) for mean in means(7)]
    for mean in means(7)[:cut]:
        step(first, mean)
    second.load(first.state())
    for mean, wanted in zip(means(7)[cut:], expected[cut:], strict=True):
        assert torch.equal(step(second, mean), wanted)


def test_state_is_a_copy() -> None:
    outer = OuterOptimizer(OuterOptions(), [torch.zeros(SIZE)])
    state = outer.state()
    step(outer, torch.ones(SIZE))
    assert not state.consensus[0].any()
    assert not state.velocity[0].any()


@pytest.mark.parametrize(
    ("consensus", "velocity", "message"),
    [
        ([torch.zeros(SIZE + 1)], [torch.zeros(SIZE)], r"expected torch.float32 \(5,\), not torch.float32 \(6,\)"),
        ([torch.zeros(SIZE)], [torch.zeros(SIZE).double()], "not torch.float64"),
        ([torch.zeros(SIZE)], [], "1 tensors where 2"),
    ],
)
def test_state_of_another_model_is_refused(
    consensus: Sequence[Tensor], velocity: Sequence[Tensor], message: str
) -> None:
    outer = OuterOptimizer(OuterOptions(), [torch.zeros(SIZE)])
    with pytest.raises(StateError, match=message):
        outer.load(OuterState(consensus=tuple(consensus), velocity=tuple(velocity)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": 0.0}, "outer lr"),
        ({"lr": -1.0}, "outer lr"),
        ({"lr": math.inf}, "outer lr"),
        ({"lr": math.nan}, "outer lr"),
        ({"momentum": 1.0}, "outer momentum"),
        ({"momentum": -0.1}, "outer momentum"),
        ({"momentum": math.nan}, "outer momentum"),
        ({"momentum": 0.0}, "nesterov=False"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OuterOptions(**options)
