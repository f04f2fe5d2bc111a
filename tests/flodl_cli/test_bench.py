"""``flodl bench``: every measurement can be started, and says so where it cannot."""

from __future__ import annotations

import json
import runpy

import pytest

from flodl_cli import bench
from flodl_cli.main import main


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_benchmarks_are_listed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *arguments]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in bench.BENCHMARKS)


@pytest.mark.filterwarnings("ignore:.* found in sys.modules:RuntimeWarning")  # imported by another test: run anew
@pytest.mark.parametrize("name", list(bench.BENCHMARKS))
def test_each_explains_its_own_options(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(bench.BENCHMARKS[name][0], run_name="__main__")
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert "--json" in out
    assert "--rounds" in out


def test_a_benchmark_gets_its_options_and_gives_its_figures(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "averaging", "--numel", "1000", "--rounds", "2", "--json"]) == 0
    rows = {row["case"]: row for row in json.loads(capfd.readouterr().out)["rows"]}
    assert rows["copy"]["copies"] == 1.0
    assert rows["in place"]["ms"] >= 0


def test_a_benchmark_that_fails_fails_the_command(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "averaging", "--rounds", "1"]) == 2
    assert "--rounds at least 2" in capfd.readouterr().err


def test_unknown_names_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "speed"]) == 2
    assert "there is no benchmark 'speed': use peers, " in capsys.readouterr().err


def test_without_a_checkout_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: object
) -> None:
    monkeypatch.setattr(bench, "ROOT", tmp_path)
    assert main(["bench", "peers"]) == 2
    assert "from a checkout" in capsys.readouterr().err
