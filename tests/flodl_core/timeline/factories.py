"""Pieces of a timeline, and a machine, a clock and a pulse that do what a test says."""

from __future__ import annotations

import queue
from collections.abc import Sequence

import torch

from flodl_core import DeviceSample, StepWindow, SyncEvent, Timeline, TimelineSample
from flodl_core.idle_time import NOT_IDLE, IdleMs

LIMIT_S = 10.0
"""How long a test waits for another thread before it gives it up as hanging."""


def window(
    rank: int, start_s: float, end_s: float, *, busy_ms: float, epoch: int = 0, idle: IdleMs = NOT_IDLE
) -> StepWindow:
    """A step window of one batch."""
    return StepWindow(
        time_s=end_s,
        rank=rank,
        epoch=epoch,
        global_step=1,
        loss=0.5,
        lr=0.1,
        samples_per_s=100.0,
        num_batches=1,
        num_samples=8,
        busy_ms=busy_ms,
        start_s=start_s,
        end_s=end_s,
        idle=idle,
    )


def average(time_s: float, *, round_: int = 0, duration_ms: float = 2.0, divergence: float = 0.01) -> SyncEvent:
    """An average of two replicas."""
    return SyncEvent(
        time_s=time_s,
        round=round_,
        epoch=None,
        global_step=20,
        num_syncs=1,
        duration_ms=duration_ms,
        wait_ms={0: 1.0, 1: 0.5},
        weights={0: 80, 1: 32},
        divergence={0: divergence, 1: divergence / 2},
        excluded=(),
        anchor=10,
    )


def device_sample(device: str = "cuda:0", *, power_w: float | None = 300.0, used: int | None = 2**30) -> DeviceSample:
    """A GPU at work."""
    return DeviceSample(
        device=device,
        utilization_percent=80.0,
        memory_used_bytes=used,
        memory_allocated_bytes=2**29,
        memory_total_bytes=2**35,
        power_w=power_w,
        temperature_c=55.0,
    )


def sample(
    time_s: float, *, cpu_percent: float | None = 50.0, rss: int = 2**20, devices: tuple[DeviceSample, ...] = ()
) -> TimelineSample:
    """A machine at work."""
    return TimelineSample(
        time_s=time_s,
        cpu_percent=cpu_percent,
        ram_used_bytes=2**30,
        ram_total_bytes=2**34,
        process_rss_bytes=rss,
        devices=devices,
    )


class ManualClock:
    """Seconds that pass only when told."""

    def __init__(self, now_s: float = 100.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


class ManualPulse:
    """Beats when told; the test's thread and the sampling one take turns."""

    def __init__(self) -> None:
        self._beats: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._asked: queue.SimpleQueue[None] = queue.SimpleQueue()

    def wait(self) -> bool:
        self._asked.put(None)
        return self._beats.get(timeout=LIMIT_S)

    def stop(self) -> None:
        self._beats.put(False)

    def settle(self) -> None:
        """Until the sampling thread waits for a beat."""
        self._asked.get(timeout=LIMIT_S)

    def beat(self) -> None:
        """One sample more, taken when this returns."""
        self._beats.put(True)
        self.settle()


class FakeMachine:
    """Answers each reading with a sample; fails at one of them where told so."""

    def __init__(self, *, fails_at: int | None = None, devices: tuple[DeviceSample, ...] = ()) -> None:
        self.num_reads = 0
        self.num_closed = 0
        self._fails_at = fails_at
        self._devices = devices

    def read(self, time_s: float) -> TimelineSample:
        self.num_reads += 1
        if self.num_reads == self._fails_at:
            raise RuntimeError("the driver has gone")
        return sample(time_s, devices=self._devices)

    def close(self) -> None:
        self.num_closed += 1


class Rig:
    """A timeline whose time, samples and events come from the test."""

    def __init__(self, *, machine: FakeMachine | None = None) -> None:
        self.clock = ManualClock()
        self.pulse = ManualPulse()
        self.machine = machine or FakeMachine()
        self.timeline = Timeline(clock=self.clock, pulse=self.pulse, probe=self.machine)

    def start(self, labels: Sequence[str] = ("cpu", "cpu@2.5")) -> Timeline:
        """Begin a run now; the first sample is taken when this returns."""
        devices = [torch.device("cpu") for _ in labels]
        self.timeline.start(labels, devices, start_s=self.clock.now_s)
        self.pulse.settle()
        return self.timeline
