"""Faults to plant: wrong shaders, lowerings, code, passes, buffers, conversions and NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import engine.passes as pipeline
from cpu_fallback import registry
from engine import codegen, ops, planner
from engine.ir import Graph, Node
from engine.layout import Storage
from engine.memory import Lifetime, MemoryPlan, assign
from engine.passes import PassResult
from engine.runtime.recorder import Recorder
from engine.shader import kernel as kernels

Patch = pytest.MonkeyPatch


def clear_rendered() -> Iterator[None]:
    """Kernels are kept from call to call: not those of a plant."""
    kernels._render.cache_clear()
    yield
    kernels._render.cache_clear()


def shader(patch: Patch, stem: str, old: str, new: str) -> None:
    """A shader file with another text."""
    plain = kernels.resolve

    def planted(name: str, *more: Any) -> Any:
        text, seen = plain(name, *more)
        if name != stem:
            return text, seen
        assert old in text, f"{stem}.wgsl has no {old!r}"
        return text.replace(old, new), seen

    patch.setattr(kernels, "resolve", planted)


def expression(patch: Patch, op_type: str, expr: str) -> None:
    """An elementwise operator with another expression."""
    key, form = ("", op_type), ops.lookup(op_type)
    assert form is not None and form.elementwise is not None
    wrong = replace(form, elementwise=replace(form.elementwise, expr=expr))
    patch.setitem(ops._REGISTRY, key, [wrong])


def lowering(patch: Patch, op_type: str, change: Callable[[ops.KernelCall], Any]) -> None:
    """An operator whose kernel calls are changed."""
    key, form = ("", op_type), ops.lookup(op_type)
    assert form is not None and form.lower is not None
    lower = form.lower

    def planted(view: ops.Lowering) -> list[ops.Stage]:
        return [tuple(change(call) for call in stage) for stage in lower(view)]

    patch.setitem(ops._REGISTRY, key, [replace(form, lower=planted)])


def generated(patch: Patch, wrong: Callable[[str, bool, int], str]) -> None:
    """Generated code that is changed: text, whether there is an anchor, and how many terms."""
    plain = codegen._function

    def planted(entry: str, build: Any, terms: Any, start: str | None, *more: Any) -> str:
        return wrong(plain(entry, build, terms, start, *more), start is not None, len(terms))

    patch.setattr(codegen, "_function", planted)


def loaded(patch: Patch, old: str, new: str) -> None:
    """Code that is generated in the place of loads, with another text."""
    plain = codegen._text

    def planted(entry: str, lines: Any) -> str:
        text = plain(entry, lines)
        return text.replace(old, new) if entry.startswith("fn load") else text

    patch.setattr(codegen, "_text", planted)


def in_pass(patch: Patch, name: str, wrong: Callable[[Graph, Graph], Graph]) -> None:
    """A pass whose result, where it changed anything, is changed: from before and after."""
    steps = []
    for step in pipeline.PIPELINE:
        if step.name == name:
            step = replace(step, function=_planted_pass(step.function, wrong))
        steps.append(step)
    patch.setattr(pipeline, "PIPELINE", tuple(steps))


def _planted_pass(
    plain: Callable[[Graph], PassResult], wrong: Callable[[Graph, Graph], Graph]
) -> Callable[[Graph], PassResult]:
    def planted(graph: Graph) -> PassResult:
        result = plain(graph)
        if not result.applied:
            return result
        return replace(result, graph=wrong(graph, result.graph))

    return planted


def map_nodes(graph: Graph, change: Callable[[Node], Node]) -> Graph:
    """A graph with changed nodes, those of bodies too."""

    def inside(node: Node) -> Node:
        bodies = {name: map_nodes(body, change) for name, body in node.bodies.items()}
        return change(node.replace(attrs={**node.attrs, **bodies}))

    return graph.replace(nodes=tuple(map(inside, graph.nodes)))


def new_constants(before: Graph, after: Graph, factor: float) -> Graph:
    """Float constants that a pass made, times a factor."""
    values = dict(after.values)
    for name, value in after.values.items():
        old = before.values.get(name)
        fresh = value.constant is not None and (old is None or old.constant is not value.constant)
        if fresh and value.constant is not None and value.constant.dtype == np.float32:
            values[name] = value.replace(constant=value.constant * np.float32(factor))
    return after.replace(values=values)


def short_life(patch: Patch, name: str) -> None:
    """A value whose buffer is given away once the step after it has run."""

    def planted(lifetimes: list[Lifetime], *more: Any) -> MemoryPlan:
        return assign(
            [replace(v, last=v.first + 1) if v.name == name else v for v in lifetimes], *more
        )

    patch.setattr(planner, "assign", planted)


def upload(patch: Patch, shape: tuple[int, ...]) -> None:
    """Arrays of one shape are off by one when they are uploaded."""
    plain = Storage.to_device

    def planted(self: Storage, array: Any) -> Any:
        return plain(self, array + 1 if array.shape == shape else array)

    patch.setattr(Storage, "to_device", planted)


def download(patch: Patch) -> None:
    """Outputs are off by one when they are read back."""
    plain = Recorder.collect

    def planted(self: Recorder, context: Any, values: tuple[str, ...]) -> None:
        wanted = [n for n in values if n in context.submitted]
        plain(self, context, values)
        context.host.update((n, context.host[n] + 1) for n in wanted)

    patch.setattr(Recorder, "collect", planted)


def numpy_function(patch: Patch, op_type: str, wrong: Callable[[Any], Any]) -> None:
    """A NumPy function whose result is changed."""
    versions = registry._OPS["", op_type]
    planted = {v: replace(op, function=_then(op.function, wrong)) for v, op in versions.items()}
    patch.setitem(registry._OPS, ("", op_type), planted)


def _then(function: Callable[..., Any], wrong: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda *inputs, **attrs: wrong(function(*inputs, **attrs))
