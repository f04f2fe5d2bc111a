"""``/api/runs/{id}/stream``: a run while it happens, as server-sent events."""

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Query
from starlette.responses import StreamingResponse

from dashboard.dependencies import FeedsDep, RunDep
from dashboard.feeds import Feeds
from dashboard.problems import PROBLEM_RESPONSE

router = APIRouter(
    prefix="/api/runs/{run_id}", tags=["series"], responses={404: PROBLEM_RESPONSE, 503: PROBLEM_RESPONSE}
)

HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}  # the latter keeps nginx from holding it back


@router.get(
    "/stream",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}, "description": "Events"}},
)
async def stream_run(
    feeds: FeedsDep,
    run: RunDep,
    after: Annotated[int, Query(ge=0, description="Cursor: the seq of the last row that the client has")] = 0,
    last_event_id: Annotated[str | None, Header(description="The cursor, as a browser that reconnects says it")] = None,
) -> StreamingResponse:
    """The run from the cursor on: every row once, in order of seq.

    Events: ``rows`` (its id is the new cursor; data has after, seq, steps as columns and rows, epochs, events),
    ``run`` (what is known of the run, at first all of it, then what has changed) and ``beat`` (nothing new for 10 s).
    """
    cursor = int(last_event_id) if last_event_id is not None and last_event_id.isdecimal() else after
    return StreamingResponse(_follow(feeds, run.id, cursor), media_type="text/event-stream", headers=HEADERS)


async def _follow(feeds: Feeds, run_id: str, cursor: int) -> AsyncIterator[bytes]:
    async with feeds.watch(run_id) as feed:
        async for message in feed.follow(cursor):
            yield message
