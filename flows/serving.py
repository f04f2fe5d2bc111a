"""``python -P -m flows.serving``: serve the flow ``ddp-train`` as a deployment and run what is asked of it.

It is started in ``$FLODL_HOME``, by module path and without the working folder on ``sys.path``: a folder of the user's
that is called ``flows`` hides nothing. ``FLODL_STARTED_IN`` is the folder where flodl was started; recipes by
``package.module:attribute`` are looked for there last.
"""

import asyncio
import logging
import sys

from prefect import get_client
from prefect.runner import Runner
from prefect.types.entrypoint import EntrypointType

from flows.ddp_train import DEPLOYMENT, ddp_train

logger = logging.getLogger(__name__)

WAIT_S = 180.0
POLL_S = 0.25


class ApiUnreachableError(Exception):
    """Prefect's API did not answer in time."""


async def serve() -> None:
    """Register the deployment and run flows until SIGTERM.

    Raises:
        ApiUnreachableError: Prefect's API does not answer.
    """
    await _await_api()
    runner = Runner(name="flodl", pause_on_shutdown=False)
    # By module path, so that the flow's process imports it as this one did.
    await runner.aadd_flow(ddp_train, name=DEPLOYMENT, entrypoint_type=EntrypointType.MODULE_PATH)
    await runner.start()


async def _await_api() -> None:
    async with get_client() as client:
        limit_s = asyncio.get_running_loop().time() + WAIT_S
        while (error := await client.api_healthcheck()) is not None:
            if asyncio.get_running_loop().time() > limit_s:
                raise ApiUnreachableError(f"Prefect does not answer at {client.api_url}: {error}")
            await asyncio.sleep(POLL_S)


def main() -> int:
    """Serve; the exit code is 3 where Prefect is out of reach."""
    try:
        asyncio.run(serve())
    except ApiUnreachableError as error:
        logger.error("%s", error)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
