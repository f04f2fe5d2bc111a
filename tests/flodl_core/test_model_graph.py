"""A model's graph: what its hash depends on, what its picture shows, and that making it disturbs nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch import Tensor, nn

from flodl_core import Ddp
from flodl_core.first_forward import FirstForward
from flodl_core.graph_layout import MAX_NODES
from flodl_core.model_graph import ModelGraph, describe_model


def graph_of(model: nn.Module, *args: Any, **kwargs: Any) -> ModelGraph:
    first = FirstForward()
    first.watch(model)
    model(*args, **kwargs)
    return describe_model(model, first.wait(0))


def texts(graph: ModelGraph) -> list[str]:
    return [
        (element.text or "").replace("\xa0", " ").strip()
        for element in ElementTree.fromstring(graph.svg).iter()
        if _tag(element) == "text"
    ]


def num_nodes(graph: ModelGraph) -> int:
    groups = ElementTree.fromstring(graph.svg).iter()
    return sum((element.get("class") or "").startswith("node ") for element in groups)


def _tag(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def small_net(hidden: int = 5) -> nn.Module:
    return nn.Sequential(nn.Linear(3, hidden), nn.ReLU(), nn.Linear(hidden, 2))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.GELU())
        self.shift = nn.Parameter(torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x) + x + self.shift
        return y


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.step = Residual()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.step(self.step(x))
        return y


class AsksForValues(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return y * 2 if float(y.detach().sum()) > 0 else y


def test_picture_shows_modules_shapes_and_parameter_counts() -> None:
    graph = graph_of(small_net(), torch.zeros(7, 3))
    assert graph.is_traced
    assert graph.label == "Sequential: 3 operators, 32 parameters"
    shown = texts(graph)
    assert [title for title in shown if title in ("input", "Linear", "ReLU", "output")] == [
        "input",
        "Linear",
        "ReLU",
        "Linear",
        "output",
    ]
    assert {"7\u00d73", "7\u00d75", "7\u00d72", "20 parameters", "12 parameters"} <= set(shown)


def test_modules_of_ones_own_are_frames_around_their_operators() -> None:
    graph = graph_of(Residual(), torch.zeros(2, 4))
    shown = texts(graph)
    assert "Sequential  inner  20 parameters" in shown
    assert shown.count("add") == 2
    assert "4 parameters" in shown  # the sum that takes the bare parameter


def test_a_module_called_twice_is_drawn_twice() -> None:
    shown = texts(graph_of(Cell(), torch.zeros(2, 4)))
    assert "Residual  step  24 parameters" in shown
    assert "Residual  step, call 2  24 parameters" in shown
    assert shown.count("Linear") == 2


def test_arguments_by_name_and_nested_outputs() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(3, 4, batch_first=True)

        def forward(self, batch: dict[str, Tensor], *, scale: float) -> dict[str, Any]:
            out, state = self.rnn(batch["x"])
            return {"out": out * scale, "state": state}

    graph = graph_of(Model(), {"x": torch.zeros(2, 5, 3)}, scale=0.5)
    assert graph.is_traced
    assert {"LSTM", "mul", "2\u00d75\u00d73"} <= set(texts(graph))


def test_writing_into_a_tensor_is_seen() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.layer(x)
            z = torch.zeros_like(y)
            z[:, 0] = y[:, 0]
            z.clamp_(0, 1)
            return z

    assert {"setitem", "clamp"} <= set(texts(graph_of(Model(), torch.zeros(2, 3))))


def test_models_with_operators_of_their_own_are_traced() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return grads[0] * 2

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = Double.apply(self.layer(x))  # type: ignore[no-untyped-call]  # torch's own stub leaves it so
            return y

    assert graph_of(Model(), torch.zeros(2, 3)).is_traced


@pytest.mark.parametrize(
    "make",
    [AsksForValues, lambda: torch.jit.trace(small_net(), torch.zeros(2, 3))],
    ids=["asks for values", "compiled by torch"],
)
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_model_that_cannot_be_traced_is_shown_as_its_modules(
    make: Callable[[], nn.Module], caplog: pytest.LogCaptureFixture
) -> None:
    model = make()
    caplog.set_level("INFO")
    graph = graph_of(model, torch.ones(2, 3))
    assert not graph.is_traced
    assert "modules" in graph.label
    assert "its graph is its tree of modules" in caplog.text
    assert "Traceback" not in caplog.text
    assert graph.hash == describe_model(model, None).hash
    assert num_nodes(graph) == len(list(model.modules()))


def test_hash_is_that_of_the_structure() -> None:
    reference = graph_of(small_net(), torch.zeros(7, 3)).hash
    assert len(reference) == 64
    assert int(reference, 16) >= 0
    assert graph_of(small_net(), torch.ones(11, 3)).hash == reference, "other parameters and another batch size"
    assert graph_of(small_net(6), torch.zeros(7, 3)).hash != reference
    wider = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    assert graph_of(wider, torch.zeros(7, 3)).hash != reference
    half = small_net().bfloat16()
    assert graph_of(half, torch.zeros(7, 3, dtype=torch.bfloat16)).hash != reference


def test_hash_tells_constants_in_the_code_apart() -> None:
    class Model(nn.Module):
        def __init__(self, slope: float) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)
            self.slope = slope

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.leaky_relu(self.layer(x), self.slope)

    x = torch.zeros(2, 3)
    assert graph_of(Model(0.1), x).hash == graph_of(Model(0.1), x).hash != graph_of(Model(0.2), x).hash


PROGRAM = """
import torch
from tests.flodl_core.test_model_graph import AsksForValues, Residual, graph_of
print(graph_of(Residual(), torch.zeros(2, 4)).hash, graph_of(AsksForValues(), torch.zeros(2, 3)).hash)
"""


def test_hash_is_the_same_in_another_process() -> None:
    here = f"{graph_of(Residual(), torch.zeros(2, 4)).hash} {graph_of(AsksForValues(), torch.zeros(2, 3)).hash}"
    environment = {**os.environ, "PYTHONHASHSEED": "123"}
    there = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    assert there.stdout.strip() == here


def test_picture_is_inert_and_shows_hostile_names_as_they_are() -> None:
    model = nn.Sequential()
    names = ["<script>alert(1)<\\script>", '"]; evil [label="', "a\\N\\Gb", "&lt;x&#x26;", "line\nfeed\x07"]
    for name in names:
        model.add_module(name, nn.Linear(3, 3))
    graph = graph_of(model, torch.zeros(2, 3))
    shown = texts(graph)
    assert {*names[:4], "line\ufffdfeed\ufffd"} <= set(shown)
    tags = {_tag(element) for element in ElementTree.fromstring(graph.svg).iter()}
    assert tags <= {"svg", "style", "g", "path", "polygon", "polyline", "text"}
    assert graph.svg.startswith("<svg")
    assert not [word for word in ("href", "DOCTYPE", "url(", "@import", "<script") if word in graph.svg]


def test_a_deep_model_is_drawn_by_its_outer_modules() -> None:
    graph = graph_of(nn.Sequential(*(Residual() for _ in range(100))), torch.zeros(2, 4))
    assert graph.label.startswith("Sequential: 400 operators")
    assert num_nodes(graph) == 102
    assert "Residual" in texts(graph)


def test_a_model_too_large_to_be_read_says_what_is_left_out() -> None:
    graph = graph_of(nn.Sequential(*(nn.Linear(1, 1) for _ in range(500))), torch.zeros(2, 1))
    assert graph.is_traced
    assert num_nodes(graph) <= MAX_NODES
    assert "and 302 more" in texts(graph)


def test_neither_the_model_nor_its_random_numbers_are_touched() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout())
    model[1].eval()
    graph_of(model, torch.zeros(2, 3))
    before, random = {name: tensor.clone() for name, tensor in model.state_dict().items()}, torch.get_rng_state()
    first = FirstForward()
    first.watch(model)
    model(torch.ones(2, 3))
    torch.set_rng_state(random)
    assert describe_model(model, first.wait(0)).is_traced
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert [part.training for part in model.modules()] == [True, True, False, True]


def test_handle_gives_the_graph_of_the_first_batch() -> None:
    data = (torch.randn(64, 3), torch.randint(0, 2, (64,)))
    handle = (
        Ddp.builder(
            lambda device: small_net().to(device),
            lambda params: torch.optim.SGD(params, lr=0.1),
            lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
        )
        .dataset(data)
        .batch_size(8)
        .num_epochs(2)
        .devices(["cpu", "cpu"])
        .run()
    )
    with handle:
        assert handle.graph_label == "Sequential: 3 operators, 32 parameters"
        assert handle.graph_hash == graph_of(small_net(), torch.zeros(8, 3)).hash
        assert "8\u00d73" in handle.architecture_svg
        handle.join()


def test_handle_of_a_run_without_a_forward_gives_the_modules() -> None:
    def fails(model: nn.Module, batch: Any) -> Tensor:
        raise RuntimeError("before any forward")

    handle = (
        Ddp.builder(lambda device: small_net().to(device), lambda params: torch.optim.SGD(params, lr=0.1), fails)
        .dataset(torch.zeros(8, 3))
        .batch_size(8)
        .num_epochs(1)
        .devices(["cpu"])
        .run()
    )
    with handle:
        assert handle.graph_label == "Sequential: 4 modules, 32 parameters"
