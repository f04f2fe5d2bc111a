"""One of two processes that train with PyTorch's DistributedDataParallel: the peer that law 5 names.

``python -m tests.flodl_core.ddp_peer FOLDER RANK``: ranks meet through a file in FOLDER and talk over loopback. Rank 0
leaves ``<case>.npy`` there for each of ``CASES``: the trained parameters as one float64 vector.
"""

import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from flodl_core.data import Permutations
from tests.flodl_core.models import LeNet
from tests.flodl_core.single_process import OPTIMIZERS, SyncSetup
from tests.flodl_core.training import Samples, numbered_samples

WORLD_SIZE = 2
LIMIT_S = 120.0
"""How long a rank waits for the other."""


def lenet(device: torch.device) -> nn.Module:
    return LeNet().to(device)


def digit_like_samples(num_samples: int) -> Samples:
    """Images of noise in which the brightest of ten squares is the class."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(num_samples, 1, 28, 28, generator=generator)
    classes = images[:, 0, :20, :28].reshape(num_samples, 10, 56).mean(2).argmax(1)
    return images, classes, torch.arange(num_samples)


def cross_entropy(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def _setups() -> dict[str, SyncSetup]:
    # every round is full, so that all ranks' batches are equal: DistributedDataParallel averages without weights
    points, images = numbered_samples(6 * WORLD_SIZE * 8), digit_like_samples(3 * WORLD_SIZE * 8)
    setups = {
        f"mlp-{name}": SyncSetup(samples=points, world_size=WORLD_SIZE, optim_factory=factory)
        for name, factory in OPTIMIZERS.items()
    }
    for name in ("nesterov", "adam"):
        setups[f"lenet-{name}"] = SyncSetup(
            samples=images,
            world_size=WORLD_SIZE,
            num_epochs=2,
            optim_factory=OPTIMIZERS[name],
            model_factory=lenet,
            train_fn=cross_entropy,
            max_grad_norm=0.5,
        )
    return setups


CASES = _setups()


def train_by_ddp(setup: SyncSetup, rank: int) -> Tensor:
    """Train with the process group that is open; returns the parameters as one float64 vector."""
    torch.manual_seed(setup.seed)
    module = setup.model_factory(torch.device("cpu"))
    model = DistributedDataParallel(module)
    optimizer = setup.optim_factory(module.parameters())
    num_samples = len(setup.samples[0])
    permutations = Permutations(seed=setup.seed, num_samples=num_samples)
    for epoch in range(setup.num_epochs):
        order = permutations.indices(epoch=epoch, offset=0, size=num_samples)
        for indices in order.split(WORLD_SIZE * setup.batch_size):
            mine = indices.split(setup.batch_size)[rank]
            optimizer.zero_grad()
            setup.train_fn(model, tuple(tensor[mine] for tensor in setup.samples)).backward()
            if setup.max_grad_norm is not None:
                nn.utils.clip_grad_norm_(module.parameters(), setup.max_grad_norm)
            optimizer.step()
    return torch.cat([param.detach().reshape(-1).to(torch.float64) for param in module.parameters()])


def main(folder: Path, rank: int) -> None:
    """Train every case with the other rank."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # else gloo asks for the host's own name, which may not resolve offline
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), WORLD_SIZE)  # type: ignore[attr-defined]  # torch's stub lacks it
    limit = timedelta(seconds=LIMIT_S)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD_SIZE, timeout=limit)
    try:
        for name, setup in CASES.items():
            vector = train_by_ddp(setup, rank)
            if rank == 0:
                np.save(folder / f"{name}.npy", vector.numpy())
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
