from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from flodl_core.data import GATHER_BYTES, BatchSource, Permutations, as_source
from flodl_core.loader import Loader

CPU = torch.device("cpu")
NUM_SAMPLES = 100


class Pair(NamedTuple):
    inputs: Tensor
    labels: Tensor


class CountingSource:
    """Tensors, and how often and how many of them are gathered."""

    loads_slowly = False
    device: torch.device | None = CPU

    def __init__(self, tensors: Any, gathers_at_once: int) -> None:
        self._source = as_source(tensors)
        self.gathers_at_once = gathers_at_once
        self.sizes: list[int] = []

    def __len__(self) -> int:
        return len(self._source)

    def get(self, indices: Tensor) -> Any:
        self.sizes.append(len(indices))
        return self._source.get(indices)


def _inputs() -> Tensor:
    return torch.arange(2.0 * NUM_SAMPLES).reshape(NUM_SAMPLES, 2)


def _loader(source: BatchSource) -> Loader:
    return Loader(source, Permutations(seed=3, num_samples=len(source)), device=CPU, name="loader")


def _slice(loader: Loader, *, offset: int, size: int, batch_size: int) -> Iterator[Any]:
    """The batches of a slice, as a worker asks for them."""
    for done in range(0, size, batch_size):
        num_samples = min(batch_size, size - done)
        following = size - done - num_samples
        yield loader.fetch(epoch=0, offset=offset + done, size=num_samples, following=following)


@given(
    offset=st.integers(0, 40),
    size=st.integers(1, 60),
    batch_size=st.integers(1, 20),
    at_once=st.integers(0, 70),
)
def test_batches_are_those_of_the_permutation_however_many_are_gathered_at_once(
    offset: int, size: int, batch_size: int, at_once: int
) -> None:
    source = CountingSource(_inputs(), at_once)
    batches = list(_slice(_loader(source), offset=offset, size=size, batch_size=batch_size))
    order = Permutations(seed=3, num_samples=NUM_SAMPLES).indices(epoch=0, offset=offset, size=size)
    assert [len(batch) for batch in batches[:-1]] == [batch_size] * (len(batches) - 1)
    assert torch.equal(torch.cat(batches), _inputs()[order])
    assert max(source.sizes) <= max(batch_size, at_once)


def test_small_batches_of_a_slice_are_gathered_together() -> None:
    source = CountingSource(_inputs(), 12)
    assert len(list(_slice(_loader(source), offset=0, size=30, batch_size=4))) == 8
    assert source.sizes == [12, 12, 6]


def test_batches_that_were_gathered_and_not_fetched_are_forgotten() -> None:
    loader = _loader(CountingSource(_inputs(), 100))
    next(_slice(loader, offset=0, size=20, batch_size=4))
    order = Permutations(seed=3, num_samples=NUM_SAMPLES).indices(epoch=0, offset=40, size=4)
    assert torch.equal(loader.fetch(epoch=0, offset=40, size=4), _inputs()[order])


@pytest.mark.parametrize("tensors", [(_inputs(), _inputs()), Pair(_inputs(), _inputs()), {"x": _inputs()}])
def test_batches_have_the_form_of_the_dataset(tensors: Any) -> None:
    together = list(_slice(_loader(CountingSource(tensors, 100)), offset=0, size=10, batch_size=4))
    alone = list(_slice(_loader(CountingSource(tensors, 0)), offset=0, size=10, batch_size=4))
    for batch, expected in zip(together, alone, strict=True):
        assert type(batch) is type(expected)
        keys = list(expected) if isinstance(expected, dict) else range(len(expected))
        assert all(torch.equal(batch[key], expected[key]) for key in keys)


def test_a_batch_may_be_changed_in_place_with_gradients_and_the_next_stays() -> None:
    loader = _loader(as_source(_inputs()))
    order = Permutations(seed=3, num_samples=NUM_SAMPLES).indices(epoch=0, offset=0, size=8)
    weight = torch.ones((), requires_grad=True)
    first, second = _slice(loader, offset=0, size=8, batch_size=4)
    first.mul_(weight)
    first.sum().backward()
    assert weight.grad is not None
    assert torch.equal(second, _inputs()[order[4:]])


def test_samples_that_carry_gradients_give_each_batch_a_graph_of_its_own() -> None:
    inputs = _inputs().requires_grad_()
    for batch in _slice(_loader(as_source(inputs)), offset=0, size=8, batch_size=4):
        batch.square().sum().backward()
    order = Permutations(seed=3, num_samples=NUM_SAMPLES).indices(epoch=0, offset=0, size=8)
    assert inputs.grad is not None
    assert torch.equal(inputs.grad[order], 2 * _inputs()[order])


def test_only_as_much_is_gathered_at_once_as_stays_in_the_cache() -> None:
    small, large = torch.zeros(10, 4), torch.zeros(10, GATHER_BYTES // 8)
    assert as_source(small).gathers_at_once == GATHER_BYTES // 16
    assert as_source((small, large)).gathers_at_once == 2
    assert as_source(torch.zeros(10, GATHER_BYTES)).gathers_at_once == 0
    assert as_source(torch.zeros(10, 0)).gathers_at_once > 0
