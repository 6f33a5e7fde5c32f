"""The formulas of reductions as WGSL: what a partial result is, how it grows, merges and ends."""

from __future__ import annotations

from engine.records import dataclass


@dataclass(frozen=True)
class Formula:
    """A reduction of elements `v` (at reduced index `r`) into a partial result.

    Attributes:
        acc: WGSL type of a partial result; "" for the element's own.
        initial: partial result of nothing.
        accumulate: from a partial result `acc` and an element `v`, or of a call with these.
        merge: from two partial results `a` and `b`.
        finish: the output element from `acc`; `params.total` counts the reduced elements.
        functions: WGSL that the expressions call.
    """

    initial: str
    accumulate: str
    merge: str = "a + b"
    finish: str = "acc"
    acc: str = ""
    functions: str = ""

    def partial(self, element: str) -> str:
        """WGSL type of a partial result for elements of type `element`."""
        return self.acc or ("u32" if element == "bool" else element)

    def text(self, element: str, result: str, stage: str = "whole") -> str:
        """The functions that the shader files call.

        Args:
            element, result: WGSL types of input and output elements.
            stage: "whole"; "first" stores partial results; "second" reads them.
        """
        acc = self.partial(element)
        taken = acc if stage == "second" else element
        accumulate = "merge(acc, v)" if stage == "second" else self.accumulate
        finish = "acc" if stage == "first" else self.finish
        given = acc if stage == "first" else result
        lines = [
            self.functions.strip(),
            f"fn initial() -> Acc {{ return {self.initial}; }}",
            f"fn merge(a: Acc, b: Acc) -> Acc {{ return {self.merge}; }}",
            f"fn accumulate(acc: Acc, v: {taken}, r: u32) -> Acc {{ return {accumulate}; }}",
            f"fn finish(acc: Acc) -> {given} {{ return {finish}; }}",
        ]
        return "\n".join(line for line in lines if line)


_ENDS = {
    # what the maximum and the minimum of nothing are
    "f32": ("-infinity_f32()", "infinity_f32()"),
    "i32": ("i32(-2147483648)", "2147483647"),
    "u32": ("0u", "4294967295u"),
    "bool": ("0u", "1u"),
}


def extreme(element: str, largest: bool) -> Formula:
    """Largest or smallest element, NaN if any is."""
    initial = _ENDS[element][0 if largest else 1]
    word = "max" if largest else "min"
    if element == "f32":
        return Formula(initial, f"{word}_f32(acc, v)", f"{word}_f32(a, b)")
    if element == "bool":
        return Formula(initial, f"{word}(acc, select(0u, 1u, v))", f"{word}(a, b)", "acc != 0u")
    return Formula(initial, f"{word}(acc, v)", f"{word}(a, b)")


# the largest value so far, and the sum of exp(value - largest)
_LOG_SUM_EXP = """
fn shifted(size: f32, from_top: f32, to_top: f32) -> f32 {
    return select(size * exp_f32(from_top - to_top), size, from_top == to_top);
}
fn joined(a: vec2<f32>, b: vec2<f32>) -> vec2<f32> {
    let top = max_f32(a.x, b.x);
    return vec2<f32>(top, shifted(a.y, a.x, top) + shifted(b.y, b.x, top));
}
"""
LOG_SUM_EXP = Formula(
    "vec2<f32>(-infinity_f32(), 0.0)",
    "joined(acc, vec2<f32>(v, 1.0))",
    "joined(a, b)",
    "log_f32(acc.y) + acc.x",
    "vec2<f32>",
    _LOG_SUM_EXP,
)

_KEYS = {
    # unsigned integers in the order of the elements; NaN is above all, zeros are equal
    "f32": """
fn ordered(v: f32) -> u32 {
    let bits = select(bitcast<u32>(v), 0u, (bitcast<u32>(v) << 1u) == 0u);
    return bits ^ select(0x80000000u, 0xffffffffu, bits > 0x80000000u);
}
fn key_of(v: f32) -> u32 {
    return select(${KEY}, 0xffffffffu, is_nan(v));
}
""",
    "i32": """
fn ordered(v: i32) -> u32 { return bitcast<u32>(v) ^ 0x80000000u; }
fn key_of(v: i32) -> u32 { return ${KEY}; }
""",
    "u32": """
fn ordered(v: u32) -> u32 { return v; }
fn key_of(v: u32) -> u32 { return ${KEY}; }
""",
}
_BETTER = """
fn better(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(a, b, b.x > a.x || (b.x == a.x && b.y ${ORDER} a.y));
}
"""


def position(element: str, largest: bool, last: bool) -> Formula:
    """Index of the largest or smallest element, the first or the last of equal ones."""
    key = "ordered(v)" if largest else "~ordered(v)"
    functions = _KEYS[element].replace("${KEY}", key)
    functions += _BETTER.replace("${ORDER}", ">" if last else "<")
    return Formula(
        "vec2<u32>(0u, 0u)" if last else "vec2<u32>(0u, 0xffffffffu)",
        "better(acc, vec2<u32>(key_of(v), r))",
        "better(a, b)",
        "bitcast<i32>(acc.y)",
        "vec2<u32>",
        functions,
    )


def formula(op_type: str, element: str) -> Formula:
    """The formula of an ONNX Reduce operator for elements of a WGSL type."""
    zero, one = f"{element}(0)", f"{element}(1)"
    size = "v" if element == "u32" else "abs(v)"
    match op_type:
        case "ReduceMax":
            return extreme(element, True)
        case "ReduceMin":
            return extreme(element, False)
        case "ReduceProd":
            return Formula(one, "acc * v", "a * b")
        case "ReduceMean":
            return Formula(zero, "acc + v", finish="acc / f32(params.total)")
        case "ReduceL1":
            return Formula(zero, f"acc + {size}")
        case "ReduceL2":
            return Formula(zero, "acc + v * v", finish="sqrt(acc)")
        case "ReduceLogSum":
            return Formula(zero, "acc + v", finish="log_f32(acc)")
        case "ReduceLogSumExp":
            return LOG_SUM_EXP
        case "ReduceSumSquare":
            return Formula(zero, "acc + v * v")
        case _:
            return Formula(zero, "acc + v")
