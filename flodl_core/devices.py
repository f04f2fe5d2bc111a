"""Which devices a run uses, and the few places where a kind of device matters."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch

from flodl_core.display_text import value_text
from flodl_core.errors import ConfigError
from flodl_core.policies import AverageBackend

MAX_SLOWDOWN = 1000.0


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """One worker: the device that it trains on, and how much that device is slowed down.

    Attributes:
        device: A torch device string such as ``"cpu"`` or ``"cuda:1"``.
        slowdown: Multiple to which every batch is stretched by an idle wait, from 1 to 1000. It
            makes unlike devices out of like ones, for demos, tests and benchmarks.
    """

    device: str
    slowdown: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.device, str):
            raise ConfigError(f"a worker's device must be a string such as cpu, not {value_text(self.device)}")
        slowdown: Any = self.slowdown
        is_number = isinstance(slowdown, Real) and not isinstance(slowdown, bool)
        if not (is_number and 1.0 <= slowdown <= MAX_SLOWDOWN):  # not of NaN either
            raise ConfigError(f"slowdown must be from 1 to {MAX_SLOWDOWN:g}, not {value_text(slowdown)}")

    def __str__(self) -> str:
        return self.device if self.slowdown == 1.0 else f"{self.device}@{self.slowdown:g}"


def parse_worker_spec(text: str) -> WorkerSpec:
    """Read ``"cpu"``, ``"cuda:0"`` or ``"cpu@2.5"``.

    Raises:
        ConfigError: The text names no device, or its slowdown is not a number from 1 to 1000.
    """
    device, at, factor = text.strip().partition("@")
    if not device:
        raise ConfigError(f"a device must look like cpu, cuda:0 or cpu@2.5, not {text!r}")
    try:
        slowdown = float(factor) if at else 1.0
    except ValueError:
        raise ConfigError(f"the slowdown in {text!r} must be a number from 1 to {MAX_SLOWDOWN:g}") from None
    return WorkerSpec(device, slowdown)


def resolve_device(spec: WorkerSpec) -> torch.device:
    """Turn a spec's device into a ``torch.device`` that exists here.

    Raises:
        ConfigError: The string is no device, or the device is not on this machine.
    """
    try:
        device = torch.device(spec.device)
    except RuntimeError:
        raise ConfigError(f"unknown device {spec.device!r}: use cpu or cuda:N") from None
    if device.type == "cpu":
        return torch.device("cpu")  # "cpu:1" is the same device
    if device.type != "cuda":
        raise ConfigError(f"device {spec.device!r} is not supported: use cpu or cuda:N")
    num_cuda = torch.cuda.device_count()
    if num_cuda == 0:
        raise ConfigError(f"device {spec.device!r} asked for, but there is no CUDA device here: use cpu")
    index = device.index or 0
    if index >= num_cuda:
        raise ConfigError(f"device {spec.device!r} asked for, but the last CUDA device here is cuda:{num_cuda - 1}")
    return torch.device("cuda", index)


def default_workers() -> tuple[WorkerSpec, ...]:
    """One worker per CUDA device; without any, one on the CPU."""
    num_cuda = torch.cuda.device_count()
    return tuple(WorkerSpec(f"cuda:{i}") for i in range(num_cuda)) or (WorkerSpec("cpu"),)


def resolve_backend(asked: AverageBackend | None, devices: Sequence[torch.device]) -> AverageBackend:
    """The backend to use on ``devices``: the one asked for where it can work, else ``cpu``.

    Raises:
        ConfigError: The backend asked for cannot average on these devices.
    """
    if asked is None or asked is AverageBackend.CPU:
        return AverageBackend.CPU
    kinds = {device.type for device in devices}
    if asked is AverageBackend.NCCL:
        if "cuda" not in kinds:
            raise ConfigError("backend nccl needs CUDA devices and there are none in this run: use gloo or cpu")
        raise ConfigError("backend nccl is not built yet: use cpu, which averages any devices")
    if kinds != {"cpu"}:
        raise ConfigError("backend gloo averages CPU devices only: use cpu, which averages any devices")
    return asked


def device_label(device: torch.device) -> str:
    """The device as a person reads it: ``cpu`` or ``H200 (139 GiB)``."""
    if device.type != "cuda":
        return device.type
    properties = torch.cuda.get_device_properties(device)
    return f"{properties.name} ({properties.total_memory / 2**30:.0f} GiB)"


def worker_label(spec: WorkerSpec, device: torch.device) -> str:
    """The worker as a person reads it: its device, and ``@2.5`` where it is slowed down."""
    return device_label(device) + ("" if spec.slowdown == 1.0 else f"@{spec.slowdown:g}")


def device_summary(specs: Sequence[WorkerSpec], devices: Sequence[torch.device], *, tail: str) -> str:
    """One line for the log: how many devices, whether they are alike, and what each is."""
    labels = [worker_label(spec, device) for spec, device in zip(specs, devices, strict=True)]
    count = f"{len(labels)} device" + ("s" if len(labels) > 1 else "")
    alike = "" if len(labels) < 2 else " (heterogeneous)" if len(set(labels)) > 1 else " (homogeneous)"
    return " | ".join([count + alike, *labels, tail])


def intra_op_threads(devices: Sequence[torch.device]) -> int:
    """Intra-op threads for each worker, so that CPU workers share the cores instead of fighting for them."""
    num_cpu_workers = sum(device.type == "cpu" for device in devices)
    return max(1, len(os.sched_getaffinity(0)) // max(1, num_cpu_workers))
