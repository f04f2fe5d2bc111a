"""One worker's model, optimizer and batches: what a batch costs and what it does."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flodl_core.arguments import check_callable, real_number
from flodl_core.data import Permutations
from flodl_core.errors import ConfigError, ModelError, TrainFnError
from flodl_core.idle_time import IdleClock
from flodl_core.job import Job
from flodl_core.learning_rate import LearningRate, Schedule, scale_for
from flodl_core.loader import Loader
from flodl_core.messages import Scalars
from flodl_core.replica import Replica, check_is_new, load_initial
from flodl_core.scalars import ScalarCollector


class Trainer:
    """Owned by one worker's thread, which also makes it.

    Args:
        job: The run.
        rank: The worker's rank.
        initial: The model that all replicas start from; only read.
        permutations: Shared by all workers.
    """

    def __init__(self, job: Job, rank: int, *, initial: nn.Module, permutations: Permutations) -> None:
        self.job = job
        self.rank = rank
        self.device = job.devices[rank]
        self.model = build_model(job, self.device)
        check_is_new(self.model, initial)
        if rank == 0:
            job.first_forward.watch(self.model)
        load_initial(self.model, initial)
        self.replica = Replica(self.model)
        self.optimizer = job.make_optimizer(self.model)
        scale = scale_for(job.world_size, job.lr_scale_ratio)
        self.lr = LearningRate(self.optimizer, scale=scale, schedule=job.make_schedule())
        self.loader = Loader(job.source, permutations, device=self.device, name=f"ddp-loader-{rank}")
        self.scalars = ScalarCollector()
        self.context = WorkerContext(self)
        self.num_updates = 0
        self.idle = IdleClock()
        self._autocast: AbstractContextManager[Any] = (
            nullcontext() if job.amp is None else torch.autocast(self.device.type, dtype=job.amp)
        )
        self._stretch = job.specs[rank].slowdown - 1.0
        self._loads_slowly = job.source.loads_slowly
        self._is_cuda = self.device.type == "cuda"
        self._clears_grads = type(self.optimizer).zero_grad is Optimizer.zero_grad
        self._has_gradients = False
        self._last_loss: Tensor | None = None
        self._loss_sum = 0.0
        self._losses: list[tuple[Tensor, int]] = []

    def compute(
        self, *, epoch: int, offset: int, size: int, following: int = 0, read_ahead: Callable[[], None]
    ) -> float:
        """Gradients of one batch.

        Args:
            epoch: The batch's epoch.
            offset: Its first position in the epoch's permutation.
            size: Its samples.
            following: Samples after these that are this worker's too and come next.
            read_ahead: Called once a slow loader has given the batch, to start on the next.

        Returns:
            When work on the batch began, in seconds: the wait for a slow loader is not part of it.
        """
        if size > self.job.micro_batch_size:
            return self._accumulate(epoch, offset, size, following, read_ahead)
        start_s = time.perf_counter()
        batch, waited_s = self._fetch(epoch, offset, size, following)
        if self._loads_slowly:
            start_s += waited_s
            read_ahead()
        loss = self._loss(batch)
        loss.backward()
        if not self._has_gradients:
            self._check_gradients()
        self._last_loss = loss
        return start_s

    def _accumulate(self, epoch: int, offset: int, size: int, following: int, read_ahead: Callable[[], None]) -> float:
        """Add up the gradients of several batches, each weighted by its samples: as of one batch of all of them."""
        start_s, total = time.perf_counter(), torch.zeros((), device=self.device)
        for start in range(0, size, self.job.micro_batch_size):
            part = min(self.job.micro_batch_size, size - start)
            left = size - start - part
            batch, waited_s = self._fetch(epoch, offset + start, part, left + following)
            start_s += waited_s
            if left > 0:
                self.read_ahead(epoch=epoch, offset=offset + start + part, size=left)
            elif self._loads_slowly:
                read_ahead()
            loss = self._loss(batch) * (part / size)
            loss.backward()
            total += loss.detach()
        if not self._has_gradients:
            self._check_gradients()
        self._last_loss = total
        return start_s

    def _check_gradients(self) -> None:
        """After the first batch: without any gradient, every step would do nothing."""
        self._has_gradients = any(param.grad is not None for param in self.replica.trainable)
        if not self._has_gradients:
            raise TrainFnError("the loss of train_fn gives no parameter a gradient: it does not depend on the model")

    def _fetch(self, epoch: int, offset: int, size: int, following: int) -> tuple[Any, float]:
        """A batch, and for how many seconds its slow loader was waited for."""
        if not self._loads_slowly:
            return self.loader.fetch(epoch=epoch, offset=offset, size=size, following=following), 0.0
        start_s = time.perf_counter()
        batch = self.loader.fetch(epoch=epoch, offset=offset, size=size)
        waited_s = time.perf_counter() - start_s
        self.idle.load_ms += 1e3 * waited_s
        return batch, waited_s

    def read_ahead(self, *, epoch: int, offset: int, size: int) -> None:
        """Start loading what will probably be fetched next for a step on these samples."""
        self.loader.read_ahead(epoch=epoch, offset=offset, size=min(size, self.job.micro_batch_size))

    def _loss(self, batch: Any) -> Tensor:
        with self.scalars, self._autocast:
            loss = self.job.train_fn(self.model, batch)
        _check_loss(loss)
        return loss

    def step(self, position: int) -> None:
        """Clip, set the learning rate for ``position``, step, and clear the gradients."""
        self.lr.prepare(position)
        if self.job.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(self.replica.trainable, self.job.max_grad_norm)
        self.optimizer.step()
        self._clear_grads()

    def _clear_grads(self) -> None:
        if not self._clears_grads:
            self.optimizer.zero_grad(set_to_none=True)
            return
        for param in self.replica.trainable:  # as the optimizer's own does, at a tenth of what that costs
            param.grad = None

    def finish(self, start_s: float) -> tuple[float, float]:
        """Wait for the device, and for as long as an emulated slow device would take.

        Returns:
            When the batch ended in seconds, and what it took in milliseconds.
        """
        if self._is_cuda:
            torch.cuda.current_stream(self.device).synchronize()
        end_s = time.perf_counter()
        if self._stretch > 0:
            time.sleep((end_s - start_s) * self._stretch)
            end_s = time.perf_counter()
        return end_s, 1e3 * (end_s - start_s)

    def count_loss(self, size: int) -> None:
        """Count the last batch's loss into the next report, once the batch is finished; ``size``: its samples."""
        assert self._last_loss is not None, "a batch that is finished has a loss"
        if self._is_cuda:
            self._losses.append((self._last_loss.detach(), size))
        else:
            self._loss_sum += self._last_loss.item() * size

    def take_report(self) -> tuple[float, Scalars]:
        """Sum of the losses over samples, and the scalars, since the last time."""
        loss_sum, self._loss_sum = self._loss_sum, 0.0
        losses, self._losses = self._losses, []
        if losses:
            values = torch.stack([loss.reshape(()) for loss, _ in losses]).tolist()  # one transfer for all
            loss_sum += sum(value * size for value, (_, size) in zip(values, losses, strict=True))
        return loss_sum, self.scalars.take()

    def begin_epoch(self, epoch: int) -> None:
        """Call the user's ``epoch_fn``.

        Raises:
            ModelError: It changed which parameters are trainable.
        """
        self.context.current_epoch = epoch
        if self.job.epoch_fn is None:
            return
        self.job.epoch_fn(epoch, self.context)
        if [id(p) for p in self.model.parameters() if p.requires_grad] != [id(p) for p in self.replica.trainable]:
            raise ModelError("epoch_fn changed requires_grad: which parameters are trained is fixed for a run")

    def forget_optimizer(self) -> None:
        """Start the optimizer's state afresh, after non-finite numbers went through it."""
        self.optimizer.state.clear()

    def close(self) -> None:
        """End what belongs to the trainer. May be called twice."""
        self.loader.close()


