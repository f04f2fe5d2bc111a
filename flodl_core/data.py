"""Datasets: from what users have to batches by index, and which sample comes when."""

import threading
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset, default_collate

from flodl_core.display_text import value_text
from flodl_core.errors import DatasetError

MOST_COLUMNS = 8
"""A list of at most so many longer tensors looks like columns, which must be a tuple, not like samples."""

GATHER_BYTES = 64 * 1024
"""As much is gathered at once from any tensor of a dataset: little enough to be in the cache still when it is used."""

Batch = Any
"""A tensor, or tuples, lists and dicts of tensors, nested."""


@runtime_checkable
class BatchDataSet(Protocol):
    """A dataset that gives whole batches."""

    def __len__(self) -> int:
        """Number of samples."""

    def get_batch(self, indices: Tensor) -> Batch:
        """The samples at ``indices`` (int64, shape (n,)) as one batch. Called from several threads at once."""


class BatchSource(Protocol):
    """What workers read batches from. Shared by all of them."""

    loads_slowly: bool
    """Whether batches should be loaded ahead, by a thread of its own for each worker."""
    device: torch.device | None
    """Where its batches lie, or None where that is not known before one is there."""
    gathers_at_once: int
    """Samples that are better gathered together than batch by batch; 0 where that gains nothing."""

    def __len__(self) -> int: ...

    def get(self, indices: Tensor) -> Batch:
        """The samples at ``indices`` as one batch."""


class _TensorSource:
    """Tensors that share their first dimension: one gather per tensor."""

    loads_slowly = False

    def __init__(self, tensors: Any) -> None:
        self._tensors = tensors
        leaves = _leaves(tensors)
        devices = {tensor.device for tensor in leaves}
        self.device = devices.pop() if len(devices) == 1 else None
        sizes = {tensor.shape[0] if tensor.dim() else 0 for tensor in leaves}
        if len(sizes) != 1:
            raise DatasetError(f"the tensors of a dataset must have the same first dimension, not {sorted(sizes)}")
        self._size = sizes.pop()
        self.gathers_at_once = _gathers_at_once(leaves, self._size)

    def __len__(self) -> int:
        return self._size

    def get(self, indices: Tensor) -> Batch:
        return _map(self._tensors, lambda tensor: tensor.index_select(0, indices))


class _BatchSource:
    """A user's own ``BatchDataSet``."""

    loads_slowly = False
    device: torch.device | None = None
    gathers_at_once = 0

    def __init__(self, dataset: BatchDataSet) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def get(self, indices: Tensor) -> Batch:
        return self._dataset.get_batch(indices)


class _SampleSource:
    """A map-style dataset, sample by sample."""

    loads_slowly = True
    device: torch.device | None = None
    gathers_at_once = 0

    def __init__(self, dataset: "Dataset[Any]", collate_fn: Callable[[list[Any]], Batch]) -> None:
        self._dataset = dataset
        self._collate_fn = collate_fn

    def __len__(self) -> int:
        return len(self._dataset) if isinstance(self._dataset, Sized) else 0

    def get(self, indices: Tensor) -> Batch:
        return self._collate_fn([self._sample(i) for i in indices.tolist()])

    def _sample(self, index: int) -> Any:
        try:
            return self._dataset[index]
        except IndexError as error:
            raise DatasetError(f"the dataset has no sample {index}, though its length says so") from error


def as_source(dataset: object, collate_fn: Callable[[list[Any]], Batch] | None = None) -> BatchSource:
    """Make batches of whatever the user gave.

    Args:
        dataset: A ``BatchDataSet``; a tensor or a tuple or dict of tensors; a ``TensorDataset``; or anything with
            ``__len__`` and ``__getitem__``.
        collate_fn: Joins samples of the last kind; default ``torch.utils.data.default_collate``.

    Raises:
        DatasetError: The dataset is empty, its tensors do not match, or it is of another kind.
    """
    source = _source(dataset, collate_fn)
    try:
        size = len(source)
    except (TypeError, ValueError, OverflowError) as error:
        raise DatasetError(f"the length of the dataset is no length: {error}") from error
    if size == 0:
        raise DatasetError("the dataset is empty: there is nothing to train on")
    return source


def _source(dataset: object, collate_fn: Callable[[list[Any]], Batch] | None) -> BatchSource:
    if isinstance(dataset, IterableDataset):
        raise DatasetError("an IterableDataset has no length and no order to share out: use a map-style dataset")
    if isinstance(dataset, str | bytes):
        raise DatasetError(f"a dataset must be data, not {value_text(dataset)}: load it first")
    if isinstance(dataset, BatchDataSet):
        return _BatchSource(dataset)
    if collate_fn is None:
        if isinstance(dataset, TensorDataset):
            return _TensorSource(tuple(dataset.tensors))
        if _is_tensors(dataset):
            return _TensorSource(dataset)
        _refuse_lookalikes(dataset)
    if hasattr(dataset, "__getitem__") and isinstance(dataset, Sized):
        return _SampleSource(dataset, collate_fn or default_collate)  # type: ignore[arg-type]  # duck-typed on purpose
    raise DatasetError(
        f"a dataset must be tensors, or have __len__ and get_batch or __getitem__: {type(dataset).__name__} has not"
    )


