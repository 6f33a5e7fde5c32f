"""What may run where: which nodes the GPU can take, and which need no device at all.

`gpu_support` makes the checks that hold for every operator (dtypes, ranks, limits, int64 ranges),
then asks the operator's own `supports`. `roles` finds the nodes that only work out sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Literal

from engine import dims, ops
from engine.costs import gpu_element_nbytes
from engine.dims import Dim, Guard
from engine.errors import ShapeError, in_words
from engine.ir import Graph, Node, Shape, is_control_flow
from engine.ops import NodeView, OpDef, Support
from engine.ops._agreement import agreements
from engine.ranges import Ranges
from engine.target import Target

HOST_SHAPE_SIZE = 64
"""Most elements of a value that counts as a shape."""

Role = Literal["folded", "host-shape"]
_MIB = 1 << 20


def gpu_support(
    graph: Graph,
    target: Target,
    *,
    ranges: Ranges,
    binding: Mapping[str, int] | None = None,
) -> dict[str, Support]:
    """Node key to whether a GPU with the limits of `target` can run the node.

    A guard that `binding` breaks is a refusal; one that it leaves open stays in the answer.
    """
    found = {node.key: _support(NodeView(graph, node, target), ranges) for node in graph.nodes}
    wanted = dict.fromkeys(g.expr for s in found.values() for g in s.guards)
    bound = [expr for expr in wanted if dims.symbols_of(expr) <= (binding or {}).keys()]
    numbers = dict(zip(bound, dims.Table(bound).evaluate(binding or {}), strict=True))
    return {key: _decide(support, numbers, binding or {}) for key, support in found.items()}


def _support(view: NodeView, ranges: Ranges) -> Support:
    node = view.node
    if is_control_flow(node):
        return ops.no("control flow is driven by the host")
    op = ops.definition(node)
    if op is None or not op.on_gpu:
        return ops.no(f"there is no GPU kernel for {describe_op(node)}")
    guards: list[Guard] = []
    for found in _checks(view, op, ranges):
        if isinstance(found, str):
            return ops.no(found)
        guards.append(found)
    try:
        with in_words(view.describe):
            guards += agreements(view)
            own = op.supports(view) if op.supports is not None else ops.YES
    except ShapeError as error:
        return ops.no(str(error))
    return Support(own.ok, own.reason, (*guards, *own.guards)) if own.ok else own


def describe_op(node: Node) -> str:
    """The operator for messages: "LSTM-14" or "com.microsoft:FusedMatMul-1"."""
    domain = f"{node.domain}:" if node.domain else ""
    return f"{domain}{node.op_type}-{node.since_version}"


def _checks(view: NodeView, op: OpDef, ranges: Ranges) -> Iterator[str | Guard]:
    """Reasons against the GPU, and guards, that follow from the operands of any operator."""
    node = view.node
    for index in op.shape_inputs:
        if view.has(index) and view.const(index) is None and view.dims(index) is None:
            yield f"its input {index} ({node.input(index)!r}) is not known when planning"
    inputs = ops.kernel_inputs(node)
    operands = tuple(dict.fromkeys((*inputs, *node.writes)))
    for name in operands:
        yield from _check_type(view.graph, name, op, is_input=name in inputs)
    for name in operands:
        yield from _check_size(view.graph, name, view.target)
        tensor = view.graph.tensor(name)
        if tensor is not None and tensor.dtype.name == "int64":
            fit = ranges.fits_int32(name)
            if not fit.ok:
                yield fit.how
            yield from fit.guards
    buffers = len({*ops.bound_inputs(view.graph, node), *node.writes}) + op.scratch
    limit = view.target.max_storage_buffers_per_shader_stage
    if not op.variadic and not op.view and buffers > limit:
        yield f"it needs {buffers} storage buffers, and a kernel may bind {limit}"


def _check_type(graph: Graph, name: str, op: OpDef, *, is_input: bool) -> Iterator[str]:
    """Outputs follow from the inputs, so `OpDef.dtypes` speaks about the inputs only."""
    tensor = graph.tensor(name)
    if tensor is None:
        yield f"{name!r} is not a tensor of known type"
    elif not tensor.dtype.wgsl:
        yield f"no kernel computes with {tensor.dtype} ({name!r})"
    elif is_input and tensor.dtype.name not in op.dtypes:
        yield f"its kernel does not take {tensor.dtype} ({name!r})"
    elif tensor.shape is None:
        yield f"the rank of {name!r} is unknown"
    elif len(tensor.shape) > ops.MAX_RANK:
        yield f"{name!r} has rank {len(tensor.shape)}, and kernels index at most {ops.MAX_RANK}"


def _check_size(graph: Graph, name: str, target: Target) -> Iterator[str | Guard]:
    tensor = graph.tensor(name)
    if tensor is None or tensor.shape is None:
        return
    limit = min(target.max_storage_buffer_binding_size, target.max_buffer_size)
    nbytes = _gpu_nbytes(tensor.shape, gpu_element_nbytes(graph, name))
    if isinstance(nbytes, int):
        if nbytes > limit:
            yield (
                f"{name!r} takes {nbytes / _MIB:.1f} MiB, more than the {limit / _MIB:.1f} MiB "
                "that one binding may hold"
            )
    else:
        why = f"{name!r} ({tensor}) takes at most {limit / _MIB:.1f} MiB"
        yield dims.at_least(limit, nbytes, why)


@lru_cache(maxsize=1024)
def _gpu_nbytes(shape: Shape, element: int) -> Dim:
    """Bytes of a buffer; cached, for a graph has few shapes and products of dims are slow."""
    return dims.product(shape) * element


def _decide(support: Support, numbers: Mapping[Dim, int], binding: Mapping[str, int]) -> Support:
    """Drops guards that always hold; refuses where one cannot hold, or not at `binding`.

    The latter refusal is right only while the guard is broken, so it carries the negation.
    """
    open_guards = []
    for guard in support.guards if support.ok else ():
        known = guard.known
        if known is False:
            return ops.no(f"it needs that {guard}, which no size fulfils")
        number = numbers.get(guard.expr)
        if number is not None and (number != 0 if guard.kind == "zero" else number < 0):
            symbols = sorted(dims.symbols_of(guard.expr))
            sizes = ", ".join(f"{name}={binding[name]}" for name in symbols)
            reason = f"it needs that {guard}, which is not so at {sizes}"
            return Support(False, reason, (guard.negation,))
        if known is None:
            open_guards.append(guard)
    return Support(support.ok, support.reason, strongest(open_guards))


def strongest(guards: Iterable[Guard]) -> tuple[Guard, ...]:
    """Guards that imply all the given ones: each condition once, of bounds alike the tightest."""
    kept: dict[Guard, None] = {}
    groups: dict[tuple[dims.Monomial, ...], list[Guard]] = {}
    seen = set()
    for guard in guards:
        if (guard.kind, guard.expr) in seen:
            continue
        seen.add((guard.kind, guard.expr))
        if guard.kind == "nonneg" and not isinstance(guard.expr, int):
            alike = tuple(monomial for monomial, _ in guard.expr.terms if monomial)
            group = groups.setdefault(alike, [])
            if any(_implies(other, guard) for other in group):
                continue
            for other in [g for g in group if _implies(guard, g)]:
                group.remove(other)
                del kept[other]
            group.append(guard)
        kept[guard] = None
    return tuple(kept)


def _implies(a: Guard, b: Guard) -> bool:
    """Whether `a.expr >= 0` makes `b.expr >= 0`."""
    lo, _ = dims.bounds(b.expr - a.expr)
    return lo is not None and lo >= 0


def roles(graph: Graph, support: Mapping[str, Support]) -> dict[str, Role]:
    """Node key to role, for the nodes that only work out sizes and indices.

    "folded": all outputs are known as constants or dims, and are read as `shape_inputs` only, or
    by other folded nodes; they are never run. "host-shape": all outputs are integers or bools of at
    most `HOST_SHAPE_SIZE` elements, made from inputs as small, and are read as `shape_inputs`, by
    other nodes of these roles, or by nodes that the GPU refuses.
    """
    found: dict[str, Role] = {}
    for node in reversed(graph.nodes):
        if is_control_flow(node) or ops.is_random(node):
            continue
        if any(graph.is_output(name) for name in node.writes):
            continue
        if _is_folded(graph, node, found):
            found[node.key] = "folded"
        elif _is_host_shape(graph, node, found, support):
            found[node.key] = "host-shape"
    return found


def _is_folded(graph: Graph, node: Node, found: Mapping[str, Role]) -> bool:
    values = [graph.values[name] for name in node.writes]
    if any(v.constant is None and v.dims is None for v in values):
        return False
    return all(
        found.get(reader.key) == "folded" or reads_shape_only(reader, name)
        for name in node.writes
        for reader in graph.consumers.get(name, ())
    )


def _is_host_shape(
    graph: Graph, node: Node, found: Mapping[str, Role], support: Mapping[str, Support]
) -> bool:
    for name in node.writes:
        tensor = graph.tensor(name)
        if tensor is None or not (tensor.dtype.is_integer or tensor.dtype.name == "bool"):
            return False
        if not _is_small(graph, name):
            return False
        for reader in graph.consumers.get(name, ()):
            wanted = reads_shape_only(reader, name) or reader.key in found
            if not wanted and support[reader.key].ok:
                return False
    if reads_no_content(node):
        return True
    return all(graph.constant(n) is not None or _is_small(graph, n) for n in node.reads)


def _is_small(graph: Graph, name: str) -> bool:
    tensor = graph.tensor(name)
    if tensor is None or tensor.size is None:
        return False
    most = dims.bounds(tensor.size)[1]
    return most is not None and most <= HOST_SHAPE_SIZE


def reads_shape_only(node: Node, name: str) -> bool:
    """Whether `node` reads `name` through its `shape_inputs` alone."""
    op = ops.definition(node)
    if op is None or name in node.captures:
        return False
    places = [i for i, n in enumerate(node.inputs) if n == name]
    return all(i in op.shape_inputs for i in places)


def reads_no_content(node: Node) -> bool:
    """Whether only the type of the inputs matters."""
    return node.domain == "" and node.op_type in ("Shape", "Size")
