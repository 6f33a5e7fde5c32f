"""Splits: the device of each node, and the splits that a graph could have besides."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from engine.choice import choose
from engine.costs import DeviceProfile
from engine.fusion_rules import Weigh, is_elementwise, rule_for
from engine.ir import Graph
from engine.liveness import input_symbols, views_of
from engine.ops import YES, Support, no
from engine.options import Options
from engine.partition import Partition, partition
from engine.parts import NO_PARTS, RULE, Parts, find_parts
from engine.passes import PipelineResult
from engine.placement import CostModel, MayFuse, build_cost_model
from engine.plan import Append
from engine.planner import view_roots
from engine.prologue import PrologueCosts
from engine.ranges import Ranges, ranges
from engine.support import gpu_support, roles
from engine.target import Target


def support_of(
    graph: Graph, options: Options, target: Target, binding: Mapping[str, int]
) -> tuple[Ranges, Mapping[str, Support]]:
    """Ranges of integers, and whether the GPU can run each node in a call of these options."""
    checked = [n for n in graph.inputs if n not in options.wide_inputs]
    intervals = ranges(graph, checked=checked, held=options.held_inputs)
    support = gpu_support(graph, target, ranges=intervals, binding=binding)
    return intervals, {**support, **_refusals(support, options)}


def _refusals(support: Mapping[str, Support], options: Options) -> Mapping[str, Support]:
    """Nodes that this call's values or sizes keep off the GPU."""
    return {k: no(reason) for k, reason in options.refused.items() if k in support}


def place(
    graph: Graph,
    support: Mapping[str, Support],
    options: Options,
    target: Target,
    profile: DeviceProfile,
    binding: Mapping[str, int],
    kept: Collection[str] | None = None,
) -> Partition:
    """The device of each node, by the options, or the nodes `kept` on the GPU and no others."""
    return partition(
        graph,
        support,
        profile,
        device=options.device,
        no_gpu=options.no_gpu,
        may_fuse=_may_fuse(graph, options, PrologueCosts(graph, binding, target, profile)),
        anchors=_anchors(graph),
        in_place=_in_place(graph, support, options, target, binding),
        binding=binding,
        target=target,
        kept=kept,
    )


def _may_fuse(graph: Graph, options: Options, weigh: Weigh) -> MayFuse:
    return lambda a, b: rule_for(graph, a, b, weigh) not in (None, *options.disable)


def _anchors(graph: Graph) -> frozenset[str]:
    """Nodes that are no expressions: each has a kernel of its own."""
    return frozenset(n.key for n in graph.nodes if not is_elementwise(n))


def parts_of(
    graph: Graph,
    options: Options,
    target: Target,
    on_gpu: Collection[str],
    live: Collection[str],
    roots: Mapping[str, str],
    symbols: Sequence[str],
    binding: Mapping[str, int],
    appends: Mapping[str, Append],
) -> Parts:
    """What lies within what, where the nodes `on_gpu` are there and those `live` run."""
    if RULE in options.disable:
        return NO_PARTS
    return find_parts(
        graph,
        lambda n: n.key in on_gpu and n.key not in appends,
        lambda n: n.key in live,
        target,
        roots=roots,
        symbols=symbols,
        binding=binding,
        apart={n for a in appends.values() for n in (a.past, a.grown)},
    )


def _in_place(
    graph: Graph,
    support: Mapping[str, Support],
    options: Options,
    target: Target,
    binding: Mapping[str, int],
) -> frozenset[str]:
    """Nodes that no kernel runs for, if all that can be is on the GPU."""
    symbols = input_symbols(graph)
    views = views_of(graph, options, symbols)
    duties = roles(graph, support)
    possible = {n.key for n in graph.nodes if support[n.key].ok and n.key not in duties} - views
    runs = {n.key for n in graph.nodes if duties.get(n.key) != "folded"}
    roots = view_roots(graph, lambda n: n.key in views)
    found = parts_of(graph, options, target, possible, runs, roots, symbols, binding, {})
    return frozenset(key for key, copied in found.copied.items() if not copied)


def split_ms(
    passed: PipelineResult,
    options: Options,
    target: Target,
    profile: DeviceProfile,
    binding: Mapping[str, int],
    on_gpu: Collection[str],
) -> tuple[float, float]:
    """Predicted milliseconds at `binding` of the split that has the nodes `on_gpu` on the GPU, as
    far as they can be there, and of the best one."""
    model = Choices(passed, options, target, profile, binding).model()
    kept = {i for i, n in enumerate(model.nodes) if n.key in on_gpu} - model.only_cpu
    return model.total_ns(kept) / 1e6, model.total_ns(choose(model, target.software)) / 1e6


class Choices:
    """The placements that a graph could have: what they cost, and what they would be if the GPU
    could do more.

    Args: as `compile_graph` takes them.
    """

    def __init__(
        self,
        passed: PipelineResult,
        options: Options,
        target: Target,
        profile: DeviceProfile,
        binding: Mapping[str, int],
    ) -> None:
        self.graph = passed.graph
        self.options = options
        self.target = target
        self.profile = profile
        self.binding = binding
        _, self.support = support_of(self.graph, options, target, binding)
        self._weigh = PrologueCosts(self.graph, binding, target, profile)

    def model(self) -> CostModel:
        """What each node costs on either device, and each transfer."""
        return build_cost_model(
            self.graph,
            self.support,
            roles(self.graph, self.support),
            self.profile,
            may_fuse=_may_fuse(self.graph, self.options, self._weigh),
            anchors=_anchors(self.graph),
            in_place=_in_place(self.graph, self.support, self.options, self.target, self.binding),
            binding=self.binding,
            target=self.target,
        )

    def kept(self, keys: Collection[str]) -> Partition:
        """The partition that has the nodes `keys` on the GPU, and no others."""
        return self._place(self.support, keys)

    def lifted(self, keys: Collection[str]) -> Partition:
        """The partition if the GPU could run the nodes `keys` too."""
        return self._place({**self.support, **dict.fromkeys(keys, YES)})

    def _place(
        self, support: Mapping[str, Support], kept: Collection[str] | None = None
    ) -> Partition:
        chosen = self.options, self.target, self.profile, self.binding
        return place(self.graph, support, *chosen, kept)
