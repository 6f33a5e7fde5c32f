"""What a strategy draws, and the strategies by operator."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.properties import families
from tests.properties.drawing import OPSET, Array, Data, Form


@dataclass(frozen=True)
class Case:
    """One node and its inputs.

    Attributes:
        inputs: arrays in ONNX order, None for those left out.
        attrs: attributes of the node.
        opset: of the model.
        outputs: for each output, whether the node writes it.
        constants: inputs kept in the model; None: those that the GPU form reads when planning, of
            which some models are fed instead.
        sized: inputs (or inputs with an axis) whose sizes are numbers in a model of symbols, as
            ranks or kernels depend on them.
        tol: largest error, over the largest magnitude of the output (or, with `each`, over the
            element's own, or 1 if that is larger); None takes the `OpDef`'s. 0: the same bits.
        each: compare each element by its own magnitude.
        steps: by how much integers may differ, where two roundings may fall on either side.
        ahead: a node that stands before an input: "flip" keeps its type, so that a view has
            something to look at; "Shape" and "Size" make sizes that the engine only has as symbols.
        behind: the input that `ahead` stands before.
        oracle: onnx.reference in float64, ONNX Runtime, a function of the inputs, or nothing but
            the NumPy function, in which case `because` says what is wrong with the others.
        because: why `oracle` is not the reference.
    """

    inputs: Sequence[Array | None]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    opset: int = OPSET
    outputs: Sequence[bool] = (True,)
    constants: Sequence[int] | None = None
    sized: Sequence[int | tuple[int, int]] = ()
    tol: float | None = None
    each: bool = False
    steps: int = 0
    ahead: Literal["", "flip", "Shape", "Size"] = ""
    behind: int = 0
    oracle: Literal["reference", "runtime", "none"] | Callable[..., Any] = "reference"
    because: str = ""

    def __post_init__(self) -> None:
        if (self.oracle == "reference") != (not self.because):
            raise AssertionError("say why the oracle is not onnx.reference, and only then")


Draw = Callable[[str, Form, Data], Case]
"""Draws a case of an operator: first what makes the model, from `Form`, then sizes and contents."""

_DRAWS: dict[str, Draw] = {}


def draws(*operators: str) -> Callable[[Draw], Draw]:
    """Registers a function for operators, named "Op" or "domain:Op"."""

    def register(function: Draw) -> Draw:
        for name in operators:
            if name in _DRAWS:
                raise ValueError(f"{name} has two strategies")
            _DRAWS[name] = function
        return function

    return register


@functools.cache
def strategies() -> Mapping[str, Draw]:
    """The function of each operator, those of all families."""
    for module in pkgutil.iter_modules(families.__path__):
        importlib.import_module(f"{families.__name__}.{module.name}")
    return dict(sorted(_DRAWS.items()))
