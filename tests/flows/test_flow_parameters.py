"""The flow's parameters are those of a run."""

from __future__ import annotations

from typing import Any

import pytest
from prefect import flow
from prefect.exceptions import ParameterTypeError

from flodl_store.params import RunParams
from flodl_store.run_id import new_run_id
from flows.ddp_train import ddp_train
from flows.flow_parameters import takes_run_params


@flow
@takes_run_params
def example(**values: Any) -> dict[str, Any]:
    """An example."""
    return values


def test_every_field_is_a_parameter_with_its_description_and_ranges() -> None:
    schema, model = ddp_train.parameters.model_dump(), RunParams.model_json_schema()
    assert set(schema["properties"]) == {*model["properties"], "run_id"}
    assert schema["required"] == model["required"] == ["recipe"]
    for name, field in model["properties"].items():
        shown = schema["properties"][name]
        assert shown["description"] == f"{field['description']}.", name
        told = {"title", "description", "position", "prefixItems"}
        assert {key: value for key, value in shown.items() if key not in told} == {
            key: value for key, value in field.items() if key not in told
        }, name


def test_values_reach_the_flow_as_the_model_takes_them() -> None:
    run_id = new_run_id()
    values = example.validate_parameters({"recipe": "digits", "devices": ["cpu"], "epochs": "3", "run_id": run_id})
    assert (values["devices"], values["epochs"], values.pop("run_id")) == (("cpu",), 3, run_id)
    assert RunParams(**values) == RunParams(recipe="digits", devices=("cpu",), epochs=3)
    assert example.fn(**values) == values


@pytest.mark.parametrize(
    "bad", [{"epochs": 0}, {"policy": "never"}, {"lr": -1.0}, {"devices": []}, {"run_id": "../x"}, {"epoch": 3}]
)
def test_what_the_model_refuses_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises((ParameterTypeError, TypeError)):
        example.validate_parameters({"recipe": "digits", **bad})
