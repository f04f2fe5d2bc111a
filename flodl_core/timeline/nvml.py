"""NVIDIA's management library, where there is one: a figure that it does not give is None, never an error."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import pynvml  # type: ignore[import-untyped]  # it carries no types
import torch

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlDevice:
    """One device's figures; see ``DeviceSample``."""

    utilization_percent: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_w: float | None = None
    temperature_c: float | None = None


class Nvml:
    """The library, opened. Owner: the thread that samples.

    Args:
        devices: CUDA devices, found by their UUID: the library numbers them without ``CUDA_VISIBLE_DEVICES``.
    """

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._handles: dict[torch.device, Any] = {}
        self._is_open = False
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            log.info("no figures of the devices: %s", error)
            return
        self._is_open = True
        for device in devices:
            uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
            self._handles[device] = _ask(partial(pynvml.nvmlDeviceGetHandleByUUID, uuid))

    def read(self, device: torch.device) -> NvmlDevice:
        """The device now."""
        handle = self._handles.get(device)
        if handle is None:
            return NvmlDevice()
        memory = _ask(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle))
        utilization = _ask(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle))
        power_mw = _ask(lambda: pynvml.nvmlDeviceGetPowerUsage(handle))
        temperature = _ask(lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))
        return NvmlDevice(
            utilization_percent=None if utilization is None else float(utilization.gpu),
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_total_bytes=None if memory is None else int(memory.total),
            power_w=None if power_mw is None else power_mw / 1e3,
            temperature_c=None if temperature is None else float(temperature),
        )

    def close(self) -> None:
        """Let go of the library. May be called twice."""
        if self._is_open:
            self._is_open = False
            self._handles.clear()
            _ask(pynvml.nvmlShutdown)


def _ask(question: Callable[[], T]) -> T | None:
    try:
        return question()
    except pynvml.NVMLError:
        return None
