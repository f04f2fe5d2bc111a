"""One epoch, and a whole run, in one line of text."""

from collections.abc import Sequence

from flodl_core.display_text import duration_text, number_text, percent_text
from flodl_core.epoch_metrics import EpochMetrics

RECENT_EPOCHS = 5
"""Epochs whose mean time tells how long the rest will take."""
GAP = "  "


def epoch_line(history: Sequence[EpochMetrics], num_epochs: int | None, width: int | None) -> str:
    """The latest epoch.

    Args:
        history: Epochs so far, at least one.
        num_epochs: Epochs planned, where known.
        width: Columns that there are, or None for no limit. What counts least is left out first.

    Returns:
        A line without its end.
    """
    latest = history[-1]
    total = "" if num_epochs is None else f"/{num_epochs}"
    number = f"{latest.epoch + 1:>{max(0, len(total) - 1)}}"
    parts = [f"epoch {number}{total}", f"loss {number_text(latest.avg_loss)}"]
    parts += [f"eval {printable(name)} {number_text(value)}" for name, value in latest.eval.items()]
    parts.append(duration_text(latest.epoch_ms / 1e3))
    left_s = seconds_left(history, num_epochs)
    parts += [] if left_s is None else [f"ETA {duration_text(left_s)}"]
    parts.append(f"{number_text(samples_per_s(latest))} samples/s")
    parts.append(f"capacity {percent_text(latest.capacity_efficiency)}")
    parts += [f"{printable(name)} {number_text(value)}" for name, value in latest.scalars.items()]
    return fitted(parts, width)


def summary_line(history: Sequence[EpochMetrics], num_epochs: int | None, width: int | None) -> str:
    """A run that is over; the arguments are those of ``epoch_line``, and there may be no epoch."""
    if not history:
        return "no epoch was completed"
    wanted = f" of {num_epochs}" if num_epochs is not None and num_epochs != len(history) else ""
    plural = "" if len(history) == 1 and not wanted else "s"
    parts = [f"{len(history)}{wanted} epoch{plural} in {duration_text(sum(m.epoch_ms for m in history) / 1e3)}"]
    best = min(history, key=lambda m: m.avg_loss if m.avg_loss == m.avg_loss else float("inf"))
    parts.append(
        f"loss {number_text(history[-1].avg_loss)} (lowest {number_text(best.avg_loss)} in epoch {best.epoch + 1})"
    )
    parts += [f"eval {printable(name)} {number_text(value)}" for name, value in history[-1].eval.items()]
    return fitted(parts, width)


def seconds_left(history: Sequence[EpochMetrics], num_epochs: int | None) -> float | None:
    """Time that the epochs to come will take, going by the latest; None where that is not known or nothing is left."""
    if num_epochs is None or not history:
        return None
    num_left = num_epochs - history[-1].epoch - 1
    recent = [metrics.epoch_ms for metrics in history[-RECENT_EPOCHS:]]
    return num_left * sum(recent) / len(recent) / 1e3 if num_left > 0 else None


def samples_per_s(metrics: EpochMetrics) -> float:
    """Samples of all ranks per second of the epoch's time; 0 where it took none."""
    return 1e3 * metrics.num_samples / metrics.epoch_ms if metrics.epoch_ms > 0 else 0.0


def fitted(parts: Sequence[str], width: int | None) -> str:
    """As many parts as fit, the first always, cut where it does not."""
    line = parts[0]
    for part in parts[1:]:
        if width is not None and len(line) + len(GAP) + len(part) > width:
            break
        line += GAP + part
    return line if width is None or len(line) <= width else line[: max(0, width - 1)] + "…"


def printable(name: str) -> str:
    """A user's name without what would move a cursor or end a line."""
    return "".join(char if char.isprintable() else "�" for char in name)
