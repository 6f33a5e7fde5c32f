"""Charts of bars as shapes, written as SVG, or as PNG where Pillow is installed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from engine.errors import EngineError, UsageError
from engine.records import dataclass

COLOURS = (
    *("#2a6fb0", "#e08a1e", "#3f9b57", "#b3446c", "#7a68b3"),
    *("#5fb3c9", "#b58b3b", "#8c8c8c", "#1d3a5f", "#d9a6bd"),
)
"""Fills, told apart by those who see red and green alike."""

INK, FAINT, PAPER = "#222222", "#d0d0d0", "#ffffff"
ROW, GAP, TEXT = 16, 10, 12


@dataclass(frozen=True)
class Box:
    """A filled rectangle; sizes in pixels."""

    x: float
    y: float
    width: float
    height: float
    fill: str


@dataclass(frozen=True)
class Label:
    """A line of text whose baseline begins, or ends, at a point."""

    x: float
    y: float
    text: str
    size: int = TEXT
    at_end: bool = False
    fill: str = INK


@dataclass
class Drawing:
    """Shapes in the order in which they cover each other."""

    width: int
    height: int
    shapes: list[Box | Label] = field(default_factory=list)

    def svg(self) -> str:
        """The text of an SVG file."""
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" height="{self.height}" '
            f'viewBox="0 0 {self.width} {self.height}" font-family="sans-serif">',
            f'<rect width="{self.width}" height="{self.height}" fill="{PAPER}"/>',
        ]
        for shape in self.shapes:
            if isinstance(shape, Box):
                lines.append(
                    f'<rect x="{shape.x:.1f}" y="{shape.y:.1f}" width="{shape.width:.1f}" '
                    f'height="{shape.height:.1f}" fill="{shape.fill}"/>'
                )
            else:
                end = ' text-anchor="end"' if shape.at_end else ""
                lines.append(
                    f'<text x="{shape.x:.1f}" y="{shape.y:.1f}" font-size="{shape.size}" '
                    f'fill="{shape.fill}"{end}>{escape(shape.text)}</text>'
                )
        return "\n".join([*lines, "</svg>", ""])

    def image(self) -> Any:
        """A Pillow image, twice as large. Raises: UsageError if Pillow is not installed."""
        if find_spec("PIL") is None:
            raise UsageError("a .png needs Pillow: `pip install Pillow`, or write an .svg")
        scale = 2
        picture = import_module("PIL.Image").new(
            "RGB", (self.width * scale, self.height * scale), PAPER
        )
        pen = import_module("PIL.ImageDraw").Draw(picture)
        fonts = import_module("PIL.ImageFont")
        for shape in self.shapes:
            if isinstance(shape, Box):
                corners = (shape.x, shape.y, shape.x + shape.width, shape.y + shape.height)
                pen.rectangle([round(c * scale) for c in corners], fill=shape.fill)
            else:
                font = fonts.load_default(shape.size * scale)
                anchor = "rs" if shape.at_end else "ls"
                place = (shape.x * scale, shape.y * scale)
                pen.text(place, shape.text, fill=shape.fill, font=font, anchor=anchor)
        return picture

    def save(self, path: Path) -> None:
        """Writes an .svg or a .png.

        Raises: UsageError for a .png without Pillow; EngineError for other endings; OSError.
        """
        if path.suffix == ".svg":
            path.write_text(self.svg(), encoding="utf-8")
        elif path.suffix == ".png":
            self.image().save(path)
        else:
            raise EngineError(f"a chart is an .svg or a .png, not {path.name!r}")


@dataclass(frozen=True)
class Bar:
    """A bar: pieces that add up, each in the colour of its place, and what is written behind it.

    `colour` overrides the place, for bars of one piece.
    """

    name: str
    pieces: tuple[float, ...]
    note: str = ""
    colour: int | None = None


def stacked(title: str, legend: Sequence[str], bars: Sequence[Bar], width: int = 760) -> Drawing:
    """Bars of pieces, drawn to one scale from zero."""
    left, right = 150, 130
    drawing = Drawing(width, 0)
    y = _heading(drawing, title, legend)
    most = max((sum(b.pieces) for b in bars), default=0.0) or 1.0
    for bar in bars:
        drawing.shapes.append(Label(left - 8, y + ROW - 4, bar.name, at_end=True))
        x = float(left)
        for place, piece in enumerate(bar.pieces):
            length = (width - left - right) * piece / most
            drawing.shapes.append(Box(x, y, length, ROW, COLOURS[place % len(COLOURS)]))
            x += length
        drawing.shapes.append(Label(x + 6, y + ROW - 4, bar.note))
        y += ROW + GAP
    drawing.height = y + GAP
    return drawing


def grouped(
    title: str,
    legend: Sequence[str],
    groups: Sequence[tuple[str, Sequence[Bar]]],
    unit: str,
    width: int = 860,
) -> Drawing:
    """Groups of bars of one piece each, along a logarithmic axis with lines at powers of ten."""
    left, right, row = 150, 70, 11
    drawing = Drawing(width, 0)
    top = _heading(drawing, title, legend) + TEXT
    values = [b.pieces[0] for _, bars in groups for b in bars if b.pieces[0] > 0]
    low = math.floor(math.log10(min(values, default=1.0)))
    high = max(math.ceil(math.log10(max(values, default=10.0))), low + 1)
    height = sum(len(bars) * row + GAP for _, bars in groups)
    step = (width - left - right) / (high - low)
    for power in range(low, high + 1):
        x = left + (power - low) * step
        drawing.shapes.append(Box(x, top, 1, height, FAINT))
        drawing.shapes.append(Label(x - 8, top - 4, f"{10.0**power:g} {unit}", size=10))
    y = float(top)
    for name, bars in groups:
        middle = y + len(bars) * row / 2 + 4
        drawing.shapes.append(Label(left - 8, middle, name, at_end=True))
        for bar in bars:
            reach = max((math.log10(max(bar.pieces[0], 10.0**low)) - low) * step, 1.0)
            fill = COLOURS[(bar.colour or 0) % len(COLOURS)]
            drawing.shapes.append(Box(left, y, reach, row - 2, fill))
            drawing.shapes.append(Label(left + reach + 4, y + row - 2, bar.note, size=9))
            y += row
        y += GAP
    drawing.height = int(y) + GAP
    return drawing


def _heading(drawing: Drawing, title: str, legend: Sequence[str]) -> int:
    """Draws title and legend; returns where the bars begin."""
    drawing.shapes.append(Label(GAP, 24, title, size=15))
    x, y = float(GAP), 38
    for place, name in enumerate(legend):
        width = 30 + 7.0 * len(name)
        if x + width > drawing.width:
            x, y = float(GAP), y + 20
        drawing.shapes.append(Box(x, y, 12, 12, COLOURS[place % len(COLOURS)]))
        drawing.shapes.append(Label(x + 18, y + 11, name))
        x += width
    return y + 30
