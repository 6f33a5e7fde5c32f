"""Reading text in a picture with three networks: where it is, which way up it is, what it says.

The networks are PP-OCR's detector (DB: a probability map), angle classifier and recogniser (CTC).
What lies between them is here, in NumPy and Pillow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image

Float = npt.NDArray[np.floating[Any]]

LONGEST_SIDE = 960
TEXT_PROBABILITY = 0.3
BOX_PROBABILITY = 0.5
GROWTH = 1.6
SMALLEST_SIDE = 4
FLIP_CONFIDENCE = 0.9
LINE_HEIGHT = 48
ANGLE_WIDTH = 192
NARROWEST_LINE = 320
WIDTH_STEP = 32


class Session(Protocol):
    """The part of an inference session that is used: all outputs for named inputs."""

    def run(
        self, output_names: Sequence[str] | None, input_feed: dict[str, npt.NDArray[Any]]
    ) -> list[Any]: ...


@dataclass(frozen=True)
class Box:
    """A rectangle: centre, half extents along its own axes, and the direction of the first."""

    centre: Float
    half: Float
    along: Float

    def corners(self) -> Float:
        """[4, 2] x, y: top left, bottom left, bottom right, top right, as the text runs."""
        down = np.array([-self.along[1], self.along[0]])
        right, low = self.along * self.half[0], down * self.half[1]
        return self.centre + np.array([-right - low, -right + low, right + low, right - low])

    def grown(self) -> Box:
        """The detector was trained on shrunken text; this undoes it (DB, eq. 10)."""
        area, perimeter = 4 * self.half.prod(), 4 * self.half.sum()
        return Box(self.centre, self.half + GROWTH * area / perimeter, self.along)

    def scaled(self, factors: Float) -> Box:
        """The box in a picture that is `factors` (x, y; almost equal) times as large."""
        return Box(self.centre * factors, self.half * factors.mean(), self.along)

    def crop(self, picture: Image.Image) -> Image.Image:
        """What lies inside, straight; columns of text are laid on their side."""
        width, height = (max(1, round(2 * x)) for x in self.half)
        quad = tuple(self.corners().ravel())
        straight = picture.transform(
            (width, height), Image.Transform.QUAD, quad, Image.Resampling.BICUBIC
        )
        return straight.rotate(90, expand=True) if height > 1.5 * width else straight


@dataclass(frozen=True)
class TextReader:
    """The three sessions and the recogniser's letters, index 0 being CTC's blank."""

    detector: Session
    angle: Session
    recogniser: Session
    alphabet: Sequence[str]

    def find(self, picture: Image.Image) -> list[Box]:
        """Boxes of the lines in an RGB picture, from top to bottom."""
        shrink = min(1.0, LONGEST_SIDE / max(picture.size))
        size = [max(32, round(side * shrink / 32) * 32) for side in picture.size]
        x = to_planes(picture.resize((size[0], size[1]), Image.Resampling.BILINEAR))
        (probability,) = self.detector.run(None, {"x": x})
        factors = np.array(picture.size) / np.array(size)
        boxes = [box.scaled(factors) for box in boxes_of(probability[0, 0])]
        return sorted(boxes, key=lambda box: (box.centre[1], box.centre[0]))

    def straighten(self, crops: Sequence[Image.Image]) -> list[Image.Image]:
        """The crops, those that stand on their head turned round."""
        if not crops:
            return []
        batch = np.concatenate([to_line(crop, ANGLE_WIDTH) for crop in crops])
        (upright_or_not,) = self.angle.run(None, {"x": batch})
        flips = upright_or_not[:, 1] > FLIP_CONFIDENCE
        return [crop.rotate(180) if flip else crop for crop, flip in zip(crops, flips, strict=True)]

    def spell(self, crop: Image.Image) -> tuple[str, float]:
        """The text of one upright line, and its mean probability."""
        natural = LINE_HEIGHT * crop.width / crop.height
        width = max(NARROWEST_LINE, int(np.ceil(natural / WIDTH_STEP)) * WIDTH_STEP)
        (probabilities,) = self.recogniser.run(None, {"x": to_line(crop, width)})
        return decode(probabilities[0], self.alphabet)


def to_planes(picture: Image.Image) -> npt.NDArray[np.float32]:
    """An RGB picture as [1, 3, height, width] float32 in [-1, 1], blue plane first."""
    bgr = np.asarray(picture, np.float32)[:, :, ::-1]
    return np.ascontiguousarray((bgr / 127.5 - 1).transpose(2, 0, 1)[None])


def to_line(crop: Image.Image, width: int) -> npt.NDArray[np.float32]:
    """`crop` at the height that the networks want, [1, 3, 48, width], grey on its right."""
    line = np.zeros((1, 3, LINE_HEIGHT, width), np.float32)
    used = max(1, min(width, round(LINE_HEIGHT * crop.width / crop.height)))
    line[..., :used] = to_planes(crop.resize((used, LINE_HEIGHT), Image.Resampling.BILINEAR))
    return line


def decode(probabilities: Float, alphabet: Sequence[str]) -> tuple[str, float]:
    """Best path of CTC: [time, letters] -> text and mean probability of its letters."""
    best = probabilities.argmax(axis=-1)
    kept = (best != 0) & (np.diff(best, prepend=0) != 0)
    if not kept.any():
        return "", 0.0
    text = "".join(alphabet[index] for index in best[kept])
    return text, float(probabilities.max(axis=-1)[kept].mean())


def boxes_of(probability: Float) -> list[Box]:
    """Grown boxes of the regions of a [height, width] map that are surely text."""
    boxes = []
    for runs in regions(probability > TEXT_PROBABILITY):
        inside = np.concatenate([probability[row, start:stop] for row, start, stop in runs])
        box = smallest_rectangle(np.array(runs, float))
        if inside.mean() >= BOX_PROBABILITY and 2 * box.half.min() >= SMALLEST_SIDE:
            boxes.append(box.grown())
    return boxes


def regions(mask: npt.NDArray[np.bool_]) -> list[list[tuple[int, int, int]]]:
    """8-connected regions of `mask`, each as its runs (row, start, stop): union-find on runs."""
    runs: list[tuple[int, int, int]] = []
    parent: list[int] = []

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = index = parent[parent[index]]
        return index

    above = range(0)
    for row in np.flatnonzero(mask.any(axis=1)):
        edges = np.flatnonzero(np.diff(mask[row].astype(np.int8), prepend=0, append=0))
        first = len(runs)
        for start, stop in edges.reshape(-1, 2):
            runs.append((int(row), int(start), int(stop)))
            parent.append(len(parent))
            for other in above:
                other_row, other_start, other_stop = runs[other]
                if other_row == row - 1 and other_start <= stop and start <= other_stop:
                    parent[root(len(runs) - 1)] = root(other)
        above = range(first, len(runs))
    groups: dict[int, list[tuple[int, int, int]]] = {}
    for index, run in enumerate(runs):
        groups.setdefault(root(index), []).append(run)
    return list(groups.values())


def smallest_rectangle(runs: Float) -> Box:
    """The rectangle of least area around runs ([n, 3] row, start, stop), at any angle.

    One of its sides lies along a side of the convex hull.
    """
    rows, starts, stops = runs.T
    corners = [np.stack([x, rows + dy], 1) for x in (starts, stops) for dy in (0, 1)]
    hull = convex_hull(np.concatenate(corners))
    sides = np.roll(hull, -1, axis=0) - hull
    angles = np.unique(np.arctan2(sides[:, 1], sides[:, 0]) % (np.pi / 2))
    angles = np.where(angles > np.pi / 4, angles - np.pi / 2, angles)
    along = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    down = along[:, ::-1] * (-1, 1)
    spans = np.stack([hull @ along.T, hull @ down.T])
    low, high = spans.min(axis=1), spans.max(axis=1)
    best = int((high - low).prod(axis=0).argmin())
    middle = (low + high)[:, best] / 2
    centre = middle[0] * along[best] + middle[1] * down[best]
    return Box(centre, (high - low)[:, best] / 2, along[best])


def convex_hull(points: Float) -> Float:
    """Corners of the convex hull of [n, 2] points, in order (Andrew's monotone chain)."""
    ordered = [tuple(point) for point in np.unique(points, axis=0)]

    def chain(walk: Sequence[tuple[float, ...]]) -> list[tuple[float, ...]]:
        kept: list[tuple[float, ...]] = []
        for x, y in walk:
            while len(kept) > 1:
                (ax, ay), (bx, by) = kept[-2:]
                if (bx - ax) * (y - ay) > (by - ay) * (x - ax):
                    break
                kept.pop()
            kept.append((x, y))
        return kept[:-1]

    return np.array(chain(ordered) + chain(ordered[::-1]))
