"""What the command line asks of Prefect's API. Imported late: Prefect reads its environment when it is imported."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any
from uuid import UUID

import httpx
from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.states import Cancelled

from flodl_cli.failures import SERVICE_UNREACHABLE, CliError

FLOW_AND_DEPLOYMENT = "ddp-train/ddp-train"


class PrefectApi:
    """Asks the API at ``$PREFECT_API_URL``."""

    def __init__(self, client: SyncPrefectClient) -> None:
        self._client = client

    def answers(self) -> bool:
        """Whether it does."""
        return self._client.api_healthcheck() is None

    def is_served(self, *, since: datetime) -> bool:
        """Whether somebody has looked for runs of our deployment since then."""
        try:
            polled = self._client.read_deployment_by_name(FLOW_AND_DEPLOYMENT).last_polled
        except (ObjectNotFound, httpx.HTTPError):
            return False
        return polled is not None and polled >= since

    def start_run(self, parameters: Mapping[str, Any]) -> UUID:
        """Ask for a run of our deployment.

        Returns:
            The flow run's id.

        Raises:
            CliError: There is no such deployment, a parameter is refused, or the API is out of reach.
        """
        try:
            deployment = self._client.read_deployment_by_name(FLOW_AND_DEPLOYMENT)
            return self._client.create_flow_run_from_deployment(deployment.id, parameters=dict(parameters)).id
        except ObjectNotFound:
            raise CliError(
                f"nobody serves {FLOW_AND_DEPLOYMENT}: start flodl up", exit_code=SERVICE_UNREACHABLE
            ) from None
        except PrefectHTTPStatusError as error:
            raise CliError(f"Prefect refuses the run: {' '.join(str(error).split())}") from error
        except httpx.HTTPError as error:
            raise CliError(f"Prefect does not answer: {error}", exit_code=SERVICE_UNREACHABLE) from error

    def withdraw(self, flow_run_id: UUID) -> bool:
        """Take back a run that nobody has begun.

        Returns:
            Whether it had not begun; otherwise, and where the API is out of reach, it is left as it is.
        """
        try:
            state = self._client.read_flow_run(flow_run_id).state
            if state is None or not (state.is_scheduled() or state.is_pending()):
                return False
            self._client.set_flow_run_state(flow_run_id, Cancelled(message="withdrawn before it began"), force=True)
        except (ObjectNotFound, httpx.HTTPError):
            return False
        return True


@contextmanager
def open_api() -> Iterator[PrefectApi]:
    """The API, for the block."""
    with get_client(sync_client=True) as client:
        yield PrefectApi(client)
