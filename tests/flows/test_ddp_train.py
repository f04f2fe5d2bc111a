"""The flow ``ddp-train`` against a real Prefect server, with what serves it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, LogFilter, LogFilterFlowRunId
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import PrefectHTTPStatusError

from flodl_core import TrainedState
from flodl_store.database import Database, open_database
from flodl_store.graphs import get_graph
from flodl_store.params import RunParams
from flodl_store.runs import NewRun, RunView, create_run, get_run, list_runs, request_cancel
from flodl_store.series import epochs, steps
from tests.running_services import RunningServices, until

DEPLOYMENT = "ddp-train/ddp-train"
TWO_DEVICES = 'devices=["cpu","cpu@1.5"]'


@pytest.fixture
def client(up: RunningServices) -> Iterator[SyncPrefectClient]:
    with SyncPrefectClient(up.prefect_api) as opened:
        yield opened


@pytest.fixture
def db(up: RunningServices) -> Iterator[Database]:
    with open_database(f"sqlite:///{up.home}/flodl.db") as opened:
        yield opened


def start(up: RunningServices, *parameters: str) -> UUID:
    """As in another shell; returns the flow run's id."""
    options = [word for parameter in parameters for word in ("-p", parameter)]
    answer = up.prefect("deployment", "run", DEPLOYMENT, *options)
    assert answer.returncode == 0, answer.stderr
    found = re.search(r"UUID: ([0-9a-f-]{36})", answer.stdout)
    assert found is not None, answer.stdout
    return UUID(found[1])


def ended(up: RunningServices, client: SyncPrefectClient, flow_run_id: UUID) -> FlowRun:
    def has_ended() -> bool:
        state = client.read_flow_run(flow_run_id).state
        return state is not None and state.is_final()

    until(has_ended, "the end of the flow run")
    until(lambda: not up.flow_processes(), "the end of the flow's process")
    return client.read_flow_run(flow_run_id)


def run_of(db: Database, flow_run_id: UUID) -> RunView:
    return next(run for run in list_runs(db).items if run.flow_run_id == str(flow_run_id))


def logs_of(client: SyncPrefectClient, flow_run_id: UUID) -> str:
    found = client.read_logs(LogFilter(flow_run_id=LogFilterFlowRunId(any_=[flow_run_id])))
    return "\n".join(log.message for log in found)


def assert_state_is_saved(up: RunningServices, db: Database, run: RunView) -> None:
    from flodl_store.artifacts import list_artifacts

    files = {file.kind: file for file in list_artifacts(db, run.id)}
    assert set(files) == {"state", "log"}
    path = up.home / "artifacts" / files["state"].path
    assert hashlib.sha256(path.read_bytes()).hexdigest() == files["state"].sha256
    TrainedState.load(path)


def test_a_run_from_another_shell_trains_is_recorded_and_is_shown_in_prefect(
    up: RunningServices, client: SyncPrefectClient, db: Database
) -> None:
    flow_run_id = start(up, "recipe=own_recipe:recipe", "epochs=3", TWO_DEVICES, "name=From a shell")
    flow_run = ended(up, client, flow_run_id)
    assert flow_run.state is not None
    assert flow_run.state.is_completed(), flow_run.state.message
    assert (flow_run.name, flow_run.state.message and "accuracy" in flow_run.state.message) == ("From a shell", True)
    run = run_of(db, flow_run_id)
    assert (run.status, run.epoch, run.world_size, run.name) == ("completed", 3, 2, "From a shell")
    assert run.eval["accuracy"] > 0.5
    assert len(epochs(db, run.id)) == 3
    assert sum(row["num_samples"] for row in steps(db, run.id)) == run.num_samples == run.total_samples
    assert run.graph_hash is not None
    graph = get_graph(db, run.graph_hash)
    assert graph is not None
    assert graph.label.startswith("Sequential: 9 operators")
    assert_state_is_saved(up, db, run)
    assert_prefect_shows(up, client, flow_run_id, run)


