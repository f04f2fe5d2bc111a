from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch

from flodl_core.devices import (
    WorkerSpec,
    default_workers,
    device_label,
    device_summary,
    intra_op_threads,
    parse_worker_spec,
    resolve_backend,
    resolve_device,
)
from flodl_core.errors import ConfigError
from flodl_core.policies import ApplyPolicy, AverageBackend, NonFinitePolicy, parse_choice

CPU = torch.device("cpu")
GPU = torch.device("cuda", 0)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two CUDA devices, as far as their number and names go."""
    properties = [SimpleNamespace(name="H200", total_memory=139 * 2**30), SimpleNamespace(name="L4", total_memory=24e9)]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties[device.index])


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a CUDA device."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


# Specs


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("cpu", WorkerSpec("cpu")),
        (" cpu ", WorkerSpec("cpu")),
        ("cuda:1", WorkerSpec("cuda:1", 1.0)),
        ("cpu@2.5", WorkerSpec("cpu", 2.5)),
        ("cuda:0@1e3", WorkerSpec("cuda:0", 1000.0)),
        ("cpu@1", WorkerSpec("cpu")),
    ],
)
def test_spec_is_read_from_text(text: str, spec: WorkerSpec) -> None:
    assert parse_worker_spec(text) == spec


@pytest.mark.parametrize("spec", [WorkerSpec("cpu"), WorkerSpec("cpu", 2.5), WorkerSpec("cuda:1", 1000.0)])
def test_spec_as_text_reads_back(spec: WorkerSpec) -> None:
    assert parse_worker_spec(str(spec)) == spec


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a device must look like cpu, cuda:0 or cpu@2.5, not ''"),
        ("@2", "a device must look like"),
        ("cpu@", "the slowdown in 'cpu@' must be a number from 1 to 1000"),
        ("cpu@fast", "the slowdown in 'cpu@fast' must be a number"),
        ("cpu@0.5", "slowdown must be from 1 to 1000, not 0.5"),
        ("cpu@1001", "slowdown must be from 1 to 1000, not 1001.0"),
        ("cpu@nan", "slowdown must be from 1 to 1000, not nan"),
        ("cpu@inf", "slowdown must be from 1 to 1000, not inf"),
        ("cpu@-2", "slowdown must be from 1 to 1000, not -2.0"),
        ("cpu@2@3", "the slowdown in 'cpu@2@3' must be a number"),
    ],
)
def test_text_that_is_no_spec_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_worker_spec(text)
    assert message in str(caught.value)
    assert isinstance(caught.value, ValueError)


# Devices


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("device", "resolved"),
    [("cpu", CPU), ("cpu:1", CPU), ("cuda", GPU), ("cuda:0", GPU), ("cuda:1", torch.device("cuda", 1))],
)
def test_device_is_resolved_to_one_that_exists(device: str, resolved: torch.device) -> None:
    assert resolve_device(WorkerSpec(device)) == resolved


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("gpu", "unknown device 'gpu': use cpu or cuda:N"),
        ("cuda:x", "unknown device 'cuda:x'"),
        ("cuda:-1", "unknown device 'cuda:-1'"),
        ("meta", "device 'meta' is not supported: use cpu or cuda:N"),
        ("cuda:2", "device 'cuda:2' asked for, but the last CUDA device here is cuda:1"),
    ],
)
def test_device_that_does_not_exist_is_refused(device: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_device(WorkerSpec(device))
    assert message in str(caught.value)


@pytest.mark.usefixtures("no_gpu")
def test_cuda_device_is_refused_where_there_is_none() -> None:
    with pytest.raises(ConfigError, match="there is no CUDA device here: use cpu"):
        resolve_device(WorkerSpec("cuda:0"))


@pytest.mark.usefixtures("two_gpus")
def test_every_cuda_device_gets_a_worker_by_default() -> None:
    assert default_workers() == (WorkerSpec("cuda:0"), WorkerSpec("cuda:1"))


@pytest.mark.usefixtures("no_gpu")
def test_without_a_cuda_device_the_default_is_one_worker_on_the_cpu() -> None:
    assert default_workers() == (WorkerSpec("cpu"),)


@pytest.mark.gpu
def test_cuda_device_of_this_machine_is_found() -> None:
    device = resolve_device(WorkerSpec("cuda:0"))
    assert device == GPU
    assert "GiB" in device_label(device)


# Backends


@pytest.mark.parametrize(
    ("asked", "devices", "backend"),
    [
        (None, (CPU, CPU), AverageBackend.CPU),
        (None, (GPU, CPU), AverageBackend.CPU),
        (None, (GPU, GPU), AverageBackend.CPU),
        (AverageBackend.CPU, (GPU, CPU), AverageBackend.CPU),
        (AverageBackend.GLOO, (CPU, CPU), AverageBackend.GLOO),
        (AverageBackend.GLOO, (CPU,), AverageBackend.GLOO),
    ],
)
def test_backend_is_the_one_asked_for_or_the_cpu(
    asked: AverageBackend | None, devices: tuple[torch.device, ...], backend: AverageBackend
) -> None:
    assert resolve_backend(asked, devices) is backend


@pytest.mark.parametrize(
    ("asked", "devices", "message"),
    [
        (
            AverageBackend.NCCL,
            (CPU, CPU),
            "backend nccl needs CUDA devices and there are none in this run: use gloo or cpu",
        ),
        (AverageBackend.NCCL, (GPU, GPU), "backend nccl is not built yet: use cpu"),
        (AverageBackend.GLOO, (GPU, CPU), "backend gloo averages CPU devices only: use cpu"),
    ],
)
def test_backend_that_cannot_average_the_devices_is_refused(
    asked: AverageBackend, devices: tuple[torch.device, ...], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_backend(asked, devices)
    assert message in str(caught.value)


@pytest.mark.parametrize("kind", [ApplyPolicy, AverageBackend, NonFinitePolicy])
def test_choice_is_read_by_its_name(kind: type[ApplyPolicy | AverageBackend | NonFinitePolicy]) -> None:
    for member in kind:
        assert parse_choice(kind, member.value, what="it") is member


def test_choice_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_choice(ApplyPolicy, "Sync", what="policy")
    assert str(caught.value) == "policy must be one of sync, cadence, async, not 'Sync'"


# What a person reads


@pytest.mark.usefixtures("two_gpus")
def test_label_names_the_device_and_its_memory() -> None:
    assert device_label(CPU) == "cpu"
    assert device_label(GPU) == "H200 (139 GiB)"


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("specs", "devices", "summary"),
    [
        ((WorkerSpec("cpu"),), (CPU,), "1 device | cpu | tail"),
        ((WorkerSpec("cpu"), WorkerSpec("cpu")), (CPU, CPU), "2 devices (homogeneous) | cpu | cpu | tail"),
        ((WorkerSpec("cpu"), WorkerSpec("cpu", 2.5)), (CPU, CPU), "2 devices (heterogeneous) | cpu | cpu@2.5 | tail"),
        (
            (WorkerSpec("cuda"), WorkerSpec("cpu")),
            (GPU, CPU),
            "2 devices (heterogeneous) | H200 (139 GiB) | cpu | tail",
        ),
    ],
)
def test_summary_says_how_many_devices_and_whether_they_are_alike(
    specs: tuple[WorkerSpec, ...], devices: tuple[torch.device, ...], summary: str
) -> None:
    assert device_summary(specs, devices, tail="tail") == summary


@pytest.mark.parametrize(
    ("num_cores", "devices", "num_threads"),
    [(8, (CPU, CPU), 4), (8, (CPU, CPU, CPU), 2), (2, (CPU, CPU, CPU), 1), (8, (GPU, CPU), 8), (8, (GPU,), 8)],
)
def test_cpu_workers_share_the_cores(
    monkeypatch: pytest.MonkeyPatch, num_cores: int, devices: tuple[torch.device, ...], num_threads: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(num_cores)))
    assert intra_op_threads(devices) == num_threads
