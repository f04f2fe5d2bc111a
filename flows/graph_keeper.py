"""Puts the graph of a run's model into the database, beside training."""

import logging
import threading

from flodl_core import DdpHandle
from flodl_store.database import Database
from flodl_store.graphs import attach_graph, save_graph

logger = logging.getLogger(__name__)


class GraphKeeper:
    """Waits for the model's first batch on the thread ``flodl-graph``, draws the graph and saves it.

    The thread ends by itself, at the latest when training does. No run fails for want of its graph: what went wrong is
    logged.

    Args:
        db: Where to; open until the keeper is joined.
        run_id: The whole id of a run that exists.
        handle: The run's.
    """

    def __init__(self, db: Database, run_id: str, handle: DdpHandle) -> None:
        self._db = db
        self._run_id = run_id
        self._handle = handle
        self._thread = threading.Thread(target=self._work, name="flodl-graph")
        self._thread.start()

    def join(self) -> None:
        """Wait until the graph is saved. May be called twice; only after ``cancel`` or the end of training."""
        self._thread.join()

    def _work(self) -> None:
        try:
            handle = self._handle
            save_graph(self._db, handle.graph_hash, handle.graph_label, handle.architecture_svg)
            attach_graph(self._db, self._run_id, handle.graph_hash)
        except Exception:
            logger.exception("the model's graph is not saved")
