"""The oracle of laws 2 and 3: walks through what a run did and averages in float64, by the words of the law alone."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tests.flodl_core.training import Samples, TrainFn
from tests.flodl_core.witness import Handed, Merged, State, Step, Story, Trained, state_of


class Side(Protocol):
    """One rank's replica, as the oracle has it."""

    def train(self, step: Trained) -> None: ...

    def hand_in(self) -> State: ...

    def merge(self, mean: State, snapshot: State, *, has_trained: bool, is_excluded: bool) -> None:
        """Take an average; ``has_trained``: since the snapshot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hand:
    """What a rank brings to an average."""

    num_samples: int
    state: State
    is_finite: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Average:
    """A round's average as it should have been.

    Attributes:
        round: The round.
        weights: Samples by rank, of the finite ones.
        excluded: Ranks that were not finite.
        mean: By name, in float64 where floating.
    """

    round: int
    weights: dict[int, int]
    excluded: tuple[int, ...]
    mean: State


@dataclass(slots=True)
class Walk:
    """The oracle's way through the ranks' stories.

    Attributes:
        stories: What each rank did.
        sides: The oracle's replicas, by rank.
        param_names: What is merged by difference; the rest are buffers.
        averages: By round.
        num_discarded: Samples that non-finite ranks lost.
        num_overlapped: Batches trained between a snapshot and its average.
    """

    stories: Mapping[int, Story]
    sides: Mapping[int, Side]
    param_names: frozenset[str]
    averages: dict[int, Average] = field(default_factory=dict)
    num_discarded: int = 0
    num_overlapped: int = 0
    _hands: dict[int, dict[int, Hand]] = field(default_factory=dict)
    _since: dict[int, int] = field(default_factory=dict)
    _batches: dict[int, int] = field(default_factory=dict)
    _takers: dict[int, set[int]] = field(default_factory=dict)

    def run(self) -> "Walk":
        """Go through all stories; each waits at an average until those that took part have handed in."""
        stories = {rank: _with_hand_ins(story) for rank, story in self.stories.items()}
        for rank, story in stories.items():
            for step in story:
                if isinstance(step, Merged):
                    self._takers.setdefault(step.round, set()).add(rank)
        cursors = dict.fromkeys(stories, 0)
        while any(cursors[rank] < len(stories[rank]) for rank in stories):
            before = dict(cursors)
            for rank, story in stories.items():
                while cursors[rank] < len(story) and self._may(story[cursors[rank]]):
                    self._take(rank, story[cursors[rank]])
                    cursors[rank] += 1
            assert cursors != before, "an average was taken before all of its snapshots were handed in"
        return self

    @property
    def num_unaveraged(self) -> int:
        """Samples trained after their rank's last snapshot that made it into an average."""
        return sum(self._since.values())

    def _may(self, step: Step) -> bool:
        return not isinstance(step, Merged) or self._hands.get(step.round, {}).keys() == self._takers[step.round]

    def _take(self, rank: int, step: Step) -> None:
        match step:
            case Trained():
                self.sides[rank].train(step)
                self._since[rank] = self._since.get(rank, 0) + len(step.numbers)
                self._batches[rank] = self._batches.get(rank, 0) + 1
            case Handed():
                if rank in self._takers.get(step.round, ()):  # else it came too late: its samples count for the next
                    self._hand_in(rank, step.round)
            case Merged():
                self._merge(rank, step.round)

    def _hand_in(self, rank: int, round_: int) -> None:
        state = self.sides[rank].hand_in()
        is_finite = all(bool(torch.isfinite(state[name]).all()) for name in self.param_names)
        hand = Hand(num_samples=self._since.get(rank, 0), state=state, is_finite=is_finite)
        self._hands.setdefault(round_, {})[rank] = hand
        self._since[rank] = self._batches[rank] = 0

    def _merge(self, rank: int, round_: int) -> None:
        if round_ not in self.averages:
            self.averages[round_] = average(round_, self._hands[round_], self.param_names)
        hand, agreed = self._hands[round_][rank], self.averages[round_]
        is_excluded = rank in agreed.excluded
        self.num_overlapped += self._batches[rank]
        self.sides[rank].merge(agreed.mean, hand.state, has_trained=self._batches[rank] > 0, is_excluded=is_excluded)
        if is_excluded:  # what it trained since its snapshot is lost as well
            self.num_discarded += hand.num_samples + self._since[rank]
            self._since[rank] = 0


def _with_hand_ins(story: Story) -> Story:
    """Over an all-reduce, handing in and taking the average are one."""
    if any(isinstance(step, Handed) for step in story):
        return story
    full: Story = []
    for step in story:
        full += [Handed(round=step.round), step] if isinstance(step, Merged) else [step]
    return full


