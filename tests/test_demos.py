"""The demos run and read what was drawn; their own arithmetic is checked without a network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from demos import _models
from demos.ocr import Box, boxes_of, convex_hull, decode, regions, smallest_rectangle
from tests.real_models import MODELS

ROOT = Path(__file__).parent.parent


def test_regions_join_diagonals_and_forks() -> None:
    rows = ["#.#..#", "#.#.#.", ".#....", "......", "###..#"]
    mask = np.array([[c == "#" for c in row] for row in rows])
    found = sorted(sorted(region) for region in regions(mask))
    assert found == [
        [(0, 0, 1), (0, 2, 3), (1, 0, 1), (1, 2, 3), (2, 1, 2)],
        [(0, 5, 6), (1, 4, 5)],
        [(4, 0, 3)],
        [(4, 5, 6)],
    ]


def test_regions_agree_with_flood_fill() -> None:
    mask = np.random.default_rng(3).random((37, 41)) < 0.35
    left = {(int(y), int(x)) for y, x in np.argwhere(mask)}
    filled = set()
    while left:
        todo = [left.pop()]
        seen = set(todo)
        while todo:
            y, x = todo.pop()
            near = {(y + dy, x + dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)} & left
            left -= near
            seen |= near
            todo += near
        filled.add(frozenset(seen))
    ours = {
        frozenset((row, x) for row, start, stop in region for x in range(start, stop))
        for region in regions(mask)
    }
    assert ours == filled


def test_hull_of_a_grid_is_its_corners() -> None:
    points = np.array([(x, y) for x in range(5) for y in range(3)], float)
    assert sorted(map(tuple, convex_hull(points))) == [(0, 0), (0, 2), (4, 0), (4, 2)]


@pytest.mark.parametrize("degrees", [-40, -10, 0, 3, 25, 44])
def test_rectangle_is_found_at_any_angle(degrees: int) -> None:
    radians = np.deg2rad(degrees)
    drawn = Box(
        np.array([100.0, 80.0]),
        np.array([60.0, 15.0]),
        np.array([np.cos(radians), np.sin(radians)]),
    )
    y, x = np.mgrid[0:160, 0:200] + 0.5
    offset = np.stack([x, y], axis=-1) - drawn.centre
    down = np.array([-drawn.along[1], drawn.along[0]])
    inside = (abs(offset @ drawn.along) <= 60) & (abs(offset @ down) <= 15)
    (runs,) = regions(inside)
    found = smallest_rectangle(np.array(runs, float))
    np.testing.assert_allclose(found.corners(), drawn.corners(), atol=2.5)


def test_boxes_leave_out_what_is_faint_or_small() -> None:
    probability = np.zeros((64, 64))
    probability[10:20, 5:50] = 0.9
    probability[30:40, 5:50] = 0.4
    probability[50:52, 5:7] = 0.9
    (box,) = boxes_of(probability)
    grown = 1.6 * 45 * 10 / (2 * (45 + 10))
    np.testing.assert_allclose(box.half, [22.5 + grown, 5 + grown])
    np.testing.assert_allclose(box.centre, [27.5, 15])


def test_decode_drops_blanks_and_repeats() -> None:
    path = [0, 1, 1, 0, 1, 2, 2, 0, 3]
    probabilities = np.full((len(path), 4), 0.1)
    probabilities[np.arange(len(path)), path] = 0.7
    text, confidence = decode(probabilities, ["", "a", "b", " "])
    assert text == "aab "
    assert confidence == pytest.approx(0.7)
    assert decode(probabilities[:1], ["", "a", "b", " "]) == ("", 0.0)


def run_demo(name: str, *arguments: str) -> str:
    """What the demo prints; its models come from the cache, or the test skips like all others."""
    for model in MODELS:
        if model.file in (_models.TEXT_DETECTOR, _models.FILE_TYPE):
            model.fetch()
    command = [sys.executable, str(ROOT / "demos" / name), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.gpu
def test_text_is_read_on_the_gpu() -> None:
    said = run_demo("read_text.py", "--runs", "1")
    assert "5 of 5 lines were read as drawn" in said
    assert "Going on with the CPU" not in said
    assert "ppocrv4_det" in said


@pytest.mark.slow
def test_file_types_are_told() -> None:
    said = run_demo("file_type.py", "--device", "cpu")
    for label in ("python", "png", "zip", "html", "json", "shell", "csv"):
        assert label in said