def build_model(job: Job, device: torch.device) -> nn.Module:
    """Call ``model_factory`` and see that it gave a model on the device.

    Raises:
        ConfigError: It returned something else.
        ModelError: A parameter is on another device.
    """
    model = job.model_factory(device)
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model_factory must return a torch.nn.Module, not {type(model).__name__}")
    for name, param in model.named_parameters():
        if param.device != device:
            raise ModelError(f"model_factory was asked for {device}, but {name} is on {param.device}")
    return model


def _check_loss(loss: Any) -> None:
    if not isinstance(loss, Tensor):
        raise TrainFnError(f"train_fn must return the loss as a scalar tensor, not {type(loss).__name__}")
    if loss.numel() != 1:
        raise TrainFnError(f"train_fn must return a scalar loss, not one of shape {tuple(loss.shape)}: take its mean")
    if not loss.requires_grad:
        raise TrainFnError("the loss of train_fn has no gradient: it was detached or does not depend on the model")


class WorkerContext:
    """What ``epoch_fn`` sees of its worker. Use it only inside ``epoch_fn``."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self.current_epoch = 0
        """The epoch that begins."""
        self.local_step = 0
        """Batches that this worker has trained."""

    @property
    def rank(self) -> int:
        """The worker's rank."""
        return self._trainer.rank

    @property
    def device(self) -> torch.device:
        """The worker's device."""
        return self._trainer.device

    @property
    def model(self) -> nn.Module:
        """The worker's replica."""
        return self._trainer.model

    @property
    def current_version(self) -> int:
        """Averages that the replica has taken."""
        return self._trainer.num_updates

    @property
    def current_lr(self) -> float:
        """Learning rate of the first parameter group, schedule and scale included."""
        return self._trainer.lr.current

    def set_lr(self, lr: float) -> None:
        """Set the base learning rate of every parameter group, at least 0; schedule and scale still apply."""
        self._trainer.lr.set_base(real_number("lr", lr, least=0.0))

    def scale_lr(self, factor: float) -> None:
        """Multiply the base learning rate of every parameter group by a factor, at least 0."""
        self._trainer.lr.multiply_base(real_number("factor", factor, least=0.0))

    def set_lr_scale(self, scale: float) -> None:
        """Replace the scale that world size and ``lr_scale_ratio`` gave by another, at least 0."""
        self._trainer.lr.set_scale(real_number("scale", scale, least=0.0))

    def set_scheduler(self, schedule: Schedule | None) -> None:
        """Replace the schedule."""
        self._trainer.lr.set_schedule(None if schedule is None else check_callable("schedule", schedule))
