"""Elementwise operators: numbers at the edges, broadcasting, integer rules, contents of sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import engine
from engine import dims, dtypes
from engine.dims import Dim
from engine.errors import ShapeError
from engine.ir import Graph, Node, TensorType, Value
from engine.ops import NodeView, definition, object_array
from tests.ops.harness import (
    OpCase,
    case_id,
    check_cpu,
    check_engine_cpu,
    check_gpu,
    check_infer,
    run_fallback,
    supported,
)
from tests.ops.standard import for_each, on_gpu

SPECIAL = np.array(
    [
        *(0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 3.4e38, -3.4e38, 0.5, -0.5),
        *(1.5, 2.5, -2.5, 1e-30, 88.7, -88.0, 100.0, -104.0, 1e6, 3e9, -3e9, 0.9999999, 1.0000001),
    ],
    np.float32,
)
WHOLE = np.array([0, 1, -1, 2, -2, 7, -7, 31, 32, 33, 2**31 - 1, -(2**31), 12345], np.int32)


def spread(low: float, high: float) -> np.ndarray[Any, Any]:
    """Special values and 113 noisy ones in [low, high]."""
    noise = np.random.default_rng(5).uniform(low, high, 113).astype(np.float32)
    return np.concatenate([SPECIAL, noise, noise * np.float32(1e-4)])


def pairs(values: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Every value against every value, by broadcasting a column and a row."""
    return values.reshape(-1, 1), values


MATHEMATICS = (
    "Abs Ceil Floor Round Sqrt Reciprocal Exp Log Erf Sin Cos Tan Asin Acos Atan Sinh Cosh Tanh "
    "Asinh Acosh Atanh Sigmoid Softsign Sign Neg"
).split()
ACTIVATIONS: dict[str, list[dict[str, Any]]] = {
    "Relu": [{}],
    "LeakyRelu": [{}, {"alpha": 0.3}],
    "Elu": [{}, {"alpha": 1.7}],
    "Selu": [{}, {"alpha": 1.1, "gamma": 2.0}],
    "Celu": [{}, {"alpha": 1.7}],
    "HardSigmoid": [{}, {"alpha": 0.3, "beta": 0.1}],
    "HardSwish": [{}],
    "Mish": [{}],
    "Softplus": [{}],
    "ThresholdedRelu": [{}, {"alpha": 0.2}],
    "Shrink": [{}, {"bias": 0.7, "lambd": 1.2}],
    "Swish": [{}, {"alpha": 0.6}],
    "Gelu": [{}, {"approximate": "tanh"}],
}
SHAPES = [
    ((37, 113), (37, 113)),
    ((), ()),
    ((), (5,)),
    ((257,), (1,)),
    ((3, 1, 5), (4, 1)),
    ((4, 1), (3, 1, 5)),
    ((0, 3), (1, 3)),
    ((2, 1, 2, 1, 2, 1, 2, 3), (1, 3, 1, 2, 1, 2, 1, 1)),
    ((1, 3, 1, 2, 1, 2), (2, 1, 2, 1, 2, 1, 2, 1)),
]


def _wide_enough(a: Any, b: Any) -> Any:
    with np.errstate(all="ignore"):
        return np.where(b == 0, 0, np.trunc(a.astype(np.float64) / np.where(b, b, 1)))


def _arithmetic() -> list[OpCase]:
    a, b = pairs(SPECIAL)
    i, j = pairs(WHOLE)
    u, v = (x.astype(np.uint32) for x in (i, j))
    cases = [OpCase(op, (a, b), name="special") for op in ("Add", "Sub", "Mul", "Div", "Pow")]
    cases += [
        OpCase("Mod", (a, b), {"fmod": fmod}, name=f"special-{fmod}", tol=1e-6) for fmod in (0, 1)
    ]
    cases += [OpCase("Mod", pairs(WHOLE), {"fmod": f}, name=f"whole-{f}") for f in (0, 1)]
    cases += [OpCase(op, (i, j), name="wrap") for op in ("Add", "Sub", "Mul")]
    cases += [OpCase(op, (u, v), name="unsigned") for op in ("Add", "Sub", "Mul", "Div", "Mod")]
    keep = WHOLE[WHOLE != -(2**31)]
    cases.append(OpCase("Div", pairs(keep), oracle=lambda a, b: _wide_enough(a, b).astype("i4")))
    cases += [OpCase("Add", ((x, "float32"), (y, "float32"))) for x, y in SHAPES]
    cases += [OpCase(op, (((3, 5), "int64"), ((5,), "int64"))) for op in ("Max", "Less")]
    return cases


