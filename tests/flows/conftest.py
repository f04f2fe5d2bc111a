"""What the tests of the recorder share: databases of both kinds."""

from __future__ import annotations

from tests.databases import away, clock, db, url

__all__ = ["away", "clock", "db", "url"]
