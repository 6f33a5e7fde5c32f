"""Decomposed GELU: `0.5 * x * (1 + Erf(x / sqrt(2))) => Gelu`, and the Tanh form, in any order."""

from __future__ import annotations

import math

from engine.ir import Graph
from engine.passes.algebra import Activation
from engine.passes.base import PassResult
from engine.passes.fuse_activations import fuse, operand_of
from engine.passes.rewrite import Editor, rewrite

_SLOPE = math.sqrt(2 / math.pi)

GELU = Activation(
    "Gelu",
    operand_of("Erf"),
    {(1, 0): math.sqrt(0.5)},
    {(1, 0): 0.5, (1, 1): 0.5},
    {"approximate": "none"},
)
GELU_TANH = Activation(
    "Gelu",
    operand_of("Tanh"),
    {(1, 0): _SLOPE, (3, 0): 0.044715 * _SLOPE},
    {(1, 0): 0.5, (1, 1): 0.5},
    {"approximate": "tanh"},
)


def fuse_gelu(graph: Graph) -> PassResult:
    """Recognises both forms of Gelu, whatever the order of their products and sums."""
    return rewrite(graph, _edit)


def _edit(editor: Editor) -> None:
    for node in editor.nodes():
        fuse(editor, node, (GELU, GELU_TANH))
