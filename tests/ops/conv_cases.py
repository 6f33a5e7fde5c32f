"""Cases of Conv and ConvTranspose with their oracles, and what is made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from engine.ops import KernelCall, Lowering, definition
from engine.ops import _conv_winograd as winograd
from engine.target import Target
from tests.cpu_fallback.oracle import ort_node
from tests.ops.harness import OpCase, inferred

F = "float32"


def ort(op: str, **attrs: Any) -> Any:
    """An oracle: the node run by ONNX Runtime."""
    return lambda *values: ort_node(op, [v for v in values if v is not None], 1, **attrs)[0]


def conv(
    x: Sequence[int],
    w: Sequence[int],
    *,
    bias: bool = True,
    oracle: str | None = "ort",
    **attrs: Any,
) -> OpCase:
    inputs: list[Any] = [(tuple(x), F), (tuple(w), F)]
    if bias:
        inputs.append(((w[0],), F))
    found = ort("Conv", **attrs) if oracle == "ort" else oracle
    constants = (1, 2)[: 1 + bias]
    return OpCase("Conv", tuple(inputs), attrs, constants=constants, oracle=found)


def transposed(
    x: Sequence[int],
    w: Sequence[int],
    *,
    bias: bool = True,
    cut: tuple[int, Sequence[int]] | None = None,
    **attrs: Any,
) -> OpCase:
    """`cut`: where the output starts in that without pads, and its size, by the specification."""
    inputs: list[Any] = [(tuple(x), F), (tuple(w), F)]
    if bias:
        inputs.append(((w[1] * attrs.get("group", 1),), F))
    oracle = ort("ConvTranspose", **attrs)
    if cut is not None:
        oracle = part_of(ort("ConvTranspose", strides=attrs["strides"]), *cut)
    return OpCase(
        "ConvTranspose", tuple(inputs), attrs, constants=(1, 2)[: 1 + bias], oracle=oracle
    )


def part_of(oracle: Any, start: int, size: Sequence[int]) -> Any:
    """The oracle's output from `start` on in both spatial axes."""
    h, w = (slice(start, start + n) for n in size)
    return lambda *values: oracle(*values)[:, :, h, w]


def lowered(
    case: OpCase, style: str = "", front: int = 0, dynamic: bool = False, **of: Any
) -> list[KernelCall]:
    """The first call of each stage of a convolution; `front`: operators in front of input 0;
    `dynamic`: sizes are open, and those of the case likely."""
    graph, node, binding = inferred(case, dynamic=dynamic)
    op = definition(node)
    assert op is not None and op.lower is not None
    target, before = Target(**of), {node.inputs[0]: front} if front else {}
    names = (lambda t: "scratch"), (lambda *a: "derived")
    view = Lowering(graph, node, target, *names, style, binding, before)
    return [stage[0] for stage in op.lower(view)]


def winograd_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of tiles that are lowered from now on."""
    made: list[int] = []
    plain = winograd.stages

    def stages(*args: Any) -> Any:
        made.append(args[2])
        return plain(*args)

    monkeypatch.setattr(winograd, "stages", stages)
    return made
