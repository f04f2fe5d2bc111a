"""What a run logs, in Prefect: from the workers' threads too, which know of no flow run."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prefect.logging import get_run_logger
from prefect.logging.handlers import APILogHandler

from flows.run_log import OUR_PACKAGES


class _RunLogHandler(logging.Handler):
    """Sends records to Prefect under the name of one flow run, from whichever thread they come."""

    def __init__(self, run: dict[str, Any]) -> None:
        super().__init__(logging.INFO)
        self._run = run
        self._api = APILogHandler()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the record; a thread of Prefect's sends it."""
        self._api.handle(logging.makeLogRecord({**record.__dict__, **self._run}))


@contextmanager
def logging_to_prefect() -> Iterator[None]:
    """While the block runs, what our packages log from INFO on goes to the flow run that is running here."""
    adapter = get_run_logger()
    assert isinstance(adapter, logging.LoggerAdapter)
    handler = _RunLogHandler(dict(adapter.extra or {}))
    loggers = [logging.getLogger(name) for name in OUR_PACKAGES]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
            logger.removeHandler(handler)
