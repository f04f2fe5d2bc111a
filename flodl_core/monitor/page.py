"""A run's epochs as a page: curves, a table, the model, how the run was set up."""

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from flodl_core.display_text import duration_text, number_text, percent_text
from flodl_core.epoch_metrics import EpochMetrics
from flodl_core.html_page import facts, keys, note, page, row, section, table, warning
from flodl_core.model_graph import ModelGraph
from flodl_core.monitor.csv_table import names_of
from flodl_core.monitor.lines import GAP, samples_per_s, summary_line
from flodl_core.svg_plot import Points, Scale, axis, curve, labelled, levels, plot, round_steps

MAX_RANK_CURVES = 8
"""Ranks whose losses are drawn one by one: as many as there are colours."""
LOSS_HEIGHT, HEIGHT = 150, 54

Read = Callable[[EpochMetrics], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is known of a run beside its epochs.

    Attributes:
        num_epochs: Epochs planned, where known.
        training_meta: How the run was set up.
        graph: The model, where it was drawn.
        graph_error: Why it was not.
    """

    num_epochs: int | None
    training_meta: Mapping[str, object]
    graph: ModelGraph | None
    graph_error: str | None


def render(history: Sequence[EpochMetrics], subject: Subject) -> str:
    """The page as text."""
    title = subject.graph.label if subject.graph is not None else "Training"
    told = summary_line(history, subject.num_epochs, None).replace(GAP, ", ")
    return page(title, told, [*(_trained(history) if history else []), _model(subject), _meta(subject)])


def _trained(history: Sequence[EpochMetrics]) -> list[str]:
    return [
        section("Loss", *_loss(history)),
        section("Curves", *_curves(history)),
        section("Epochs", _epochs(history)),
        section("Ranks in the last epoch", _ranks(history)),
    ]


# Curves


def _loss(history: Sequence[EpochMetrics]) -> list[str]:
    mean = [(metrics.epoch + 1.0, metrics.avg_loss) for metrics in history]
    ranks = range(len(history[0].devices))
    shown = ranks if 1 < len(ranks) <= MAX_RANK_CURVES else range(0)
    by_rank = [[(metrics.epoch + 1.0, metrics.per_rank_loss[rank]) for metrics in history] for rank in shown]
    scale = _scale([mean, *by_rank], history, LOSS_HEIGHT)
    lines = [curve(scale, points, f"var(--c{rank + 1 if rank < 7 else 0})") for rank, points in enumerate(by_rank)]
    steps = round_steps(scale.low, scale.high, 4)
    detail = f"last {number_text(mean[-1][1])}"
    names = [("mean over samples", "var(--ink)")]
    names += [(f"rank {rank}: {history[-1].devices[rank]}", f"var(--c{rank + 1 if rank < 7 else 0})") for rank in shown]
    drawn = plot(scale, [levels(scale, steps), *lines, curve(scale, mean, "var(--ink)")])
    drawn = labelled(scale, drawn, [(step, number_text(step)) for step in steps])
    return [keys(names), row("loss", detail, drawn), _axis_row(history), *_not_finite("loss", mean)]


def _curves(history: Sequence[EpochMetrics]) -> list[str]:
    reads: list[tuple[str, Read, Callable[[float], str]]] = []
    for name in names_of(metrics.eval for metrics in history):
        reads.append((f"{name} (eval)", _named("eval", name), number_text))
    for name in names_of(metrics.scalars for metrics in history):
        reads.append((name, _named("scalars", name), number_text))
    reads += [
        ("samples per second", samples_per_s, number_text),
        ("time per epoch", lambda metrics: metrics.epoch_ms / 1e3, duration_text),
        ("capacity efficiency", lambda metrics: metrics.capacity_efficiency, percent_text),
        ("learning rate", lambda metrics: metrics.lr, number_text),
    ]
    return [*(_curve(history, name, read, tell) for name, read, tell in reads), _axis_row(history)]


def _named(field: str, name: str) -> Read:
    return lambda metrics: getattr(metrics, field).get(name)


def _curve(history: Sequence[EpochMetrics], name: str, read: Read, tell: Callable[[float], str]) -> str:
    points: Points = [(metrics.epoch + 1.0, read(metrics)) for metrics in history]
    scale = _scale([points], history, HEIGHT)
    last = points[-1][1]
    parts = [] if last is None else [f"last {tell(last)}"]
    parts += [f"{tell(scale.low)} to {tell(scale.high)}"] if scale.low < scale.high else []
    detail = ", ".join(parts)
    return row(name, detail, plot(scale, [curve(scale, points, "var(--c0)")])) + "".join(_not_finite(name, points))


def _scale(curves: Sequence[Points], history: Sequence[EpochMetrics], height: int) -> Scale:
    known = [y for points in curves for _, y in points if y is not None and math.isfinite(y)]
    return Scale(
        left=history[0].epoch + 1.0,
        right=history[-1].epoch + 1.0,
        low=min(known, default=0.0),
        high=max(known, default=0.0),
        height=height,
    )


def _axis_row(history: Sequence[EpochMetrics]) -> str:
    scale = _scale([], history, HEIGHT)
    steps = [step for step in round_steps(scale.left, scale.right, 8) if step == round(step)]
    return row("epoch", "", axis(scale, [(step, f"{step:.0f}") for step in steps]))


def _not_finite(name: str, points: Points) -> list[str]:
    epochs = [f"{x:.0f}" for x, y in points if y is not None and not math.isfinite(y)]
    if not epochs:
        return []
    told = ", ".join(epochs[:20]) + (f" and {len(epochs) - 20} more" if len(epochs) > 20 else "")
    return [warning(f"{name} is not finite in epoch {told}.")]


# Tables


def _epochs(history: Sequence[EpochMetrics]) -> str:
    evals = names_of(metrics.eval for metrics in history)
    columns = ["epoch", "loss", *(f"{name} (eval)" for name in evals), "time", "samples/s", "capacity", "lr"]
    return table(columns, [_epoch_row(metrics, evals) for metrics in history])


def _epoch_row(metrics: EpochMetrics, evals: Sequence[str]) -> list[object]:
    values = [metrics.eval.get(name) for name in evals]
    return [
        metrics.epoch + 1,
        number_text(metrics.avg_loss),
        *("" if value is None else number_text(value) for value in values),
        duration_text(metrics.epoch_ms / 1e3),
        number_text(samples_per_s(metrics)),
        percent_text(metrics.capacity_efficiency),
        number_text(metrics.lr),
    ]


def _ranks(history: Sequence[EpochMetrics]) -> str:
    """What each rank did in the last epoch: how unlike devices shared the work."""
    last = history[-1]
    rows = [
        [
            rank,
            device,
            number_text(last.per_rank_loss[rank]),
            percent_text(last.per_rank_batch_share[rank]),
            number_text(1e3 * last.per_rank_throughput[rank]),
            duration_text(last.per_rank_busy_ms[rank] / 1e3),
        ]
        for rank, device in enumerate(last.devices)
    ]
    return table(["rank", "device", "loss", "batches", "samples/s while busy", "busy"], rows)


def _model(subject: Subject) -> str:
    if subject.graph is None:
        return section("Model", note(subject.graph_error)) if subject.graph_error is not None else ""
    code = base64.b64encode(subject.graph.svg.encode()).decode()
    picture = f'<img class="picture" alt="The model\'s graph" src="data:image/svg+xml;base64,{code}">'
    return section("Model", note(f"graph {subject.graph.hash}"), f'<div class="scroll">{picture}</div>')


def _meta(subject: Subject) -> str:
    pairs = [(name, _plain(value)) for name, value in subject.training_meta.items() if value is not None]
    return section("Set-up", facts(pairs)) if pairs else ""


def _plain(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
