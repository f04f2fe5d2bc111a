"""The steps of a training run, without a command line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from flodl_core import ConfigError, DdpHandle, EpochMetrics, TrainedState
from flodl_store.home import RunFolder, sha256_of
from flodl_store.params import RunParams
from flows.recipes.digits import recipe as digits
from flows.training import evaluate, prepare, publish, report, train


class Recording:
    """Keeps what it was shown."""

    def __init__(self) -> None:
        self.handle: DdpHandle | None = None
        self.epochs: list[EpochMetrics] = []

    def started(self, handle: DdpHandle) -> None:
        assert self.handle is None
        self.handle = handle

    def looked(self, handle: DdpHandle) -> None:
        assert handle is self.handle

    def epoch_ended(self, metrics: EpochMetrics) -> None:
        self.epochs.append(metrics)


def params(**values: object) -> RunParams:
    return RunParams.model_validate({"recipe": "digits", "devices": ["cpu", "cpu@1.5"], **values})


def never() -> bool:
    return False


def test_defaults_come_from_the_recipe(tmp_path: Path) -> None:
    prepared = prepare(params(), started_in=tmp_path)
    assert (prepared.params.epochs, prepared.params.batch_size, prepared.params.lr) == (10, 16, 1e-3)
    assert prepared.recipe is digits


def test_what_is_asked_for_wins_over_the_recipe(tmp_path: Path) -> None:
    prepared = prepare(params(epochs=2, batch_size=7, lr=0.5), started_in=tmp_path)
    assert (prepared.params.epochs, prepared.params.batch_size, prepared.params.lr) == (2, 7, 0.5)


def test_an_impossible_parameter_is_found_out_before_a_worker_starts(tmp_path: Path) -> None:
    watcher = Recording()
    with pytest.raises(ConfigError, match="backend nccl needs CUDA devices"):
        train(prepare(params(backend="nccl"), started_in=tmp_path), watcher=watcher, stop_requested=never)
    assert watcher.handle is None


def test_the_steps_end_in_a_result(tmp_path: Path) -> None:
    prepared = prepare(params(epochs=2), started_in=tmp_path)
    watcher = Recording()
    trained = train(prepared, watcher=watcher, stop_requested=never)
    assert trained.status == "completed"
    assert trained.state is not None
    assert [metrics.epoch for metrics in watcher.epochs] == [0, 1]
    assert trained.metrics == tuple(watcher.epochs)

    published = publish(trained.state, RunFolder(run_id="x", path=tmp_path))
    assert published.state_sha256 == sha256_of(published.state_path)
    evaluation = evaluate(prepared.recipe, TrainedState.load(published.state_path))
    assert evaluation["accuracy"] == watcher.epochs[-1].eval["accuracy"]

    result = report("x", prepared, trained, published, evaluation)
    assert (result.epochs, result.num_samples) == (2, 2 * len(digits.dataset()[0]))
    assert result.avg_loss == watcher.epochs[-1].avg_loss
    assert result.eval == evaluation


def test_a_wish_to_stop_cancels_the_run(tmp_path: Path) -> None:
    watcher = Recording()
    prepared = prepare(params(epochs=10**6), started_in=tmp_path)
    trained = train(prepared, watcher=watcher, stop_requested=lambda: bool(watcher.epochs))
    assert trained.status == "cancelled"
    assert trained.state is not None
    assert len(trained.metrics) >= 1


def test_a_run_that_is_stopped_at_once_ends_with_a_state(tmp_path: Path) -> None:
    prepared = prepare(params(epochs=10**6), started_in=tmp_path)
    trained = train(prepared, watcher=Recording(), stop_requested=lambda: True)
    assert trained.status == "cancelled"
    assert trained.state is not None


def test_without_an_evaluation_there_are_no_figures(tmp_path: Path) -> None:
    trained = train(prepare(params(epochs=1), started_in=tmp_path), watcher=Recording(), stop_requested=never)
    assert trained.state is not None
    assert evaluate(replace(digits, evaluate=None), trained.state) == {}


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ({"drop_last": True, "batch_size": 1000}, lambda trained: trained.totals.num_samples == 1000),
        ({"lr_scale_ratio": 0.0, "lr": 0.25}, lambda trained: trained.metrics[-1].lr == pytest.approx(0.25)),
        ({"lr_scale_ratio": 1.0, "lr": 0.25}, lambda trained: trained.metrics[-1].lr == pytest.approx(0.5)),
    ],
)
def test_parameters_reach_the_engine(given: dict[str, object], seen: Callable[[object], bool], tmp_path: Path) -> None:
    prepared = prepare(params(epochs=1, devices=["cpu", "cpu"], **given), started_in=tmp_path)
    assert seen(train(prepared, watcher=Recording(), stop_requested=never))


def test_every_optional_parameter_is_taken(tmp_path: Path) -> None:
    given = {"max_batch_diff": 5, "max_overshoot": 3, "max_grad_norm": 1.0, "anchor": 4, "max_anchor": 8}
    trained = train(prepare(params(epochs=1, **given), started_in=tmp_path), watcher=Recording(), stop_requested=never)
    assert trained.status == "completed"


def test_the_same_seed_gives_the_same_sync_run(tmp_path: Path) -> None:
    def trained_state(seed: int) -> TrainedState:
        prepared = prepare(params(epochs=1, policy="sync", seed=seed), started_in=tmp_path)
        state = train(prepared, watcher=Recording(), stop_requested=never).state
        assert state is not None
        return state

    first, again, other = trained_state(1), trained_state(1), trained_state(2)
    assert all(torch.equal(tensor, again.params[name]) for name, tensor in first.params.items())
    assert not all(torch.equal(tensor, other.params[name]) for name, tensor in first.params.items())