def _powers() -> list[OpCase]:
    base = spread(0, 4).reshape(-1, 1)
    whole = np.array([0, 1, 2, 3, -1, -2, -3, 8, 31], np.int32)
    negative = np.array([[1, -1, 2, -2, 0]], np.int32).T
    return [
        OpCase("Pow", (base, np.array([2.5, -1.5, 0.5, 30.0, -7.0], np.float32)), rtol=1e-6),
        OpCase("Pow", (SPECIAL, np.float32([2])), constants=(1,), name="square", rtol=6e-8),
        OpCase("Pow", (base, whole), name="by-int32", rtol=1e-6),
        OpCase("Pow", (base, np.abs(whole).astype(np.uint32)), name="by-uint32", rtol=1e-6),
        OpCase("Pow", (WHOLE.reshape(-1, 1), np.abs(whole)), name="int32"),
        OpCase(
            "Pow",
            (negative, np.array([-1, -2], np.int32)),
            name="inverse",
            oracle=lambda x, y: np.array([[1, 1], [-1, 1], [0, 0], [0, 0], [0, 0]], np.int32),
        ),
        OpCase(
            "Pow",
            (WHOLE[:7], np.full(7, 0.5, np.float32)),
            name="float-exponent",
            oracle=lambda x, y: np.power(x, y.astype(np.float64)).astype(np.int32),
            cpu_only=True,
        ),
    ]


def _comparisons() -> list[OpCase]:
    a, b = pairs(SPECIAL)
    flags = (np.array([[True], [False]]), np.array([True, False]))
    names = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
    cases = [OpCase(op, (a, b), name="special") for op in names]
    cases += [OpCase(op, pairs(WHOLE), name="int32") for op in names]
    cases += [
        OpCase(op, pairs(WHOLE.astype(np.uint32)), name="uint32")
        for op in ("Less", "GreaterOrEqual")
    ]
    cases += [OpCase(op, flags, name="bool") for op in ("And", "Or", "Xor", "Equal")]
    cases += [OpCase("And", (((7, 1), "bool"), ((3, 1, 5), "bool")))]
    return cases


def _bits() -> list[OpCase]:
    i, j = pairs(WHOLE)
    u, v = (x.astype(np.uint32) for x in (i, j))
    cases = [OpCase(f"Bitwise{op}", (i, j), name="int32") for op in ("And", "Or", "Xor")]
    cases += [OpCase("BitwiseNot", (WHOLE,)), OpCase("Not", (((37,), "bool"),))]
    for direction in ("LEFT", "RIGHT"):
        for name, operands in (("signed", (i, j)), ("unsigned", (u, v))):
            cases.append(
                OpCase("BitShift", operands, {"direction": direction}, name=f"{name}-{direction}")
            )
    return cases


def _mean(*operands: Any) -> Any:
    return sum(operands) / np.float32(len(operands))


def _several() -> list[OpCase]:
    x, y = pairs(SPECIAL)
    z = np.array([[[0.25]], [[-3.0]]], np.float32)
    cases = [OpCase(op, (x, y, z), name="special") for op in ("Sum", "Max", "Min")]
    cases.append(OpCase("Mean", (x, y, z), oracle=_mean, name="special"))
    cases += [OpCase(op, (x,), name="one") for op in ("Sum", "Mean", "Max", "Min")]
    cases += [OpCase(op, (*pairs(WHOLE), WHOLE), name="int32") for op in ("Max", "Min")]
    cases += [OpCase("Max", tuple(((3, 4), "float32") for _ in range(7)), name="seven")]
    cases += [
        OpCase("Sum", tuple(((3,), "float32") for _ in range(8)), cpu_only=True, name="eight")
    ]
    condition = ((5, 1, 3), "bool")
    for dtype in ("float32", "int32", "uint32", "bool"):
        cases.append(OpCase("Where", (condition, ((4, 1), dtype), ((5, 4, 3), dtype))))
    cases.append(OpCase("Where", (np.array([True, False]), SPECIAL[4:6], SPECIAL[6:8]), name="nan"))
    low, high = np.array(-0.7, np.float32), np.array(1.3, np.float32)
    cases += [
        OpCase("Clip", (SPECIAL, low, high), name="both"),
        OpCase("Clip", (SPECIAL, None, high), name="max"),
        OpCase("Clip", (SPECIAL, low), name="min"),
        OpCase("Clip", (SPECIAL,), name="none"),
        OpCase("Clip", (SPECIAL, high, low), name="crossed", oracle=lambda x, *_: x * 0 + low),
        OpCase("Clip", (WHOLE, np.array(-3, np.int32), np.array(9, np.int32)), name="int32"),
    ]
    cases[-2] = cases[-2].replace(inputs=(SPECIAL[:4], high, low))
    return cases


