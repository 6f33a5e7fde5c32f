"""What a pass is: a pure function of a graph that says what it changed and what it nearly did."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Protocol

from engine.dims import Dim, Guard
from engine.ir import Graph
from engine.records import dataclass


@dataclass(frozen=True)
class PassResult:
    """What a pass made of a graph.

    Attributes:
        graph: the same object if nothing was changed.
        applied: one line per change, naming the nodes: "Conv conv1 + BatchNormalization bn1".
        near_misses: one line per place where the pattern was there but a condition failed, with
            that condition.
        guards: conditions on symbols under which the new graph is right.
    """

    graph: Graph
    applied: tuple[str, ...] = ()
    near_misses: tuple[str, ...] = ()
    guards: tuple[Guard, ...] = ()

    def then(self, later: PassResult) -> PassResult:
        """This result followed by `later`, which started from `self.graph`."""
        return PassResult(
            later.graph,
            self.applied + later.applied,
            tuple(dict.fromkeys(self.near_misses + later.near_misses)),
            merge_guards(self.guards, later.guards),
        )


def merge_guards(*groups: Iterable[Guard]) -> tuple[Guard, ...]:
    """All guards, each condition once, with the first reason given for it."""
    found: dict[tuple[str, Dim], Guard] = {}
    for guard in chain(*groups):
        found.setdefault((guard.kind, guard.expr), guard)
    return tuple(found.values())


def in_every_body(graph: Graph, rewrite: Callable[[Graph], PassResult]) -> PassResult:
    """Runs `rewrite` on the bodies of a graph, innermost first, and on the graph itself."""
    nodes, results = [], []
    for node in graph.nodes:
        if not node.bodies:
            nodes.append(node)
            continue
        attrs = dict(node.attrs)
        for name, body in node.bodies.items():
            result = in_every_body(body, rewrite)
            if result.graph is not body:
                attrs[name] = result.graph
                results.append(result)
        if any(attrs[k] is not node.attrs[k] for k in attrs):
            bodies = (b for b in attrs.values() if isinstance(b, Graph))
            captures = dict.fromkeys(n for b in bodies for n in b.captures)
            node = node.replace(attrs=attrs, captures=tuple(captures))
        nodes.append(node)
    changed = graph.replace(nodes=tuple(nodes)) if results else graph
    total = rewrite(changed)
    return PassResult(
        total.graph,
        tuple(line for r in (*results, total) for line in r.applied),
        tuple(line for r in (*results, total) for line in r.near_misses),
        merge_guards(*(r.guards for r in (*results, total))),
    )


class Pass(Protocol):
    """A pass; values that it adds get their types from it or from the next `infer`."""

    def __call__(self, graph: Graph, /) -> PassResult: ...


@dataclass(frozen=True)
class PipelineResult:
    """What all passes together made of a graph.

    Attributes:
        graph: canonical, typed, optimised.
        results: pass name to what it did, over all rounds (`graph` is that after its last run).
        guards: conditions on symbols under which `graph` is right.
    """

    graph: Graph
    results: Mapping[str, PassResult]
    guards: tuple[Guard, ...]
