"""Reads the machine: the host through psutil, CUDA devices through NVML and PyTorch's allocator."""

from collections.abc import Sequence
from typing import Protocol

import psutil
import torch

from flodl_core.timeline.nvml import Nvml
from flodl_core.timeline.samples import DeviceSample, TimelineSample

MIN_CPU_S = 0.05
"""Shortest stretch over which a share of the CPU is told: the kernel counts in hundredths of a second."""


class Probe(Protocol):
    """What a timeline reads from."""

    def read(self, time_s: float) -> TimelineSample:
        """The machine now; ``time_s`` is only passed on."""

    def close(self) -> None:
        """Let go of the devices. May be called twice."""


class MachineProbe:
    """This machine. Owner: the thread that samples, which calls everything but the constructor.

    NVML is opened at the first reading, since that may take a while.

    Args:
        devices: The run's; only CUDA devices are read.
    """

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._process = psutil.Process()
        self._cuda = list(dict.fromkeys(device for device in devices if device.type == "cuda"))
        self._nvml: Nvml | None = None
        self._cpu_s: float | None = None

    def read(self, time_s: float) -> TimelineSample:
        """See ``Probe``."""
        memory = psutil.virtual_memory()
        return TimelineSample(
            time_s=time_s,
            cpu_percent=self._cpu_percent(time_s),
            ram_used_bytes=memory.total - memory.available,
            ram_total_bytes=memory.total,
            process_rss_bytes=self._process.memory_info().rss,
            devices=tuple(self._read_device(device) for device in self._cuda),
        )

    def _cpu_percent(self, time_s: float) -> float | None:
        if self._cpu_s is not None and time_s - self._cpu_s < MIN_CPU_S:
            return None
        is_first, self._cpu_s = self._cpu_s is None, time_s
        percent = psutil.cpu_percent()  # since the last call in this thread
        return None if is_first else percent

    def _read_device(self, device: torch.device) -> DeviceSample:
        if self._nvml is None:
            self._nvml = Nvml(self._cuda)
        figures = self._nvml.read(device)
        return DeviceSample(
            device=str(device),
            utilization_percent=figures.utilization_percent,
            memory_used_bytes=figures.memory_used_bytes,
            memory_allocated_bytes=torch.cuda.memory_allocated(device),
            memory_total_bytes=figures.memory_total_bytes,
            power_w=figures.power_w,
            temperature_c=figures.temperature_c,
        )

    def close(self) -> None:
        """See ``Probe``."""
        if self._nvml is not None:
            self._nvml.close()
