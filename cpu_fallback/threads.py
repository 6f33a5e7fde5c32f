"""Threads: large work in pieces, on as many threads as NumPy's BLAS is set to use.

OpenBLAS speeds up nothing but products, and its threads wait for the next one by spinning, which
takes the cores from everything else, and makes calls hang where something else has one. So it is
told to use one thread while a call runs (`alone`), and convolutions, products and passes over large
arrays are cut into pieces for threads of ours: NumPy gives up the interpreter's lock inside. To get
it back costs 10 to 25 us where another thread has it, and to wake a thread 50: two threads that
call NumPy for 10 us at a time are slower than one. So only long pieces are shared out. Pieces
depend on sizes only, so within `alone` results are the same with any number of threads.

The number is OpenBLAS's own: OPENBLAS_NUM_THREADS, OMP_NUM_THREADS, the cores that the process may
use, or what threadpoolctl set. With another BLAS there is one thread here, and as many as it likes
in products.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

import numpy as np

_T = TypeVar("_T")

MAX_THREADS = 16
"""More would wait for the interpreter's lock, most of the time."""
MIN_PIECE_NS = 60_000
"""Shorter pieces are not shared out."""
MIN_SHARED_NS = 200_000
"""Nor is less work in all."""
_FLOPS_PER_NS = 100
_BYTES_PER_NS = 8
_PTHREADS = 1
"""What OpenBLAS says of itself if its threads are not those of OpenMP."""
_NAMES = (("scipy_", "64_"), ("", "64_"), ("", ""))
"""Prefix and suffix of the functions in NumPy's wheels, and in builds of distributions."""


class _Blas(NamedTuple):
    """Reads and sets OpenBLAS's number of threads."""

    get: Callable[[], int]
    put: Callable[[int], object]


def _libraries() -> Iterable[Path]:
    """Where the OpenBLAS may be that NumPy has loaded."""
    home = Path(np.__file__).parent
    for folder in (home.parent / "numpy.libs", home / ".dylibs", home / ".libs"):
        if folder.is_dir():
            yield from sorted(folder.glob("*openblas*"))
    maps = Path("/proc/self/maps")
    if maps.exists():
        lines = (line.split(maxsplit=5) for line in maps.read_text().splitlines())
        yield from sorted({Path(x[5]) for x in lines if len(x) == 6 and "openblas" in x[5]})


@functools.cache
def _blas() -> _Blas | None:
    for path in _libraries():
        try:
            library = ctypes.CDLL(str(path))
        except OSError:
            continue
        for before, after in _NAMES:
            names = ("get_parallel", "get_num_threads", "set_num_threads")
            found = [getattr(library, f"{before}openblas_{n}{after}", None) for n in names]
            kind, get, put = found
            if kind is not None and get is not None and put is not None and kind() == _PTHREADS:
                return _Blas(get, put)
    return None


class _Alone:
    """Context: OpenBLAS uses one thread; what it used comes back when the last one is left."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._depth = 0
        self._threads = 1

    def reset(self) -> None:
        """Nobody is inside any more."""
        blas = _blas() if self._depth else None
        if blas is not None:
            blas.put(self._threads)
        self.__init__()  # type: ignore[misc]

    @property
    def threads(self) -> int:
        """How many threads work on pieces; 0 outside, where products are OpenBLAS's business."""
        return min(self._threads, MAX_THREADS) if self._depth else 0

    def __enter__(self) -> int:
        with self._lock:
            if not self._depth:
                blas = _blas()
                self._threads = blas.get() if blas is not None else 1
                if blas is not None and self._threads > 1:
                    blas.put(1)
            self._depth += 1
            return self.threads

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._lock:
            self._depth -= 1
            blas = _blas()
            if not self._depth and blas is not None and self._threads > 1:
                blas.put(self._threads)


alone = _Alone()
"""Enter it around long work; it says on how many threads `run` shares that, and is reentrant."""


class _Job:
    """Pieces that any thread may take."""

    def __init__(self, pieces: Iterable[Any], work: Callable[[Any], object]) -> None:
        self._waiting, self._work = deque(pieces), work
        self._left = len(self._waiting)
        self._lock, self._done = threading.Lock(), threading.Lock()
        self._done.acquire()
        self._error: BaseException | None = None

    def help(self) -> None:
        """Does pieces until none is left."""
        while True:
            try:
                piece = self._waiting.popleft()
            except IndexError:
                return
            try:
                if self._error is None:
                    self._work(piece)
            except BaseException as error:  # raised again by `finish`, in the thread that asked
                self._error = error
            with self._lock:
                self._left -= 1
                if not self._left:
                    self._done.release()

    def finish(self) -> None:
        """Helps, and waits for the pieces that others are at. Raises: what a piece raised."""
        self.help()
        self._done.acquire()
        if self._error is not None:
            raise self._error


class _Helpers:
    """Threads that wait for jobs; started when first needed, and anew in a forked process."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forgets the threads there are."""
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._lock = threading.Lock()
        self._started = 0

    def call(self, count: int, job: _Job) -> None:
        """Has `count` of them help with a job."""
        if self._started < count:
            with self._lock:
                for number in range(self._started, count):
                    name = f"onnx-wgpu-numpy-{number}"
                    threading.Thread(target=self._serve, name=name, daemon=True).start()
                self._started = max(self._started, count)
        for _ in range(count):
            self._jobs.put(job)

    def _serve(self) -> None:
        with np.errstate(all="ignore"):
            while True:
                self._jobs.get().help()


_helpers = _Helpers()


def _forked() -> None:
    """In a forked process, where neither threads live on nor those who hold locks."""
    _helpers.reset()
    alone.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def about_ns(flops: int, nbytes: int) -> int:
    """How long a piece of work takes a core, roughly: products, and bytes read and written."""
    return flops // _FLOPS_PER_NS + nbytes // _BYTES_PER_NS


def run(pieces: Sequence[_T], work: Callable[[_T], object], each_ns: int) -> None:
    """`work` of every piece, in any order: within `alone` on all threads, if a piece is long.

    each_ns: how long one takes, about. Raises: what a piece raises.
    """
    short = each_ns < MIN_PIECE_NS or each_ns * len(pieces) < MIN_SHARED_NS
    threads = alone.threads
    if short or threads < 2 or len(pieces) < 2:
        for piece in pieces:
            work(piece)
        return
    job = _Job(pieces, work)
    _helpers.call(min(threads, len(pieces)) - 1, job)
    job.finish()
