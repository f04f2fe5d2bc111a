"""RunParams: what it accepts, what it refuses, and how it says so."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args

import pytest
import torch
from pydantic import ValidationError

from flodl_core.arguments import check_amp
from flodl_core.policies import ApplyPolicy, AverageBackend, NonFinitePolicy
from flodl_core.settings import Settings
from flodl_store import params as params_module
from flodl_store.params import NUMBERS, RunParams
from flodl_store.params_errors import describe_errors


@pytest.mark.parametrize(
    ("literal", "engine"),
    [
        (params_module.Policy, ApplyPolicy),
        (params_module.Backend, AverageBackend),
        (params_module.OnNonfinite, NonFinitePolicy),
    ],
)
def test_literals_are_the_engines_values(literal: Any, engine: Any) -> None:
    assert set(get_args(literal)) == {member.value for member in engine}


def test_the_engine_takes_every_amp() -> None:
    taken = {value: check_amp(value) for value in get_args(params_module.Amp)}
    assert taken == {False: None, True: torch.bfloat16, "bfloat16": torch.bfloat16}


def test_defaults_are_the_engines() -> None:
    engine = {field.name: field.default for field in dataclasses.fields(Settings)}
    ours = {name: field.get_default() for name, field in RunParams.model_fields.items() if name in engine}
    shared = {name: default for name, default in ours.items() if default is not None and name != "amp"}
    assert len(shared) >= 10
    assert {name: engine[name] for name in shared} == shared
    assert check_amp(ours["amp"]) == engine["amp"]


def test_only_the_recipe_is_required() -> None:
    params = RunParams.model_validate({"recipe": "digits"})
    assert (params.policy, params.backend, params.epochs, params.seed) == ("cadence", None, None, 42)


def test_a_number_is_taken_as_a_name() -> None:
    assert RunParams.model_validate({"recipe": "digits", "name": 7, "tags": [1]}).name == "7"


def test_every_field_is_described() -> None:
    assert [name for name, field in RunParams.model_fields.items() if name != "recipe" and not field.description] == []


def test_params_survive_json() -> None:
    params = RunParams.model_validate({"recipe": "digits", "devices": ["cpu", "cpu@2.5"], "lr": 0.1, "tags": ["a"]})
    assert RunParams.model_validate_json(params.model_dump_json()) == params


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"epochs": -3}, "epochs must be at least 1, not -3"),
        ({"epochs": 2.5}, "epochs must be a whole number, not 2.5"),
        ({"batch_size": "big"}, "batch_size must be a whole number, not 'big'"),
        ({"lr": float("nan")}, "lr must be a finite number, not nan"),
        ({"lr": 0}, "lr must be above 0, not 0"),
        ({"seed": 2**63}, "seed must be below 9223372036854775808, not 9223372036854775808"),
        ({"overhead_target": 0.7}, "overhead_target must be at most 0.5, not 0.7"),
        ({"drop_last": "maybe"}, "drop_last must be true or false, not 'maybe'"),
        ({"policy": "fast"}, "policy must be one of sync, cadence, async, not 'fast'"),
        ({"backend": "mpi"}, "backend must be one of nccl, gloo, cpu, not 'mpi'"),
        ({"devices": []}, "devices must not be empty, not []"),
        ({"devices": "cpu"}, """devices must be a list of devices such as ["cpu", "cpu@2.5"], not 'cpu'"""),
        ({"devices": ["tpu"]}, "devices[0] must look like cpu, cuda:0 or cpu@2.5, not 'tpu'"),
        ({"epoch": 1}, "unknown parameter 'epoch': did you mean epochs?"),
        ({"amp": "float16"}, "amp must be one of false, true, bfloat16, not 'float16'"),
        ({"progressive_dispatch": "perhaps"}, "progressive_dispatch must be true or false, not 'perhaps'"),
        ({"divergence_threshold": -0.1}, "divergence_threshold must be at least 0, not -0.1"),
        ({"grad_accumulation": 65537}, "grad_accumulation must be at most 65536, not 65537"),
        ({"outer_lr": 0}, "outer_lr must be above 0, not 0"),
        ({"outer_momentum": 1}, "outer_momentum must be below 1, not 1"),
        ({"max_steps": 0}, "max_steps must be at least 1, not 0"),
        ({"batch_size": 10**20}, f"batch_size must be at most 1000000000, not {10**20}"),
        ({"epochs": 2**63}, f"epochs must be at most 1000000000, not {2**63}"),
        ({"max_batch_diff": 10**10}, "max_batch_diff must be at most 1000000000, not 10000000000"),
        ({"max_time_s": float("inf")}, "max_time_s must be a finite number, not inf"),
        ({"epochs": 0, "anchor": 0}, "epochs must be at least 1, not 0; anchor must be at least 1, not 0"),
    ],
)
def test_a_refusal_is_one_line_that_names_the_field_and_the_range(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        RunParams.model_validate({"recipe": "digits", **given})
    assert describe_errors(caught.value) == message


def test_a_parameter_like_none_that_exists_gets_the_list() -> None:
    with pytest.raises(ValidationError) as caught:
        RunParams.model_validate({"recipe": "digits", "zzzz": 1})
    assert describe_errors(caught.value).startswith("unknown parameter 'zzzz': there are recipe, devices,")


def test_a_missing_recipe_is_named() -> None:
    with pytest.raises(ValidationError) as caught:
        RunParams.model_validate({})
    assert describe_errors(caught.value) == "recipe is missing"


@pytest.mark.parametrize("name", ["epochs", "lr", "seed", "anchor", "max_batch_diff", "max_steps", "outer_lr"])
def test_true_is_no_number(name: str) -> None:
    with pytest.raises(ValidationError, match="must be a number"):
        RunParams.model_validate({"recipe": "digits", name: True})


def test_every_number_refuses_booleans() -> None:
    kinds = (int, float, int | None, float | None)
    numeric = {name for name, field in RunParams.model_fields.items() if field.annotation in kinds}
    assert numeric == set(NUMBERS)
