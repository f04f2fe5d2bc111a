"""A run's epochs as a table."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from flodl_core.epoch_metrics import EpochMetrics
from flodl_core.monitor.lines import samples_per_s
from flodl_core.text_file import csv_text, write_text

_PLAIN = ("epoch", "avg_loss", "epoch_ms", "num_samples", "num_batches", "lr", "capacity_efficiency")
_PER_RANK = ("loss", "throughput", "batch_share", "busy_ms")


def write_csv(history: Sequence[EpochMetrics], path: Path) -> None:
    """Write the file: ``EpochMetrics`` by its fields' names, with ``eval`` and ``scalar`` before the user's.

    Raises:
        OSError: It cannot be written.
    """
    evals = names_of(metrics.eval for metrics in history)
    scalars = names_of(metrics.scalars for metrics in history)
    ranks = range(len(history[0].devices) if history else 0)
    columns = [
        *_PLAIN,
        "samples_per_s",
        *(f"eval {name}" for name in evals),
        *(f"scalar {name}" for name in scalars),
        *(f"rank {rank} {name}" for rank in ranks for name in _PER_RANK),
    ]
    write_text(path, csv_text(columns, (_row(metrics, evals, scalars) for metrics in history)))


def _row(metrics: EpochMetrics, evals: Sequence[str], scalars: Sequence[str]) -> list[object]:
    return [
        *(getattr(metrics, name) for name in _PLAIN),
        samples_per_s(metrics),
        *(metrics.eval.get(name) for name in evals),
        *(metrics.scalars.get(name) for name in scalars),
        *(getattr(metrics, f"per_rank_{name}")[rank] for rank in range(len(metrics.devices)) for name in _PER_RANK),
    ]


def names_of(mappings: Iterable[Mapping[str, float]]) -> list[str]:
    """Names that occur in any of the mappings, in the order in which they first do."""
    return list(dict.fromkeys(name for mapping in mappings for name in mapping))
