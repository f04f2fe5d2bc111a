"""The Prefect flow ``ddp-train``: the steps of ``flows.training``, recorded, with what Prefect shows of them.

The steps are plain functions elsewhere; here are their wrappers alone. torch is imported by the flow's own process, and
not by the one that serves it.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run

from flodl_store.database import open_database
from flodl_store.flow_runs import runs_under_way
from flodl_store.params import RunParams
from flodl_store.run_id import new_run_id
from flodl_store.runs import end_run
from flows.flow_parameters import takes_run_params
from flows.interruptible import InterruptibleWork

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun
    from prefect.flows import Flow

DEPLOYMENT = "ddp-train"


def _flow_run_name() -> str:
    parameters = flow_run.get_parameters() or {}
    return str(parameters.get("name") or parameters.get("recipe"))


def _mark_cancelled(flow: "Flow[..., Any]", flow_run: "FlowRun", state: State[Any]) -> None:
    """The runs of a flow that was killed, or ended before it could say so itself. Runs in the serving process."""
    given = flow_run.parameters.get("run_id")
    with open_database() as db:
        for run_id in {*runs_under_way(db, str(flow_run.id)), *([given] if given else [])}:
            end_run(db, run_id, "cancelled")


@flow(
    name="ddp-train",
    flow_run_name=_flow_run_name,
    on_cancellation=[_mark_cancelled],
    persist_result=False,
)
@takes_run_params
def ddp_train(**values: Any) -> State[Any]:
    """Train a recipe on the devices of this machine; its page shows it live.

    Cancelling saves what was trained. A retry is a new run.
    """
    from flows.flow_steps import FlowSteps  # torch comes with it

    is_retry = (flow_run.get_run_count() or 1) > 1
    given = values.pop("run_id")
    steps = FlowSteps(
        RunParams(**values),
        run_id=new_run_id() if given is None or is_retry else given,
        flow_run_id=flow_run.get_id(),
        started_in=Path(os.environ.get("FLODL_STARTED_IN") or Path.cwd()),
    )
    state = InterruptibleWork(steps.run, name="flodl-flow").run(steps.look)
    steps.look(at_once=True)
    return state
