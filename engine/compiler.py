"""The compiler: all stages in order. Read this file first.

    Graph -> passes -> support -> partition -> parts, fusion -> schedule (with transfers) -> Plan

Everything here is pure: no GPU is touched, and `wgpu` is not imported.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from engine.appends import appending_concats
from engine.checks import late_checks, view_checks
from engine.costs import DeviceProfile
from engine.dims import Guard, symbols_of
from engine.errors import EngineError
from engine.fusion import fuse
from engine.fusion_rules import RULES, Weigh
from engine.groups import Fusion
from engine.ir import Graph
from engine.liveness import bound_symbols, input_symbols, known_contents, live_nodes, views_of
from engine.ops import Support
from engine.options import Options
from engine.partition import Partition, checked_inputs
from engine.parts import Parts
from engine.passes import PIPELINE, PipelineResult, run_passes
from engine.passes.symbols import dims_of
from engine.plan import Append, Plan
from engine.planner import Written, build_plan, view_roots
from engine.progress import tell
from engine.prologue import PrologueCosts
from engine.schedule import Task, schedule
from engine.splits import parts_of, place, support_of
from engine.support import strongest
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
    intervals, support = support_of(graph, options, target, binding)
    tell("placing nodes on devices")
    placed = place(graph, support, options, target, profile, binding)
    symbols = tuple(dict.fromkeys((*input_symbols(graph), *around)))
    views = views_of(graph, options, symbols)
    roots = view_roots(graph, lambda n: n.key in views)
    on_gpu = {k for k, v in placed.verdicts.items() if v.device == "gpu"} - views
    live = live_nodes(graph, on_gpu, views, symbols)
    appends = _appends(graph, options, on_gpu & live, roots, symbols)
    parts = parts_of(graph, options, target, on_gpu & live, live, roots, symbols, binding, appends)
    weigh = PrologueCosts(graph, binding, target, profile)
    fused = _fused(graph, options, target, on_gpu & live, appends, parts, roots, weigh)
    bound = bound_symbols(graph, live, symbols)
    sizes = known_contents(graph, bound)
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


def _appends(
    graph: Graph,
    options: Options,
    on_gpu: Collection[str],
    roots: Mapping[str, str],
    symbols: Collection[str],
) -> Mapping[str, Append]:
    """The Concats that this plan computes by appending in place: one for each past, other values
    than that past itself, whose buffer a dispatch can't read and write.

    How long they get is known when the call begins: the room is made then.
    """
    found: dict[str, Append] = {}
    for grown, append in appending_concats(graph).items():
        wanted = (append.past, grown) in options.growing and grown in on_gpu
        known = dims_of(graph.values[grown].type) <= set(symbols)
        apart = roots.get(append.new, append.new) != append.past
        if wanted and known and apart and all(o.past != append.past for o in found.values()):
            found[grown] = append
    return found
