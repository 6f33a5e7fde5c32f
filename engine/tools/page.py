"""The report as one HTML page, with the graph drawn: no network, no build step.

The template, its style and its script are in `web/`; here the drawing is laid out, and all is put
into one text. The script reads the JSON in the page: that of `Report.to_json`, the drawing and the
shaders.
"""

from __future__ import annotations

import html
from importlib import resources
from itertools import pairwise
from typing import Any

from engine.explain import NodeRow, Report
from engine.explain.data import to_dict
from engine.explain.text import price_text
from engine.json_text import dumps
from engine.reasons import pattern
from engine.records import dataclass
from engine.tools.layered import Box, Drawing, Line, draw

CARD_WIDTH, CARD_HEIGHT = 196.0, 36.0
MEMBER_GAP, BORDER = 3.0, 6.0
"""Between the cards of a fused group, and around them."""

_PILL = (168.0, 30.0)


@dataclass(frozen=True)
class _Unit:
    """What is laid out as one box: a node, nodes that are fused, or an input or output."""

    members: tuple[int, ...]
    band: int
    end: str = ""
    name: str = ""

    @property
    def box(self) -> Box:
        if self.end:
            return Box(*_PILL, self.band)
        count = len(self.members)
        if count == 1:
            return Box(CARD_WIDTH, CARD_HEIGHT, self.band)
        height = count * CARD_HEIGHT + (count - 1) * MEMBER_GAP
        return Box(CARD_WIDTH + 2 * BORDER, height + 2 * BORDER, self.band)


def explain_page(report: Report, title: str) -> str:
    """The page, complete in itself."""
    content = to_dict(report)
    content["title"] = title
    content["drawing"] = _Drawer(report).content()
    content["shaders"] = list(report.shaders)
    for fields, price in zip(content["reasons"], _price_texts(report), strict=True):
        fields["price"] = price
    data = dumps(content, separators=(",", ":")).replace("<", "\\u003c")
    page = _web("explain.html")
    for mark, text in (
        ("{{title}}", html.escape(title)),
        ("{{style}}", _web("explain.css")),
        ("{{script}}", _web("explain.js")),
        ("{{data}}", data),
    ):
        page = page.replace(mark, text, 1)
    return page


def _web(name: str) -> str:
    return (resources.files("engine") / "tools" / "web" / name).read_text(encoding="utf-8")


def _price_texts(report: Report) -> list[str]:
    price_of = {price.reason: price for price in report.prices}
    texts = []
    for group in report.reasons():
        price = None if group.faster else price_of.get(pattern(group.entries[0].reason))
        texts.append("" if price is None else price_text(price, group.names_text()))
    return texts


