"""``flodl simulate``: what it prints, and one line for each kind of bad input."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from flodl_cli.main import main
from flodl_cli.simulation_input import parse_death, parse_slow_down, parse_speeds, parse_stall
from flodl_core.simulation import Death, Moment, SlowDown, Stall

SMALL = ["simulate", "--speeds", "1,0.5", "--epochs", "2", "--samples", "640", "--batch-size", "8"]


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main([*SMALL, *arguments, "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_the_result_is_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    result = as_json(capsys, "--jitter", "0.05")
    assert (result["status"], result["num_samples"], result["global_step"]) == ("completed", 1280, 160)
    assert result["lost_ranks"] == []
    assert sum(result["batch_share"]) == pytest.approx(1.0)
    assert result["batch_share"] == [rank["batch_share"] for rank in result["ranks"]]
    assert result["batch_share"][0] > 0.6
    assert len(result["epoch_efficiency"]) == 2
    assert result["speed_up"] == pytest.approx(result["lockstep_wall_s"] / result["wall_s"])
    assert result["num_messages"] > result["num_syncs"] > 0
    assert 0.8 < result["capacity_efficiency"] <= 1.0
    assert result["anchor"] == 10
    assert result["real_s"] > 0


@pytest.mark.parametrize("policy", ["sync", "cadence", "async"])
@pytest.mark.parametrize("backend", ["gloo", "cpu", "nccl"])
def test_every_policy_and_backend(policy: str, backend: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = as_json(capsys, "--policy", policy, "--backend", backend)
    assert (result["status"], result["num_samples"]) == ("completed", 1280)


def test_nobody_waits_for_less_than_no_time(capsys: pytest.CaptureFixture[str]) -> None:
    result = as_json(capsys, "--policy", "sync", "--backend", "gloo", "--jitter", "0.05")
    assert result["ranks"][0]["wait_s"] > 0.2 * result["wall_s"]
    assert all(rank[name] >= 0 for rank in result["ranks"] for name in ("train_s", "average_s", "wait_s", "no_data_s"))


def test_the_same_seed_gives_the_same_run(capsys: pytest.CaptureFixture[str]) -> None:
    first, second, other = (as_json(capsys, "--jitter", "0.3", "--seed", seed) for seed in "112")
    del first["real_s"], second["real_s"]
    assert first == second
    assert other["wall_s"] != first["wall_s"]


def test_a_slower_machine_gets_less(capsys: pytest.CaptureFixture[str]) -> None:
    before = as_json(capsys)
    after = as_json(capsys, "--slow", "0:0.25@1")
    assert after["batch_share"][0] < before["batch_share"][0]
    assert after["wall_s"] > before["wall_s"]
    assert after["lockstep_wall_s"] > before["lockstep_wall_s"]


def test_a_worker_that_dies_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    result = as_json(capsys, "--die", "1@1")
    assert (result["status"], result["lost_ranks"]) == ("failed", [1])
    assert 640 <= result["num_samples"] < 1280


def test_people_get_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(SMALL) == 0
    out = capsys.readouterr().out
    for text in ("completed  cadence, cpu", "1,280 in 160 batches", "times as fast", "capacity efficiency", "waiting"):
        assert text in out


def test_a_table_says_how_many_ranks_it_leaves_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--speeds", "1x20", "--epochs", "1", "--samples", "2000", "--batch-size", "8"]) == 0
    assert "and 4 more: --json has them all" in capsys.readouterr().out


def test_a_run_that_lost_a_worker_is_not_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--die", "0@0"]) == 0
    out = capsys.readouterr().out
    assert "failed  cadence, cpu" in out
    assert re.search(r"^lost +rank 0 *$", out, re.MULTILINE)
    assert "times as fast" not in out


def test_a_stall_holds_one_rank_up(capsys: pytest.CaptureFixture[str]) -> None:
    before, after = (as_json(capsys, "--policy", "sync", *stall) for stall in ([], ["--stall", "0:500@12"]))
    assert after["wall_s"] == pytest.approx(before["wall_s"] + 0.49, abs=0.02)  # it may be one that waited


def test_ratios_replace_what_speed_gives(capsys: pytest.CaptureFixture[str]) -> None:
    assert as_json(capsys, "--partition-ratios", "1,3")["batch_share"] == [0.25, 0.75]


def test_an_epoch_may_be_dealt_whole(capsys: pytest.CaptureFixture[str]) -> None:
    slow = ["--slow", "0:0.25@1"]
    bit_by_bit = as_json(capsys, *slow)
    whole = as_json(capsys, *slow, "--progressive-dispatch", "false")
    assert whole["wall_s"] > 1.2 * bit_by_bit["wall_s"]
    assert whole["ranks"][1]["no_data_s"] > bit_by_bit["ranks"][1]["no_data_s"]


def test_a_hint_makes_up_for_what_is_not_measured_yet(capsys: pytest.CaptureFixture[str]) -> None:
    blind = as_json(capsys, "--progressive-dispatch", "false")
    hinted = as_json(capsys, "--progressive-dispatch", "false", "--speed-hint", "1:2")
    assert hinted["epoch_efficiency"][0] > blind["epoch_efficiency"][0] + 0.1


def test_a_limit_ends_the_run_and_leaves_nothing_to_compare(capsys: pytest.CaptureFixture[str]) -> None:
    result = as_json(capsys, "--max-steps", "50")
    assert (result["status"], result["global_step"], result["speed_up"]) == ("completed", 50, None)
    assert 0.1 < as_json(capsys, "--max-time-s", "0.1")["wall_s"] < 0.2
    assert main([*SMALL, "--max-steps", "50"]) == 0
    assert "times as fast" not in capsys.readouterr().out


def test_many_that_died_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    deaths = [option for rank in range(10) for option in ("--die", f"{rank}@0")]
    assert main(["simulate", "--speeds", "1x12", "--samples", "6400", "--batch-size", "8", *deaths]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("lost "))
    assert re.fullmatch(r"lost +ranks( \d,){7} \d and 2 more", line.rstrip())


def test_one_rank_is_its_own_lockstep(capsys: pytest.CaptureFixture[str]) -> None:
    alone = ["simulate", "--speeds", "0.5", "--samples", "80", "--batch-size", "8", "--epochs", "1", "--jitter", "0.1"]
    assert main(alone) == 0
    out = capsys.readouterr().out
    assert "this run is 1.00 times as fast" in out
    assert re.search(r"^averages +0 *$", out, re.MULTILINE)


def test_short_times_are_in_milliseconds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--speeds", "1", "--samples", "8", "--batch-size", "8", "--epochs", "1"]) == 0
    assert re.search(r"^time +10 ms, 800/s *$", capsys.readouterr().out, re.MULTILINE)


def test_every_epoch_has_an_efficiency_though_several_end_in_one_average(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--speeds", "1,0.4", "--samples", "1", "--epochs", "4"]) == 0
    by_epoch = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("by epoch"))
    efficiencies = [float(figure.rstrip("%")) for figure in by_epoch.split()[2:]]
    assert len(efficiencies) == 4
    assert all(0 < efficiency <= 100 for efficiency in efficiencies)


def test_a_rank_that_slows_down_shows_both_its_times(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--slow", "0:0.25@1"]) == 0
    assert "10, 40" in capsys.readouterr().out


@pytest.mark.parametrize("columns", ["80", "120"])
def test_tables_keep_within_the_terminal(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    small = ["--samples", "6400", "--batch-size", "8", "--epochs", "20"]
    assert main(["simulate", "--speeds", "1x20,0.1", *small, "--slow", "0:0.5@3", "--jitter", "0.05"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= int(columns)
    assert "% and 4 more averages" in " ".join(" ".join(lines).split())
    head = next(line for line in lines if line.startswith("rank"))
    assert head.split() == [
        "rank",
        "ms/batch",
        "batches",
        "share",
        "training",
        "averaging",
        "waiting",
        "without",
        "data",
    ]


def test_every_option_is_named_in_full(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["simulate", "--help"]) == 0
    out = capsys.readouterr().out
    assert "--progressive-dispatch " in out
    assert "…" not in out


def test_speeds_are_read() -> None:
    assert parse_speeds("1, 0.4x3,2e0") == (1.0, 0.4, 0.4, 0.4, 2.0)


def test_faults_are_read() -> None:
    assert parse_slow_down("12:0.4@3") == SlowDown(rank=12, factor=0.4, epoch=3)
    assert parse_stall("1:500@12") == Stall(rank=1, batch=12, ms=500.0)
    assert parse_death("2@0") == Death(rank=2, moment=Moment.EPOCH, at=0)


BAD_INPUT = {
    "no speeds": (["simulate"], "Missing option '--speeds'"),
    "speed that is no number": (["simulate", "--speeds", "1,fast"], "--speeds wants positive numbers"),
    "speed 0": (["simulate", "--speeds", "1,0"], "not '0'"),
    "negative speed": (["simulate", "--speeds", "-1"], "not '-1'"),
    "infinite speed": (["simulate", "--speeds", "inf"], "not 'inf'"),
    "speed that is not a number": (["simulate", "--speeds", "nan"], "not 'nan'"),
    "empty speed": (["simulate", "--speeds", "1,"], "not ''"),
    "no ranks of a speed": (["simulate", "--speeds", "1x0"], "not '1x0'"),
    "malformed count": (["simulate", "--speeds", "1x"], "not '1x'"),
    "too many ranks": (["simulate", "--speeds", "1x9999999999"], "more than 10,000 ranks"),
    "epochs 0": ([*SMALL, "--epochs", "0"], "Invalid value for '--epochs'"),
    "unknown policy": ([*SMALL, "--policy", "fast"], "--policy must be one of sync, cadence, async"),
    "unknown backend": ([*SMALL, "--backend", "mpi"], "--backend must be one of nccl, gloo, cpu"),
    "jitter 1": ([*SMALL, "--jitter", "1"], "jitter must be at least 0 and below 1, not 1.0"),
    "batch time 0": ([*SMALL, "--batch-ms", "0"], "batch_ms of rank 0 must be from 0.001 to 1e+08, not 0"),
    "speed without a batch time": (["simulate", "--speeds", "1,1e308"], "batch_ms of rank 1 must be from 0.001"),
    "speed without an end": (["simulate", "--speeds", "1,1e-320"], "must be from 0.001 to 1e+08, not inf"),
    "slow-down without an end": ([*SMALL, "--slow", "1:1e-9@1"], "batch_ms after a slow-down must be from 0.001"),
    "average of no time": ([*SMALL, "--average-ms", "nan"], "average_ms must be from 0 to 1e+08, not nan"),
    "averages of ages": ([*SMALL, "--stall-ms", "1e12"], "stall_ms must be from 0 to 1e+08, not 1e+12"),
    "endless samples": (
        [*SMALL, "--samples", "1000000000"],
        "250,000,000 batches, and at most 10,000,000 are simulated",
    ),
    "endless epochs": ([*SMALL, "--epochs", "99999999", "--samples", "1"], "99,999,999 batches"),
    "endless ranks": (
        ["simulate", "--speeds", "1x9999", "--samples", "9999", "--epochs", "9999"],
        "99,980,001 batches",
    ),
    "anchors the wrong way round": ([*SMALL, "--max-anchor", "5"], "--max-anchor (5) must be at least --anchor (10)"),
    "malformed slow-down": ([*SMALL, "--slow", "0:0.4"], "--slow wants RANK:FACTOR@EPOCH such as 0:0.4@4"),
    "slow-down of nobody": ([*SMALL, "--slow", "2:0.4@1"], "a slow-down names rank 2; there are ranks 0..1"),
    "slow-down in no epoch": ([*SMALL, "--slow", "0:0.4@2"], "a slow-down names epoch 2; there are epochs 0..1"),
    "slow-down to nothing": ([*SMALL, "--slow", "0:0@1"], "a slow-down's factor must be positive and finite, not 0.0"),
    "malformed stall": ([*SMALL, "--stall", "0:x@1"], "--stall wants RANK:MS@BATCH such as 0:500@12, not '0:x@1'"),
    "stall of nobody": ([*SMALL, "--stall", "2:5@1"], "a stall names rank 2; there are ranks 0..1"),
    "malformed ratios": ([*SMALL, "--partition-ratios", "1,x"], "--partition-ratios wants a number for each rank"),
    "too few ratios": ([*SMALL, "--partition-ratios", "1"], "partition_ratios must have a number for each of 2 ranks"),
    "ratio 0": ([*SMALL, "--partition-ratios", "1,0"], "partition_ratios must be positive and finite, not 0.0"),
    "malformed hint": ([*SMALL, "--speed-hint", "2.5"], "--speed-hint wants RANK:RATIO such as 1:2.5, not '2.5'"),
    "hint beyond all counts": (
        [*SMALL, "--speed-hint", "0:1e308"],
        "the speed hint's ratio must be from 1 to 1,000,000, not 1e+308",
    ),
    "anchor beyond all counts": (
        [*SMALL, "--anchor", "1" + 400 * "0", "--max-anchor", "1" + 400 * "0"],
        "anchor must be from 1 to 2**63 - 1",
    ),
    "endless number of ranks": (
        ["simulate", "--speeds", "1x" + 5000 * "9"],
        "--speeds wants positive numbers such as 1,0.4 or 1,0.4x8, not '1x" + 5000 * "9" + "'",
    ),
    "endless number of a rank": (
        [*SMALL, "--stall", 5000 * "9" + ":1@0"],
        "--stall wants RANK:MS@BATCH such as 0:500@12, not '" + 5000 * "9" + ":1@0'",
    ),
    "hint of nobody": ([*SMALL, "--speed-hint", "2:2.5"], "the speed hint names rank 2; there are ranks 0..1"),
    "hint below 1": (
        [*SMALL, "--speed-hint", "1:0.5"],
        "the speed hint's ratio must be from 1 to 1,000,000, not 0.5",
    ),
    "dispatch": ([*SMALL, "--progressive-dispatch", "x"], "--progressive-dispatch must be true or false, not 'x'"),
    "no steps": ([*SMALL, "--max-steps", "0"], "Invalid value for '--max-steps'"),
    "no time": ([*SMALL, "--max-time-s", "0"], "max_time_s must be positive and finite, not 0.0"),
    "malformed death": ([*SMALL, "--die", "0"], "--die wants RANK@EPOCH such as 1@3, not '0'"),
    "death of nobody": ([*SMALL, "--die", "7@0"], "a death names rank 7; there are ranks 0..1"),
}


@pytest.mark.parametrize(("arguments", "expected"), BAD_INPUT.values(), ids=BAD_INPUT.keys())
def test_bad_input_is_one_line(arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert expected in captured.err
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("flodl: error: ")
