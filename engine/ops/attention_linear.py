"""LinearAttention: attention by a state of fixed size, one step after the other.

Of CausalConvWithState only the types: it is run as its function body.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from engine.dims import Dim, Guard, at_least
from engine.errors import ShapeError
from engine.ir import TensorType, ValueType
from engine.ops import (
    InferView,
    KernelCall,
    Lowering,
    NodeView,
    OpDef,
    Stage,
    Support,
    linear,
    no,
    register,
    yes_if,
)
from engine.ops._fit import alike, same
from engine.ops._variants import MAX_TRIPS
from engine.ops.attention import Heads

MAX_SIZE = 256
"""Largest key, which is the number of registers that hold a column of the state."""
RULES = {
    "linear": (False, False),
    "gated": (True, False),
    "delta": (False, True),
    "gated_delta": (True, True),
}
"""Whether a rule decays the state, and whether it corrects it."""

QUERY, KEY, VALUE, PAST, DECAY, BETA = range(6)
BIAS, PAST_INPUT = 2, 3
"""Of CausalConvWithState."""


def _split(view: NodeView, index: int, attribute: str) -> Heads:
    shape, count = view.shape(index), int(view.attr(attribute, 0))
    if len(shape) != 3 or count < 1:
        raise ShapeError(f"{view.describe()}: input {index} cannot be split into {count} heads")
    width = shape[2]
    if isinstance(width, int) and width % count:
        raise ShapeError(f"{view.describe()}: {width} columns cannot be split into {count} heads")
    return Heads(shape[0], count, shape[1], width // count, True)


def _operands(view: NodeView) -> tuple[Heads, Heads, Heads]:
    return (
        _split(view, QUERY, "q_num_heads"),
        _split(view, KEY, "kv_num_heads"),
        _split(view, VALUE, "kv_num_heads"),
    )


def _infer(view: InferView) -> list[ValueType]:
    q, k, v = _operands(view)
    dtype = view.dtype(QUERY)
    kept = view.dtype(PAST) if view.has(PAST) else dtype
    return [
        TensorType(dtype, (q.batch, q.length, q.heads * v.size)),
        TensorType(kept, (k.batch, k.heads, k.size, v.size)),
    ]


def _rule(view: NodeView) -> str:
    rule = view.attr("update_rule", "gated_delta")
    return rule.decode() if isinstance(rule, bytes) else str(rule)


def _supports(view: NodeView) -> Support:
    q, k, _ = _operands(view)
    if RULES.get(_rule(view)) != (view.has(DECAY), view.has(BETA)):
        return no(f"its inputs are not those of the rule {_rule(view)!r}")
    if not isinstance(k.size, int) or not 1 <= k.size <= MAX_SIZE:
        return no(f"its kernel holds keys of a known size up to {MAX_SIZE}, not {k.size}")
    if _groups(view) is None:
        return no(f"{q.heads} query heads are no multiple of {k.heads} key heads")
    most = MAX_TRIPS // ((_groups(view) or 1) + 1)
    steps = at_least(most, q.length, f"there are at most {most} steps")
    return no(f"it has more than {most} steps") if steps.known is False else yes_if(steps)


def _groups(view: NodeView) -> int | None:
    """Query heads for each key head; None if these do not divide."""
    groups, rest = divmod(int(view.attr("q_num_heads")), int(view.attr("kv_num_heads")))
    return None if rest else groups


def _agree(view: NodeView) -> Iterator[Guard]:
    q, k, v = _operands(view)
    yield from same(view, q.size, k.size)
    for x in (k, v):
        yield from alike(view, (x.batch, x.length), (q.batch, q.length))
    wanted: dict[int, tuple[Dim, ...]] = {PAST: (k.batch, k.heads, k.size, v.size)}
    for index, wide in ((DECAY, _decay_width(view, k)), (BETA, _rates(view))):
        wanted[index] = (q.batch, q.length, wide)
    for index, shape in wanted.items():
        if view.has(index):
            yield from alike(view, view.shape(index), shape)


def _decay_width(view: NodeView, k: Heads) -> Dim:
    """Columns of decay: one for each head, or for each lane of its keys."""
    if not view.has(DECAY) or view.shape(DECAY)[-1] == k.heads:
        return k.heads
    return k.heads * k.size


def _rates(view: NodeView) -> Dim:
    """Columns of beta: one for all heads, or for each."""
    single = not view.has(BETA) or view.shape(BETA)[-1] == 1
    return 1 if single else int(view.attr("kv_num_heads"))


def _four(load: str, at: str, k: int, size: int, step: str = "") -> str:
    """Elements 4k to 4k + 3 from `at` on, `step` apart; 0 past `size`."""
    if not step and size % 4 == 0:
        return f"load4_{load}({at} + {4 * k}u)"
    times = f" * {step}" if step else ""
    lanes = [
        f"load_{load}({at} + {j}u{times})" if j < size else "0.0" for j in range(4 * k, 4 * k + 4)
    ]
    return f"vec4<f32>({', '.join(lanes)})"


def _text(view: NodeView, size: int, narrow_decay: bool) -> dict[str, str]:
    """The statements on a column of the state, four rows a register."""
    rows = range(-(-size // 4))
    lines: dict[str, list[str]] = {}
    start = [f"var s{k} = vec4<f32>();" for k in rows]
    if view.has(PAST):
        past = [_four("past_state", "state", k, size, "params.value_size") for k in rows]
        start = [f"var s{k} = {past[k]};" for k in rows]
    lines["START"] = start
    if view.has(DECAY):
        lines["DECAYED"] = [
            f"s{k} *= vec4<f32>({', '.join(f'exp_f32(d{k}.{lane})' for lane in 'xyzw')});"
            for k in rows
        ]
        if narrow_decay:
            whole = "let kept = exp_f32(load_decay(gate));"
            lines["DECAYED"] = [whole, *(f"s{k} *= kept;" for k in rows)]
        else:
            loads = [f"let d{k} = {_four('decay', 'gate', k, size)};" for k in rows]
            lines["DECAYED"] = [
                x for pair in zip(loads, lines["DECAYED"], strict=True) for x in pair
            ]
    keys = [_four("key", "key_at", k, size) for k in rows]
    if view.has(BETA):
        lines["RECALLED"] = [f"recalled += {keys[k]} * s{k};" for k in rows]
    lines["ADDED"] = [f"s{k} += {keys[k]} * added;" for k in rows]
    lines["ASKED"] = [f"    found += {_four('query', 'query_at', k, size)} * s{k};" for k in rows]
    text = {"SIZE": str(size)}
    lines["KEPT"] = [
        f"store_present_state(state + {j}u * params.value_size, s{j // 4}.{'xyzw'[j % 4]});"
        for j in range(size)
    ]
    for name, found in lines.items():
        indent = " " * (4 if name in ("START", "KEPT") else 8)
        text[name] = "\n".join(indent + line for line in found)
    return text


def _lower(view: Lowering) -> Sequence[Stage]:
    q, k, v = _operands(view)
    size, groups = int(k.size), _groups(view) or 1  # type: ignore[arg-type]
    columns = v.batch * v.heads * v.size
    scale = float(view.attr("scale", 0.0)) or size**-0.5
    tensors = dict(zip(("query", "key", "value"), view.node.inputs[:3], strict=True))
    words: dict[str, Dim | float] = {
        "columns": columns,
        "value_size": v.size,
        "heads": k.heads,
        "groups": groups,
        "length": q.length,
        "scale": scale,
    }
    flags = set()
    for index, name in ((PAST, "past_state"), (DECAY, "decay"), (BETA, "beta")):
        if view.has(index):
            tensors[name] = view.node.inputs[index]
            flags.add(name.split("_")[0].upper())
    narrow = view.has(DECAY) and _decay_width(view, k) == k.heads
    if view.has(DECAY):
        words["decay_head"] = 1 if narrow else size
    if view.has(BETA):
        words["rates"] = _rates(view)
    tensors |= dict(zip(("y", "present_state"), view.node.outputs, strict=True))
    call = KernelCall(
        "attention_linear",
        tensors,
        words,
        linear(columns),
        frozenset(flags),
        _text(view, size, narrow),
        trips=q.length * (groups + 1),
    )
    return [(call,)]


def _flops(view: NodeView) -> Dim:
    q, k, v = _operands(view)
    return q.batch * q.length * k.size * v.size * 2 * (k.heads * 3 + q.heads)


register(
    OpDef(
        "LinearAttention",
        27,
        infer=_infer,
        agree=_agree,
        lower=_lower,
        supports=_supports,
        limits=f"keys of unknown size, or of more than {MAX_SIZE} values",
        epilogue=True,
        flops=_flops,
        tolerance=2e-5,
    )
)


def _infer_causal(view: InferView) -> list[ValueType]:
    x, weight = view.type(0), view.shape(1)
    if x.shape is None or len(x.shape) != 3 or len(weight) != 3:
        raise ShapeError(f"{view.describe()}: input and weight must be of rank 3")
    view.require([at_least(weight[2], 1, f"the weights of {view.describe()} have taps")])
    view.require(alike(view, weight[:2], (x.shape[1], 1)))
    state = TensorType(x.dtype, (*x.shape[:2], weight[2] - 1))
    if view.has(BIAS):
        view.require(alike(view, view.shape(BIAS), x.shape[1:2]))
    if view.has(PAST_INPUT):
        view.require(alike(view, view.shape(PAST_INPUT), state.shape or ()))
    if str(view.attr("activation", "none")) not in ("none", "silu", "swish"):
        activation = view.attr("activation")
        raise ShapeError(f"{view.describe()}: there is no activation {activation!r}")
    return [x, view.type(3) if view.has(3) else state]


register(OpDef("CausalConvWithState", 27, infer=_infer_causal))
