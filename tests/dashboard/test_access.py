from __future__ import annotations

import pytest

from dashboard.access import cookie_name, cookie_value, host_allowed, same_origin, token_shown
from dashboard.settings import DashboardSettings, SettingsError

LOCAL = DashboardSettings()
NAMED = DashboardSettings(allowed_hosts=("gpu-box.lan",))
OPEN = DashboardSettings(host="0.0.0.0", token="secret")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8000", "localhost:1", "LOCALHOST", "[::1]:8000", "127.8.8.8"])
def test_loopback_names_are_always_ours(host: str) -> None:
    assert host_allowed(host, LOCAL)
    assert host_allowed(host, OPEN)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "127.0.0.1.evil.example",
        "evil.example:8000",
        "192.168.0.7",
        "a@127.0.0.1",
        "127.0.0.1:x",
        "[",
    ],
)
def test_other_names_are_refused_on_loopback(host: str) -> None:
    assert not host_allowed(host, LOCAL)


def test_a_configured_name_is_ours() -> None:
    assert host_allowed("GPU-box.lan:8000", NAMED)
    assert not host_allowed("gpu-box.lan.evil.example", NAMED)


def test_off_loopback_a_bare_address_will_do_and_a_foreign_name_will_not() -> None:
    assert host_allowed("192.168.0.7:8000", OPEN)
    assert not host_allowed("evil.example:8000", OPEN)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.7", "gpu-box.lan"])
def test_an_address_that_others_reach_needs_a_token(host: str) -> None:
    with pytest.raises(SettingsError, match="needs a token"):
        DashboardSettings(host=host)


def test_a_blank_token_is_none() -> None:
    with pytest.raises(SettingsError, match="blank"):
        DashboardSettings(token="  ")


def test_the_token_is_shown_as_bearer_or_cookie() -> None:
    assert token_shown({"authorization": "Bearer secret"}, OPEN)
    assert token_shown({"cookie": f"{cookie_name(OPEN)}={cookie_value('secret')}"}, OPEN)
    assert token_shown({}, LOCAL)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer Secret"},
        {"authorization": "secret"},
        {"authorization": "Basic secret"},
        {"cookie": "flodl_8000=secret"},
        {"cookie": "other=1"},
        {"authorization": "Bearer s\u00e9cret"},
    ],
)
def test_anything_else_is_no_token(headers: dict[str, str]) -> None:
    assert not token_shown(headers, OPEN)


def test_writes_come_from_our_own_pages_or_from_no_page() -> None:
    host = {"host": "127.0.0.1:8000"}
    assert same_origin("POST", host)
    assert same_origin("POST", {**host, "origin": "http://127.0.0.1:8000"})
    assert not same_origin("POST", {**host, "origin": "http://evil.example"})
    assert not same_origin("POST", {**host, "origin": "http://127.0.0.1:9000"})
    assert not same_origin("POST", {**host, "origin": "null"})
    assert not same_origin("DELETE", {**host, "sec-fetch-site": "cross-site"})
    assert same_origin("GET", {**host, "origin": "http://evil.example"})
