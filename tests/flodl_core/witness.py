"""What a run did, in the true order of each rank: batches with their samples, snapshots and averages taken.

Everything is written down by the worker's own thread, at the seams that a run has anyway: ``train_fn``, the
optimizer's hooks, and the messages that the worker sends.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flodl_core import DdpBuilder, WorkerContext
from flodl_core.background import BackgroundThread
from flodl_core.channel import ThreadChannel
from flodl_core.messages import Averaged, Snapshot, SyncDone
from tests.flodl_core.training import LIMIT_S, Outcome, Samples, TrainFn, mean_squared_error, sgd, train

State = dict[str, Tensor]
"""A model's trainable parameters and its buffers, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """One batch.

    Attributes:
        epoch: The epoch that the rank was in when it began.
        numbers: Its samples, in order.
        is_poisoned: Whether its loss was made infinite.
        before: The replica when ``train_fn`` was called.
        after: The replica after the step.
    """

    epoch: int
    numbers: tuple[int, ...]
    is_poisoned: bool
    before: State
    after: State


@dataclass(frozen=True, slots=True, kw_only=True)
class Handed:
    """The replica was handed in for a round's average."""

    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """A round's average was taken."""

    round: int


Step = Trained | Handed | Merged
Story = list[Step]


def state_of(model: nn.Module) -> State:
    """A copy of all that an average concerns."""
    trainable = {name: param for name, param in model.named_parameters() if param.requires_grad}
    return {name: tensor.detach().clone() for name, tensor in {**trainable, **dict(model.named_buffers())}.items()}


@dataclass(slots=True)
class _UnderWay:
    """What a worker's thread knows of itself."""

    rank: int
    epoch: int = 0
    num_batches: int = 0
    model: nn.Module | None = None
    numbers: tuple[int, ...] = ()
    is_poisoned: bool = False
    before: State | None = None


def _never(rank: int, batch: int) -> bool:
    return False


class Witness:
    """Looks on at one run.

    Args:
        train_fn: The loss.
        optim_factory: The optimizer.
        poison: Whether a rank's n-th batch, from 0, gets an infinite loss.
    """

    def __init__(
        self,
        train_fn: TrainFn = mean_squared_error,
        optim_factory: Callable[[Any], Optimizer] = sgd,
        poison: Callable[[int, int], bool] = _never,
    ) -> None:
        self.stories: dict[int, Story] = {}
        self.trained: Counter[int] = Counter()
        """Samples trained, by epoch."""
        self.num_averages = 0
        self.num_averaged_epochs = 0
        self.taken_ms: list[float] = []
        """What each average, computed beside the workers, said that it took of their time."""
        self.num_holds = 0
        self.on_batch: Callable[[int, int], None] = lambda rank, epoch: None
        """Called before each batch with its rank and epoch; may wait."""
        self._train_fn = train_fn
        self._optim_factory = optim_factory
        self._poison = poison
        self._changed = threading.Condition()
        self._thread = threading.local()

    def watch(self, builder: DdpBuilder) -> Outcome:
        """Train to the end and look on. The builder must have this witness's ``train_fn`` and ``make_optimizer``."""
        with self._listening():
            return train(builder.epoch_fn(self._begin_epoch))

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until something that was written down makes the condition true."""
        with self._changed:
            assert self._changed.wait_for(condition, LIMIT_S), "what a test waits for does not happen"

    def _story(self, rank: int) -> Story:
        return self.stories.setdefault(rank, [])

    # Batches

    def _begin_epoch(self, epoch: int, worker: WorkerContext) -> None:
        if epoch == 0:
            self._thread.now = _UnderWay(rank=worker.rank)
        self._thread.now.epoch = epoch

    def train_fn(self, model: nn.Module, batch: Samples) -> Tensor:
        """A ``train_fn``."""
        now: _UnderWay = self._thread.now
        self.on_batch(now.rank, now.epoch)
        now.model, now.before, now.numbers = model, state_of(model), tuple(batch[2].tolist())
        now.is_poisoned = self._poison(now.rank, now.num_batches)
        loss = self._train_fn(model, batch)
        return loss * torch.inf if now.is_poisoned else loss

    def make_optimizer(self, params: Any) -> Optimizer:
        """An ``optim_factory``."""
        optimizer = self._optim_factory(params)
        optimizer.register_step_post_hook(self._stepped)
        return optimizer

    def _stepped(self, *_: object) -> None:
        now: _UnderWay = self._thread.now
        assert now.model is not None
        assert now.before is not None
        step = Trained(
            epoch=now.epoch,
            numbers=now.numbers,
            is_poisoned=now.is_poisoned,
            before=now.before,
            after=state_of(now.model),
        )
        now.num_batches += 1
        with self._changed:
            self._story(now.rank).append(step)
            self.trained[now.epoch] += len(now.numbers)
            self._changed.notify_all()

    # Messages

    @contextmanager
    def _listening(self) -> Iterator[None]:
        send = ThreadChannel.send

        def note_and_send(channel: ThreadChannel[Any], message: Any) -> None:
            if isinstance(message, Averaged):
                send(channel, message)  # who waits for it to be noted may count on the coordinator to hear of it first
                self._note(message)
            else:
                self._note(message)
                send(channel, message)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ThreadChannel, "send", note_and_send)
            yield

    def _note(self, message: object) -> None:
        with self._changed:
            match message:
                case Snapshot():
                    self._story(message.entry.rank).append(Handed(round=message.entry.round))
                case SyncDone():
                    self._story(message.rank).append(Merged(round=message.round))
                case Averaged():
                    self.num_averages += 1
                    self.taken_ms.append(message.taken_ms)
                    self.num_averaged_epochs += len(message.epochs)
                case _:
                    return
            self._changed.notify_all()

    # Overlap

    @contextmanager
    def averaging_held(self, *, num_batches: int, epoch_size: int, batch_size: int) -> Iterator[None]:
        """Let every average through the CPU begin only when a rank has trained so many batches since its snapshot.

        Not where an epoch has too little left for that, or is complete: then ranks would wait for this very average.
        """
        submit = BackgroundThread.submit

        def hold() -> None:
            with self._changed:
                complete = sum(self.trained[epoch] >= epoch_size for epoch in self.trained)
                left = epoch_size - self.trained[complete]
                is_safe = complete == self.num_averaged_epochs and left >= num_batches * len(self.stories) * batch_size
            if is_safe:
                self.num_holds += 1
                self.wait_for(lambda: max(self._since_snapshot()) >= num_batches)

        def submit_held(thread: BackgroundThread, task: Callable[[], None]) -> None:
            def held() -> None:
                if threading.current_thread().name == "ddp-averager":
                    hold()
                task()

            submit(thread, held)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(BackgroundThread, "submit", submit_held)
            yield

    def _since_snapshot(self) -> list[int]:
        """Batches of each rank since it last handed in."""
        counts = []
        for story in self.stories.values():
            latest = max((i for i, step in enumerate(story) if isinstance(step, Handed)), default=len(story))
            counts.append(sum(isinstance(step, Trained) for step in story[latest:]))
        return counts
