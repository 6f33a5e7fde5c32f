"""Layered drawings: rows follow the edges, nothing overlaps, tall graphs become columns."""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import pytest

from engine.tools.layered import GAP_X, Box, Drawing, draw


def box(band: int = 0, width: float = 100.0, height: float = 40.0) -> Box:
    return Box(width, height, band)


def check_apart(boxes: list[Box], found: Drawing) -> None:
    """Fails if two boxes overlap, or one lies outside of the drawing."""
    rectangles = [
        (x, y, x + b.width, y + b.height) for (x, y), b in zip(found.corners, boxes, strict=True)
    ]
    for i, (left, top, right, bottom) in enumerate(rectangles):
        assert left >= 0 and right <= found.width and bottom <= found.height
        for other in rectangles[i + 1 :]:
            apart = right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top
            assert apart, (rectangles[i], other)


def random_graph(count: int, seed: int, bands: int) -> tuple[list[Box], list[tuple[int, int]]]:
    """Boxes of two heights, each with edges from one to three of the last eight."""
    chance = np.random.default_rng(seed)
    boxes = [box(i * bands // count, height=40.0 + 60 * (i % 5 == 0)) for i in range(count)]
    edges = []
    for i in range(1, count):
        makers = chance.integers(max(0, i - 8), i, size=int(chance.integers(1, 4)))
        edges += [(int(m), i) for m in makers]
    return boxes, edges


def test_readers_are_below_what_they_read() -> None:
    boxes, edges = random_graph(60, 0, 1)
    found = draw(boxes, edges)
    check_apart(boxes, found)
    for line in found.lines:
        if not line.points:
            continue
        assert found.corners[line.start][1] + boxes[line.start].height == line.points[0][1]
        assert found.corners[line.end][1] == line.points[-1][1]


def test_a_chain_is_a_straight_line() -> None:
    found = draw([box() for _ in range(6)], list(pairwise(range(6))))
    assert len({x for x, _ in found.corners}) == 1
    assert all(a[1] < b[1] for a, b in pairwise(found.corners))


def test_a_source_stands_next_to_its_reader() -> None:
    found = draw([box() for _ in range(6)], [(0, 1), (1, 2), (2, 3), (3, 4), (5, 4)])
    assert found.corners[5][1] == found.corners[3][1] != found.corners[0][1]


def test_bands_are_in_order_and_framed() -> None:
    boxes = [box(0), box(1), box(0), box(1), box(2)]
    found = draw(boxes, [(0, 1), (2, 3), (3, 4)])
    check_apart(boxes, found)
    assert [f.band for f in found.frames] == [0, 1, 2]
    for frame in found.frames:
        inside = [c for c, b in zip(found.corners, boxes, strict=True) if b.band == frame.band]
        assert inside
        for x, y in inside:
            assert frame.x < x and x + 100 < frame.x + frame.width
            assert frame.y < y and y + 40 < frame.y + frame.height
    assert all(a.y + a.height <= b.y for a, b in pairwise(found.frames))


def test_an_edge_up_or_too_far_has_no_line() -> None:
    boxes = [box(1), box(0), *(box(2) for _ in range(40))]
    found = draw(boxes, [(0, 1), (0, 2), *pairwise(range(2, 42)), (2, 41)])
    points = {(line.start, line.end): line.points for line in found.lines}
    assert points[0, 1] == () and points[2, 41] == ()
    assert points[0, 2] != ()


def test_a_tall_graph_is_folded_into_columns() -> None:
    count = 300
    boxes, edges = [box() for _ in range(count)], list(pairwise(range(count)))
    found = draw(boxes, edges)
    check_apart(boxes, found)
    columns = sorted({f.x for f in found.frames})
    assert len(columns) > 3
    assert 0.8 < found.width / found.height < 3.5
    assert [f.first for f in found.frames] == [True] + [False] * (len(columns) - 1)
    turns = [line for line in found.lines if len(line.points) == 6]
    assert len(turns) == len(columns) - 1
    for line in turns:
        gutter = line.points[2][0]
        assert all(not f.x < gutter < f.x + f.width for f in found.frames)


def test_boxes_keep_their_distance_in_a_row() -> None:
    found = draw([box() for _ in range(12)], [(0, i) for i in range(1, 12)])
    xs = sorted(x for x, _ in found.corners[1:])
    assert all(b - a >= 100 + GAP_X - 1e-6 for a, b in pairwise(xs))


@pytest.mark.parametrize("boxes", [[], [box()]])
def test_little_is_drawn_too(boxes: list[Box]) -> None:
    found = draw(boxes, [])
    assert len(found.corners) == len(boxes) and found.lines == ()


def test_a_thousand_boxes_take_little_time() -> None:
    boxes, edges = random_graph(1000, 1, 9)
    before = time.process_time()
    found = draw(boxes, edges)
    assert time.process_time() - before < 5
    check_apart(boxes, found)


def test_no_line_runs_through_a_box_on_its_way_to_the_next_column() -> None:
    boxes, edges = random_graph(400, 3, 5)
    found = draw(boxes, edges)
    rectangles = [
        (x, y, x + b.width, y + b.height) for (x, y), b in zip(found.corners, boxes, strict=True)
    ]
    turns = [
        line
        for line in found.lines
        if len(line.points) == 6
        and all(a[0] == b[0] or a[1] == b[1] for a, b in pairwise(line.points))
        and abs(line.points[0][0] - line.points[-1][0]) > 150
    ]
    assert turns
    for line in turns:
        for (x0, y0), (x1, y1) in pairwise(line.points):
            for i, (left, top, right, bottom) in enumerate(rectangles):
                if i in (line.start, line.end):
                    continue
                beside = max(x0, x1) <= left or right <= min(x0, x1)
                assert beside or max(y0, y1) <= top or bottom <= min(y0, y1)


def test_a_cycle_is_cut() -> None:
    boxes = [box() for _ in range(6)]
    found = draw(boxes, [(0, 1), (1, 2), (2, 3), (3, 1), (3, 4), (4, 5)])
    check_apart(boxes, found)
    assert all(a[1] < b[1] for a, b in pairwise(found.corners))
    points = {(line.start, line.end): line.points for line in found.lines}
    assert points[3, 1] == () and points[3, 4] != ()
