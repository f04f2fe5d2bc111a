"""Options and -p become a run's parameters."""

from __future__ import annotations

import pytest

from flodl_cli.failures import CliError
from flodl_cli.parameters import build_params, parse_assignment


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("policy=async", "async"),
        ("epochs=3", 3),
        ("lr=1e-2", 0.01),
        ("drop_last=true", True),
        ("backend=null", None),
        ('name="a b"', "a b"),
        ("name=a=b", "a=b"),
        ("name=", ""),
        (" epochs = 3 ", 3),
        ("lr=NaN", "NaN"),
        ('devices=["cpu","cpu@2.5"]', ["cpu", "cpu@2.5"]),
        ("devices=cpu,cpu@2.5", ["cpu", "cpu@2.5"]),
        ("tags=one", ["one"]),
    ],
)
def test_a_value_is_json_or_a_bare_word(text: str, value: object) -> None:
    assert parse_assignment(text)[1] == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epochs", "-p wants key=value, not 'epochs'"),
        ("=3", "-p wants key=value, not '=3'"),
        ("epoch=3", r"unknown parameter 'epoch': did you mean epochs\?"),
        ("devices=[cpu", "the value of devices is neither JSON nor a bare word"),
        ('name="a', "the value of name is neither JSON nor a bare word"),
        ("name=[a\nflodl: done\x1b[31m", r"neither JSON nor a bare word: '\[a\\nflodl: done\\x1b\[31m'$"),
        ("name=" + "[" * 20_000, "nested too deeply"),
    ],
)
def test_what_is_malformed_is_named(text: str, message: str) -> None:
    with pytest.raises(CliError, match=message):
        parse_assignment(text)


def test_options_that_were_not_given_leave_their_defaults() -> None:
    params = build_params({"recipe": "digits", "policy": None, "epochs": 2}, ["lr=0.5"])
    assert (params.policy, params.epochs, params.lr) == ("cadence", 2, 0.5)


@pytest.mark.parametrize("assignments", [["epochs=3"], ["seed=1", "seed=2"]])
def test_a_parameter_given_twice_is_refused(assignments: list[str]) -> None:
    with pytest.raises(CliError, match="is given twice"):
        build_params({"recipe": "digits", "epochs": 2}, assignments)
