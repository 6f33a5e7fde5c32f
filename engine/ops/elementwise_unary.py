"""Elementwise functions of one operand: mathematics, activations, tests, Not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from engine.dtypes import BOOL
from engine.ir import ValueType
from engine.ops import (
    FLOATS,
    INTS,
    NUMBERS,
    Elementwise,
    InferView,
    NodeView,
    OpDef,
    _symbolic,
    register,
)
from engine.ops._fit import alike
from engine.ops._shapes import infer_elements, infer_same
from engine.ops._symbolic import Rule, elementwise_rule
from engine.ops._work import by_formula
from engine.ops.elementwise import Expression, flops_per_element

FLOAT = ("lib/float.wgsl",)
EXP = (*FLOAT, "lib/exp.wgsl")
LOG = (*FLOAT, "lib/log.wgsl")
ERF = (*EXP, "lib/erf.wgsl")
HYPERBOLIC = (*EXP, "lib/log.wgsl", "lib/hyperbolic.wgsl")
TRIGONOMETRY = (*FLOAT, "lib/trigonometry.wgsl")
ARC = (*FLOAT, "lib/arc.wgsl")
_NAN = "(bitcast<{U}>({0}) & {U}(0x7fffffffu)) > {U}(0x7f800000u)"
_KEPT = "bitcast<{I}>({0}) > {I}(-8388608)"
"""No number below zero: as integers, those end at the bits of -infinity, and every NaN is above."""


def unary(
    op_type: str,
    expr: Expression,
    includes: tuple[str, ...] = (),
    *,
    since: int = 6,
    params: Mapping[str, float] | Callable[[NodeView], Mapping[str, float]] | None = None,
    dtypes: frozenset[str] = FLOATS,
    rule: Rule | None = None,
    cost: int = 1,
    passes: int = 1,
    functions: int = 0,
    tolerance: float = 1e-6,
) -> OpDef:
    """A function of one operand with its type and shape; one with `includes` works by lane.

    `cost` is in operations of an element on the GPU, `passes` in calls of NumPy; `functions` of
    these are an exponential or the like.
    """
    return register(
        OpDef(
            op_type,
            since,
            infer=infer_same,
            evaluate=elementwise_rule(rule) if rule else None,
            elementwise=Elementwise(expr, params or {}, includes, scalar=bool(includes)),
            dtypes=dtypes,
            flops=flops_per_element(cost),
            cpu=by_formula(passes, functions),
            tolerance=tolerance,
        )
    )


def by_kind(floats: str, signed: str, unsigned: str) -> Callable[[NodeView], str]:
    """An expression for floats, signed and unsigned integers."""
    forms = {"f32": floats, "i32": signed, "u32": unsigned}
    return lambda view: forms[view.dtype(0).wgsl]


unary("Abs", by_kind("abs({0})", "abs({0})", "{0}"), dtypes=NUMBERS, rule=_symbolic.absolute)
unary("Neg", "-{0}", dtypes=NUMBERS - {"uint8", "uint16", "uint32"}, rule=_symbolic.negative)
unary(
    "Sign",
    by_kind(f"select(sign({{0}}), {{0}}, {_NAN})", "sign({0})", "min({0}, {T}(1))"),
    since=9,
    dtypes=NUMBERS,
    rule=_symbolic.sign,
)
unary("Ceil", "ceil({0})", rule=_symbolic.same)
unary("Floor", "floor({0})", rule=_symbolic.same)
unary("Round", "round({0})", since=11, rule=_symbolic.same)
unary("Sqrt", "sqrt_f32({0})", FLOAT, cost=4)
unary("Reciprocal", "{T}(1) / {0}", cost=4)
unary("Exp", "exp_f32({0})", EXP, cost=20, functions=1, tolerance=2e-6)
unary("Log", "log_f32({0})", LOG, cost=20, functions=1)
unary("Erf", "erf_f32({0})", ERF, since=9, cost=30, passes=16, functions=1)
unary("Sin", "sin_f32({0})", TRIGONOMETRY, since=7, cost=30, functions=1)
unary("Cos", "cos_f32({0})", TRIGONOMETRY, since=7, cost=30, functions=1)
unary("Tan", "tan_f32({0})", TRIGONOMETRY, since=7, cost=30, functions=1, tolerance=2e-6)
unary("Asin", "asin_f32({0})", ARC, since=7, cost=25, functions=1)
unary("Acos", "acos_f32({0})", ARC, since=7, cost=25, functions=1)
unary("Atan", "atan_f32({0})", ARC, since=7, cost=25, functions=1)
unary("Sinh", "sinh_f32({0})", HYPERBOLIC, since=9, cost=30, functions=1, tolerance=2e-6)
unary("Cosh", "cosh_f32({0})", HYPERBOLIC, since=9, cost=30, functions=1, tolerance=2e-6)
unary("Tanh", "tanh_f32({0})", HYPERBOLIC, cost=25, functions=1)
unary("Asinh", "asinh_f32({0})", HYPERBOLIC, since=9, cost=40, functions=1)
unary("Acosh", "acosh_f32({0})", HYPERBOLIC, since=9, cost=40, functions=1)
unary("Atanh", "atanh_f32({0})", HYPERBOLIC, since=9, cost=40, functions=1)

unary("Sigmoid", "1.0 / (1.0 + exp_f32(-{0}))", EXP, cost=25, passes=4, functions=1)
FLOOR = "floor"
"""Attribute of a Relu in a kernel that serves others: they keep what is above it, as in `_KEPT`."""
POSITIVE, ALL = -8388608.0, -(2.0**31)
"""Floors: of a Relu, and of what keeps all numbers (0 for -0)."""
_relu = by_kind(f"select({{T}}(0), {{0}}, {_KEPT})", "max({0}, {T}(0))", "{0}")


def _relu_text(view: NodeView) -> str:
    if view.attr(FLOOR, None) is None:
        return _relu(view)
    return "select({T}(0), {0}, bitcast<{I}>({0}) > {I}({F}({floor})))"


def _relu_words(view: NodeView) -> Mapping[str, float]:
    floor = view.attr(FLOOR, None)
    return {} if floor is None else {FLOOR: float(floor)}


unary(
    "Relu",
    _relu_text,
    params=_relu_words,
    dtypes=NUMBERS,
    rule=lambda a: _symbolic.largest(a, 0),
)
unary("LeakyRelu", "select({0}, {0} * {alpha}, {0} < {T}(0))", params={"alpha": 0.01}, passes=2)
unary(
    "Elu",
    "select({0}, {alpha} * expm1_f32({0}), {0} < 0.0)",
    EXP,
    params={"alpha": 1.0},
    cost=20,
    passes=5,
    functions=1,
)
unary(
    "Selu",
    "{gamma} * select({0}, {alpha} * expm1_f32({0}), {0} < 0.0)",
    EXP,
    params={"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875},
    cost=20,
    passes=6,
    functions=1,
)
unary(
    "Celu",
    "max_f32({0}, 0.0) + min_f32({alpha} * expm1_f32({0} / {alpha}), 0.0)",
    EXP,
    since=12,
    params={"alpha": 1.0},
    cost=25,
    passes=6,
    functions=1,
)
unary(
    "HardSigmoid",
    "max_f32(min_f32({alpha} * {0} + {beta}, 1.0), 0.0)",
    FLOAT,
    params={"alpha": 0.2, "beta": 0.5},
    cost=4,
    passes=4,
)
unary(
    "HardSwish",
    "{0} * max_f32(min_f32({0} / 6.0 + 0.5, 1.0), 0.0)",
    FLOAT,
    since=14,
    cost=5,
    passes=5,
)
# tanh(log(1 + e)) = n / (n + 2) with n = e (e + 2); beyond 20 it is 1
_MISH_N = "exp_f32(min_f32({0}, 20.0)) * (exp_f32(min_f32({0}, 20.0)) + 2.0)"
unary(
    "Mish",
    f"{{0}} * (({_MISH_N}) / ({_MISH_N} + 2.0))",
    EXP,
    since=18,
    cost=45,
    passes=9,
    functions=1,
)
unary(
    "Softplus",
    "max_f32({0}, 0.0) + log1p_f32(exp_f32(-abs({0})))",
    (*EXP, "lib/log.wgsl"),
    since=1,
    cost=40,
    passes=7,
    functions=1,
)
unary("Softsign", "{0} / ({T}(1) + abs({0}))", since=1, cost=5, passes=3)
unary("ThresholdedRelu", "select({T}(0), {0}, {0} > {T}({alpha}))", since=10, params={"alpha": 1.0})
unary(
    "Shrink",
    "select(select({T}(0), {0} - {bias}, {0} > {T}({lambd})), {0} + {bias}, {0} < {T}(-{lambd}))",
    since=9,
    params={"bias": 0.0, "lambd": 0.5},
    cost=2,
    passes=9,
)
unary(
    "Swish",
    "{0} / (1.0 + exp_f32(-{alpha} * {0}))",
    EXP,
    since=24,
    params={"alpha": 1.0},
    cost=25,
    passes=4,
    functions=1,
)


def _gelu_expr(view: NodeView) -> str:
    if view.attr("approximate", "none") == "tanh":
        inner = "0.797884561 * ({0} + 0.044715 * {0} * {0} * {0})"
        return f"0.5 * {{0}} * (1.0 + tanh_f32({inner}))"
    return "0.5 * {0} * (1.0 + erf_f32(0.707106781 * {0}))"


GELU = (*EXP, "lib/erf.wgsl", "lib/log.wgsl", "lib/hyperbolic.wgsl")
unary("Gelu", _gelu_expr, GELU, since=20, cost=35, passes=21, functions=1)
unary("Not", "!{0}", since=1, dtypes=frozenset({"bool"}), rule=_symbolic.negate, tolerance=0.0)
unary("BitwiseNot", "~{0}", since=18, dtypes=INTS, tolerance=0.0)


def _is_inf_expr(view: NodeView) -> str:
    bits = "bitcast<{U}>({0})"
    positive, negative = f"{bits} == {{U}}(0x7f800000u)", f"{bits} == {{U}}(0xff800000u)"
    wanted = [
        text
        for name, text in (("detect_positive", positive), ("detect_negative", negative))
        if view.attr(name, 1)
    ]
    return " | ".join(f"({text})" for text in wanted) if wanted else f"({bits} != {bits})"


for _op, _since, _expr in (("IsNaN", 9, _NAN), ("IsInf", 10, _is_inf_expr)):
    register(
        OpDef(
            _op,
            _since,
            infer=infer_elements(BOOL),
            elementwise=Elementwise(_expr),
            dtypes=FLOATS | {"bool"},
            tolerance=0.0,
        )
    )


def _infer_gated(view: InferView) -> Sequence[ValueType]:
    """Two operands of one shape: nothing is broadcast."""
    view.require(alike(view, view.shape(0), view.shape(1)))
    return infer_same(view)


# it is run as its function body, in Swish and Mul
register(OpDef("SwiGLU", since=28, infer=_infer_gated))
