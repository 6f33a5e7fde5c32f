"""Types of all values, and folding of constants: one pass, node by node, folding in between.

Sizes are symbolic: `OpDef.infer` works on dims, `OpDef.evaluate` on the contents of small integer
tensors, so that chains of Shape, Gather, Concat and Reshape come out as expressions. An operator
without a rule is given to onnx's own inference (`engine.passes.defaults`); where that takes
numbers, with those of `binding`, under guards. What data decide becomes a fresh symbol.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from cpu_fallback import registry
from engine import dims, dtypes, ops
from engine.dims import Dim, Guard
from engine.errors import ModelError, ShapeError, in_words
from engine.exporter import operand_problem
from engine.importer.opsets import PINNED, since_version
from engine.ir import Graph, Node, TensorType, Value, ValueType, label
from engine.ops._agreement import requirements
from engine.ops._fit import is_fits, node_of
from engine.passes import bodies
from engine.passes.base import PassResult, merge_guards
from engine.passes.bound_sizes import bound_sizes
from engine.passes.defaults import UNKNOWN, is_complete, onnx_kinds, probe
from engine.passes.symbols import (
    SameSizes,
    bind_type,
    dims_of,
    is_typed,
    substitute_type,
    symbols_in,
)

SMALL_SIZE = 65536
MAX_NBYTES = 1 << 29
"""Weights that are made of less, such as zeros, are not larger: a call makes those."""
_GROWTH = 4
_WEIGHT_OPS = frozenset({"Cast", "CastLike", "ConstantOfShape", "DequantizeLinear"})
Kinds = list[ValueType | None]


def infer(graph: Graph, binding: Mapping[str, int] | None = None) -> PassResult:
    """Types and, where it can be told, contents of every value; constant nodes are folded away.

    Values that have a type keep it. If with a constant condition => the nodes of its branch.

    Args:
        graph: inputs have types.
        binding: sizes of symbols, for operators without a symbolic rule.

    Raises: ShapeError for a node whose operands contradict each other; ModelError for operands of
        types that the operator does not take.

    What only sizes that data decide could break is no guard: it is checked where they are bound.
    """
    state = Inference(binding or {}, symbols_in(graph))
    done = state.run(graph, {})
    inputs = (graph.tensor(n) for n in graph.inputs)
    given = state.binding.keys() | {s for t in inputs if t is not None for s in dims_of(t)}
    return PassResult(
        done,
        tuple(state.applied),
        tuple(dict.fromkeys(state.near_misses)),
        merge_guards(
            g for g in (*state.guards, *state.sizes.guards) if dims.symbols_of(g.expr) <= given
        ),
    )


class Inference:
    """The state of one run of the pass over a graph and its bodies."""

    def __init__(self, binding: Mapping[str, int], taken: frozenset[str]) -> None:
        self.binding = binding
        self.guards: list[Guard] = []
        self.sizes = SameSizes(binding)
        self.applied: list[str] = []
        self.near_misses: list[str] = []
        self.minted: list[str] = []
        self.told: set[str] = set()
        self._taken = set(taken)

    def fresh(self, name: str) -> Dim:
        """A new symbol, named like `name`."""
        candidate, count = name, 1
        while candidate in self._taken:
            candidate, count = f"{name}.{count}", count + 1
        self._taken.add(candidate)
        self.minted.append(candidate)
        return dims.symbol(candidate)

    def fresh_type(self, kind: ValueType | None, name: str) -> ValueType | None:
        """`kind` with a new symbol for every size that is not a number."""
        return substitute_type(
            kind, lambda axis, d: d if isinstance(d, int) else self.fresh(f"{name}_{axis}")
        )

    def run(self, graph: Graph, outer: Mapping[str, Value]) -> Graph:
        """`graph` with everything inferred; `outer` holds what it may capture."""
        values = dict(graph.values)
        for name in graph.captures:
            values[name] = outer[name]
        work = graph.replace(nodes=(), values=values)
        self.told |= graph.told
        todo = list(reversed(graph.nodes))
        kept: list[Node] = []
        while todo:
            node = todo.pop()
            if bodies.has_rule(node):
                node, inlined = bodies.infer_bodies(self, node, values)
                if inlined is not None:
                    self.applied.append(f"If {node.title!r} has a constant condition")
                    todo.extend(reversed(inlined))
                    continue
            elif is_fits(node):
                node = self._required(work, node, values)
            elif not all(is_typed(values[n]) for n in node.writes):
                node = self._explicit_axes(node, values)
                self._set_types(work, node, values)
            if not self._fold(work, node, values):
                kept.append(node)
        self._retype(graph, values)
        used = {n for node in kept for n in node.reads} | set(graph.outputs)
        captures = tuple(n for n in graph.captures if n in used)
        told = frozenset(self.told)
        if (kept, values, captures, told) == (
            [*graph.nodes],
            graph.values,
            graph.captures,
            graph.told,
        ):
            return bound_sizes(graph)
        done = graph.replace(captures=captures, told=told).rebuild(kept, values.values())
        return bound_sizes(done)

    def _retype(self, graph: Graph, values: dict[str, Value]) -> None:
        """Gives sizes that are the same one expression; those of inputs are what a call says."""
        if self.sizes.guards:
            for name in values.keys() - {*graph.inputs, *graph.captures}:
                kind = self.sizes.retyped(values[name].type)
                if kind != values[name].type:
                    values[name] = values[name].replace(type=kind)

    def _required(self, work: Graph, node: Node, values: dict[str, Value]) -> Node:
        """Adds what the operands of an operator must fulfil that is written out in others.

        Returns: the Identity that the node is else. Raises: ShapeError for operands that do not
            fit.
        """
        if not self._vague(node, values):
            view = ops.InferView(work, node_of(node), lambda hint: self.fresh(hint))
            with in_words(view.describe):
                try:
                    requirements(view)
                except ShapeError as error:
                    raise view.named(error) from error
            self.guards += [g for g in view.guards if g.known is None]
        source, (result,) = node.inputs[0], node.outputs
        values[result] = values.get(result, Value(result)).replace(type=values[source].type)
        since = since_version("Identity", "", PINNED) or 1
        return node.replace(
            op_type="Identity", domain="", since_version=since, inputs=(source,), attrs={}
        )

    def _explicit_axes(self, node: Node, values: dict[str, Value]) -> Node:
        """Squeeze without axes, where a size decides about the rank => Squeeze with axes, under
        guards."""
        kind = values[node.inputs[0]].tensor if node.op_type == "Squeeze" else None
        if node.input(1) or node.domain or kind is None or kind.shape is None:
            return node
        open_dims = [d for d in kind.shape if not isinstance(d, int)]
        if not open_dims or not dims_of(kind) <= self.binding.keys():
            return node
        sizes = [dims.evaluate(d, self.binding) for d in kind.shape]
        for dim, size in zip(kind.shape, sizes, strict=True):
            guard = dims.equal(dim, 1) if size == 1 else dims.at_least(dim, 2)
            if size != 0 and guard.known is None:
                why = f"{guard}: {node.op_type} {node.name or node.key!r} removes sizes of 1"
                self.guards.append(dataclasses.replace(guard, why=why))
            elif guard.known is None:
                self.guards.append(dims.equal(dim, 0))
        name = f"{node.key}/axes"
        while name in values:
            name += "_"
        axes = np.array([i for i, size in enumerate(sizes) if size == 1], np.int64)
        values[name] = Value(name, TensorType(dtypes.INT64, axes.shape), axes)
        return node.replace(inputs=(node.inputs[0], name))

    def _set_types(self, work: Graph, node: Node, values: dict[str, Value]) -> None:
        problem = operand_problem(node, [values[n].type if n else None for n in node.inputs])
        if problem is not None:
            raise ModelError(f"{node.op_type} {node.name or node.key!r}: {problem}")
        rule = ops.definition(node)
        found: Sequence[ValueType | None] | None = None
        if rule is not None and rule.infer is not None:
            view = ops.InferView(
                work, node, lambda hint: self.fresh(f"{node.key}_{hint}"), self.sizes.same
            )
            try:
                with in_words(view.describe):
                    found = rule.infer(view)
                self.guards += [g for g in view.guards if g.known is None]
            except ShapeError as error:
                if not self._vague(node, values):
                    raise view.named(error) from error
            found = self._by_numbers(work, node, values, rule.infer, found)
        if found is None:
            found = self._by_onnx(work, node, values)
        for name, kind in zip(node.outputs, found, strict=False):
            if name and kind is not None:
                values[name] = values.get(name, Value(name)).replace(type=kind)

    def _by_numbers(
        self,
        work: Graph,
        node: Node,
        values: Mapping[str, Value],
        rule: ops.Infer,
        found: Sequence[ValueType | None] | None,
    ) -> Sequence[ValueType | None] | None:
        """What a rule says for the sizes of `binding` (under guards), if symbols leave a rank
        open."""
        if found is None or all(is_typed(Value("", k)) for k in found) or self._vague(node, values):
            return found
        symbols = self._symbols(node, values)
        if not symbols or not symbols <= self.binding.keys():
            return found
        bound = {**values, **{n: self._bound(values[n]) for n in node.inputs if n}}
        view = ops.InferView(
            work.replace(values=bound), node, lambda hint: self.fresh(f"{node.key}_{hint}")
        )
        with in_words(view.describe):
            sharper = rule(view)
        if not all(is_typed(Value("", k)) for k in sharper):
            return found
        self._guard(node, symbols)
        return sharper

    @staticmethod
    def _symbols(node: Node, values: Mapping[str, Value]) -> frozenset[str]:
        """The symbols in the types and contents of a node's inputs."""
        found: set[str] = set()
        for name in filter(None, node.inputs):
            found |= dims_of(values[name].type)
            content = values[name].dims
            if content is not None:
                found.update(*(dims.symbols_of(d) for d in content.reshape(-1)))
        return frozenset(found)

    def _bound(self, value: Value) -> Value:
        """A value with the numbers that its type and content have under the binding."""
        kind = None if value.type is None else bind_type(value.type, self.binding)
        if value.dims is None or not isinstance(kind, TensorType):
            return value.replace(type=kind)
        numbers = [dims.evaluate(d, self.binding) for d in value.dims.reshape(-1)]
        array = np.array(numbers, kind.dtype.numpy).reshape(value.dims.shape)
        return value.replace(type=kind, dims=None, constant=array)

    @staticmethod
    def _vague(node: Node, values: Mapping[str, Value]) -> bool:
        """Whether an input is of unknown type or rank, which rules may refuse."""
        return not all(is_typed(values[n]) for n in node.inputs if n)

    def _by_onnx(self, work: Graph, node: Node, values: Mapping[str, Value]) -> Kinds:
        """Types from onnx's inference: what holds for all sizes, else those of the binding, under
        guards."""
        inputs = {n: values[n] for n in node.inputs if n}
        if any(v.type is None for v in inputs.values()):
            return [None] * len(node.outputs)
        symbols = self._symbols(node, values)
        if not symbols:
            return self._reveal(node, onnx_kinds(node, inputs, work.opset))
        found = probe(node, inputs, work.opset)
        if not all(is_complete(k) for k, n in zip(found, node.outputs, strict=True) if n) and (
            symbols <= self.binding.keys()
        ):
            bound = {n: self._bound(v) for n, v in inputs.items()}
            sharper = onnx_kinds(node, bound, work.opset)
            if sharper != found:
                self._guard(node, symbols)
            found = sharper
        return self._reveal(node, found)

    def _reveal(self, node: Node, found: Kinds) -> Kinds:
        """Types with a symbol for each size that was left open."""
        kinds: Kinds = []
        for kind, name in zip(found, node.outputs, strict=True):

            def size(axis: int, dim: Dim, name: str = name) -> Dim:
                return self.fresh(f"{name}_{axis}") if dim == UNKNOWN else dim

            kinds.append(substitute_type(kind, size))
        return kinds

    def _guard(self, node: Node, symbols: frozenset[str]) -> None:
        reason = f"{node.op_type} {node.name or node.key!r} has no symbolic shape rule"
        for symbol in sorted(symbols):
            size = self.binding[symbol]
            why = f"{symbol} == {size}: {reason}"
            self.guards.append(dims.equal(dims.symbol(symbol), size, why))

    def _fold(self, work: Graph, node: Node, values: dict[str, Value]) -> bool:
        """Gives outputs their contents; whether all of them are constants now."""
        if not node.bodies:
            self._evaluate(work, node, values)
            if self._foldable(node, values):
                self._compute(node, values)
        if any(values[n].constant is None for n in node.writes):
            return False
        if self.told.intersection(node.reads):
            self.told.update(node.writes)
        self.applied.append(f"{label(node)} is constant")
        return True

    def _evaluate(self, work: Graph, node: Node, values: dict[str, Value]) -> None:
        rule = ops.definition(node)
        if rule is None or rule.evaluate is None:
            return
        if all(values[n].dims is not None or values[n].constant is not None for n in node.writes):
            return
        view = ops.NodeView(work, node)
        with in_words(view.describe):
            contents = rule.evaluate(view) or ()
        told = dict(zip(node.outputs, contents, strict=False))
        # a node either goes, with all it writes, or stays
        numbers = all(
            (content := told.get(n)) is not None and dims.is_static(content.reshape(-1))
            for n in node.writes
        )
        for name, content in told.items():
            if not name or content is None:
                continue
            value, kind = values[name], values[name].tensor
            if kind is None:
                continue
            if kind.static_shape is None or kind.static_shape != content.shape:
                kind = TensorType(kind.dtype, content.shape)
            if numbers:
                try:
                    array = content.astype(kind.dtype.numpy)
                except OverflowError:
                    continue
                array.flags.writeable = False
                values[name] = value.replace(type=kind, constant=array, dims=None)
            else:
                values[name] = value.replace(type=kind, dims=content)

    def _foldable(self, node: Node, values: Mapping[str, Value]) -> bool:
        if not node.writes:
            return False
        if node.op_type == "Dropout" and node.input(2):
            training = values[node.input(2)].constant
            if training is None or training.any():
                return False
        elif ops.is_random(node):
            return False
        rule = ops.definition(node)
        if rule is not None and self._fills(rule, node):
            return False
        if all(values[n].constant is not None for n in node.writes):
            return False
        if any(values[n].constant is None for n in node.inputs if n):
            return False
        return self._worth(node, values)

    def _fills(self, rule: ops.OpDef, node: Node) -> bool:
        """Whether a kernel makes a tensor of sizes that this call has told, which may change."""
        places = range(len(node.inputs))
        sized = rule.lower is not None and all(i in rule.shape_inputs for i in places)
        return sized and bool(self.told.intersection(node.inputs))

    @staticmethod
    def _worth(node: Node, values: Mapping[str, Value]) -> bool:
        """Whether the outputs are small, or not much larger than the weights they come from."""
        given = sum(
            a.nbytes for n in set(node.inputs) if n and (a := values[n].constant) is not None
        )
        size = nbytes = 0
        for name in node.writes:
            kind = values[name].tensor
            if kind is None:
                return False
            shape = kind.static_shape
            if shape is None:
                return given <= SMALL_SIZE
            count = int(np.prod(shape, dtype=object))
            size, nbytes = size + count, nbytes + count * kind.dtype.nbytes
        weights = node.op_type in _WEIGHT_OPS and nbytes <= MAX_NBYTES
        return size <= SMALL_SIZE or nbytes <= _GROWTH * given or weights

    def _compute(self, node: Node, values: dict[str, Value]) -> None:
        inputs = [values[n].constant if n else None for n in node.inputs]
        what = f"{node.op_type} {node.name or node.key}"
        try:
            results = registry.run(
                node.op_type,
                node.domain,
                node.since_version,
                node.attrs,
                inputs,
                len(node.outputs),
            )
        except (
            registry.UnsupportedOp,
            ValueError,
            TypeError,
            ArithmeticError,
            IndexError,
        ) as error:
            self.near_misses.append(f"{what} has constant inputs and could not be run: {error}")
            return
        for name, array in zip(node.outputs, results, strict=True):
            if not name:
                continue
            kind = values[name].tensor
            if not isinstance(array, np.ndarray):
                return
            dtype = dtypes.from_numpy(array.dtype) if kind is None else kind.dtype
            if dtype is not dtypes.STRING and array.dtype != dtype.numpy:
                raise ModelError(f"{what} gives {array.dtype} where {dtype} is due")
            array.flags.writeable = False
            values[name] = values[name].replace(
                type=TensorType(dtype, array.shape), constant=array, dims=None
            )
