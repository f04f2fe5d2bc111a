from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from flodl_cli import dashboard
from flodl_cli.main import main


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        yield port


def line(capsys: pytest.CaptureFixture[str]) -> str:
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("flodl: error: ")
    assert err.count("\n") == 1
    return err


def test_a_taken_port_that_was_asked_for_is_said_in_one_line(taken: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboard", "--port", str(taken)]) == 2
    assert f"port {taken} is taken" in line(capsys)


def test_a_default_port_that_is_taken_gives_way_to_the_next(taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard, "DEFAULT_PORT", taken)
    with dashboard._listen("127.0.0.1", None) as listener:
        assert listener.getsockname()[1] > taken


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_an_address_for_others_needs_a_token(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboard", "--host", host]) == 2
    assert "needs a token" in line(capsys)


def test_an_address_that_is_not_ours_is_said_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboard", "--host", "192.0.2.1", "--token", "secret"]) == 2
    assert "cannot listen on 192.0.2.1" in line(capsys)


def test_a_malformed_database_url_is_said_before_anything_is_served(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLODL_DATABASE_URL", "odd")
    assert main(["dashboard"]) == 2
    assert "FLODL_DATABASE_URL" in line(capsys)


def test_a_database_out_of_reach_is_a_service_out_of_reach(
    taken: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLODL_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
    assert main(["dashboard"]) == 3
    line(capsys)
