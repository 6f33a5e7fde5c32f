"""Graph to graph: canonical forms, inference and folding, then optimisations, in `PIPELINE` order.

A pass is a function `name(graph) -> PassResult` in the module `engine/passes/name.py`, which takes
`PassResult` from `engine.passes.base`. Its line in `PIPELINE` is all that switches it on.

A pass that writes single operators out in others, each by its own rule, uses a `Builder`
(`build.py`): it sees a node, and collects those that take its place. A pass that looks for patterns
of several nodes uses an `Editor` (`rewrite.py`), whose index of producers and readers follows each
change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from engine.errors import EngineError, in_words
from engine.ir import Graph
from engine.passes.base import Pass, PassResult, PipelineResult, merge_guards
from engine.passes.canonicalize import canonicalize
from engine.passes.cast_like import cast_like
from engine.passes.chains import chains
from engine.passes.cse import cse
from engine.passes.eliminate import eliminate
from engine.passes.fold_batchnorm import fold_batchnorm
from engine.passes.fold_pad import fold_pad
from engine.passes.fuse_activations import fuse_activations
from engine.passes.fuse_attention import fuse_attention
from engine.passes.fuse_gelu import fuse_gelu
from engine.passes.fuse_layernorm import fuse_layernorm
from engine.passes.fuse_softmax import fuse_softmax
from engine.passes.infer import infer
from engine.passes.join_convs import join_convs
from engine.passes.join_products import join_products
from engine.passes.join_windows import join_windows
from engine.passes.look_up import look_up
from engine.passes.lower_batchnorm import lower_batchnorm
from engine.passes.lower_contrib import lower_contrib
from engine.passes.lower_einsum import lower_einsum
from engine.passes.lower_ml import lower_ml
from engine.passes.lower_training import lower_training
from engine.passes.merge_affine import merge_affine
from engine.passes.merge_views import merge_views
from engine.passes.sink_pad import sink_pad
from engine.passes.sink_views import sink_views
from engine.passes.split_cache import split_cache
from engine.passes.take_in_order import take_in_order
from engine.passes.wrap_ends import wrap_ends
from engine.progress import tell
from engine.records import dataclass

__all__ = ["PIPELINE", "Pass", "PassResult", "PipelineResult", "PipelineStep", "run_passes"]

MAX_ROUNDS = 4


@dataclass(frozen=True)
class PipelineStep:
    """A line of `PIPELINE`.

    Attributes:
        name: by which it is reported and disabled.
        function: the pass; or, if `takes_binding`, a function of the graph and the binding.
        reason: why it is there, and why at this place.
        required: later stages count on it, so it can't be disabled.
        not_on_cpu: why it is left out where a CPU computes it all, "" if it is not.
    """

    name: str
    function: Callable[..., PassResult]
    reason: str
    required: bool = False
    takes_binding: bool = False
    not_on_cpu: str = ""


PIPELINE: tuple[PipelineStep, ...] = (
    PipelineStep(
        "canonicalize",
        canonicalize,
        "one form per operator, so that no later rule has to know old or redundant forms",
        required=True,
    ),
    PipelineStep(
        "infer",
        infer,
        "every later pass reads types, sizes and constants",
        required=True,
        takes_binding=True,
    ),
    PipelineStep(
        "lower_contrib",
        lower_contrib,
        "standard operators have kernels and are known to the passes below",
    ),
    PipelineStep(
        "lower_ml",
        lower_ml,
        "as those of com.microsoft: their parts have kernels and fuse",
    ),
    PipelineStep(
        "lower_training",
        lower_training,
        "an optimiser is a chain of elementwise operators, which fuse",
    ),
    PipelineStep(
        "lower_einsum",
        lower_einsum,
        "its parts have kernels, and merge with the views and reductions around them",
    ),
    PipelineStep(
        "split_cache",
        split_cache,
        "what is left is an Attention that a kernel takes, and a Concat that grows in place",
    ),
    PipelineStep(
        "cast_like",
        cast_like,
        "a Cast has a kernel, is taken out where it does nothing, and needs one input",
    ),
    PipelineStep(
        "eliminate",
        eliminate,
        "copies and no-ops hide patterns from every pass below",
    ),
    PipelineStep(
        "cse",
        cse,
        "exporters write the mean or the cast of a pattern twice; patterns expect it once",
    ),
    PipelineStep(
        "fuse_layernorm",
        fuse_layernorm,
        "before scales and shifts are folded away from the end of the pattern",
    ),
    PipelineStep(
        "fuse_gelu",
        fuse_gelu,
        "before factors such as 0.5 are folded into weights",
    ),
    PipelineStep(
        "fuse_activations",
        fuse_activations,
        "before factors such as 1/6 are folded into weights",
    ),
    PipelineStep(
        "take_in_order",
        take_in_order,
        "a mask is then a view of what the model is given",
    ),
    PipelineStep(
        "look_up",
        look_up,
        "before the product would be joined with others, or its scale folded into its weights",
    ),
    PipelineStep(
        "join_products",
        join_products,
        "after cse, which finds that constants are the same",
    ),
    PipelineStep(
        "fuse_softmax",
        fuse_softmax,
        "before a sum, a product or a view of its parts is moved elsewhere",
    ),
    PipelineStep(
        "fold_batchnorm",
        fold_batchnorm,
        "what is left of scales and shifts belongs to no pattern",
    ),
    PipelineStep(
        "lower_batchnorm",
        lower_batchnorm,
        "what has no weights to go into fuses with its neighbours",
    ),
    PipelineStep(
        "merge_affine",
        merge_affine,
        "lower_batchnorm makes two of each normalisation, and what has weights to go into is gone",
    ),
    PipelineStep(
        "wrap_ends",
        wrap_ends,
        "makes Pads, which sink_pad moves, and convolutions do where they load",
    ),
    PipelineStep(
        "sink_pad",
        sink_pad,
        "brings padding next to the window operator that takes it in",
    ),
    PipelineStep(
        "fold_pad",
        fold_pad,
        "any time; the window operator is final now",
    ),
    PipelineStep(
        "join_convs",
        join_convs,
        "scales and padding have gone into the convolutions, so that equal ones are seen to be",
    ),
    PipelineStep(
        "join_windows",
        join_windows,
        "convolutions have taken their Pads; the Transpose it makes is merged or moved below",
    ),
    PipelineStep(
        "sink_views",
        sink_views,
        "patterns are found; views and transposes behind it are merged by merge_views",
    ),
    PipelineStep(
        "merge_views",
        merge_views,
        "before chains, which would merge the outer views with others",
    ),
    PipelineStep(
        "chains",
        chains,
        "the passes above make neighbours of views; what computed their targets dies next round",
    ),
    PipelineStep(
        "fuse_attention",
        fuse_attention,
        "the transposes of keys and heads are one each now; those that are left go next round",
        not_on_cpu="never storing the scores takes more loads, and a CPU up to twice as long",
    ),
)


def run_passes(
    graph: Graph,
    *,
    disable: Collection[str] = (),
    binding: Mapping[str, int] | None = None,
    on_cpu: bool = False,
) -> PipelineResult:
    """Runs `PIPELINE`, again until nothing changes (bounded), checking each graph that a pass made.

    A pass that left a graph as it is does not get that graph again.

    Args:
        graph: as the importer made it.
        disable: names of passes to leave out.
        binding: sizes of symbols, for operators that have no symbolic shape rule.
        on_cpu: whether there is no GPU, or one that is software: some passes do not pay there.

    Raises: EngineError for a name that no pass has, or that can't be left out; ShapeError for a
        model that contradicts itself; ModelError if a pass broke the graph.
    """
    _check_names(disable)
    graph.check()
    results: dict[str, PassResult] = {}
    left_as_is: dict[str, Graph] = {}
    changed = False

    def run(step: PipelineStep, graph: Graph) -> Graph:
        nonlocal changed
        if left_as_is.get(step.name) is graph:
            return graph
        tell("inferring shapes, folding" if step.name == "infer" else f"optimising: {step.name}")
        with in_words(lambda: f"the pass {step.name} does not know this model"):
            result = step.function(graph, binding) if step.takes_binding else step.function(graph)
        if result.graph is not graph:
            result.graph.check()
        elif not result.applied:
            left_as_is[step.name] = graph
        before = results.get(step.name)
        results[step.name] = result if before is None else before.then(result)
        changed |= bool(result.applied) and not step.required
        return result.graph

    chosen = [step for step in PIPELINE if step.name not in disable]
    left_out = [step for step in chosen if on_cpu and step.not_on_cpu]
    chosen = [step for step in chosen if step not in left_out]
    for _ in range(MAX_ROUNDS):
        changed = False
        for step in chosen:
            graph = run(step, graph)
        if not changed:
            break
    if changed:
        for step in chosen:
            if step.takes_binding:
                graph = run(step, graph)
    results |= {step.name: _left_out(step, graph) for step in left_out}
    return PipelineResult(graph, results, merge_guards(*(r.guards for r in results.values())))


def _left_out(step: PipelineStep, graph: Graph) -> PassResult:
    """What a pass would have done that does not pay on a CPU, as near misses."""
    reason = f"left out, as a CPU computes it all: {step.not_on_cpu}"
    found = step.function(graph).applied
    return PassResult(graph, (), tuple(f"{what}: {reason}" for what in found))


def _check_names(disable: Collection[str]) -> None:
    known = {step.name: step for step in PIPELINE}
    unknown = sorted(set(disable) - known.keys())
    if unknown:
        raise EngineError(f"no pass is named {unknown}; there are {list(known)}")
    needed = sorted(name for name in disable if known[name].required)
    if needed:
        raise EngineError(f"the passes {needed} can't be left out: later stages count on them")