class _Drawer:
    """Boxes, edges and frames of a report."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.maker = {name: i for i, n in enumerate(report.nodes) for name in n.outputs if name}
        self.units: list[_Unit] = []
        self.unit_of: dict[int, int] = {}
        self.inputs: dict[str, int] = {}
        self.moved = {(t.value, t.direction): t.nbytes for t in report.transfers}
        self._make_units()

    def _make_units(self) -> None:
        bands = self._bands()
        read = {name for n in self.report.nodes for name in n.inputs}
        for name in self.report.inputs:
            if not self.report.values[name].constant and name in read:
                self.inputs[name] = len(self.units)
                self.units.append(_Unit((), -1, "input", name))
        groups: dict[tuple[int, ...], list[int]] = {}
        inside = self._inside()
        for i, node in enumerate(self.report.nodes):
            groups.setdefault(node.kernels or inside.get(i, (-1 - i,)), []).append(i)
        for members in groups.values():
            self.unit_of.update(dict.fromkeys(members, len(self.units)))
            self.units.append(_Unit(tuple(members), bands[members[0]]))

    def _inside(self) -> dict[int, tuple[int, ...]]:
        """The kernels of views that lie between nodes of one kernel."""
        nodes = self.report.nodes
        readers: dict[str, list[int]] = {}
        for i, node in enumerate(nodes):
            for name in node.inputs:
                readers.setdefault(name, []).append(i)
        found: dict[int, tuple[int, ...]] = {}
        for i, node in reversed(list(enumerate(nodes))):
            maker = self.maker.get(self._root(node.outputs[0]))
            if node.device == "view" and maker is not None and nodes[maker].kernels:
                after = [r for name in node.outputs for r in readers.get(name, ())]
                if nodes[maker].kernels in [nodes[r].kernels or found.get(r) for r in after]:
                    found[i] = nodes[maker].kernels
        return found

    def _bands(self) -> list[int]:
        """Subgraphs; what is never run is where what it reads is made."""
        bands: list[int] = []
        for node in self.report.nodes:
            makers = [self.maker[n] for n in node.inputs if n in self.maker]
            read = [bands[m] for m in makers if m < len(bands)]
            bands.append(max(read, default=0) if node.subgraph is None else node.subgraph)
        return bands

    def content(self) -> dict[str, Any]:
        report = self.report
        edges: dict[tuple[int, int], list[tuple[str, int, int]]] = {}
        for i, node in enumerate(report.nodes):
            for name in dict.fromkeys(n for n in node.inputs if n):
                start = self._start(name)
                if start is not None and start != self.unit_of[i]:
                    found = edges.setdefault((start, self.unit_of[i]), [])
                    found.append((name, self.maker.get(name, -1), i))
        last = max((u.band for u in self.units), default=0) + 1
        for name in report.outputs:
            start = self._start(name)
            if start is not None:
                edges[start, len(self.units)] = [(name, self.maker.get(name, -1), -1)]
                self.units.append(_Unit((), last, "output", name))
        drawing = draw([u.box for u in self.units], list(edges))
        return {
            "width": drawing.width,
            "height": drawing.height,
            "nodes": self._cards(drawing),
            "groups": [
                self._rectangle(drawing, i) | {"kernel": report.nodes[u.members[0]].kernels[0]}
                for i, u in enumerate(self.units)
                if len(u.members) > 1
            ],
            "ends": [
                self._rectangle(drawing, i) | {"name": u.name, "kind": u.end}
                for i, u in enumerate(self.units)
                if u.end
            ],
            "bands": [
                {
                    "subgraph": frame.band if 0 <= frame.band < len(report.subgraphs) else -1,
                    "x": round(frame.x, 1),
                    "y": round(frame.y, 1),
                    "width": round(frame.width, 1),
                    "height": round(frame.height, 1),
                    "first": frame.first,
                }
                for frame in drawing.frames
            ],
            "edges": [
                self._edge(line, *link)
                for line in drawing.lines
                for link in edges[line.start, line.end]
            ],
        }

    def _start(self, name: str) -> int | None:
        if name in self.maker:
            return self.unit_of[self.maker[name]]
        return self.inputs.get(name)

    def _rectangle(self, drawing: Drawing, unit: int) -> dict[str, Any]:
        (x, y), box = drawing.corners[unit], self.units[unit].box
        return {"x": round(x, 1), "y": round(y, 1), "width": box.width, "height": box.height}

    def _cards(self, drawing: Drawing) -> list[tuple[float, float]]:
        """The upper left corner of each node's card, by index."""
        found = [(0.0, 0.0)] * len(self.report.nodes)
        for unit, (x, y) in zip(self.units, drawing.corners, strict=True):
            inside = BORDER if len(unit.members) > 1 else 0.0
            for i, member in enumerate(unit.members):
                top = y + inside + i * (CARD_HEIGHT + MEMBER_GAP)
                found[member] = (round(x + inside, 1), round(top, 1))
        return found

    def _edge(self, line: Line, name: str, start: int, end: int) -> dict[str, Any]:
        direction = self._crossing(name, start, end)
        root = self._root(name)
        return {
            "value": name,
            "from": start,
            "to": end,
            "path": _path(line.points),
            "transfer": direction,
            "nbytes": self.moved.get((root, direction), 0) if direction else 0,
        }

    def _crossing(self, name: str, start: int, end: int) -> str:
        """ "upload", "download", or "" for an edge on one side."""
        before = self._side(self.report.nodes[start]) if start >= 0 else "host"
        after = self._side(self.report.nodes[end]) if end >= 0 else "host"
        root = self._root(name)
        if (before, after) == ("host", "gpu") and (root, "upload") in self.moved:
            return "upload"
        if (before, after) == ("gpu", "host") and (root, "download") in self.moved:
            return "download"
        return ""

    def _side(self, node: NodeRow) -> str:
        if node.device == "view" and node.subgraph is not None:
            return "gpu" if self.report.subgraphs[node.subgraph].device == "gpu" else "host"
        return "gpu" if node.device == "gpu" else "" if node.device == "folded" else "host"

    def _root(self, name: str) -> str:
        """The value whose buffer a value shares."""
        while name in self.maker and self.report.nodes[self.maker[name]].device == "view":
            name = self.report.nodes[self.maker[name]].inputs[0]
        return name


def _path(points: tuple[tuple[float, float], ...]) -> str:
    """The `d` of an SVG path: curves where x changes, straight lines down."""
    if not points:
        return ""
    parts = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for (x0, y0), (x1, y1) in pairwise(points):
        if abs(x0 - x1) < 0.5 or abs(y0 - y1) < 0.5:
            parts.append(f"L{x1:.1f} {y1:.1f}")
        else:
            middle = (y0 + y1) / 2
            parts.append(f"C{x0:.1f} {middle:.1f} {x1:.1f} {middle:.1f} {x1:.1f} {y1:.1f}")
    return "".join(parts)
