"""What of a model's graph is drawn: which operators become one node, and which nodes a box of their own surrounds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from flodl_core.operator_graph import Edge, ModuleCall, Operator, OperatorGraph

MAX_NODES = 200
"""More than these nobody reads: modules are drawn as one node then, from the innermost on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A box of the drawing.

    Attributes:
        kind: ``input``, ``output``, ``operator``, ``module`` or ``more``.
        lines: Its text; the first line is its title.
        clusters: Keys of the frames around it, outermost first.
    """

    kind: str
    lines: tuple[str, ...]
    clusters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrow:
    """From node to node, by their numbers."""

    source: int
    target: int
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """Everything that is drawn.

    Attributes:
        nodes: Boxes.
        arrows: What goes from one to another.
        cluster_labels: Text of each frame, by its key.
    """

    nodes: tuple[Node, ...]
    arrows: tuple[Arrow, ...]
    cluster_labels: Mapping[str, str]


def lay_out_operators(model: nn.Module, graph: OperatorGraph) -> Drawing | None:
    """Draw operators, grouped by module; None where there are too many even with every inner module as one node."""
    deepest = max((len(operator.modules) for operator in graph.operators.values()), default=1)
    for depth in range(deepest, 0, -1):
        groups = _group(graph, depth)
        if len(set(groups.values())) + len(graph.inputs) + 1 <= MAX_NODES:
            return _draw(model, graph, groups)
    return None


_GroupKey = tuple[tuple[ModuleCall, ...], int]
"""The modules around a node, and the number of its operator, or -1 where the innermost module is the node."""


def _group(graph: OperatorGraph, depth: int) -> dict[int, _GroupKey]:
    """The node of each operator. Torch's own modules that call no other are one node, and so is all below ``depth``."""
    parents = {call for operator in graph.operators.values() for call in operator.modules[:-1]}

    def key(number: int, operator: Operator) -> _GroupKey:
        for level, call in enumerate(operator.modules):
            if level >= depth or (call.is_library and call not in parents):
                return operator.modules[: level + 1], -1
        return operator.modules, number

    return {number: key(number, operator) for number, operator in graph.operators.items()}


def _draw(model: nn.Module, graph: OperatorGraph, groups: Mapping[int, _GroupKey]) -> Drawing:
    sizes = {name: param.numel() for name, param in model.named_parameters()}
    keys = list(dict.fromkeys(groups.values()))
    num_inputs = len(graph.inputs)
    place = {key: num_inputs + position for position, key in enumerate(keys)}
    nodes = [Node(kind="input", lines=("input",)) for _ in graph.inputs]
    for key in keys:
        members = [graph.operators[number] for number, other in groups.items() if other == key]
        nodes.append(_node(key, members, sizes))
    nodes.append(Node(kind="output", lines=("output",)))

    def origin(edge: Edge) -> int:
        return edge.ref.index if edge.ref.source < 0 else place[groups[edge.ref.source]]

    flows = [(edge, place[groups[number]]) for number, operator in graph.operators.items() for edge in operator.inputs]
    flows += [(edge, len(nodes) - 1) for edge in graph.outputs]
    arrows = {
        Arrow(source=origin(edge), target=target, label=_shape(edge)): None
        for edge, target in flows
        if origin(edge) != target
    }
    return Drawing(nodes=tuple(nodes), arrows=tuple(arrows), cluster_labels=_cluster_labels(model, keys))


def _node(key: _GroupKey, members: Sequence[Operator], sizes: Mapping[str, int]) -> Node:
    modules, number = key
    names = {name for operator in members for name in operator.params}
    count = [count_text(sum(sizes[name] for name in names))] if names else []
    if number >= 0:
        return Node(kind="operator", lines=(members[0].name, *count), clusters=_cluster_keys(modules))
    inner = modules[-1]
    path = [_call_name(inner)] if inner.path else []
    return Node(kind="module", lines=(inner.kind, *path, *count), clusters=_cluster_keys(modules[:-1]))


def _cluster_keys(modules: Sequence[ModuleCall]) -> tuple[str, ...]:
    return tuple(_call_name(call) for call in modules[1:])  # no frame around the whole model


def _call_name(call: ModuleCall) -> str:
    return call.path if call.number == 0 else f"{call.path}, call {call.number + 1}"


def _cluster_labels(model: nn.Module, keys: Sequence[_GroupKey]) -> dict[str, str]:
    labels = {}
    for modules, _ in keys:
        for call in modules[1:]:
            num_params = sum(param.numel() for param in model.get_submodule(call.path).parameters())
            count = f"  {count_text(num_params)}" if num_params else ""
            labels[_call_name(call)] = f"{call.kind}  {_call_name(call)}{count}"
    return labels


def _shape(edge: Edge) -> str:
    size = "\u00d7".join(str(length) for length in edge.shape) or "scalar"
    return size if edge.dtype == "float32" else f"{size} {edge.dtype}"


def lay_out_modules(model: nn.Module) -> Drawing:
    """Draw the tree of modules: what there is of a model that cannot be traced."""
    modules = [(path, module) for path, module in model.named_modules() if path]
    depth = max((path.count(".") for path, _ in modules), default=0)
    while depth > 0 and sum(path.count(".") <= depth for path, _ in modules) >= MAX_NODES:
        depth -= 1
    shown = [(path, module) for path, module in modules if path.count(".") <= depth]
    num_left_out = max(0, len(shown) - (MAX_NODES - 2))
    shown = [("", model), *shown[: len(shown) - num_left_out]]
    place = {path: number for number, (path, _) in enumerate(shown)}
    nodes = [_module_node(path, module) for path, module in shown]
    arrows = [Arrow(source=place[path.rpartition(".")[0]], target=number) for path, number in place.items() if path]
    if num_left_out:
        arrows.append(Arrow(source=0, target=len(nodes)))
        nodes.append(Node(kind="more", lines=(f"and {num_left_out:,} more",)))
    return Drawing(nodes=tuple(nodes), arrows=tuple(arrows), cluster_labels={})


def _module_node(path: str, module: nn.Module) -> Node:
    num_params = sum(param.numel() for param in module.parameters())
    lines = [type(module).__name__, *([path] if path else []), *([count_text(num_params)] if num_params else [])]
    return Node(kind="module", lines=tuple(lines))


def count_text(num_params: int) -> str:
    """Such as ``1 parameter`` or ``61,706 parameters``."""
    return f"{num_params:,} parameter{'' if num_params == 1 else 's'}"
