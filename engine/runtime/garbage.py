"""Garbage: Python's collector, held back while a session is made and planned.

Modules, graphs and plans are many small objects that stay. The collector walks them again and again
while they come to be, which takes a tenth of the time, and finds nothing to free.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_back() -> Iterator[None]:
    """No collection until it is left, unless another thread that is in here leaves before.

    What is there then counts as old: else the next collection, which looks at young objects alone,
    would walk all that were made meanwhile. A full one frees what is garbage.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():  # objects that the caller froze stay so
            gc.freeze()
            gc.unfreeze()
        gc.enable()