def average(round_: int, hands: Mapping[int, Hand], param_names: frozenset[str]) -> Average:
    """Law 2: sum(n_r x theta_r) / sum(n_r) over the finite ranks; whole numbers from the rank that trained most."""
    finite = {rank: hands[rank] for rank in sorted(hands) if hands[rank].is_finite}
    weights = {rank: hand.num_samples for rank, hand in finite.items()}
    used = {rank: count for rank, count in weights.items() if count} or {min(finite): 1}
    most = max(finite, key=lambda rank: (weights[rank], -rank))
    mean = {}
    for name, like in finite[most].state.items():
        if not like.is_floating_point():
            mean[name] = like
            continue
        tensors = [finite[rank].state[name].double() for rank in used]
        mean[name] = torch.stack([t * n for t, n in zip(tensors, used.values(), strict=True)]).sum(0) / sum(
            used.values()
        )
        if name not in param_names:  # a causal mask holds -inf: what is equal everywhere stays
            same = torch.stack([tensor == tensors[0] for tensor in tensors]).all(0)
            mean[name] = torch.where(same, tensors[0], mean[name])
    excluded = tuple(sorted(set(hands) - set(finite)))
    return Average(round=round_, weights=weights, excluded=excluded, mean=mean)


class Retrained:
    """A replica that trains the same batches again, in one thread, by itself.

    Args:
        model: Its own; also says in which precision.
        samples: The dataset.
        train_fn: The loss.
        optim_factory: The optimizer.
        keeps: Whether what was trained since a snapshot outlasts the average: False is the fault to be told apart.
    """

    def __init__(
        self,
        model: nn.Module,
        samples: Samples,
        train_fn: TrainFn,
        optim_factory: Callable[[Any], Optimizer],
        *,
        keeps: bool = True,
    ) -> None:
        self.model = copy.deepcopy(model)
        self._samples = samples
        self._train_fn = train_fn
        self._params = [param for param in self.model.parameters() if param.requires_grad]
        self._optimizer = optim_factory(self._params)
        self._keeps = keeps

    def train(self, step: Trained) -> None:
        indices = torch.tensor(step.numbers)
        self._optimizer.zero_grad()
        loss = self._train_fn(self.model, tuple(tensor[indices] for tensor in self._samples))
        (loss * torch.inf if step.is_poisoned else loss).backward()
        self._optimizer.step()

    def hand_in(self) -> State:
        return state_of(self.model)

    @torch.no_grad()
    def merge(self, mean: State, snapshot: State, *, has_trained: bool, is_excluded: bool) -> None:
        for name, param in self.model.named_parameters():
            if not param.requires_grad:
                continue
            if is_excluded or not self._keeps:
                param.copy_(mean[name])
            else:
                param.add_(mean[name] - snapshot[name])
        for name, buffer in self.model.named_buffers():
            buffer.copy_(mean[name])
        if is_excluded:
            self._optimizer.state.clear()


TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}
"""Relative and absolute, of values near one: sums run in float32 or wider, the last rounding is the tensor's own."""


class Observed:
    """A replica that does not train but believes what was seen, and checks that each average left what it should.

    Args:
        initial: What all replicas start from.
        param_names: What is merged by difference.
    """

    def __init__(self, initial: State, param_names: frozenset[str]) -> None:
        self._param_names = param_names
        self._state = initial
        self._is_expected = True

    def train(self, step: Trained) -> None:
        if self._is_expected:
            check_close(step.before, self._state)
        self._state, self._is_expected = step.after, False

    def hand_in(self) -> State:
        return self._state

    def merge(self, mean: State, snapshot: State, *, has_trained: bool, is_excluded: bool) -> None:
        kept = {
            name: mean[name] + (self._state[name].double() - snapshot[name].double())
            for name in self._param_names
            if has_trained and not is_excluded
        }
        # in the tensors' own types, as the replica holds them: a later snapshot may be taken without a batch between
        self._state = {name: tensor.to(self._state[name].dtype) for name, tensor in {**mean, **kept}.items()}
        self._is_expected = True


def check_close(actual: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Equal but for rounding, every tensor; whole numbers exactly."""
    assert actual.keys() == expected.keys()
    for name, tensor in actual.items():
        if not tensor.is_floating_point():
            assert torch.equal(tensor, expected[name]), name
            continue
        tolerance = TOLERANCE[tensor.dtype]
        wide, target = tensor.double(), expected[name].double()
        # a replica that turned non-finite after its snapshot is so in the oracle too, until it is mended
        is_close = torch.allclose(wide, target, rtol=tolerance, atol=tolerance, equal_nan=True)
        assert is_close, f"{name}: {wide} instead of {target}"
