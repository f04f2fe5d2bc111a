"""What recording costs: process CPU time of training with it over without, and rows made durable in a second.

    python -m benchmarks.recorder [--rounds 7] [--epochs 1] [--recipe mnist-lenet] [--devices cpu,cpu] [--json]

Each round trains the recipe once with and once without a recorder, in alternation and in either order, after a
warm-up; the ratio is that of the medians. The CPU time is the whole process's, the recorder's thread included. What the
operating system booked to that thread alone is given beside it: it is the same cost without the noise of training, and
without what the thread makes others wait for. Drawing the model's graph, which happens once per process, is timed by
itself. Everything is written to a new SQLite file.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from flodl_core import DdpHandle, EpochMetrics
from flodl_store.database import Database, open_database
from flodl_store.params import RunParams
from flodl_store.rows import NewStep
from flodl_store.run_id import new_run_id
from flodl_store.runs import NewRun, create_run
from flodl_store.series import changes_after
from flodl_store.writer import RunWriter
from flows.recorder import Recorder
from flows.recording import final_progress, run_start
from flows.run_results import Trained
from flows.scribe import RunEnd
from flows.training import prepare, train

NUM_ROWS = 100_000
BATCHES = (10, 100, 1000, 5000)


class Unwatched:
    """A watcher that looks at nothing."""

    def started(self, handle: DdpHandle) -> None:
        """Nothing."""

    def looked(self, handle: DdpHandle) -> None:
        """Nothing."""

    def epoch_ended(self, metrics: EpochMetrics) -> None:
        """Nothing."""


class Recorded(Unwatched):
    """A watcher that tells the recorder, and does nothing else: no graph, no artifacts."""

    def __init__(self, recorder: Recorder, params: RunParams) -> None:
        self._recorder = recorder
        self._params = params

    def started(self, handle: DdpHandle) -> None:
        """Let it follow."""
        self._recorder.follow(handle, run_start(handle, self._params))

    def epoch_ended(self, metrics: EpochMetrics) -> None:
        """Let it know."""
        self._recorder.epoch_ended(metrics)


def never() -> bool:
    """Train to the end."""
    return False


def train_bare(params: RunParams) -> Trained:
    """Without a recorder."""
    return train(prepare(params, started_in=Path.cwd()), watcher=Unwatched(), stop_requested=never)


def train_recorded(db: Database, params: RunParams) -> float:
    """With one, its thread's start and end included; returns CPU seconds of that thread before the end."""
    run_id = create_run(db, NewRun.of(params, id=new_run_id())).id
    prepared = prepare(params, started_in=Path.cwd())
    recorder = Recorder(db, run_id)
    watcher = Recorded(recorder, prepared.params)
    trained = train(prepared, watcher=watcher, stop_requested=lambda: recorder.cancel_requested)
    thread_s = thread_cpu_s("flodl-recorder")
    end = RunEnd(status=trained.status, error=None, progress=final_progress(trained), evaluation={})
    problem = recorder.close(end)
    recorded = sum(step["num_samples"] for step in changes_after(db, run_id, 0, 10**7).steps)
    assert problem is None, problem
    assert recorded == trained.totals.num_samples, "every sample is in a step row"
    return thread_s


def thread_cpu_s(name: str) -> float:
    """CPU seconds of the thread of that name."""
    (ident,) = (thread.ident for thread in threading.enumerate() if thread.name == name)
    assert ident is not None
    return time.clock_gettime(time.pthread_getcpuclockid(ident))


def cpu_s(action: Callable[[], object]) -> float:
    """Process CPU seconds that ``action`` takes."""
    begun = time.process_time()
    action()
    return time.process_time() - begun


def graph_cpu_s(params: RunParams) -> float:
    """Process CPU seconds of the model's graph, the first in this process, beside a run that has ended."""
    with prepare(params, started_in=Path.cwd()).builder.run() as handle:
        handle.join()
        return cpu_s(lambda: handle.architecture_svg)


def compare(db: Database, params: RunParams, num_rounds: int) -> dict[str, float]:
    """CPU time with over without."""
    times: dict[str, list[float]] = {"without": [], "with": [], "thread": []}

    def bare() -> None:
        train_bare(params)

    def recorded() -> None:
        times["thread"].append(train_recorded(db, params))

    cases = (("without", bare), ("with", recorded))
    for _, action in cases:
        action()  # warm-up
    times["thread"].clear()
    for number in range(num_rounds):
        for name, action in cases if number % 2 == 0 else cases[::-1]:
            times[name].append(cpu_s(action))
            print(f"  {name:8}{times[name][-1]:.2f} s", file=sys.stderr)
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {
        "without_cpu_s": medians["without"],
        "with_cpu_s": medians["with"],
        "ratio": medians["with"] / medians["without"],
        "without_spread": spread(times["without"]),
        "with_spread": spread(times["with"]),
        "thread_cpu_s": medians["thread"],
        "thread_share": medians["thread"] / medians["without"],
    }


def rows_per_s(db: Database, batch: int) -> float:
    """Rows that one writer commits in a second of wall time, ``batch`` of them in a transaction."""
    run_id = create_run(db, NewRun(recipe="x", policy="cadence", seed=0, config={})).id
    writer = RunWriter(db, run_id)
    now = datetime.now(UTC)
    rows = [
        NewStep(
            rank=number % 4,
            epoch=0,
            global_step=number,
            time_s=number / 20,
            wall_time=now,
            loss=0.5,
            lr=0.001,
            samples_per_s=1000.0,
            num_batches=3,
            num_samples=192,
            busy_ms=190.0,
        )
        for number in range(batch)
    ]
    begun = time.perf_counter()
    for _ in range(NUM_ROWS // batch):
        writer.write(rows)
    return NUM_ROWS / (time.perf_counter() - begun)


def spread(values: Sequence[float]) -> float:
    """Distance between the quartiles over the median."""
    low, middle, high = statistics.quantiles(values, n=4)
    return (high - low) / middle


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What recording costs")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--recipe", default="mnist-lenet")
    parser.add_argument("--devices", default="cpu,cpu")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    params = RunParams(recipe=asked.recipe, devices=tuple(asked.devices.split(",")), epochs=asked.epochs)
    with tempfile.TemporaryDirectory() as home:
        os.environ["FLODL_HOME"] = home
        os.environ.pop("FLODL_DATABASE_URL", None)
        with open_database() as db:
            rates = {size: statistics.median(rows_per_s(db, size) for _ in range(5)) for size in BATCHES}
            graph_s = graph_cpu_s(params)
            found = compare(db, params, asked.rounds)
    if asked.json:
        machine = f"{platform.machine()}, {os.cpu_count()} cores"
        print(json.dumps({**found, "graph_cpu_s": graph_s, "rows_per_s": rates, "machine": machine}))
        return
    print(f"{asked.recipe} on {asked.devices}, {asked.epochs} epoch(s), {asked.rounds} rounds, {os.cpu_count()} cores")
    print(
        f"process CPU time  {found['without_cpu_s']:.2f} s without, {found['with_cpu_s']:.2f} s with a recorder: "
        f"{found['ratio']:.4f} (spread {found['without_spread']:.1%}, {found['with_spread']:.1%})"
    )
    print(f"of the recorder's thread alone: {found['thread_cpu_s']:.3f} s, {found['thread_share']:.2%}")
    print(f"the model's graph, once per process: {graph_s:.2f} s of CPU time")
    for batch, rate in rates.items():
        print(f"SQLite, {batch:5} rows to a transaction: {rate:,.0f} rows/s")


if __name__ == "__main__":
    main()
