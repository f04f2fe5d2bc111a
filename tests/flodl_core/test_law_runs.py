"""Laws 2 and 3 of whole runs: each average of each run is the mean by samples, and every sample is in one.

The models hold what makes averaging hard; what replicas were before and after each average is what ``train_fn`` saw.
"""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flodl_core import ApplyPolicy, AverageBackend, WorkerSpec
from tests.flodl_core.law_checks import check_frozen_parameters, check_run
from tests.flodl_core.models import Motley
from tests.flodl_core.replay import Walk
from tests.flodl_core.training import BACKENDS, LOCAL_POLICIES, configure, every_local_way, numbered_samples
from tests.flodl_core.witness import Witness


def motley(device: torch.device) -> Motley:
    return Motley().to(device)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A run's sizes.

    ``poison``: rank and number of a batch whose loss becomes infinite. ``is_dealt_whole``: each rank gets its half, or
    third, of an epoch at once, and an epoch is one round, so that what is averaged does not depend on measured speed.
    """

    policy: ApplyPolicy
    backend: AverageBackend
    slowdowns: tuple[float, ...] = (1.0, 2.5)
    num_samples: int = 203
    batch_size: int = 8
    num_epochs: int = 2
    anchor: int = 2
    poison: tuple[int, int] = (-1, 0)
    seed: int = 1
    is_dealt_whole: bool = False

    def check(self, *, hold: int = 0) -> Walk:
        """Run it, and check both laws."""
        witness = Witness(poison=lambda rank, batch: (rank, batch) == self.poison)
        builder = configure(
            numbered_samples(self.num_samples),
            policy=self.policy,
            backend=self.backend,
            devices=[WorkerSpec("cpu", slowdown) for slowdown in self.slowdowns],
            train_fn=witness.train_fn,
            model_factory=motley,
            optim_factory=witness.make_optimizer,
            batch_size=self.batch_size,
            num_epochs=self.num_epochs,
        )
        builder.anchor(self.anchor).seed(self.seed)
        if self.is_dealt_whole:
            builder.partition_ratios([1.0] * len(self.slowdowns)).progressive_dispatch(False).anchor(200)
        with witness.averaging_held(num_batches=hold, epoch_size=self.num_samples, batch_size=self.batch_size):
            outcome = witness.watch(builder)
        torch.manual_seed(self.seed)
        check_frozen_parameters(outcome, Motley())
        return check_run(outcome, witness, Motley())


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Two to four unlike ranks over anything from one sample to some rounds; in some, a rank goes astray once."""
    world_size, batch_size = draw(st.integers(2, 4)), draw(st.integers(1, 12))
    return World(
        policy=draw(st.sampled_from(LOCAL_POLICIES)),
        backend=draw(st.sampled_from(BACKENDS)),
        slowdowns=tuple(draw(st.sampled_from([1.0, 1.5, 3.0])) for _ in range(world_size)),
        num_samples=draw(st.integers(1, 16 * batch_size)),
        batch_size=batch_size,
        num_epochs=draw(st.integers(1, 2)),
        anchor=draw(st.integers(1, 5)),
        poison=draw(st.sampled_from([(-1, 0), (0, 0), (0, 3), (1, 1), (1, 4)])),
        seed=draw(st.integers(0, 2**32)),
    )


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(world=worlds())
def test_averages_are_by_samples_and_nothing_is_lost_in_any_world(world: World) -> None:
    world.check()


@every_local_way
def test_averages_of_unlike_ranks(policy: ApplyPolicy, backend: AverageBackend) -> None:
    walk = World(policy=policy, backend=backend, slowdowns=(1.0, 2.5, 1.5), num_samples=403).check()
    assert any(len(set(average.weights.values())) > 1 for average in walk.averages.values()), "ranks should differ"


@pytest.mark.parametrize("policy", LOCAL_POLICIES)
def test_averages_that_training_goes_on_beside(policy: ApplyPolicy) -> None:
    walk = World(policy=policy, backend=AverageBackend.CPU, num_samples=803).check(hold=3)
    assert walk.num_overlapped > 0


@every_local_way
def test_samples_of_a_rank_that_is_not_finite_are_discarded_and_counted(
    policy: ApplyPolicy, backend: AverageBackend
) -> None:
    walk = World(policy=policy, backend=backend, poison=(0, 3)).check()
    assert walk.num_discarded > 0


@every_local_way
def test_averages_of_epochs_that_are_dealt_whole(policy: ApplyPolicy, backend: AverageBackend) -> None:
    walk = World(policy=policy, backend=backend, is_dealt_whole=True).check()
    assert [average.weights for average in walk.averages.values()] == [{0: 104, 1: 99}] * 2
