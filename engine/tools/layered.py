"""Layered drawing of a graph: rows from top to bottom, few crossings, and columns if it is tall.

Boxes are given a band each (what must stay together), in order; a row belongs to one band. Edges
between neighbouring rows run straight; longer ones pass between the boxes of the rows that they
skip, or, if they skip too many, are left to the reader's pointer (`Line.points` is empty).
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import accumulate, pairwise
from math import log

from engine.records import dataclass

GAP_X, GAP_Y, GUTTER = 22.0, 34.0, 70.0
LANE = 10.0
"""Room for an edge that passes through a row."""

MAX_SKIPPED = 24
NEAR = 3
"""Rows from the end of a column, or the begin of the next, from or to which an edge goes round."""

SWEEPS = 6
MAX_COLUMNS = 24
ONE_COLUMN = 1500.0
"""The height up to which there is but one column."""

ASPECT = 1.5
"""Width over height that columns aim at: that of a screen."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Box:
    """What is drawn: its size, and the index of its band."""

    width: float
    height: float
    band: int


@dataclass(frozen=True)
class Line:
    """An edge from box to box, as points to draw a curve through; none where it is too long."""

    start: int
    end: int
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Frame:
    """A part of a band: all that lies in one column, with the boxes in it."""

    band: int
    x: float
    y: float
    width: float
    height: float
    first: bool


@dataclass(frozen=True)
class Drawing:
    """Where everything is; `corners` has the upper left corner of each box."""

    width: float
    height: float
    corners: tuple[Point, ...]
    lines: tuple[Line, ...]
    frames: tuple[Frame, ...]


def draw(boxes: Sequence[Box], edges: Sequence[tuple[int, int]]) -> Drawing:
    """Places boxes and edges; bands are drawn in the order of their indices."""
    return _Layout(boxes, edges).run()


