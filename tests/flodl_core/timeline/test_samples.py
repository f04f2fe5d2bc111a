"""What a sample is, how two become one, and what the machine answers."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import psutil
import pynvml  # type: ignore[import-untyped]  # it carries no types
import pytest
import torch

from flodl_core.timeline.nvml import Nvml, NvmlDevice
from flodl_core.timeline.probe import MachineProbe
from flodl_core.timeline.sampler import SteadyPulse
from flodl_core.timeline.samples import merge_samples
from tests.flodl_core.timeline.factories import ManualClock, device_sample, sample


def test_two_samples_become_their_mean_and_their_largest_memory() -> None:
    first = sample(0.1, cpu_percent=20.0, rss=5, devices=(device_sample(power_w=100.0, used=7),))
    second = sample(0.2, cpu_percent=40.0, rss=3, devices=(device_sample(power_w=200.0, used=None),))
    third = sample(0.3, cpu_percent=90.0, rss=4, devices=(device_sample(power_w=None, used=9),))
    merged = merge_samples(merge_samples(first, second), third)
    assert (merged.time_s, merged.num_reads, merged.cpu_percent, merged.process_rss_bytes) == (0.3, 3, 50.0, 5)
    assert (merged.devices[0].power_w, merged.devices[0].memory_used_bytes) == (150.0, 9)


def test_what_is_known_of_neither_stays_unknown() -> None:
    merged = merge_samples(sample(0.1, cpu_percent=None), sample(0.2, cpu_percent=None))
    assert merged.cpu_percent is None


def test_this_machine_can_be_read() -> None:
    probe = MachineProbe([torch.device("cpu")])
    first, second = probe.read(0.0), probe.read(10.0)
    too_soon = probe.read(10.001)
    probe.close()
    probe.close()
    assert (first.cpu_percent, too_soon.cpu_percent) == (None, None)
    assert second.cpu_percent is not None
    assert 0.0 <= second.cpu_percent <= 100.0
    assert 0 < second.process_rss_bytes < second.ram_total_bytes == psutil.virtual_memory().total
    assert 0 < second.ram_used_bytes < second.ram_total_bytes
    assert second.devices == ()


@pytest.mark.gpu
def test_a_cuda_device_can_be_read() -> None:
    probe = MachineProbe([torch.device("cuda", 0)] * 2)
    keep = torch.ones(1024, device="cuda:0")
    (device,) = probe.read(0.0).devices
    probe.close()
    assert device.device == "cuda:0"
    assert device.memory_allocated_bytes is not None
    assert device.memory_allocated_bytes >= keep.nbytes
    assert device.memory_total_bytes is not None
    assert device.memory_used_bytes is not None
    assert device.memory_allocated_bytes < device.memory_used_bytes <= device.memory_total_bytes


def test_without_the_library_there_are_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlInit", _fails(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND))
    device = torch.device("cuda", 0)
    nvml = Nvml([device])
    assert nvml.read(device) == NvmlDevice()
    nvml.close()


def test_a_figure_that_a_device_does_not_have_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda", 0)
    closed: list[bool] = []
    uuids: list[str] = []

    def handle_of(uuid: str) -> str:
        uuids.append(uuid)
        return "handle"

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="1-2"))
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: closed.append(True))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", handle_of)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", lambda _: SimpleNamespace(used=3, total=8))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUtilizationRates", _fails(pynvml.NVML_ERROR_NOT_SUPPORTED))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerUsage", lambda _: 71_500)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetTemperature", _fails(pynvml.NVML_ERROR_GPU_IS_LOST))
    nvml = Nvml([device])
    assert nvml.read(device) == NvmlDevice(memory_used_bytes=3, memory_total_bytes=8, power_w=71.5)
    nvml.close()
    nvml.close()
    assert (uuids, closed) == (["GPU-1-2"], [True])


def _fails(code: int) -> Callable[..., None]:
    def ask(*_: object) -> None:
        raise pynvml.NVMLError(code)

    return ask


def test_beats_are_counted_from_the_start_and_missed_ones_skipped() -> None:
    clock = ManualClock(50.0)
    pulse = SteadyPulse(0.1, clock=clock)
    assert pulse.left_s == pytest.approx(0.1)
    clock.now_s += 0.03
    assert pulse.left_s == pytest.approx(0.07)
    clock.now_s += 0.42  # four beats were missed: the next is at 0.5
    assert pulse.left_s == pytest.approx(0.05)
    pulse.stop()
    assert not pulse.wait()