def _casts() -> list[OpCase]:
    codes = {d.name: d.code for d in dtypes.DTYPES}
    flags = np.array([True, False, True])
    ends = np.array([0.0, 0.9, -0.9, -7.5, 3e9, -3e9, 5e9, np.inf, -np.inf, np.nan], np.float32)
    cases = []
    for to in ("float32", "int32", "uint32", "bool"):
        cases.append(OpCase("Cast", (WHOLE,), {"to": codes[to]}, name=f"int32-{to}"))
        cases.append(OpCase("Cast", (flags,), {"to": codes[to]}, name=f"bool-{to}"))
        cases.append(
            OpCase("Cast", (WHOLE.astype(np.uint32),), {"to": codes[to]}, name=f"uint32-{to}")
        )
        cases.append(
            OpCase("Cast", (WHOLE[:8].astype(np.int64),), {"to": codes[to]}, name=f"int64-{to}")
        )
    low, high = -(2**31), 2**31 - 1
    signed = [0, 0, 0, -7, high, low, high, high, low, 0]
    unsigned = [0, 0, 0, 0, 3000000000, 0, 2**32 - 1, 2**32 - 1, 0, 0]
    for to, want in (("int32", signed), ("uint32", unsigned)):
        array = np.array(want, to)
        cases.append(
            OpCase(
                "Cast",
                (ends,),
                {"to": codes[to]},
                name=f"float32-{to}",
                oracle=lambda x, a=array: a,
            )
        )
    cases.append(OpCase("Cast", (SPECIAL,), {"to": codes["bool"]}, name="float32-bool"))
    cases.append(OpCase("Cast", (ends[:4],), {"to": codes["int64"]}, name="long", cpu_only=True))
    return cases


UNARY = [
    *(OpCase(op, (spread(-4, 4),), name="special", rtol=2e-6) for op in MATHEMATICS),
    *(OpCase(op, (spread(-6, 6),), a) for op, sets in ACTIVATIONS.items() for a in sets),
    OpCase("Sin", (np.geomspace(1, 3e38, 513).astype(np.float32),), name="large", rtol=1e-6),
    OpCase("Tan", (-np.geomspace(1, 3e38, 513).astype(np.float32),), name="large", rtol=2e-6),
    OpCase("IsNaN", (SPECIAL,)),
    *(
        OpCase("IsInf", (SPECIAL,), {"detect_negative": n, "detect_positive": p})
        for n in (0, 1)
        for p in (0, 1)
    ),
    *(OpCase(op, (WHOLE,), name="int32") for op in ("Abs", "Neg", "Sign", "Relu")),
    *(OpCase(op, (WHOLE.astype(np.uint32),), name="uint32") for op in ("Abs", "Sign")),
    *(OpCase("Exp", ((shape, "float32"),)) for shape in ((), (1,), (257,), (0, 3), (3, 0))),
    OpCase("PRelu", (((2, 3, 5), "float32"), ((3, 1), "float32"))),
    OpCase("PRelu", (SPECIAL, np.array([0.25], np.float32)), name="special"),
]
CASES = [
    *UNARY,
    *_arithmetic(),
    *_powers(),
    *_comparisons(),
    *_bits(),
    *_several(),
    *_casts(),
]
HOST = [
    OpCase("Pow", (np.array([7, -3, 0, 2]), np.array([3, 2, 5, 0])), name="int64"),
    OpCase("CastLike", (SPECIAL[:4], WHOLE), name="int32"),
    *(OpCase("Exp", (((7, 3), t),), tol=2e-3) for t in ("float16", "float64")),
    *(OpCase("Gelu", (((7, 300), t),), tol=t_) for t, t_ in (("float16", 2e-3), ("float64", 1e-7))),
    *(
        OpCase(op, (((5, 3), f"{s}int{b}"), ((3,), f"{s}int{b}")))
        for op in ("Add", "Sub", "Mul", "Div", "Mod", "Max", "Less", "Equal")
        for s in ("", "u")
        for b in (8, 16, 64)
    ),
    OpCase(
        "Where", (np.array([True, False]), np.array(["a", "b"], object), np.array(["c"], object))
    ),
    OpCase("Equal", (np.array(["a", "b"], object), np.array(["a"], object))),
]


