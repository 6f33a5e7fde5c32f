"""Integers of 4 and 2 bits: quantised to, dequantised and cast from, a byte each on the GPU."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx.helper as oh
import pytest

import engine
from engine import dtypes
from tests.ops.harness import Array, OpCase, case_id, check_cpu, check_gpu, check_infer, supported
from tests.ops.standard import for_each

F = np.float32
KINDS = {k: np.dtype(getattr(ml_dtypes, k)) for k in ("int4", "uint4", "int2", "uint2")}
RNG = np.random.default_rng(23)


def levels(kind: str, *shape: int) -> Array:
    low, high = dtypes.from_name(kind).limits
    return np.asarray(RNG.integers(low, high + 1, shape)).astype(KINDS[kind])


def scale(*shape: int) -> Array:
    return np.asarray(RNG.uniform(0.1, 0.6, shape)).astype(F)


def made(op: str, name: str, *inputs: Array | None, **attrs: Any) -> OpCase:
    return OpCase(op, inputs, attrs, oracle="fallback", name=name)


def _cases() -> list[OpCase]:
    found = []
    for kind in KINDS:
        x, y = levels(kind, 5, 13), RNG.standard_normal((5, 13)).astype(F) * F(3)
        for op, data in (("DequantizeLinear", x), ("QuantizeLinear", y)):
            found += [
                made(op, f"{kind}-whole", data, scale(), levels(kind)),
                made(op, f"{kind}-axis", data, scale(5), levels(kind, 5), axis=0),
                made(op, f"{kind}-last", data, scale(13), levels(kind, 13)),
            ]
        blocks = (levels(kind, 3, 8), scale(3, 2), levels(kind, 3, 2))
        found.append(made("DequantizeLinear", f"{kind}-blocks", *blocks, axis=1, block_size=4))
        code = dtypes.from_name(kind).code
        found.append(made("QuantizeLinear", f"{kind}-even", y, scale(), output_dtype=code))
        for to in ("float32", "int32", "int8" if kind.startswith("i") else "uint8", "float16"):
            to_code = dtypes.from_name(to).code
            found.append(made("Cast", f"{kind}-{to}", levels(kind, 37), to=to_code))
        found.append(made("DequantizeLinear", f"{kind}-none", levels(kind, 0, 3), scale()))
    return found


CASES = _cases()


test_types = for_each(CASES, check_infer)


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_gpu(case: OpCase) -> None:
    check_gpu(case)
    if case.op != "Cast":
        check_gpu(case.replace(constants=tuple(range(1, len(case.inputs)))))


@pytest.mark.parametrize("kind", KINDS)
def test_levels_against_their_definition(kind: str) -> None:
    x, step, zero = levels(kind, 7, 3), scale(), levels(kind)
    numbers = (x.astype(np.int32) - zero.astype(np.int32)).astype(F) * step
    check_cpu(OpCase("DequantizeLinear", (x, step, zero), oracle=lambda *_: numbers))
    low, high = dtypes.from_name(kind).limits
    back = np.clip(np.rint(numbers / step) + zero.astype(F), low, high).astype(KINDS[kind])
    check_cpu(OpCase("QuantizeLinear", (numbers, step, zero), oracle=lambda *_: back))


@pytest.mark.gpu
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_there_and_back(kind: str, fused: bool) -> None:
    code = dtypes.from_name(kind).code
    nodes = [
        oh.make_node("QuantizeLinear", ["x", "s"], ["q"], output_dtype=code),
        oh.make_node("DequantizeLinear", ["q", "s"], ["y"]),
    ]
    infos = [oh.make_tensor_value_info("x", 1, ["n"]), oh.make_tensor_value_info("s", 1, [])]
    outs = [oh.make_tensor_value_info("y", 1, ["n"])]
    if not fused:
        outs.append(oh.make_tensor_value_info("q", code, ["n"]))
    graph = oh.make_graph(nodes, "g", infos, outs)
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 25)], ir_version=11)
    low, high = dtypes.from_name(kind).limits
    with engine.InferenceSession(model, device="gpu", require_gpu=True) as session:
        for count in (4, 37):
            x = RNG.standard_normal(count).astype(F) * F(4)
            got = session.run(None, {"x": x, "s": np.array(0.5, F)})
            want = np.clip(np.rint(x / F(0.5)), low, high)
            np.testing.assert_array_equal(got[0], want.astype(F) * F(0.5))
            if not fused:
                assert got[1].dtype == KINDS[kind]
                np.testing.assert_array_equal(got[1].astype(F), want)
                values = session.run(["q"], {"x": x, "s": F(0.5)}, outputs_on_device=["q"])
                np.testing.assert_array_equal(values[0].numpy().astype(F), want)


def test_casts_to_so_few_bits_are_refused() -> None:
    case = made("Cast", "narrow", np.ones(3, F), to=dtypes.from_name("int4").code)
    assert "int4" in supported(case).reason