def assert_prefect_shows(up: RunningServices, client: SyncPrefectClient, flow_run_id: UUID, run: RunView) -> None:
    until(lambda: "state saved" in logs_of(client, flow_run_id), "the log in Prefect")
    logs = logs_of(client, flow_run_id)
    assert "2 devices (heterogeneous)" in logs
    assert "epoch 3: loss" in logs
    found = client.read_artifacts(
        artifact_filter=ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run_id]))
    )
    artifacts: dict[str, Any] = {str(artifact.type): artifact.data for artifact in found}
    assert set(artifacts) == {"progress", "markdown", "table"}
    assert artifacts["progress"] == 100
    assert f"({up.dashboard}/runs/{run.id})" in artifacts["markdown"]
    assert [row["epoch"] for row in json.loads(artifacts["table"])] == [1, 2, 3]
    tasks = {task.name.rsplit("-", 1)[0] for task in client.read_task_runs()}
    assert {"prepare", "train", "publish", "evaluate"} <= tasks


def test_cancelling_in_prefect_saves_what_was_trained(
    up: RunningServices, client: SyncPrefectClient, db: Database
) -> None:
    pending = create_run(db, NewRun.of(RunParams(recipe="digits")))
    flow_run_id = start(up, "recipe=digits", "epochs=100000", TWO_DEVICES, f"run_id={pending.id}")
    until(lambda: get_run(db, pending.id).epoch >= 1, "the first epoch")
    answer = up.prefect("flow-run", "cancel", str(flow_run_id))
    assert answer.returncode == 0, answer.stderr
    flow_run = ended(up, client, flow_run_id)
    assert flow_run.state is not None
    assert flow_run.state.is_cancelled(), flow_run.state
    run = get_run(db, pending.id)
    assert (run.status, run.error, run.flow_run_id) == ("cancelled", None, str(flow_run_id))
    assert run.num_samples > 0
    assert run.eval["accuracy"] > 0.5
    assert_state_is_saved(up, db, run)


def test_cancelling_in_the_database_ends_the_flow(up: RunningServices, client: SyncPrefectClient, db: Database) -> None:
    flow_run_id = start(up, "recipe=digits", "epochs=100000", 'devices=["cpu"]')
    until(lambda: any(run.flow_run_id == str(flow_run_id) and run.epoch for run in list_runs(db).items), "an epoch")
    run = run_of(db, flow_run_id)
    assert request_cancel(db, run.id)
    flow_run = ended(up, client, flow_run_id)
    assert flow_run.state is not None
    assert flow_run.state.is_cancelled(), flow_run.state
    run = get_run(db, run.id)
    assert run.status == "cancelled"
    assert_state_is_saved(up, db, run)


def test_a_run_that_cannot_start_says_why(up: RunningServices, client: SyncPrefectClient, db: Database) -> None:
    deployment = client.read_deployment_by_name(DEPLOYMENT)
    flow_run_id = client.create_flow_run_from_deployment(deployment.id, parameters={"recipe": "digit"}).id
    flow_run = ended(up, client, flow_run_id)
    assert flow_run.state is not None
    assert flow_run.state.is_failed()
    run = run_of(db, flow_run_id)
    assert run.status == "failed"
    assert run.error == flow_run.state.message
    assert run.error is not None
    assert "did you mean digits?" in run.error


@pytest.mark.parametrize("bad", [{"epochs": 0}, {"policy": "never"}, {"devices": ["gpu"]}, {"seed": "x"}])
def test_bad_parameters_are_refused_at_submission(client: SyncPrefectClient, bad: dict[str, Any]) -> None:
    deployment = client.read_deployment_by_name(DEPLOYMENT)
    (name,) = bad
    with pytest.raises(PrefectHTTPStatusError, match=f"(?s)Validation failed.*{name}"):
        client.create_flow_run_from_deployment(deployment.id, parameters={"recipe": "digits", **bad})
