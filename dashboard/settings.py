"""What a dashboard is told when it is made."""

import ipaddress
from dataclasses import dataclass

LOOPBACK_NAMES = ("localhost",)


class SettingsError(ValueError):
    """The settings would make a dashboard that must not be; the message says what to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardSettings:
    """How a dashboard is reached.

    Attributes:
        host: Address that it listens on.
        port: Port that it listens on; names its cookie, since browsers share cookies between ports.
        token: What every request must show; None asks for none, which only a loopback address allows.
        allowed_hosts: Names that a request's ``Host`` may have besides the loopback ones.
        database_url: Instead of ``$FLODL_DATABASE_URL``.

    Raises:
        SettingsError: ``host`` can be reached from elsewhere and there is no token, or the token is blank.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    allowed_hosts: tuple[str, ...] = ()
    database_url: str | None = None

    def __post_init__(self) -> None:
        if self.token is not None and not self.token.strip():
            raise SettingsError("the token is blank: give one of some length, such as `openssl rand -hex 16` makes")
        if self.token is None and not is_loopback(self.host):
            raise SettingsError(
                f"{self.host} can be reached from other machines, which needs a token: "
                "--token or FLODL_DASHBOARD_TOKEN (or leave out --host)"
            )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``, an address or a name, with or without brackets."""
    bare = host.strip("[]").lower()
    if bare in LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return False
