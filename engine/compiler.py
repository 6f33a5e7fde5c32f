"""The compiler: all stages in order. Read this file first.

    Graph -> passes -> support -> partition -> fusion -> schedule (with transfers) -> Plan

Everything here is pure: no GPU is touched, and `wgpu` is not imported.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from engine.appends import appending_concats
from engine.checks import late_checks, view_checks
from engine.choice import choose
from engine.costs import DeviceProfile
from engine.dims import Dim, Guard, symbols_of
from engine.errors import EngineError
from engine.fusion import fuse
from engine.fusion_rules import RULES, Weigh, is_elementwise, rule_for
from engine.groups import Fusion
from engine.ir import Graph, Node
from engine.ops import YES, Support, definition, kernel_inputs, no
from engine.options import Options
from engine.partition import Partition, checked_inputs, partition
from engine.parts import NO_PARTS, RULE, Parts, find_parts
from engine.passes import PIPELINE, PipelineResult, run_passes
from engine.placement import CostModel, MayFuse, build_cost_model
from engine.plan import Append, Plan
from engine.planner import Written, build_plan, view_roots
from engine.progress import tell
from engine.prologue import PrologueCosts
from engine.ranges import Ranges, ranges
from engine.schedule import Task, binders, schedule
from engine.support import gpu_support, reads_no_content, roles, strongest
from engine.target import Target


def check_options(options: Options) -> None:
    """Raises: EngineError for an unknown pass or fusion rule, with what there is."""
    known = {step.name for step in PIPELINE} | {name for name, _ in RULES}
    unknown = sorted(options.disable - known)
    if unknown:
        raise EngineError(f"no pass or fusion rule is named {unknown}; there are {sorted(known)}")


def optimise(
    graph: Graph, options: Options, binding: Mapping[str, int], on_cpu: bool = False
) -> PipelineResult:
    """The graph after all passes. Raises: ShapeError, ModelError; see `run_passes`."""
    rules = {name for name, _ in RULES}
    return run_passes(graph, disable=options.disable - rules, binding=binding, on_cpu=on_cpu)


def compile_graph(
    passed: PipelineResult,
    options: Options,
    target: Target,
    profile: DeviceProfile,
    binding: Mapping[str, int],
    around: Collection[str] = (),
    written: Written = lambda kernel: None,
) -> Plan:
    """The plan of a graph.

    Args:
        passed: the result of `optimise`.
        options: what the user chose.
        target: limits and features of the device.
        profile: rates and latencies that "auto" decides by.
        binding: the sizes of the first call, for decisions only; the plan holds for all sizes
            that its guards allow.
        around: for a body, the symbols that the graphs around it have bound.
        written: is told each kernel that a call with the sizes of `binding` runs, as soon as it
            is written: the rest of the plan may take longer.

    Raises: EngineError kinds for what cannot be compiled, in words.
    """
    graph = passed.graph
    intervals, support = _support(graph, options, target, binding)
    tell("placing nodes on devices")
    placed = _place(graph, support, options, target, profile, binding)
    symbols = tuple(dict.fromkeys((*input_symbols(graph), *around)))
    views = _views(graph, options, symbols)
    roots = view_roots(graph, lambda n: n.key in views)
    on_gpu = {k for k, v in placed.verdicts.items() if v.device == "gpu"} - views
    live = _live_nodes(graph, on_gpu, views, symbols)
    appends = _appends(graph, options, on_gpu & live)
    parts = _parts(graph, options, target, on_gpu & live, live, roots, symbols, binding, appends)
    weigh = PrologueCosts(graph, binding, target, profile)
    fused = _fused(graph, options, target, on_gpu & live, appends, parts, roots, weigh)
    bound = _bound_symbols(graph, live, symbols)
    sizes = _known_contents(graph, bound)
    scheduled = _scheduled(graph, fused, live - on_gpu - views, sizes, symbols, roots)
    running = [n for n in graph.nodes if n.key in live]
    checks = [
        *late_checks([n for n in running if placed.on_gpu(n)], support, symbols, bound),
        *view_checks(graph, [n for n in running if n.key in views]),
    ]
    if fused.groups:
        tell("writing shaders")
    return build_plan(
        graph,
        target,
        placed,
        fused,
        scheduled,
        roots=roots,
        parts=parts,
        sizes=sizes,
        guards=_guards(passed, placed, support, options, symbols),
        checks=checks,
        symbols=symbols,
        binding=binding,
        profile=profile,
        appends=appends,
        checked_inputs=checked_inputs(graph, placed, intervals),
        tuning=options.tuning,
        written=written,
    )


def _fused(
    graph: Graph,
    options: Options,
    target: Target,
    on_gpu: Collection[str],
    appends: Mapping[str, Append],
    parts: Parts,
    roots: Mapping[str, str],
    weigh: Weigh,
) -> Fusion:
    """The groups of the nodes `on_gpu`, and what they save, what is done in place among it."""
    single = {*appends, *parts.copied}
    found = fuse(graph, lambda n: n.key in on_gpu, target, options.disable, single, roots, weigh)
    return replace(
        found,
        applied=found.applied + parts.applied,
        near_misses=found.near_misses + parts.near_misses,
    )


def _scheduled(
    graph: Graph,
    fused: Fusion,
    on_cpu: Collection[str],
    sizes: Collection[str],
    symbols: Sequence[str],
    roots: Mapping[str, str],
) -> tuple[Task, ...]:
    """The groups and the nodes `on_cpu` in order."""
    constants = {n for n, v in graph.values.items() if v.constant is not None}
    return schedule(
        graph,
        fused.groups,
        [n for n in graph.nodes if n.key in on_cpu],
        on_host={*graph.inputs, *constants, *sizes},
        symbols=symbols,
        root=lambda n: roots.get(n, n),
    )


def _guards(
    passed: PipelineResult,
    placed: Partition,
    support: Mapping[str, Support],
    options: Options,
    symbols: Collection[str],
) -> list[Guard]:
    """What the sizes of inputs must fulfil for the plan to hold, refusals among it."""
    refusals = [g for s in support.values() if not s.ok for g in s.guards]
    if options.device == "cpu":
        refusals = []
    every = strongest([*passed.guards, *placed.guards, *refusals])
    return [g for g in every if symbols_of(g.expr) <= set(symbols)]


def _parts(
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


def _free(
    graph: Graph,
    support: Mapping[str, Support],
    options: Options,
    target: Target,
    binding: Mapping[str, int],
) -> frozenset[str]:
    """Nodes that no kernel runs for, if all that can be is on the GPU."""
    symbols = input_symbols(graph)
    views = _views(graph, options, symbols)
    duties = roles(graph, support)
    possible = {n.key for n in graph.nodes if support[n.key].ok and n.key not in duties} - views
    runs = {n.key for n in graph.nodes if duties.get(n.key) != "folded"}
    roots = view_roots(graph, lambda n: n.key in views)
    found = _parts(graph, options, target, possible, runs, roots, symbols, binding, {})
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
        _, self.support = _support(self.graph, options, target, binding)
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
            in_place=_free(self.graph, self.support, self.options, self.target, self.binding),
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
        return _place(self.graph, support, *chosen, kept)


def _place(
    graph: Graph,
    support: Mapping[str, Support],
    options: Options,
    target: Target,
    profile: DeviceProfile,
    binding: Mapping[str, int],
    kept: Collection[str] | None = None,
) -> Partition:
    return partition(
        graph,
        support,
        profile,
        device=options.device,
        no_gpu=options.no_gpu,
        may_fuse=_may_fuse(graph, options, PrologueCosts(graph, binding, target, profile)),
        anchors=_anchors(graph),
        in_place=_free(graph, support, options, target, binding),
        binding=binding,
        target=target,
        kept=kept,
    )


def _may_fuse(graph: Graph, options: Options, weigh: Weigh) -> MayFuse:
    return lambda a, b: rule_for(graph, a, b, weigh) not in (None, *options.disable)


def _anchors(graph: Graph) -> frozenset[str]:
    """Nodes that are no expressions: each has a kernel of its own."""
    return frozenset(n.key for n in graph.nodes if not is_elementwise(n))


def _support(
    graph: Graph, options: Options, target: Target, binding: Mapping[str, int]
) -> tuple[Ranges, Mapping[str, Support]]:
    """Ranges of integers, and whether the GPU can run each node in a call of these options."""
    checked = [n for n in graph.inputs if n not in options.wide_inputs]
    intervals = ranges(graph, checked=checked, held=options.held_inputs)
    support = gpu_support(graph, target, ranges=intervals, binding=binding)
    return intervals, {**support, **_refusals(support, options)}


def input_symbols(graph: Graph) -> tuple[str, ...]:
    """The symbols in the shapes of the graph's inputs, in order."""
    found: dict[str, None] = {}
    for name in graph.inputs:
        tensor = graph.tensor(name)
        for dim in tensor.shape or () if tensor else ():
            found.update(dict.fromkeys(sorted(symbols_of(dim))))
    return tuple(found)


