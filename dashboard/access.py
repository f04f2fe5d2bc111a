"""Who may ask what: decisions about a request's ``Host``, token and origin. Pure; ``guard`` acts on them."""

import hashlib
import hmac
import ipaddress
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from dashboard.settings import DashboardSettings, is_loopback

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def host_allowed(header: str, settings: DashboardSettings) -> bool:
    """Whether a ``Host`` header names us.

    A page of somebody else's can have its own name point to our address (DNS rebinding), but it can neither be called
    like us nor have a bare address for its name: off loopback any address will do, since which of them are ours
    cannot be known behind 0.0.0.0.
    """
    name = _host_name(header)
    if name is None:
        return False
    known = {settings.host.lower(), *(host.lower() for host in settings.allowed_hosts)}
    if is_loopback(name) or name in known:
        return True
    return not is_loopback(settings.host) and _is_address(name)


def token_shown(headers: Mapping[str, str], settings: DashboardSettings) -> bool:
    """Whether a request shows the token, as a bearer or in ``/login``'s cookie; True where none is asked for."""
    if settings.token is None:
        return True
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and same_token(bearer.strip(), settings.token):
        return True
    try:
        cookies = SimpleCookie(headers.get("cookie", ""))
    except CookieError:
        return False
    cookie = cookies.get(cookie_name(settings))
    return cookie is not None and hmac.compare_digest(cookie.value.encode(), cookie_value(settings.token).encode())


def same_token(shown: str, token: str) -> bool:
    """Compare in a time that tells nothing about where they differ."""
    return hmac.compare_digest(shown.encode(), token.encode())


def cookie_name(settings: DashboardSettings) -> str:
    """Two dashboards on one machine do not take each other's cookie for theirs."""
    return f"flodl_{settings.port}"


def cookie_value(token: str) -> str:
    """What the cookie holds: shows that the token was known, and is not the token."""
    return hmac.new(token.encode(), b"flodl dashboard cookie", hashlib.sha256).hexdigest()


def same_origin(method: str, headers: Mapping[str, str]) -> bool:
    """Whether a request that changes something comes from a page of ours, or from no page at all.

    Browsers send ``Origin`` with every write; programs send neither header, and no page can make them.
    """
    if method in SAFE_METHODS:
        return True
    origin = headers.get("origin")
    if origin is not None:
        return urlsplit(origin).netloc.lower() == headers.get("host", "").lower()
    return headers.get("sec-fetch-site", "none") in ("none", "same-origin")


def _host_name(header: str) -> str | None:
    if any(character in header for character in "/@\\ ") or not header:
        return None
    try:
        parts = urlsplit(f"//{header}")
        _ = parts.port  # raises where it is no number
    except ValueError:
        return None
    return parts.hostname


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
