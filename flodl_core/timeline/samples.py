"""What a machine was doing at one moment, and how moments become one where there are too many."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSample:
    """One CUDA device. A figure that cannot be had (no NVML, not supported by the device) is None.

    Attributes:
        device: Its torch name, such as ``cuda:0``.
        utilization_percent: Share of time in which a kernel ran, as NVML has it.
        memory_used_bytes: Used on the device by all processes.
        memory_allocated_bytes: Held by this process's tensors, as PyTorch's allocator has it.
        memory_total_bytes: There is on the device.
        power_w: Drawn now.
        temperature_c: Of the GPU.
    """

    device: str
    utilization_percent: float | None
    memory_used_bytes: int | None
    memory_allocated_bytes: int | None
    memory_total_bytes: int | None
    power_w: float | None
    temperature_c: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineSample:
    """The machine at one moment, or the sum of several successive ones.

    Attributes:
        time_s: When it was read, in seconds since the run started; the last time where it was several.
        cpu_percent: Of all cores of the host since the sample before; None in the first.
        ram_used_bytes: Of the host, without what can be reclaimed.
        ram_total_bytes: Of the host.
        process_rss_bytes: Resident memory of this process.
        devices: One for each CUDA device of the run.
        num_reads: Moments that it stands for: shares, power and temperature are their means, memory their largest.
    """

    time_s: float
    cpu_percent: float | None
    ram_used_bytes: int
    ram_total_bytes: int
    process_rss_bytes: int
    devices: tuple[DeviceSample, ...] = ()
    num_reads: int = 1


def merge_samples(first: TimelineSample, second: TimelineSample) -> TimelineSample:
    """Two successive samples as one."""
    weights = (first.num_reads, second.num_reads)
    return TimelineSample(
        time_s=second.time_s,
        cpu_percent=_mean((first.cpu_percent, second.cpu_percent), weights),
        ram_used_bytes=max(first.ram_used_bytes, second.ram_used_bytes),
        ram_total_bytes=second.ram_total_bytes,
        process_rss_bytes=max(first.process_rss_bytes, second.process_rss_bytes),
        devices=tuple(
            _merge_devices(before, after, weights) for before, after in zip(first.devices, second.devices, strict=True)
        ),
        num_reads=sum(weights),
    )


def _merge_devices(first: DeviceSample, second: DeviceSample, weights: tuple[int, int]) -> DeviceSample:
    def mean(read: Callable[[DeviceSample], float | None]) -> float | None:
        return _mean((read(first), read(second)), weights)

    return DeviceSample(
        device=second.device,
        utilization_percent=mean(lambda sample: sample.utilization_percent),
        memory_used_bytes=_largest((first.memory_used_bytes, second.memory_used_bytes)),
        memory_allocated_bytes=_largest((first.memory_allocated_bytes, second.memory_allocated_bytes)),
        memory_total_bytes=_largest((first.memory_total_bytes, second.memory_total_bytes)),
        power_w=mean(lambda sample: sample.power_w),
        temperature_c=mean(lambda sample: sample.temperature_c),
    )


def _mean(values: tuple[float | None, float | None], weights: tuple[int, int]) -> float | None:
    known = [(value, weight) for value, weight in zip(values, weights, strict=True) if value is not None]
    return sum(value * weight for value, weight in known) / sum(weight for _, weight in known) if known else None


def _largest(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)