test_cpu = for_each([*CASES, *HOST], check_cpu)


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_infer(case: OpCase) -> None:
    check_infer(case)
    if case.cpu_only:
        refusal = supported(case)
        assert not refusal.ok
        assert refusal.reason


test_gpu = on_gpu(CASES)
test_gpu_with_symbolic_sizes = on_gpu(_arithmetic()[-10:], dynamic=True)


@pytest.mark.gpu
@pytest.mark.slow
def test_gpu_past_65535_workgroups() -> None:
    x = np.arange(65536 * 256 + 3, dtype=np.float32) - np.float32(8e6)
    check_gpu(OpCase("Relu", (x,), oracle=lambda v: np.maximum(v, 0), name="large"))


test_engine_on_the_cpu = for_each([CASES[0], _arithmetic()[0], _casts()[3]], check_engine_cpu)


@pytest.mark.gpu
@pytest.mark.parametrize("op", "Sin Tan Asin Atan Sinh Tanh Asinh Atanh Erf".split())
def test_odd_functions_keep_the_sign_of_zero(op: str) -> None:
    text = f"""<ir_version: 9, opset_import: ["": 20]>
    g (float[2] x) => (float[2] y) {{ y = {op}(x) }}"""
    model = onnx.parser.parse_model(text).SerializeToString()
    with engine.InferenceSession(model, device="gpu", require_gpu=True) as session:
        (y,) = session.run(None, {"x": np.array([0.0, -0.0], np.float32)})
    assert np.signbit(y).tolist() == [False, True]


