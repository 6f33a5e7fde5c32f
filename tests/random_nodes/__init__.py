"""The operators that random graphs are made of: each maker proposes one node."""

from __future__ import annotations

from tests.random_nodes import elementwise, movement, reductions, windows
from tests.random_nodes import others as others
from tests.random_nodes.makers import MAKERS

MAKERS += [
    elementwise.smooth,
    elementwise.smooth,
    elementwise.arithmetic,
    elementwise.arithmetic,
    elementwise.arithmetic,
    elementwise.exact,
    elementwise.many,
    elementwise.where,
    elementwise.clip,
    reductions.softmax,
    windows.matmul,
    windows.conv,
    reductions.reduce,
]

__all__ = ["MAKERS", "movement"]
