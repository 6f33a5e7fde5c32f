"""Elementwise operators on several operands: arithmetic, comparison, logic, Where, Clip.

Functions of one operand are in `elementwise_unary.py`, Cast in `elementwise_cast.py`. Each is one
WGSL expression; floats go through `shaders/lib/` where a built-in may drop NaN or lose digits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine import dims
from engine.dims import Dim, product
from engine.dtypes import BOOL
from engine.ir import Array, ValueType
from engine.ops import (
    ALL,
    FLOATS,
    INTS,
    NUMBERS,
    YES,
    Elementwise,
    Evaluate,
    Infer,
    InferView,
    NodeView,
    OpDef,
    Support,
    _symbolic,
    no,
    register,
)
from engine.ops._shapes import broadcast_type, infer_broadcast, infer_same
from engine.ops._symbolic import Rule, elementwise_rule
from engine.ops._work import by_formula

FLOAT_LIBRARY = ("lib/float.wgsl",)
POW_LIBRARY = ("lib/float.wgsl", "lib/pow.wgsl")
FMOD_LIBRARY = ("lib/float.wgsl", "lib/fmod.wgsl")
Expression = str | Callable[[NodeView], str]


def flops_per_element(count: int) -> Callable[[NodeView], Dim] | None:
    """`count` floating point operations for each element of output 0; None for one."""
    if count == 1:
        return None
    return lambda view: product(view.out_shape()) * count


def binary(
    op_type: str,
    expr: Expression,
    rule: Rule | None = None,
    *,
    since: int = 7,
    dtypes: frozenset[str] = NUMBERS,
    includes: tuple[str, ...] = (),
    scalar: bool = False,
    supports: Callable[[NodeView], Support] | None = None,
    evaluate: Evaluate | None = None,
    infer: Infer | None = None,
    limits: str = "",
    cost: int = 1,
    passes: int = 1,
    tolerance: float = 1e-6,
) -> OpDef:
    """An operator on two broadcast operands with the element type of the first.

    `cost` is in operations of an element on the GPU, `passes` in calls of NumPy.
    """
    return register(
        OpDef(
            op_type,
            since,
            infer=infer or infer_broadcast(),
            evaluate=evaluate or (elementwise_rule(rule) if rule else None),
            elementwise=Elementwise(expr, includes=includes, scalar=scalar),
            supports=supports,
            limits=limits,
            dtypes=dtypes,
            flops=flops_per_element(cost),
            cpu=by_formula(passes),
            tolerance=tolerance,
        )
    )


def predicate(
    op_type: str, expr: Expression, rule: Rule, *, since: int, dtypes: frozenset[str] = ALL
) -> OpDef:
    """A comparison or logic on two broadcast operands: bool."""
    return register(
        OpDef(
            op_type,
            since,
            infer=infer_broadcast(BOOL),
            evaluate=elementwise_rule(rule),
            elementwise=Elementwise(expr),
            dtypes=dtypes,
        )
    )


def _fits_bindings(view: NodeView) -> Support:
    limit = view.target.max_storage_buffers_per_shader_stage
    count = len(set(view.node.inputs)) + 1
    if count > limit:
        return no(f"it needs {count} storage buffers, and a kernel may bind {limit}")
    return YES


def variadic(
    op_type: str,
    expr: Callable[[NodeView], str],
    rule: Rule | None = None,
    *,
    since: int,
    dtypes: frozenset[str] = FLOATS,
    includes: tuple[str, ...] = (),
    scalar: bool = False,
) -> OpDef:
    """An operator on any number of broadcast operands."""
    return register(
        OpDef(
            op_type,
            since,
            infer=infer_broadcast(),
            evaluate=elementwise_rule(rule) if rule else None,
            elementwise=Elementwise(expr, includes=includes, scalar=scalar),
            supports=_fits_bindings,
            limits="more operands than storage buffers: seven with their result",
            dtypes=dtypes,
            flops=lambda view: product(view.out_shape()) * len(view.node.inputs),
            variadic=True,
            tolerance=1e-6,
        )
    )


def by_type(floats: str, integers: str) -> Callable[[NodeView], str]:
    """One expression for floats, another for integers, by the type of operand 0."""
    return lambda view: floats if view.dtype(0).is_float else integers


def _divide_contents(view: NodeView) -> Sequence[Array | None] | None:
    whole = view.dtype(0).is_integer
    rule = _symbolic.divide if whole else _symbolic.divide_exactly
    return elementwise_rule(rule)(view)


# a zero divisor gives 0, as NumPy does
_DIVIDE = "select({0} / select({1}, {T}(1), {1} == {T}(0)), {T}(0), {1} == {T}(0))"
_REST = "({0} % select({1}, {T}(1), {1} == {T}(0)))"

binary("Add", "{0} + {1}", _symbolic.add)
binary("Sub", "{0} - {1}", _symbolic.subtract)
binary("Mul", "{0} * {1}", _symbolic.multiply)
binary("Div", by_type("{0} / {1}", _DIVIDE), evaluate=_divide_contents)


def _mod_expr(view: NodeView) -> str:
    dtype = view.dtype(0)
    if dtype.is_float:
        return "fmod_f32({0}, {1})" if view.attr("fmod", 0) else "floormod_f32({0}, {1})"
    if view.attr("fmod", 0) or dtype.wgsl == "u32":
        return f"select({_REST}, {{T}}(0), {{1}} == {{T}}(0))"
    # a remainder that differs in sign from the divisor moves by one divisor
    moves = f"{_REST} != {{T}}(0) && ({_REST} < {{T}}(0)) != ({{1}} < {{T}}(0))"
    return f"select(select({_REST}, {_REST} + {{1}}, {moves}), {{T}}(0), {{1}} == {{T}}(0))"


def _mod_contents(view: NodeView) -> Sequence[Array | None] | None:
    if view.dtype(0).is_float:
        return None
    fmod = view.attr("fmod", 0)
    rule = _symbolic.truncated_modulo if fmod else _symbolic.floor_modulo
    return elementwise_rule(rule)(view)


binary(
    "Mod", _mod_expr, since=10, evaluate=_mod_contents, includes=FMOD_LIBRARY, scalar=True, cost=20
)


def _pow_expr(view: NodeView) -> str:
    base, exponent = view.dtype(0), view.dtype(1)
    if base.is_float:
        power = view.const(1)
        if power is not None and power.size and (power == 2).all():
            return "{0} * {0}"
        suffix = "" if exponent.is_float else f"_{exponent.wgsl}"
        return f"pow_f32{suffix}({{0}}, {{1}})"
    if base.wgsl == "u32":
        return "pow_u32({0}, {1})" if exponent.wgsl == "u32" else "pow_u32({0}, u32({1}))"
    return "pow_i32({0}, {1})" if exponent.wgsl == "i32" else "pow_i32({0}, i32({1}))"


def _pow_supports(view: NodeView) -> Support:
    base, exponent = view.dtype(0), view.dtype(1)
    if base.is_integer and exponent.is_float:
        return no("an integer base with a float exponent needs float64")
    if base.is_integer and base.wgsl != exponent.wgsl:
        return no(f"a power of {base} by {exponent} mixes signs")
    return YES


binary(
    "Pow",
    _pow_expr,
    _symbolic.power,
    includes=POW_LIBRARY,
    scalar=True,
    supports=_pow_supports,
    limits="an integer base with a float exponent, or with one of other signedness",
    cost=40,
)
binary("PRelu", "select({0}, {0} * {1}, {0} < {T}(0))", infer=infer_same, passes=4)
binary("BitwiseAnd", "{0} & {1}", since=18, dtypes=INTS)
binary("BitwiseOr", "{0} | {1}", since=18, dtypes=INTS)
binary("BitwiseXor", "{0} ^ {1}", since=18, dtypes=INTS)


def _shift_expr(view: NodeView) -> str:
    # amounts of 32 and more, and negative ones, leave only copies of the sign
    amount, beyond = "min(u32({1}), 31u)", "u32({1}) > 31u"
    if view.attr("direction") == "LEFT":
        return f"select({{0}} << ({amount}), {{T}}(0), {beyond})"
    zero = "{T}(0)" if view.dtype(0).wgsl == "u32" else "select({T}(0), {T}(-1), {0} < {T}(0))"
    return f"select({{0}} >> ({amount}), {zero}, {beyond})"


binary("BitShift", _shift_expr, since=11, dtypes=INTS - {"int64"}, scalar=True)

predicate("Equal", "{0} == {1}", dims.is_equal, since=7)
predicate("Less", "{0} < {1}", _symbolic.less, since=7)
predicate("LessOrEqual", "{0} <= {1}", _symbolic.less_or_equal, since=12)
predicate("Greater", "{0} > {1}", _symbolic.greater, since=7)
predicate("GreaterOrEqual", "{0} >= {1}", _symbolic.greater_or_equal, since=12)
BOOLS = frozenset({"bool"})
predicate("And", "{0} & {1}", _symbolic.multiply, since=7, dtypes=BOOLS)
predicate("Or", "{0} | {1}", _symbolic.either, since=7, dtypes=BOOLS)
predicate("Xor", "{0} != {1}", _symbolic.exclusive, since=7, dtypes=BOOLS)


def _sum_expr(view: NodeView) -> str:
    return " + ".join(f"{{{i}}}" for i in range(len(view.node.inputs)))


def _mean_expr(view: NodeView) -> str:
    return f"({_sum_expr(view)}) / {{T}}({len(view.node.inputs)})"


def _extreme_expr(word: str) -> Callable[[NodeView], str]:
    def expr(view: NodeView) -> str:
        function = f"{word}_f32" if view.dtype(0).is_float else word
        text = "{0}"
        for i in range(1, len(view.node.inputs)):
            text = f"{function}({text}, {{{i}}})"
        return text

    return expr


variadic("Sum", _sum_expr, _symbolic.add, since=8)
variadic("Mean", _mean_expr, since=8)
for _op, _word, _rule in (("Max", "max", _symbolic.largest), ("Min", "min", _symbolic.smallest)):
    variadic(
        _op,
        _extreme_expr(_word),
        _rule,
        since=8,
        dtypes=NUMBERS,
        includes=FLOAT_LIBRARY,
        scalar=True,
    )


def _infer_where(view: InferView) -> Sequence[ValueType]:
    return [broadcast_type(view, (0, 1, 2), view.dtype(1))]


register(
    OpDef(
        "Where",
        since=9,
        infer=_infer_where,
        evaluate=elementwise_rule(_symbolic.choose),
        elementwise=Elementwise("select({2}, {1}, {0})"),
        dtypes=ALL,
        tolerance=0.0,
    )
)


def _clip_expr(view: NodeView) -> str:
    text = "{0}"
    suffix = "_f32" if view.dtype(0).is_float else ""
    for index, word in ((1, "max"), (2, "min")):
        if view.has(index):
            text = f"{word}{suffix}({text}, {{{index}}})"
    return text


def _clip_contents(view: NodeView) -> Sequence[Array | None] | None:
    given = [i for i in (0, 1, 2) if view.has(i)]

    def rule(x: Dim, *bounds: Dim) -> Dim | None:
        limits = dict(zip(given[1:], bounds, strict=True))
        x = dims.dmax(x, limits[1]) if 1 in limits else x
        return dims.dmin(x, limits[2]) if 2 in limits else x

    return elementwise_rule(rule, given)(view)


def _clip_supports(view: NodeView) -> Support:
    for index in (1, 2):
        if view.has(index) and len(view.shape(index)) > len(view.shape(0)):
            return no("a bound has a higher rank than the clipped tensor")
    return YES


register(
    OpDef(
        "Clip",
        since=11,
        infer=infer_same,
        evaluate=_clip_contents,
        elementwise=Elementwise(_clip_expr, includes=FLOAT_LIBRARY, scalar=True),
        supports=_clip_supports,
        limits="bounds of higher rank than the input",
        dtypes=NUMBERS,
        flops=flops_per_element(2),
        tolerance=0.0,
    )
)