def planning_inputs(graph: Graph) -> tuple[str, ...]:
    """The graph inputs that kernels need to know when planning: axes, targets, sizes, scales.

    They are read through `OpDef.shape_inputs`, directly or through arithmetic on sizes.
    """
    wanted: set[str] = set()
    for node in reversed(graph.nodes):
        op = definition(node)
        if op is None:
            continue
        wanted.update(node.input(i) for i in op.shape_inputs)
        made = op.evaluate is not None and wanted.intersection(node.writes)
        if made and not reads_no_content(node):
            wanted.update(node.inputs)
    return tuple(n for n in graph.inputs if n in wanted)


def _appends(graph: Graph, options: Options, on_gpu: Collection[str]) -> Mapping[str, Append]:
    """The Concats that this plan computes by appending in place."""
    return {
        grown: append
        for grown, append in appending_concats(graph).items()
        if (append.past, grown) in options.growing and grown in on_gpu
    }


def _refusals(support: Mapping[str, Support], options: Options) -> Mapping[str, Support]:
    """Nodes that this call's values or sizes keep off the GPU."""
    return {k: no(reason) for k, reason in options.refused.items() if k in support}


def _views(graph: Graph, options: Options, symbols: Collection[str]) -> set[str]:
    """Keys of the nodes that only give another shape to their inputs' buffers."""
    return {
        n.key for n in graph.nodes if n.key not in options.refused and _is_alias(graph, n, symbols)
    }


