"""`run_passes`: order, names, rounds, and a check after each pass."""

from __future__ import annotations

import numpy as np
import pytest

from engine import passes
from engine.errors import EngineError, ModelError
from engine.ir import Graph
from engine.passes import PIPELINE, PassResult, PipelineStep, run_passes
from tests.passes.test_infer import graph_of, node
from tests.test_importer import value

NAMES = [step.name for step in PIPELINE]


def graph() -> Graph:
    nodes = [node("Add", "a b", "c"), node("Sum", "x", "d"), node("Mul", "c d", "y")]
    constants = {"a": np.ones(2, np.float32), "b": np.ones(2, np.float32)}
    return graph_of(nodes, [value("x", ["N", 2])], ["y"], constants)


def test_the_pipeline_says_why() -> None:
    assert len(NAMES) == len(set(NAMES))
    assert NAMES.index("canonicalize") < NAMES.index("infer")
    assert all(step.function.__name__ == step.name for step in PIPELINE)
    assert all(step.reason and step.reason[0].islower() for step in PIPELINE)


def test_what_was_done_is_told_by_name() -> None:
    result = run_passes(graph())
    assert [n.op_type for n in result.graph.nodes] == ["Mul"]
    assert result.results["infer"].applied == ("Add 'c' is constant",)
    assert len(result.results["canonicalize"].applied) == 1
    assert list(result.results) == NAMES
    assert result.guards == ()


def test_disabled_passes_do_not_run() -> None:
    result = run_passes(graph(), disable=["eliminate"])
    assert "eliminate" not in result.results
    assert [n.op_type for n in result.graph.nodes] == ["Identity", "Mul"]


def test_names_are_checked() -> None:
    with pytest.raises(EngineError, match=r"no pass is named \['fold'\]; there are .*canonicalize"):
        run_passes(graph(), disable=["fold"])
    with pytest.raises(EngineError, match=r"\['infer'\] can't be left out"):
        run_passes(graph(), disable=["infer"])


def test_the_graph_is_checked_after_each_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(graph: Graph) -> PassResult:
        return PassResult(graph.replace(nodes=()), ("all gone",))

    monkeypatch.setattr(passes, "PIPELINE", (*PIPELINE, PipelineStep("broken", broken, "a test")))
    with pytest.raises(ModelError, match="'y' is produced by no node"):
        run_passes(graph())


def test_passes_run_until_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def restless(graph: Graph) -> PassResult:
        calls.append(graph)
        return PassResult(graph, ("something",) if len(calls) < 3 else ())

    step = PipelineStep("restless", restless, "a test")
    monkeypatch.setattr(passes, "PIPELINE", (*PIPELINE, step))
    result = run_passes(graph())
    assert len(calls) == 3
    assert result.results["restless"].applied == ("something", "something")
    endless = PipelineStep("endless", lambda g: PassResult(g, ("again",)), "a test")
    monkeypatch.setattr(passes, "PIPELINE", (*PIPELINE, endless))
    assert len(run_passes(graph()).results["endless"].applied) == passes.MAX_ROUNDS


def test_a_pass_gets_no_graph_again_that_it_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, list[Graph]] = {"first": [], "last": []}

    def idle(name: str) -> PipelineStep:
        def step(graph: Graph) -> PassResult:
            seen[name].append(graph)
            return PassResult(graph)

        return PipelineStep(name, step, "a test")

    monkeypatch.setattr(passes, "PIPELINE", (idle("first"), *PIPELINE, idle("last")))
    result = run_passes(graph())
    for graphs in seen.values():
        assert len({id(g) for g in graphs}) == len(graphs) >= 1
        assert graphs[-1] is result.graph
