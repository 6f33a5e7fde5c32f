"""Operators that only tests have, in the place of ONNX's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from engine import ops
from engine.ops import OpDef


@contextmanager
def registered(definitions: Sequence[OpDef]) -> Iterator[None]:
    """The engine knows the operators within the block."""
    ops.registered()
    with pytest.MonkeyPatch.context() as patch:
        for op in definitions:
            patch.setitem(ops._REGISTRY, (op.domain, op.op_type), [op])
        yield