def _is_tensors(dataset: object) -> bool:
    if isinstance(dataset, Mapping):
        return bool(dataset) and all(isinstance(value, Tensor) for value in dataset.values())
    if isinstance(dataset, tuple):
        return bool(dataset) and all(isinstance(value, Tensor) for value in dataset)
    return isinstance(dataset, Tensor)


def _refuse_lookalikes(dataset: object) -> None:
    """Columns in another form than tensors would be taken for a dataset of as many samples."""
    if isinstance(dataset, list) and 0 < len(dataset) <= MOST_COLUMNS and _is_tensors(tuple(dataset)):
        sizes = {tensor.shape[0] if tensor.dim() else 0 for tensor in dataset}
        if len(sizes) == 1 and sizes.pop() > MOST_COLUMNS:
            raise DatasetError("a short list of long tensors: give a tuple if they are columns, torch.stack if samples")
    if isinstance(dataset, tuple | Mapping) and dataset:
        kinds = sorted(
            {type(value).__name__ for value in (dataset.values() if isinstance(dataset, Mapping) else dataset)}
        )
        raise DatasetError(f"a {type(dataset).__name__} as dataset must hold tensors (torch.from_numpy), not {kinds}")


def _map(batch: Batch, change: Callable[[Tensor], Tensor]) -> Batch:
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        return {key: _map(value, change) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_map(value, change) for value in batch))
    if isinstance(batch, tuple | list):
        return type(batch)(_map(value, change) for value in batch)
    return batch


def _leaves(tensors: Any) -> Sequence[Tensor]:
    if isinstance(tensors, Tensor):
        return [tensors]
    return list(tensors.values()) if isinstance(tensors, Mapping) else list(tensors)


def _gathers_at_once(tensors: Sequence[Tensor], num_samples: int) -> int:
    if any(tensor.layout != torch.strided or tensor.requires_grad for tensor in tensors):
        return 0  # the one cannot be cut, the other would tie the graphs of several batches together
    total_bytes = max(tensor.numel() * tensor.element_size() for tensor in tensors)
    return GATHER_BYTES * num_samples // max(1, total_bytes)


def move(batch: Batch, device: torch.device) -> Batch:
    """The batch with every tensor on ``device``; what is not a tensor stays as it is."""
    return _map(batch, lambda tensor: tensor.to(device, non_blocking=True))


def split(samples: Batch, size: int) -> list[Batch]:
    """Tensors, or a tuple or mapping of tensors, cut into batches of ``size`` samples; the last may be smaller.

    The batches share memory but, unlike views, not their autograd history: each may be changed in place.
    """
    if isinstance(samples, Tensor):
        return list(torch.unsafe_split(samples, size))
    if isinstance(samples, Mapping):
        columns = [torch.unsafe_split(tensor, size) for tensor in samples.values()]
        return [dict(zip(samples, row, strict=True)) for row in zip(*columns, strict=True)]
    rows = zip(*(torch.unsafe_split(tensor, size) for tensor in samples), strict=True)
    return [type(samples)(*row) for row in rows] if hasattr(samples, "_fields") else list(rows)


class Permutations:
    """The order of samples in each epoch, derived from (seed, epoch) alone and computed once for all workers.

    Args:
        seed: The run's seed.
        num_samples: Samples in the dataset.
    """

    KEPT = 3

    def __init__(self, *, seed: int, num_samples: int) -> None:
        self._seed = seed
        self._num_samples = num_samples
        self._lock = threading.Lock()
        self._orders: dict[int, Tensor] = {}

    def indices(self, *, epoch: int, offset: int, size: int) -> Tensor:
        """Dataset indices at these positions of the epoch's permutation: int64, shape (size,)."""
        order = self._orders.get(epoch)
        if order is None:
            with self._lock:
                order = self._orders.get(epoch)
                if order is None:
                    order = self._make(epoch)
        return order[offset : offset + size]

    def _make(self, epoch: int) -> Tensor:
        generator = torch.Generator()
        # 2654435761 is Knuth's multiplier: seeds and epochs near each other give unlike streams
        generator.manual_seed((self._seed * 2654435761 + epoch) % 2**63)
        order = torch.randperm(self._num_samples, generator=generator)
        self._orders[epoch] = order
        for old in [known for known in self._orders if known <= epoch - self.KEPT]:
            del self._orders[old]
        return order
