"""A run's epochs as they end, one line each, and afterwards as table, log and page."""

from flodl_core.monitor.monitor import Monitor

__all__ = ["Monitor"]