class _Layout:
    """Cells (boxes, and lanes of edges that pass) in rows; then coordinates."""

    def __init__(self, boxes: Sequence[Box], edges: Sequence[tuple[int, int]]) -> None:
        self.boxes = boxes
        self.edges = [(a, b) for a, b in dict.fromkeys(edges) if a != b]
        self.row = _rows(boxes, self.edges)
        self.widths = [box.width for box in boxes]
        self.chains: dict[tuple[int, int], list[int]] = {}
        count = max(self.row, default=-1) + 1
        self.rows: list[list[int]] = [[] for _ in range(count)]
        for i, row in enumerate(self.row):
            self.rows[row].append(i)
        self.up: list[list[int]] = [[] for _ in boxes]
        self.down: list[list[int]] = [[] for _ in boxes]
        for edge in self.edges:
            self._chain(edge)
        self.x = [0.0] * len(self.widths)
        self.y = [0.0] * count

    def _chain(self, edge: tuple[int, int]) -> None:
        """The cells that an edge goes through: its ends, and lanes in the rows between."""
        start, end = edge
        first, last = self.row[start], self.row[end]
        if not 0 < last - first <= MAX_SKIPPED:
            return
        chain = [start]
        for row in range(first + 1, last):
            lane = len(self.widths)
            self.widths.append(LANE)
            self.row.append(row)
            self.rows[row].append(lane)
            self.up.append([])
            self.down.append([])
            chain.append(lane)
        chain.append(end)
        for a, b in pairwise(chain):
            self.down[a].append(b)
            self.up[b].append(a)
        self.chains[edge] = chain

    def run(self) -> Drawing:
        if not self.boxes:
            return Drawing(0.0, 0.0, (), (), ())
        self._order()
        self._place_x()
        heights = self._place_y()
        starts = self._columns(heights)
        shift, extents = self._fold(starts)
        corners = tuple(
            (self.x[i] - box.width / 2, self.y[self.row[i]]) for i, box in enumerate(self.boxes)
        )
        height = max(c[1] + b.height for c, b in zip(corners, self.boxes, strict=True))
        lefts = [left for left, _ in extents]
        lines = tuple(self._line(e, starts, shift, lefts) for e in self.edges)
        frames = tuple(self._frames(starts, heights, extents))
        return Drawing(extents[-1][1] + GAP_X, height + GAP_Y, corners, lines, frames)

    def _order(self) -> None:
        """Sorts rows by where the neighbours of their cells are, down and up in turns."""
        place = [0.0] * len(self.widths)
        for row in self.rows:
            for i, cell in enumerate(row):
                place[cell] = i - len(row) / 2
        for sweep in range(SWEEPS):
            rows = self.rows if sweep % 2 == 0 else self.rows[::-1]
            beside = self.up if sweep % 2 == 0 else self.down
            for row in rows:
                wanted = {c: _mean([place[n] for n in beside[c]], place[c]) for c in row}
                row.sort(key=wanted.__getitem__)
                for i, cell in enumerate(row):
                    place[cell] = i - len(row) / 2

    def _place_x(self) -> None:
        """Centres: as near to those of the neighbours as the order and the widths allow."""
        for row in self.rows:
            self._spread(row, [0.0] * len(row))
        for sweep in range(2 * SWEEPS):
            down = sweep % 2 == 0
            for row in self.rows if down else self.rows[::-1]:
                both = sweep >= 2 * SWEEPS - 2
                beside = [
                    (*self.up[c], *self.down[c]) if both else (self.up if down else self.down)[c]
                    for c in row
                ]
                wanted = [
                    _mean([self.x[n] for n in names], self.x[c])
                    for c, names in zip(row, beside, strict=True)
                ]
                self._spread(row, wanted)

        self._straighten()

    def _straighten(self) -> None:
        """Puts what is alone below something under it, as far as its row has room."""
        for row in self.rows:
            for i, cell in enumerate(row):
                if len(self.up[cell]) != 1 or len(self.down[self.up[cell][0]]) != 1:
                    continue
                x = self.x[self.up[cell][0]]
                if i:
                    x = max(x, self.x[row[i - 1]] + self._distance(row[i - 1], cell))
                if i + 1 < len(row):
                    x = min(x, self.x[row[i + 1]] - self._distance(cell, row[i + 1]))
                self.x[cell] = x

    def _distance(self, a: int, b: int) -> float:
        """The least distance of the centres of neighbours in a row."""
        return (self.widths[a] + self.widths[b]) / 2 + GAP_X

    def _spread(self, row: list[int], wanted: list[float]) -> None:
        """Least squares under the distances that widths demand: pool adjacent violators."""
        offsets, at = [], 0.0
        for i, cell in enumerate(row):
            if i:
                at += self._distance(row[i - 1], cell)
            offsets.append(at)
        pools: list[tuple[float, int]] = []
        for want, offset in zip(wanted, offsets, strict=True):
            total, count = want - offset, 1
            while pools and pools[-1][0] / pools[-1][1] > total / count:
                before, number = pools.pop()
                total, count = total + before, count + number
            pools.append((total, count))
        centres = [total / count for total, count in pools for _ in range(count)]
        for cell, centre, offset in zip(row, centres, offsets, strict=True):
            self.x[cell] = centre + offset

    def _place_y(self) -> list[float]:
        """Tops of rows in one column, bands a little further apart; returns heights of rows."""
        heights = [self._row_height(row) for row in range(len(self.rows))]
        bands = self._bands()
        at = 0.0
        for row, height in enumerate(heights):
            at += GAP_Y if row and bands[row] != bands[row - 1] else 0.0
            self.y[row] = at
            at += height + GAP_Y
        return heights

    def _row_height(self, row: int) -> float:
        return max(self.boxes[c].height for c in self.rows[row] if c < len(self.boxes))

    def _bands(self) -> list[int]:
        """The band of each row."""
        return [next(self.boxes[c].band for c in row if c < len(self.boxes)) for row in self.rows]

    def _columns(self, heights: list[float]) -> list[int]:
        """The first rows of columns: as many as come nearest to `ASPECT`."""
        height = self.y[-1] + heights[-1]
        if height < ONE_COLUMN:
            return [0]
        passing = self._passing()
        found = [self._cut(count, height, passing) for count in range(1, MAX_COLUMNS + 1)]
        return min(found, key=lambda starts: self._off_aspect(starts, heights))

    def _passing(self) -> list[int]:
        """How many edges there are between each row and the one before."""
        passing = [0] * (len(self.rows) + 1)
        for a, b in self.edges:
            low, high = sorted((self.row[a], self.row[b]))
            passing[low + 1] += 1
            passing[high + 1] -= 1 if high + 1 < len(passing) else 0
        return list(accumulate(passing))

    def _cut(self, count: int, height: float, passing: list[int]) -> list[int]:
        """The first rows of `count` columns, at places where few edges pass."""
        starts = [0]
        bands = self._bands()
        for column in range(1, count):
            goal, reach = height * column / count, height / count / 6
            near = [
                r for r in range(starts[-1] + 1, len(self.rows)) if abs(self.y[r] - goal) <= reach
            ]
            if near:
                starts.append(
                    min(
                        near,
                        key=lambda r: (
                            passing[r]
                            - 2 * (bands[r] != bands[r - 1])
                            + 3 * abs(self.y[r] - goal) / reach
                        ),
                    )
                )
        return starts

    def _off_aspect(self, starts: list[int], heights: list[float]) -> float:
        """How far the columns are from `ASPECT`."""
        width = highest = 0.0
        for start, end in zip(starts, [*starts[1:], len(self.rows)], strict=True):
            low, high = self._extent(start, end)
            width += high - low + 2 * GAP_X + GUTTER
            highest = max(highest, self.y[end - 1] + heights[end - 1] - self.y[start])
        return abs(log(width / highest / ASPECT))

    def _extent(self, start: int, end: int) -> tuple[float, float]:
        """Left and right end of some rows."""
        cells = [cell for row in self.rows[start:end] for cell in row]
        low = min(self.x[c] - self.widths[c] / 2 for c in cells)
        return low, max(self.x[c] + self.widths[c] / 2 for c in cells)

    def _fold(self, starts: list[int]) -> tuple[list[int], list[tuple[float, float]]]:
        """Moves rows into columns. Returns the column of each row, and left and right of each."""
        column_of, extents, left = [], [], GAP_X
        ends = [*starts[1:], len(self.rows)]
        for column, (start, end) in enumerate(zip(starts, ends, strict=True)):
            low, high = self._extent(start, end)
            top = self.y[start]
            for row in range(start, end):
                column_of.append(column)
                self.y[row] += GAP_Y - top
                for cell in self.rows[row]:
                    self.x[cell] += left - low + GAP_X
            extents.append((left, left + high - low + 2 * GAP_X))
            left = extents[-1][1] + GUTTER
        return column_of, extents

    def _line(
        self,
        edge: tuple[int, int],
        starts: list[int],
        column: list[int],
        lefts: list[float],
    ) -> Line:
        start, end = edge
        first, last = self.row[start], self.row[end]
        chain = self.chains.get(edge)
        bottom = (self.x[start], self.y[first] + self.boxes[start].height)
        top = (self.x[end], self.y[last])
        if column[first] == column[last] and chain is not None:
            points = [bottom]
            for lane in chain[1:-1]:
                y = self.y[self.row[lane]]
                points += [(self.x[lane], y), (self.x[lane], y + LANE)]
            return Line(start, end, (*points, top))
        begin = starts[column[last]]
        if column[first] + 1 == column[last] and last - begin < NEAR and begin - first <= NEAR:
            gutter = lefts[column[last]] - GUTTER / 2 + LANE / 2 * (start % 5 - 2)
            low = self.y[first] + self._row_height(first) + GAP_Y / 4
            high = top[1] - GAP_Y / 4
            turns = [(bottom[0], low), (gutter, low), (gutter, high), (top[0], high)]
            return Line(start, end, (bottom, *turns, top))
        return Line(start, end, ())

    def _frames(
        self, starts: list[int], heights: list[float], extents: list[tuple[float, float]]
    ) -> list[Frame]:
        """A frame for each run of rows of one band in a column."""
        bands = self._bands()
        frames: list[Frame] = []
        seen: set[int] = set()
        row = 0
        column = -1
        while row < len(self.rows):
            if row in starts:
                column += 1
            end = row + 1
            while end < len(self.rows) and bands[end] == bands[row] and end not in starts:
                end += 1
            left, right = extents[column]
            y = self.y[row] - GAP_Y / 2 - 6
            bottom = self.y[end - 1] + heights[end - 1] + GAP_Y / 2 - 2
            frames.append(
                Frame(bands[row], left, y, right - left, bottom - y, bands[row] not in seen)
            )
            seen.add(bands[row])
            row = end
        return frames


