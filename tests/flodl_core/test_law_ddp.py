"""Law 5 against PyTorch's DistributedDataParallel itself: two processes over Gloo, where ranks' batches are equal."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from flodl_core import AverageBackend
from tests.flodl_core.ddp_peer import CASES, LIMIT_S, WORLD_SIZE
from tests.flodl_core.single_process import relative_error, train_sync
from tests.flodl_core.training import each_backend

ROOT = Path(__file__).parents[2]
each_case = pytest.mark.parametrize("case", list(CASES))


def run_peers(folder: Path) -> None:
    """Start both ranks and wait for them; none is left, whatever happens."""
    command = [sys.executable, "-m", "tests.flodl_core.ddp_peer", str(folder)]
    peers = [
        subprocess.Popen([*command, str(rank)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for rank in range(WORLD_SIZE)
    ]
    try:
        for peer in peers:
            output, _ = peer.communicate(timeout=LIMIT_S)
            assert peer.returncode == 0, output
    finally:
        for peer in peers:
            peer.kill()
            peer.communicate()


@pytest.fixture(scope="module")
def by_ddp(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Tensor]:
    """What DistributedDataParallel made of a case: all of them are trained at once, for starting takes longest."""
    folder = tmp_path_factory.mktemp("ddp")
    run_peers(folder)
    return lambda case: torch.from_numpy(np.load(folder / f"{case}.npy"))


@each_case
@each_backend
def test_sync_equals_distributed_data_parallel(
    case: str, backend: AverageBackend, by_ddp: Callable[[str], Tensor]
) -> None:
    assert relative_error(train_sync(CASES[case], backend), by_ddp(case)) < 1e-5


@each_case
def test_peer_moves_far_enough_to_be_a_measure(case: str, by_ddp: Callable[[str], Tensor]) -> None:
    setup = CASES[case]
    torch.manual_seed(setup.seed)
    model = setup.model_factory(torch.device("cpu"))
    initial = torch.cat([param.detach().reshape(-1).to(torch.float64) for param in model.parameters()])
    assert float((by_ddp(case) - initial).norm() / initial.norm()) > 1e-3
