"""Checks of laws 2, 3, 5 and 7 and of the overlap, tried on products that are broken on purpose: each must notice.

A case is a way to break the product and the check that is to notice it. The same check passes on the product as it is,
and it is the check that raises, not the product by itself.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import flodl_core
from flodl_core import ApplyPolicy, AverageBackend
from tests.flodl_core import broken_averages as broken
from tests.flodl_core import broken_sync
from tests.flodl_core.average_checks import (
    check_equal_buffers,
    check_frozen,
    check_integer_buffers,
    check_mask,
    check_rank_that_is_not_finite,
    check_rank_without_samples,
    check_weighted_mean,
    check_weights_of_ledgers,
)
from tests.flodl_core.averaging_ways import Average, in_place, through_cpu
from tests.flodl_core.broken_averages import Break
from tests.flodl_core.models import MixedTypes, ZooModel
from tests.flodl_core.single_process import (
    OPTIMIZERS,
    OptimFactory,
    SyncSetup,
    adam,
    check_same_bits,
    check_sync,
    falling,
    momentum,
    nesterov,
    plain_sgd,
)
from tests.flodl_core.test_law_runs import World
from tests.flodl_core.test_law_sync import branches
from tests.flodl_core.test_overlap import check_replay, run_watched
from tests.flodl_core.test_overlap import momentum as small_momentum
from tests.flodl_core.test_overlap_late import check_late
from tests.flodl_core.training import BACKENDS, LOCAL_POLICIES, NUM_FEATURES, numbered_samples

Check = Callable[[], object]
PRODUCT = Path(flodl_core.__file__).parent


def check_notices(break_it: Break, check: Check) -> None:
    """The check passes, and fails by itself where the product is broken."""
    check()
    with pytest.MonkeyPatch.context() as patch:
        break_it(patch)
        with pytest.raises(AssertionError) as caught:
            check()
    assert not any(Path(entry.path).is_relative_to(PRODUCT) for entry in caught.traceback), "the product raised"


def named(*breaks: Break) -> list[object]:
    """One case each, by its name."""
    return [pytest.param(break_it, id=break_it.__name__) for break_it in breaks]


def pairs(*cases: tuple[Break, Callable[..., object]]) -> list[object]:
    return [pytest.param(break_it, check, id=break_it.__name__) for break_it, check in cases]


each_way = pytest.mark.parametrize("average", [through_cpu, in_place])
each_backend = pytest.mark.parametrize("backend", BACKENDS)
each_local_policy = pytest.mark.parametrize("policy", LOCAL_POLICIES)

# Law 2, of one average


def mean_of(average: Average, *, make: type = ZooModel, weights: tuple[int, ...] = (1, 3, 0, 64)) -> None:
    check_weighted_mean(average, weights, make)


@each_way
@pytest.mark.parametrize(
    ("break_it", "check"),
    pairs(
        (broken.weights_are_batches, partial(check_weights_of_ledgers, batches=[[8, 8, 3], [8], []])),
        (broken.weights_are_equal, mean_of),
        (broken.weighted_sum_forgets_the_last, mean_of),
        (broken.idle_rank_is_summed_in, check_rank_without_samples),
        (broken.idle_rank_counts_as_one_sample, mean_of),
        (broken.sick_rank_is_multiplied_by_zero, check_rank_that_is_not_finite),
        (broken.sick_rank_is_not_found, check_rank_that_is_not_finite),
        (broken.short_types_are_summed_in_themselves, partial(mean_of, make=MixedTypes, weights=(3, 5, 7, 11, 64))),
        (broken.integer_buffers_are_averaged, check_integer_buffers),
        (broken.equal_buffers_are_averaged, check_equal_buffers),
        (broken.buffers_are_averaged_by_differences, check_mask),
        (broken.frozen_parameters_are_averaged, check_frozen),
    ),
)
def test_law_of_one_average_is_checked(break_it: Break, check: Callable[[Average], object], average: Average) -> None:
    check_notices(break_it, lambda: check(average))


def test_mask_that_is_merged_by_difference_is_noticed() -> None:
    check_notices(broken.buffers_are_merged_by_difference, lambda: check_mask(through_cpu))


# Laws 2 and 3, of whole runs


@each_local_policy
@each_backend
@pytest.mark.parametrize(
    "break_it",
    named(broken.weights_are_batches, broken.weights_are_equal, broken.weighted_sum_forgets_the_last),
)
def test_averages_of_runs_are_checked(break_it: Break, policy: ApplyPolicy, backend: AverageBackend) -> None:
    check_notices(break_it, World(policy=policy, backend=backend, is_dealt_whole=True).check)


@each_local_policy
@pytest.mark.parametrize(
    "break_it",
    named(
        broken.tied_parameters_are_merged_twice,
        broken.frozen_parameters_are_averaged,
        broken.buffers_are_merged_by_difference,
        broken.merge_overwrites,
        broken.merge_adds_half_the_difference,
    ),
)
def test_averages_that_training_goes_on_beside_are_checked(break_it: Break, policy: ApplyPolicy) -> None:
    world = World(policy=policy, backend=AverageBackend.CPU, num_samples=803)
    check_notices(break_it, lambda: world.check(hold=3))


@each_local_policy
@each_backend
def test_windows_that_are_discarded_uncounted_are_noticed(policy: ApplyPolicy, backend: AverageBackend) -> None:
    world = World(policy=policy, backend=backend, poison=(0, 3))
    check_notices(broken.discarded_windows_are_not_counted, world.check)


# The overlap: the run against its replay in float64


@each_local_policy
@pytest.mark.parametrize(
    "break_it", named(broken.merge_overwrites, broken.merge_adds_half_the_difference, broken.weights_are_equal)
)
def test_replay_is_a_check(break_it: Break, policy: ApplyPolicy) -> None:
    check_notices(break_it, lambda: check_replay(run_watched(policy=policy, optim_factory=small_momentum, hold=4)))


@each_local_policy
@pytest.mark.parametrize(
    "break_it",
    named(
        broken.discarded_windows_are_not_counted,
        broken.what_was_trained_while_left_out_is_not_counted,
    ),
)
def test_account_of_what_was_discarded_is_a_check(break_it: Break, policy: ApplyPolicy) -> None:
    def astray(rank: int, batch: int) -> bool:
        return (rank, batch) == (1, 5)

    check_notices(
        break_it,
        lambda: check_replay(run_watched(policy=policy, optim_factory=small_momentum, hold=4, poison=astray)),
    )


@each_local_policy
@pytest.mark.parametrize("num_averages", [2, 3])
@pytest.mark.parametrize(
    "break_it",
    named(broken.late_snapshot_counts_only_once_it_is_answered, broken.late_snapshot_is_forgotten),
)
def test_account_of_late_snapshots_is_a_check(break_it: Break, policy: ApplyPolicy, num_averages: int) -> None:
    check_notices(break_it, lambda: check_late(policy, num_averages))


# Law 5


def uneven(optim_factory: OptimFactory = nesterov) -> SyncSetup:
    """Two ranks whose last round is of three samples and two."""
    return SyncSetup(samples=numbered_samples(3 * 8 * 2 + 5), world_size=2, optim_factory=optim_factory)


def twins(device: torch.device) -> nn.Module:
    """One layer in two places."""
    layer = nn.Linear(NUM_FEATURES, NUM_FEATURES)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(NUM_FEATURES, 1)).to(device)


@each_backend
@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_law_5_is_checked_with_any_optimizer(optimizer: str, backend: AverageBackend) -> None:
    check_notices(broken_sync.gradients_are_not_weighted, lambda: check_sync(uneven(OPTIMIZERS[optimizer]), backend))


@each_backend
@pytest.mark.parametrize("optim_factory", [momentum, nesterov, adam])
def test_parameters_averaged_after_the_step_are_noticed(optim_factory: OptimFactory, backend: AverageBackend) -> None:
    check_notices(
        broken_sync.parameters_are_averaged_after_the_step, lambda: check_sync(uneven(optim_factory), backend)
    )


@each_backend
def test_parameters_averaged_after_plain_steps_are_the_same(
    backend: AverageBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    # without state in the optimizer both are one: what is noticed above is the momentum, not a broken run
    broken_sync.parameters_are_averaged_after_the_step(monkeypatch)
    check_sync(uneven(plain_sgd), backend)


@each_backend
@pytest.mark.parametrize(
    ("break_it", "setup"),
    [
        pytest.param(break_it, setup, id=break_it.__name__)
        for break_it, setup in (
            (
                broken_sync.ranks_without_samples_count,
                SyncSetup(samples=numbered_samples(25), world_size=3),
            ),
            (
                broken_sync.gradients_are_clipped_before_the_average,
                SyncSetup(samples=numbered_samples(53), world_size=2, max_grad_norm=0.3),
            ),
            (
                broken_sync.missing_gradients_are_zeros,
                SyncSetup(samples=numbered_samples(61, seed=3), world_size=2, model_factory=branches),
            ),
            (
                broken_sync.schedule_counts_rounds,
                SyncSetup(samples=numbered_samples(61), world_size=3, schedule=falling),
            ),
            (
                broken.tied_gradients_are_added_under_each_name,
                SyncSetup(samples=numbered_samples(53), world_size=2, model_factory=twins),
            ),
            (broken_sync.every_run_has_its_own_order, uneven()),
        )
    ],
)
def test_law_5_is_checked(break_it: Break, setup: SyncSetup, backend: AverageBackend) -> None:
    check_notices(break_it, lambda: check_sync(setup, backend))


# Law 7


@each_backend
@pytest.mark.parametrize(
    "break_it", named(broken.sums_run_in_order_of_arrival, broken_sync.every_run_has_its_own_order)
)
def test_law_7_is_checked(break_it: Break, backend: AverageBackend) -> None:
    setup = SyncSetup(samples=numbered_samples(53), world_size=3)
    check_notices(break_it, lambda: check_same_bits(setup, backend))
