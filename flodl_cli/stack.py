"""The services of ``flodl up``: Prefect's server, the dashboard, and what runs flows.

Order of the end: what runs flows gets SIGTERM while the server still answers, so that the flow under way saves what it
trained and says so; then the dashboard; then the server. The guards keep that order where this process is killed.
"""

import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from flodl_cli.failures import SERVICE_UNREACHABLE, CliError
from flodl_cli.ports import LOOPBACK
from flodl_cli.prefect_environment import enter_environment, service_environment
from flodl_cli.service import Service

START_S = 180.0
"""Longest wait for a service; a first start on a slow machine takes half a minute."""
POLL_S = 0.1
RUNNER_GRACE_S = 45.0
"""Prefect gives a flow 30 s to save what it trained."""
SERVER_GRACE_S = 15.0
_FLODL = "import sys; from flodl_cli.main import main; sys.exit(main())"

Tell = Callable[[str | None], None]
"""Called with what is being waited for, and with None when that is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be started, and where.

    Attributes:
        home: ``$FLODL_HOME``, which exists.
        started_in: Folder where flodl was started.
        dashboard_port: A free one.
        prefect_port: A free one; None where somebody else's Prefect is used.
        prefect_api: Its API.
    """

    home: Path
    started_in: Path
    dashboard_port: int
    prefect_port: int | None
    prefect_api: str

    @property
    def dashboard_url(self) -> str:
        """Where the dashboard will be."""
        return f"http://{LOOPBACK}:{self.dashboard_port}"


class Stack:
    """Services that were started. Owner: the thread that started them."""

    def __init__(self, services: list[Service]) -> None:
        self._services = services

    def check(self) -> None:
        """See that all of them run.

        Raises:
            CliError: One has ended by itself.
        """
        for service in self._services:
            if service.poll() is not None:
                raise ServiceEndedError(service)

    def stop(self) -> None:
        """End all, the last one that was started first. May be called twice."""
        for service in reversed(self._services):
            service.stop()


class ServiceEndedError(CliError):
    """A service ended although nobody had told it to."""

    def __init__(self, service: Service) -> None:
        words = service.last_words()
        said = f": {words}" if words else ""
        super().__init__(f"{service.name} has ended{said} (log: {service.log_path})", exit_code=SERVICE_UNREACHABLE)


@contextmanager
def running_services(plan: Plan, *, tell: Tell, on_dashboard: Callable[[], None]) -> Iterator[Stack]:
    """Start everything, and end it when the block is left.

    Args:
        plan: What, and where.
        tell: Called with what is being waited for.
        on_dashboard: Called once the dashboard answers.

    Raises:
        CliError: A service does not come up.
    """
    environment = service_environment(
        os.environ,
        home=plan.home,
        started_in=plan.started_in,
        api_url=plan.prefect_api,
        own_server=plan.prefect_port is not None,
        dashboard_url=plan.dashboard_url,
    )
    enter_environment(environment)
    if plan.prefect_port is None:
        _find_prefect(plan)
    services: list[Service] = []
    stack = Stack(services)
    try:
        begun = datetime.now(UTC)
        _start(plan, environment, services)
        tell("starting the dashboard")
        _await(lambda: _answers(f"{plan.dashboard_url}/healthz"), stack, "the dashboard")
        on_dashboard()
        _await_prefect(stack, begun, plan, tell)
        yield stack
    finally:
        tell("stopping")
        stack.stop()


def _find_prefect(plan: Plan) -> None:
    from flodl_cli.prefect_api import open_api

    with open_api() as api:
        if not api.answers():
            raise CliError(
                f"Prefect does not answer at {plan.prefect_api}: start it, or unset PREFECT_API_URL for one of our own",
                exit_code=SERVICE_UNREACHABLE,
            )


def _start(plan: Plan, environment: dict[str, str], services: list[Service]) -> None:
    logs = plan.home / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    (plan.home / "prefect").mkdir(exist_ok=True)

    def start(name: str, log: str, command: list[str], *, grace_s: float) -> None:
        services.append(
            Service(
                name,
                [sys.executable, "-P", *command],
                environment=environment,
                folder=plan.home,
                log_path=logs / log,
                grace_s=grace_s,
                outlived_by=tuple(services),
            )
        )

    if plan.prefect_port is not None:
        command = ["-m", "prefect", "server", "start", "--host", LOOPBACK, "--port", str(plan.prefect_port)]
        start("Prefect's server", "prefect-server.log", command, grace_s=SERVER_GRACE_S)
    command = ["-c", _FLODL, "dashboard", "--host", LOOPBACK, "--port", str(plan.dashboard_port)]
    start("the dashboard", "dashboard.log", command, grace_s=SERVER_GRACE_S)
    start("the runner of flows", "runner.log", ["-m", "flows.serving"], grace_s=RUNNER_GRACE_S)


def _await_prefect(stack: Stack, begun: datetime, plan: Plan, tell: Tell) -> None:
    from flodl_cli.prefect_api import open_api  # takes seconds, in which the services come up

    with open_api() as api:
        tell("starting Prefect; the first time takes half a minute")
        _await(api.answers, stack, f"Prefect ({plan.prefect_api})")
        tell("deploying the flow")
        _await(lambda: api.is_served(since=begun), stack, "the runner of flows")


def _await(answers: Callable[[], bool], stack: Stack, what: str) -> None:
    limit_s = time.monotonic() + START_S
    while not answers():
        stack.check()
        if time.monotonic() > limit_s:
            raise CliError(f"{what} does not answer within {START_S:g} s", exit_code=SERVICE_UNREACHABLE)
        time.sleep(POLL_S)


def _answers(url: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the loopback address needs no proxy
    try:
        with opener.open(url, timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False
