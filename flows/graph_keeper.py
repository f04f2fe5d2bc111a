"""Puts the graph of a run's model into the database, beside training."""

import logging
import threading

from flodl_core import DdpHandle
from flodl_store.database import Database
from flodl_store.graphs import attach_graph, save_graph

logger = logging.getLogger(__name__)

PATIENCE_S = 5.0
"""How long the graph waits. Drawing takes a core for more than a second, once: in a run that is over sooner than this
it would disturb the training, and there it is drawn after it.
"""


class GraphKeeper:
    """Draws the graph of the model's first batch on the thread ``flodl-graph``, a little after the start, and saves it.

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
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="flodl-graph")
        self._thread.start()

    def join(self) -> None:
        """Wait until the graph is saved. May be called twice; only after ``cancel`` or the end of training."""
        self._is_over.set()
        self._thread.join()

    def _work(self) -> None:
        self._is_over.wait(PATIENCE_S)
        try:
            handle = self._handle
            save_graph(self._db, handle.graph_hash, handle.graph_label, handle.architecture_svg)
            attach_graph(self._db, self._run_id, handle.graph_hash)
        except Exception:
            logger.exception("the model's graph is not saved")