@st.composite
def broadcast_pairs(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    full = draw(st.lists(st.integers(0, 5), max_size=5))
    shapes = []
    for _ in range(2):
        kept = full[draw(st.integers(0, len(full))) :]
        shapes.append(tuple(1 if draw(st.booleans()) else d for d in kept))
    return shapes[0], shapes[1]


@pytest.mark.gpu
@given(broadcast_pairs(), st.sampled_from(["Sub", "Less", "Max", "Pow"]), st.booleans())
def test_broadcasting(
    shapes: tuple[tuple[int, ...], tuple[int, ...]], op: str, dynamic: bool
) -> None:
    case = OpCase(op, tuple((s, "float32") for s in shapes))
    check_cpu(case)
    check_infer(case)
    check_gpu(case, dynamic=dynamic)


def test_shapes_that_do_not_broadcast_are_refused() -> None:
    case = OpCase("Add", (((2, 3), "float32"), ((3, 2), "float32")))
    with pytest.raises(ShapeError, match="do not broadcast on axis"):
        supported(case)


H = dims.symbol("h")
W = dims.symbol("w")


def contents(op: str, *operands: Any, kind: str = "int64", **attrs: Any) -> list[Any] | None:
    """What `evaluate` makes of known contents: dims, numbers or arrays."""
    values = {}
    for i, items in enumerate(operands):
        array = items if isinstance(items, np.ndarray) else object_array(items)
        dtype = dtypes.from_name(kind)
        if array.dtype != object:
            dtype = dtypes.from_numpy(array.dtype)
        known = {"constant": array} if array.dtype != object else {"dims": array}
        values[f"x{i}"] = Value(f"x{i}", TensorType(dtype, array.shape), **known)
    values["y"] = Value("y")
    since = OpCase(op, ()).since
    node = Node(op, tuple(f"x{i}" for i in range(len(operands))), ("y",), attrs, "", since)
    rule = definition(node)
    assert rule is not None and rule.evaluate is not None
    result = rule.evaluate(NodeView(Graph((node,), values, tuple(values), ("y",)), node))
    return None if result is None or result[0] is None else list(result[0].reshape(-1))


SYMBOLIC: list[tuple[str, tuple[Any, ...], list[Dim] | None]] = [
    ("Add", ([H, 3], [W, 1]), [H + W, 4]),
    ("Sub", ([H, W], 1), [H - 1, W - 1]),
    ("Mul", ([H, 3], [2, W]), [H * 2, W * 3]),
    ("Div", ([H * 4, 7, -7], [2, 2, 2]), [H * 2, 3, -3]),
    ("Div", ([H], [2]), [H // 2]),
    ("Div", ([H - 1], [2]), None),
    ("Div", ([4], [0]), None),
    ("Mod", ([H, -7], [4, 4]), [H % 4, 1]),
    ("Min", ([H, 3], [H + 1, 5]), [H, 3]),
    ("Max", ([H], [0]), [H]),
    ("Neg", ([H, 2],), [H * -1, -2]),
    ("Abs", ([H, -2],), [H, 2]),
    ("Equal", ([H, H, 3], [H, H + 1, 4]), [1, 0, 0]),
    ("Less", ([H, 3], [H + 1, 3]), [1, 0]),
    ("GreaterOrEqual", ([H, -1], [0, 0]), [1, 0]),
    ("Where", (np.array([True, False]), [H, 2], [W, 3]), [H, 3]),
    ("Clip", ([H, 9], 0, 5), [dims.dmin(H, 5), 5]),
    ("Mul", (np.array([0.5]), [H]), None),
    ("Mul", (np.array([2.0]), [H]), [H * 2]),
]


@pytest.mark.parametrize(("op", "operands", "want"), SYMBOLIC)
def test_contents_of_sizes(op: str, operands: tuple[Any, ...], want: list[Dim] | None) -> None:
    assert contents(op, *operands) == want


def test_contents_through_a_float_stay_known() -> None:
    assert contents("Cast", [H, 3], to=dtypes.FLOAT32.code) == [H, 3]
    assert contents("Floor", [H, 3], kind="float32") == [H, 3]
    assert contents("Div", [H * 2, 4], np.array([2.0], np.float32), kind="float32") == [H, 2]
    assert contents("Div", [H, 4], np.array([2.0], np.float32), kind="float32") is None
    assert contents("Cast", [H, 0], to=dtypes.BOOL.code) == [1 - dims.is_equal(H, 0), 0]


@st.composite
def expressions(draw: st.DrawFn) -> Dim:
    dim: Dim = draw(st.sampled_from([H, W, draw(st.integers(-6, 6))]))
    for _ in range(draw(st.integers(0, 3))):
        other = draw(st.sampled_from([H, W, draw(st.integers(-4, 4))]))
        dim = draw(st.sampled_from([dim + other, dim - other, dim * other, dims.dmax(dim, other)]))
    return dim


RULES = (
    "Add Sub Mul Div Mod Min Max Neg Abs Sign Equal Less LessOrEqual Greater GreaterOrEqual Where "
    "Pow Relu"
).split()


@settings(max_examples=200)
@given(
    st.sampled_from(RULES),
    st.lists(expressions(), min_size=3, max_size=3),
    st.integers(0, 9),
    st.integers(0, 9),
)
def test_contents_agree_with_numbers(op: str, operands: list[Dim], h: int, w: int) -> None:
    """Where a rule gives a result, binding it is the same as computing with bound operands."""
    count = {"Neg": 1, "Abs": 1, "Sign": 1, "Relu": 1, "Where": 3}.get(op, 2)
    operands = operands[:count]
    if op == "Where":
        operands[0] = dims.is_equal(operands[0], 3)
    result = contents(op, *([o] for o in operands))
    binding = {"h": h, "w": w}
    numbers = [np.array([dims.evaluate(o, binding)]) for o in operands]
    if result is None or (op in ("Div", "Mod") and not numbers[1].all()):
        return
    if op == "Where":
        numbers[0] = numbers[0].astype(bool)
    if op == "Pow" and (numbers[1] < 0).any():
        return
    (want,) = run_fallback(OpCase(op, ()), numbers)
    assert dims.evaluate(result[0], binding) == want[0]
