"""What the tests of the store share: databases, and rows to fill them with."""

from __future__ import annotations

from tests.databases import clock, db, empty_url, url

__all__ = ["clock", "db", "empty_url", "url"]