def _rows(boxes: Sequence[Box], edges: Sequence[tuple[int, int]]) -> list[int]:
    """The row of each box: below all that it reads in its band, sources next to their readers."""
    before: list[list[int]] = [[] for _ in boxes]
    after: list[list[int]] = [[] for _ in boxes]
    for a, b in edges:
        if boxes[a].band == boxes[b].band:
            before[b].append(a)
            after[a].append(b)
    depth = _depths(before, after)
    for box in range(len(boxes)):
        if not before[box] and after[box]:
            depth[box] = min(depth[r] for r in after[box]) - 1
    rows = [0] * len(boxes)
    base = 0
    for band in sorted({box.band for box in boxes}):
        members = [i for i, box in enumerate(boxes) if box.band == band]
        used = {d: n for n, d in enumerate(sorted({depth[i] for i in members}))}
        for i in members:
            rows[i] = base + used[depth[i]]
        base += len(used)
    return rows


def _depths(before: Sequence[Sequence[int]], after: Sequence[Sequence[int]]) -> list[int]:
    """The longest way to each box; a cycle is cut before its first box: an edge then leads up."""
    depth = [0] * len(before)
    left = [len(b) for b in before]
    ready = [i for i, count in enumerate(left) if not count]
    waiting = iter(range(len(before)))
    done: set[int] = set()
    while len(done) < len(before):
        box = heappop(ready) if ready else next(i for i in waiting if i not in done)
        done.add(box)
        for reader in after[box]:
            if reader in done:
                continue
            depth[reader] = max(depth[reader], depth[box] + 1)
            left[reader] -= 1
            if not left[reader]:
                heappush(ready, reader)
    return depth


def _mean(values: list[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise
