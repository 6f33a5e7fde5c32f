"""Tree ensembles against ONNX Runtime and the node suite."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cpu_fallback import registry
from tests.cpu_fallback.oracle import ort_node

ML = "ai.onnx.ml"
RULES = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT"]


def forest(
    prefix: str, targets: list[int], *, negative: bool, rule: str = "BRANCH_LEQ"
) -> dict[str, Any]:
    """Attributes of five full trees of depth 3 over 4 features; `prefix` is class or target."""
    rng = np.random.default_rng(len(targets) + negative)
    a: dict[str, list[Any]] = {
        name: [] for name in ("treeids", "nodeids", "modes", "featureids", "values", "yes", "no")
    }
    leaf: dict[str, list[Any]] = {name: [] for name in ("treeids", "nodeids", "ids", "weights")}
    for tree in range(5):
        for node in range(15):
            inner = node < 7
            a["treeids"].append(tree)
            a["nodeids"].append(node)
            a["modes"].append(rule if inner else "LEAF")
            a["featureids"].append(int(rng.integers(4)) if inner else 0)
            a["values"].append(float(rng.normal()) if inner else 0.0)
            a["yes"].append(2 * node + 1 if inner else 0)
            a["no"].append(2 * node + 2 if inner else 0)
            for target in [] if inner else targets:
                leaf["treeids"].append(tree)
                leaf["nodeids"].append(node)
                leaf["ids"].append(target)
                low = -1.0 if negative else 0.0
                leaf["weights"].append(float(rng.uniform(low, 1.0)) / 5)
    nodes = {f"nodes_{name}": a[name] for name in ("treeids", "nodeids", "modes", "featureids")}
    nodes |= {"nodes_values": a["values"], "nodes_truenodeids": a["yes"]}
    nodes |= {"nodes_falsenodeids": a["no"]}
    return nodes | {f"{prefix}_{name}": values for name, values in leaf.items()}


def rows() -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).standard_normal((40, 4), dtype=np.float32)


def check(op_type: str, attributes: dict[str, Any], n_outputs: int) -> None:
    expected = ort_node(op_type, [rows()], n_outputs, domain=ML, **attributes)
    got = registry.run(op_type, ML, 3, attributes, [rows()], n_outputs)
    for mine, theirs in zip(got, expected, strict=True):
        assert mine.shape == theirs.shape
        if theirs.dtype.kind == "f":
            assert mine.dtype == theirs.dtype
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
        else:
            assert mine.tolist() == theirs.tolist()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
def test_regressor(aggregate: str, rule: str) -> None:
    attributes = forest("target", [0, 1], negative=True, rule=rule)
    attributes |= {"n_targets": 2, "aggregate_function": aggregate, "base_values": [0.5, -1.0]}
    check("TreeEnsembleRegressor", attributes, 1)


@pytest.mark.parametrize("post_transform", ["NONE", "LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize("negative", [False, True])
def test_classifier_of_three_classes(negative: bool, post_transform: str) -> None:
    attributes = forest("class", [0, 1, 2], negative=negative)
    attributes |= {"classlabels_int64s": [7, 3, 5], "post_transform": post_transform}
    check("TreeEnsembleClassifier", attributes, 2)


@pytest.mark.parametrize("post_transform", ["NONE", "LOGISTIC"])
@pytest.mark.parametrize("negative", [False, True])
def test_classifier_with_weights_for_one_of_two_classes(
    negative: bool, post_transform: str
) -> None:
    attributes = forest("class", [0], negative=negative)
    attributes |= {"classlabels_strings": ["no", "yes"], "post_transform": post_transform}
    check("TreeEnsembleClassifier", attributes, 2)


def test_classifier_of_two_classes_with_weights_for_both() -> None:
    attributes = forest("class", [0, 1], negative=False)
    attributes |= {"classlabels_int64s": [4, 9]}
    scores = ort_node("TreeEnsembleClassifier", [rows()], 2, domain=ML, **attributes)[1]
    got = registry.run("TreeEnsembleClassifier", ML, 3, attributes, [rows()], 2)
    np.testing.assert_allclose(got[1], scores, rtol=1e-5)
    assert got[0].tolist() == [(4, 9)[best] for best in scores.argmax(axis=1)]


def test_missing_values_follow_their_flag() -> None:
    attributes = forest("target", [0], negative=True) | {"n_targets": 1}
    x = rows()
    x[::2] = np.nan
    for flag in (0, 1):
        attributes["nodes_missing_value_tracks_true"] = [flag] * len(attributes["nodes_modes"])
        expected = ort_node("TreeEnsembleRegressor", [x], 1, domain=ML, **attributes)[0]
        got = registry.run("TreeEnsembleRegressor", ML, 3, attributes, [x], 1)[0]
        np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_a_cycle_is_refused() -> None:
    attributes = forest("target", [0], negative=True)
    attributes["nodes_truenodeids"] = [0] * 75
    with pytest.raises(ValueError, match="cycle"):
        registry.run("TreeEnsembleRegressor", ML, 3, attributes, [np.full((1, 4), -9.0)], 1)
