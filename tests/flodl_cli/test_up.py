"""``flodl up`` and ``flodl demo`` as they are used: real services, real signals."""

from __future__ import annotations

import signal
import socket
import urllib.request
from pathlib import Path

import psutil
import pytest

from flodl_store.database import open_database
from flodl_store.runs import get_run, list_runs
from tests.running_services import RunningServices, command, copy_prefect_database, free_port, gone, until


def run_id_of(line: str) -> str:
    return line.rpartition("/runs/")[2]


def test_everything_answers(up: RunningServices) -> None:
    for url in (f"{up.dashboard}/", f"{up.prefect_api}/health", f"{up.prefect_api.removesuffix('/api')}/"):
        with urllib.request.urlopen(url, timeout=30) as response:
            assert response.status == 200
    assert {path.name for path in (up.home / "logs").iterdir()} == {"dashboard.log", "prefect-server.log", "runner.log"}
    assert (up.home / "prefect" / "prefect.db").exists()


def test_services_listen_on_loopback_alone(up: RunningServices) -> None:
    listening = [
        connection.laddr.ip
        for process in psutil.Process(up.pid).children(recursive=True)
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(listening) >= 2
    assert set(listening) == {"127.0.0.1"}


def test_a_second_up_in_the_same_home_says_where_the_first_is(up: RunningServices, tmp_path: Path) -> None:
    with command("up", folder=tmp_path, FLODL_HOME=str(up.home)) as second:
        assert second.wait() == 2
    (line,) = second.errors
    assert line.startswith("flodl: error: flodl up runs already in this home")
    assert up.dashboard in line
    assert up.prefect_api in line


def test_a_demo_uses_services_that_run_already(up: RunningServices, tmp_path: Path) -> None:
    arguments = ["demo", "--no-open", "--epochs", "2", "--exit-when-done"]
    with command(*arguments, folder=tmp_path, FLODL_HOME=str(up.home)) as demo:
        url = demo.line("Run: ")
        assert url.startswith(f"{up.dashboard}/runs/")
        with urllib.request.urlopen(url, timeout=30) as response:
            assert response.status == 200
        assert demo.wait(180) == 0, demo.errors
    with open_database(f"sqlite:///{up.home}/flodl.db") as db:
        run = get_run(db, run_id_of(url))
    assert (run.status, run.epoch, run.recipe) == ("completed", 2, "digits")
    assert [worker.device for worker in run.workers] == ["cpu", "cpu@2.5"]
    until(lambda: not up.flow_processes(), "the end of the flow's process")


def test_ctrl_c_in_the_middle_of_a_demo_leaves_a_cancelled_run_and_no_process(
    up: RunningServices, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    copy_prefect_database(up.home, home)
    ports = ["--port", str(free_port()), "--prefect-port", str(free_port())]
    with command("demo", "--no-open", "--epochs", "100000", *ports, folder=tmp_path, FLODL_HOME=str(home)) as demo:
        run_id = run_id_of(demo.line("Run: "))
        with open_database(f"sqlite:///{home}/flodl.db") as db:
            until(lambda: get_run(db, run_id).epoch >= 1, "the first epoch")
            processes = psutil.Process(demo.process.pid).children(recursive=True)
            demo.process.send_signal(signal.SIGINT)
            assert demo.wait() == 128 + signal.SIGINT
            run = get_run(db, run_id)
    assert gone(processes, limit_s=5)
    assert run.status == "cancelled"
    assert run.num_samples > 0
    assert (home / "artifacts" / run_id / "state.safetensors").exists()
    assert not [line for line in demo.errors if "Traceback" in line]


def test_a_killed_up_takes_everything_along_and_its_run_is_saved(up: RunningServices, tmp_path: Path) -> None:
    home = tmp_path / "home"
    copy_prefect_database(up.home, home)
    ports = ["--port", str(free_port()), "--prefect-port", str(free_port())]
    with command("demo", "--no-open", "--epochs", "100000", *ports, folder=tmp_path, FLODL_HOME=str(home)) as demo:
        run_id = run_id_of(demo.line("Run: "))
        with open_database(f"sqlite:///{home}/flodl.db") as db:
            until(lambda: get_run(db, run_id).epoch >= 1, "the first epoch")
            processes = psutil.Process(demo.process.pid).children(recursive=True)
            demo.process.kill()
            assert gone(processes)
            assert get_run(db, run_id).status == "cancelled"
    assert (home / "artifacts" / run_id / "state.safetensors").exists()


@pytest.mark.parametrize("option", ["--port", "--prefect-port"])
def test_a_port_that_is_taken_is_named(option: str, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        with command("up", option, port, folder=tmp_path, FLODL_HOME=str(tmp_path / "home")) as started:
            assert started.wait() == 2
    (line,) = started.errors
    assert line.startswith(f"flodl: error: port {port} is taken: name another one")
    assert option in line


def test_a_prefect_that_is_out_of_reach_is_named(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}/api"
    with command("up", folder=tmp_path, FLODL_HOME=str(tmp_path / "home"), PREFECT_API_URL=url) as started:
        assert started.wait() == 3
    assert started.errors == [
        f"flodl: error: Prefect does not answer at {url}: start it, or unset PREFECT_API_URL for one of our own"
    ]


def test_a_malformed_database_url_is_refused_before_anything_starts(tmp_path: Path) -> None:
    environment = {"FLODL_HOME": str(tmp_path / "home"), "FLODL_DATABASE_URL": "mysql://nowhere/x"}
    with command("up", folder=tmp_path, **environment) as started:
        assert started.wait() == 2
    (line,) = started.errors
    assert line.startswith("flodl: error: FLODL_DATABASE_URL is for mysql")
    assert not (tmp_path / "home" / "logs").exists()


def test_another_prefect_can_be_used(up: RunningServices, tmp_path: Path) -> None:
    environment = {"FLODL_HOME": str(tmp_path / "home"), "PREFECT_API_URL": up.prefect_api}
    with command("up", "--port", str(free_port()), folder=tmp_path, **environment) as started:
        assert started.line("export PREFECT_API_URL=") == up.prefect_api
        assert not (tmp_path / "home" / "logs" / "prefect-server.log").exists()
        started.process.send_signal(signal.SIGTERM)
        assert started.wait() == 128 + signal.SIGTERM
    with open_database(f"sqlite:///{tmp_path}/home/flodl.db") as db:
        assert list_runs(db).items == ()
