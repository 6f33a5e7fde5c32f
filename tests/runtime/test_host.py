"""Values on the host: when a node may write over one of its inputs."""

from __future__ import annotations

import numpy as np

from engine.runtime.host import alone


def test_only_an_array_that_nobody_else_holds_is_free() -> None:
    assert alone([np.ones(4096)], 0)
    assert alone([np.ones(4096)[::2]], 0), "nor does anybody hold what it is a view of"
    kept = np.ones(4096)
    assert not alone([kept], 0)
    assert not alone([kept[1:]], 0)
    items = [np.ones(4096)]
    view = items[0].reshape(64, 64)
    assert not alone(items, 0), "a view needs its memory"
    assert not alone([view], 0)
    twice = [np.ones(4096)]
    assert not alone(twice + twice, 0)


def test_what_may_not_be_written_is_not_free() -> None:
    fixed = [np.ones(4096)]
    fixed[0].flags.writeable = False
    assert not alone(fixed, 0)
    assert not alone([np.frombuffer(bytearray(8192), np.float32)], 0)
    assert not alone([np.broadcast_to(np.ones(1), 4096)], 0)
    assert not alone([[1, 2]], 0)
    assert not alone([None], 0)
