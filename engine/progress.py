"""Progress: what long work is doing, told to whoever listens. The library itself shows nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_listener: ContextVar[Callable[[str], None] | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Callable[[str], None]) -> Iterator[None]:
    """Calls `listener` with a few words whenever work in the block turns to something else.

    It is called in the thread that works, and must return soon.
    """
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def tell(text: str) -> None:
    """Says what is being done now, such as "compiling shader 3 of 12"."""
    listener = _listener.get()
    if listener is not None:
        listener(text)
