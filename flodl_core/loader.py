"""How one worker gets its batches: small ones several at a time, slow ones ahead, by a thread of the loader's own."""

from concurrent.futures import Future

import torch

from flodl_core.background import BackgroundThread
from flodl_core.data import Batch, BatchSource, Permutations, move, split


class Loader:
    """Owned by one worker.

    Args:
        source: Shared by all workers.
        permutations: Shared by all workers.
        device: Where batches go.
        name: Prefix of the thread's name.
    """

    def __init__(self, source: BatchSource, permutations: Permutations, *, device: torch.device, name: str) -> None:
        self._source = source
        self._permutations = permutations
        self._device = device
        self._has_to_move = source.device != device
        self._most_at_once = source.gathers_at_once
        self._gathered: list[Batch] = []  # the last first
        self._next_gathered = (-1, 0, 0)
        self._ahead: tuple[tuple[int, int, int], Future[Batch]] | None = None
        self._loading: Future[Batch] = Future()
        # not an executor: those refuse work once the interpreter is ending, while a run still winds up
        self._thread = BackgroundThread(name, on_error=self._on_error) if source.loads_slowly else None
        if self._thread is not None:
            self._thread.start()

    def fetch(self, *, epoch: int, offset: int, size: int, following: int = 0) -> Batch:
        """The batch at these positions of the epoch's permutation, on the device.

        Args:
            epoch: The epoch.
            offset: First position in its permutation.
            size: Samples.
            following: Samples after these that will be fetched next, in batches of ``size``. Small ones are gathered
                with these: what a gather costs is mostly the call.
        """
        key = (epoch, offset, size)
        if self._gathered and self._next_gathered == key:
            self._next_gathered = (epoch, offset + size, min(size, following))
            return self._gathered.pop()
        num_samples = min(size + following, self._most_at_once // size * size)
        return self._fetch_first(key, num_samples) if num_samples > size else self._fetch_alone(key)

    def _fetch_first(self, key: tuple[int, int, int], num_samples: int) -> Batch:
        epoch, offset, size = key
        samples = self._on_device(self._load((epoch, offset, num_samples)))
        self._gathered = split(samples, size)
        self._gathered.reverse()
        self._next_gathered = (epoch, offset + size, min(size, num_samples - size))
        return self._gathered.pop()

    def _fetch_alone(self, key: tuple[int, int, int]) -> Batch:
        ahead, self._ahead = self._ahead, None
        return self._on_device(ahead[1].result() if ahead is not None and ahead[0] == key else self._load(key))

    def _on_device(self, batch: Batch) -> Batch:
        return move(batch, self._device) if self._has_to_move else batch

    def read_ahead(self, *, epoch: int, offset: int, size: int) -> None:
        """Start loading the batch that will probably be fetched next. Does nothing where loading is fast."""
        if self._thread is not None:
            key = (epoch, offset, size)
            batch: Future[Batch] = Future()
            self._ahead = (key, batch)
            self._thread.submit(lambda: self._fill(batch, key))

    def _fill(self, batch: "Future[Batch]", key: tuple[int, int, int]) -> None:
        self._loading = batch
        batch.set_result(self._load(key))

    def _on_error(self, error: BaseException) -> None:
        self._loading.set_exception(error)  # raised in the worker when it fetches the batch

    def _load(self, key: tuple[int, int, int]) -> Batch:
        epoch, offset, size = key
        return self._source.get(self._permutations.indices(epoch=epoch, offset=offset, size=size))

    def close(self) -> None:
        """End the loader's thread. May be called twice."""
        if self._thread is not None:
            self._thread.close()