def _is_alias(graph: Graph, node: Node, symbols: Collection[str]) -> bool:
    """Whether a node only gives another shape to its input's buffer."""
    op = definition(node)
    if op is None or not op.view:
        return False
    source, result = graph.tensor(node.inputs[0]), graph.tensor(node.outputs[0])
    if source is None or result is None or source.shape is None or result.shape is None:
        return False
    known = set(symbols).union(*map(symbols_of, source.shape))
    return source.dtype == result.dtype and all(symbols_of(d) <= known for d in result.shape)


def _bound_symbols(graph: Graph, live: Collection[str], symbols: Collection[str]) -> frozenset[str]:
    """The sizes that inputs or nodes that run tell; no value that is needed hangs on others."""
    made = {name for node in graph.nodes if node.key in live for name in node.writes}
    found = (s for s, (value, _) in binders(graph, symbols).items() if value in made)
    return frozenset((*symbols, *found))


def _known_contents(graph: Graph, bound: frozenset[str]) -> frozenset[str]:
    """The values whose contents follow from sizes that are bound."""
    return frozenset(
        name
        for name, value in graph.values.items()
        if value.dims is not None and all(symbols_of(d) <= bound for d in value.dims.flat)
    )


def _live_nodes(
    graph: Graph, on_gpu: Collection[str], views: Collection[str], symbols: Collection[str]
) -> set[str]:
    """Nodes that must run: the others are known when sizes are bound, or only say sizes."""
    binder = binders(graph, symbols)
    needed: set[str] = set()

    def need(names: Iterable[str], shapes: Iterable[str] = ()) -> None:
        dims: list[Dim] = []
        for name in names:
            value = graph.values[name]
            if value.dims is not None:
                dims += value.dims.reshape(-1).tolist()
            elif value.constant is None:
                needed.add(name)
        for name in shapes:
            tensor = graph.tensor(name)
            dims += tensor.shape or () if tensor is not None else ()
        needed.update(binder[s][0] for d in dims for s in symbols_of(d) if s in binder)

    need(graph.outputs)
    live: set[str] = set()
    for node in reversed(graph.nodes):
        if not needed.intersection(node.writes):
            continue
        live.add(node.key)
        if node.key in views:
            need(node.inputs[:1], node.writes)
        elif node.key in on_gpu:
            need(kernel_inputs(node), (*kernel_inputs(node), *node.writes))
        else:
            need(node.reads)
    return live
