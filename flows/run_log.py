"""What a run logs goes into a file in its folder."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

OUR_PACKAGES = ("flodl_core", "flodl_store", "flows", "flodl_cli")


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """While the block runs, write to ``path`` our packages' records from INFO on, everybody's from WARNING on.

    Python's warnings go there too. Everything is put back afterwards.
    """
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(threadName)s %(name)s: %(message)s"))
    root = logging.getLogger()
    loggers = [logging.getLogger(name) for name in OUR_PACKAGES]
    levels = [logger.level for logger in loggers]
    root.addHandler(handler)
    logging.captureWarnings(True)
    try:
        for logger in loggers:
            logger.setLevel(logging.INFO)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        logging.captureWarnings(False)
        root.removeHandler(handler)
        handler.close()
