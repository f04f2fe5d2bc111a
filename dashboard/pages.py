"""The pages themselves. Each carries its first data in it, so that it is not empty until a script has asked."""

from datetime import UTC, datetime
from http import HTTPStatus

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from dashboard.api_runs import PAGE_SIZE, page_of_runs
from dashboard.dependencies import DatabaseDep, RunDep
from dashboard.public import RunPublic
from dashboard.templates import render, script_json
from flodl_store.runs import STATUSES

router = APIRouter(include_in_schema=False)


@router.get("/")
def show_runs(database: DatabaseDep) -> Response:
    """The list of runs."""
    page = page_of_runs(database, status=None, search=None, limit=PAGE_SIZE, cursor=None)
    return render("runs.html", statuses=STATUSES, page_json=script_json(page.model_dump(mode="json")))


@router.get("/runs/{run_id}")
def show_run(run_id: str, run: RunDep) -> Response:
    """One run. What else its name may be leads to the address that lasts."""
    if run_id != run.id:
        return RedirectResponse(f"/runs/{run.id}", HTTPStatus.SEE_OTHER)
    first = {"now": datetime.now(UTC).isoformat(), "run": RunPublic.model_validate(run).model_dump(mode="json")}
    return render("run.html", run=run, run_json=script_json(first))


@router.get("/api/docs")
def show_api(request: Request) -> Response:
    """What the REST interface offers, read from its description; no script, and nothing from elsewhere."""
    paths = request.app.openapi()["paths"]
    operations = [
        {
            "method": method.upper(),
            "path": path,
            "text": operation.get("description", operation["summary"]),
            "query": [parameter for parameter in operation.get("parameters", ()) if parameter["in"] == "query"],
        }
        for path, methods in sorted(paths.items())
        for method, operation in methods.items()
    ]
    return render("api.html", operations=operations)
