"""Work in pieces: on any number of threads the same result, errors included."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from cpu_fallback import products, registry, threads
from cpu_fallback.products import product


@pytest.fixture(params=[1, 2, 5])
def count(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """How many threads work on pieces, whatever the machine has."""
    held = {"threads": request.param}
    blas = threads._Blas(lambda: held["threads"], lambda n: held.update(threads=n))
    monkeypatch.setattr(threads, "_blas", lambda: blas)
    monkeypatch.setattr(threads, "MIN_PIECE_NS", 0)
    monkeypatch.setattr(threads, "MIN_SHARED_NS", 0)
    with threads.alone:
        yield int(request.param)


def test_every_piece_is_worked_on_once(count: int) -> None:
    done: list[int] = []
    threads.run(range(100), done.append, 1)
    assert sorted(done) == list(range(100))


def test_pieces_may_have_pieces(count: int) -> None:
    done: list[tuple[int, int]] = []
    threads.run(range(6), lambda a: threads.run(range(4), lambda b: done.append((a, b)), 1), 1)
    assert sorted(done) == [(a, b) for a in range(6) for b in range(4)]


def test_threads_work_at_the_same_time(count: int) -> None:
    """Each piece waits for all others: one thread after the other would never end."""
    meeting = threading.Barrier(count, timeout=20)
    threads.run(range(count), lambda _: meeting.wait(), 1)


@pytest.mark.parametrize(("size", "count"), [(1000, 8), (1000, 7), (64, 2), (33, 1), (1000, 3)])
def test_blocks_end_where_blas_has_no_edge(size: int, count: int) -> None:
    found = products.spans(size, count, products._STEP)
    assert [s.start for s in found] == [0, *(s.stop for s in found[:-1])] and len(found) == count
    assert found[-1].stop == size and all(s.stop > s.start for s in found)
    assert all(s.stop % products._STEP == 0 for s in found[:-1])


def test_an_error_in_a_piece_reaches_the_caller(count: int) -> None:
    def work(piece: int) -> None:
        if piece == 3:
            raise ValueError("piece 3")

    for _ in range(3):
        with pytest.raises(ValueError, match="piece 3"):
            threads.run(range(8), work, 1)
    threads.run(range(8), lambda _: None, 1)


def test_floating_point_warnings_stay_silent(count: int) -> None:
    meeting = threading.Barrier(count, timeout=20)

    def work(piece: int) -> None:
        meeting.wait()  # so that every thread has one
        np.float32(1) / np.zeros(4, np.float32)

    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("error")
        threads.run(range(count), work, 1)


def test_blas_gets_its_threads_back(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = [4]
    blas = threads._Blas(lambda: seen[-1], seen.append)
    monkeypatch.setattr(threads, "_blas", lambda: blas)
    with threads.alone as outer, threads.alone as inner:
        assert (outer, inner, seen) == (4, 4, [4, 1])
    assert seen == [4, 1, 4]


def test_without_a_known_blas_there_is_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_blas", lambda: None)
    with threads.alone as found:
        assert found == 1
    workers = set()
    threads.run(range(5), lambda _: workers.add(threading.get_ident()), 1)
    assert workers == {threading.get_ident()}


PRODUCTS: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    "square": ((130, 70), (70, 90), (90,)),
    "a row": ((1, 64), (64, 129), (1, 129)),
    "a column": ((129, 64), (64, 1), (129, 1)),
    "a batch": ((5, 33, 16), (5, 16, 40), (5, 33, 40)),
    "one operand for all": ((3, 4, 65, 7), (7, 66), (1, 1)),
    "batches broadcast": ((2, 1, 33, 5), (1, 7, 5, 34), (7, 33, 1)),
    "nothing to sum": ((40, 0), (0, 33), (33,)),
    "no element": ((0, 8), (8, 33), (33,)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_in_blocks(name: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "MIN_BLOCK_NS", 10)
    monkeypatch.setattr(products, "_LEAST", 3)
    chance = np.random.default_rng(0)
    a, b, bias = (chance.standard_normal(s) for s in PRODUCTS[name])
    np.testing.assert_allclose(product(a, b), a @ b, rtol=1e-12, atol=1e-12)
    got = product(a.astype(np.float32), b.astype(np.float32), bias=bias.astype(np.float32))
    np.testing.assert_allclose(got, a @ b + bias, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(1024, 1024), (1, 4096), (12, 300, 301), (4096, 1)])
def test_large_products_are_cut(shape: tuple[int, ...]) -> None:
    _, counts = products.blocks(shape, 1024, 4)
    assert 2 <= np.prod(counts) <= products.MAX_BLOCKS


def test_small_products_are_not_cut() -> None:
    assert products.blocks((64, 64), 64, 4)[1] == (1, 1, 1)


SHARED: dict[str, tuple[str, list[tuple[int, ...]], dict[str, Any]]] = {
    "product of matrices": ("MatMul", [(200, 700), (700, 300)], {}),
    "product of batches": ("MatMul", [(3, 5, 130, 96), (5, 96, 240)], {}),
    "Gemm, few rows": ("Gemm", [(4, 1500), (2500, 1500), (2500,)], {"transB": 1}),
    "recurrence": ("GRU", [(60, 8, 300), (1, 360, 300), (1, 360, 120)], {"hidden_size": 120}),
    "pointwise": ("Conv", [(2, 96, 40, 41), (130, 96, 1, 1), (130,)], {}),
    "columns": ("Conv", [(1, 24, 60, 61), (40, 24, 3, 3), (40,)], {"strides": [1, 2]}),
    "columns, groups": ("Conv", [(2, 32, 60, 60), (48, 16, 3, 3), (48,)], {"group": 2}),
    "columns, one piece": ("Conv", [(1, 90, 11, 11), (700, 90, 3, 3)], {}),
    "taps": ("Conv", [(2, 64, 50, 50), (4, 64, 3, 3), (4,)], {"pads": [1, 1, 1, 1]}),
    "winograd": ("Conv", [(1, 64, 60, 59), (64, 64, 3, 3), (64,)], {"pads": [1, 1, 1, 1]}),
    "sum": ("Add", [(3, 1, 700, 701), (700, 1)], {}),
    "quotient": ("Div", [(1, 1200, 1100), (1, 1200, 1100)], {}),
    "bounds": ("Clip", [(1200, 1100), (), ()], {}),
    "slopes": ("PRelu", [(8, 400, 401), (8, 1, 1)], {}),
    "sign": ("Relu", [(1200, 1100)], {}),
    "root": ("Sqrt", [(1200, 1100)], {}),
}
"""One of each kind that is worked on by all threads; pools, softmax and sums are not."""


class _Watched:
    """`threads.run`, in which every thread waits for all others before its first piece is done."""

    def __init__(self, number: int) -> None:
        self.number, self.helpers = number, set[int]()
        self._run, self._caller = threads.run, threading.get_ident()

    def __call__(self, pieces: Sequence[Any], work: Callable[[Any], object], each_ns: int) -> None:
        met = set[int]()
        meeting = threading.Barrier(min(self.number, len(pieces)) or 1, timeout=60)

        def watched(piece: Any) -> None:
            worker = threading.get_ident()
            if worker not in met:
                met.add(worker)
                meeting.wait()
            if worker != self._caller:
                self.helpers.add(worker)
            work(piece)

        self._run(pieces, watched, each_ns)


@pytest.fixture
def one_blas_thread() -> Iterator[None]:
    """As within a call, however many threads a test says that there are."""
    blas = threads._blas()
    before = blas.get() if blas else 1
    if blas:
        blas.put(1)
    yield
    if blas:
        blas.put(before)


@pytest.mark.parametrize("name", SHARED)
def test_results_do_not_depend_on_threads(
    name: str, one_blas_thread: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    op_type, shapes, attrs = SHARED[name]
    chance = np.random.default_rng(0)
    x = chance.standard_normal(shapes[0]).astype(np.float32)
    inputs = [x, *(np.asarray(chance.random(s), np.float32) for s in shapes[1:])]
    monkeypatch.setattr(threads, "MIN_PIECE_NS", 0)
    monkeypatch.setattr(threads, "MIN_SHARED_NS", 0)
    results = []
    for number in (1, 2, 5):
        blas = threads._Blas(lambda number=number: number, lambda _: None)  # type: ignore[misc]
        call = registry.prepare(op_type, "", 22, attrs, 1, range(1, len(inputs)))
        with monkeypatch.context() as patch:
            patch.setattr(threads, "_blas", lambda blas=blas: blas)
            watched = _Watched(number)
            patch.setattr(threads, "run", watched)
            with threads.alone, np.errstate(all="ignore"):
                results.append(call(inputs)[0])
        assert (number > 1) == bool(watched.helpers)
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)
