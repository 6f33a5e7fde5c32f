"""Tree ensembles of ai.onnx.ml: all rows walk all trees at once, one level at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cpu_fallback.recurrent import sigmoid
from cpu_fallback.registry import Tensor, cpu_op

DOMAIN = "ai.onnx.ml"
_COMPARE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "BRANCH_LEQ": np.less_equal,
    "BRANCH_LT": np.less,
    "BRANCH_GTE": np.greater_equal,
    "BRANCH_GT": np.greater,
    "BRANCH_EQ": np.equal,
    "BRANCH_NEQ": np.not_equal,
}
_MODES = (*_COMPARE, "BRANCH_MEMBER", "LEAF")


@dataclass(frozen=True)
class _Forest:
    """Nodes of all trees in flat arrays of one length; `mode` indexes `_MODES`."""

    feature: Tensor
    value: Tensor
    mode: Tensor
    missing_true: Tensor
    yes: Tensor
    no: Tensor
    roots: Tensor
    members: dict[int, Tensor]

    def leaves(self, x: Tensor) -> Tensor:
        """The leaf each row of `x` [N, F] reaches in each tree: [N, trees] node numbers.

        Raises: ValueError if a walk does not end, as in a graph with a cycle.
        """
        at = np.tile(self.roots, (x.shape[0], 1))
        rows, trees = np.nonzero(self.mode[at] != _MODES.index("LEAF"))
        for _ in range(self.mode.size):
            if not rows.size:
                return at
            nodes = at[rows, trees]
            values = x[rows, self.feature[nodes]]
            taken = np.isnan(values) & self.missing_true[nodes]
            for number in np.unique(self.mode[nodes]):
                of_mode = self.mode[nodes] == number
                taken[of_mode] |= self._test(int(number), nodes[of_mode], values[of_mode])
            nodes = np.where(taken, self.yes[nodes], self.no[nodes])
            at[rows, trees] = nodes
            inner = self.mode[nodes] != _MODES.index("LEAF")
            rows, trees = rows[inner], trees[inner]
        if rows.size:
            raise ValueError("a tree of the ensemble has a cycle")
        return at

    def _test(self, mode: int, nodes: Tensor, values: Tensor) -> Tensor:
        name = _MODES[mode]
        if name in _COMPARE:
            return np.asarray(_COMPARE[name](values, self.value[nodes]))
        result = np.zeros(nodes.shape, bool)
        for node in np.unique(nodes):
            here = nodes == node
            result[here] = np.isin(values[here], self.members[int(node)])
        return result


def _floats(values: Sequence[float] | None, tensor: Tensor | None) -> Tensor | None:
    if tensor is not None:
        return tensor
    return None if not values else np.asarray(values, np.float32)


def _forest_by_id(
    tree_ids: Sequence[int],
    node_ids: Sequence[int],
    modes: Sequence[str],
    children: tuple[Sequence[int], Sequence[int]],
    features: Sequence[int],
    values: Tensor | None,
    missing: Sequence[int] | None,
) -> tuple[_Forest, dict[tuple[int, int], int]]:
    """Forest of the forms before TreeEnsemble-5, and node numbers by (tree, node) id."""
    keys = list(zip(tree_ids, node_ids, strict=True))
    place = {key: i for i, key in enumerate(keys)}
    leaf = [mode == "LEAF" for mode in modes]

    def linked(ids: Sequence[int]) -> Tensor:
        return np.array(
            [i if leaf[i] else place[keys[i][0], child] for i, child in enumerate(ids)], np.int64
        )

    unknown = set(modes) - set(_MODES)
    if unknown:
        raise ValueError(f"unknown modes {sorted(unknown)} in a tree ensemble")
    roots: dict[int, int] = {}
    for i, (tree, _) in enumerate(keys):
        roots.setdefault(tree, i)
    count = len(keys)
    forest = _Forest(
        feature=np.asarray(features, np.int64),
        value=np.zeros(count, np.float32) if values is None else values,
        mode=np.array([_MODES.index(mode) for mode in modes]),
        missing_true=np.array(missing, bool) if missing else np.zeros(count, bool),
        yes=linked(children[0]),
        no=linked(children[1]),
        roots=np.array(list(roots.values()), np.int64),
        members={},
    )
    return forest, place


def _collect(
    leaves: Tensor, nodes: Tensor, targets: Tensor, weights: Tensor, n_targets: int, how: str
) -> tuple[Tensor, Tensor]:
    """Aggregates of the weights at the reached leaves [N, n_targets], and which have any.

    nodes, targets, weights: parallel lists, a node may occur several times.
    """
    order = np.argsort(nodes, kind="stable")
    starts = np.searchsorted(nodes[order], leaves, side="left")
    counts = np.searchsorted(nodes[order], leaves, side="right") - starts
    rows = np.repeat(np.arange(leaves.shape[0]), counts.sum(axis=1))
    flat = counts.reshape(-1)
    within = np.arange(int(flat.sum())) - np.repeat(np.cumsum(flat) - flat, flat)
    picked = order[np.repeat(starts.reshape(-1), flat) + within]
    places = (rows, targets[picked])
    used = np.zeros((leaves.shape[0], n_targets), bool)
    used[places] = True
    if how in ("SUM", "AVERAGE"):
        result = np.zeros(used.shape, weights.dtype)
        np.add.at(result, places, weights[picked])
        return (result / leaves.shape[1] if how == "AVERAGE" else result), used
    if how not in ("MIN", "MAX"):
        raise ValueError(f"aggregate_function {how!r} is none of SUM, AVERAGE, MIN, MAX")
    start = np.inf if how == "MIN" else -np.inf
    result = np.full(used.shape, start, weights.dtype)
    (np.minimum if how == "MIN" else np.maximum).at(result, places, weights[picked])
    return np.where(used, result, 0), used


def _softmax(x: Tensor) -> Tensor:
    weights = np.exp(x - x.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def _softmax_zero(x: Tensor) -> Tensor:
    used = np.abs(x) > 1e-7
    peak = x.max(axis=1, keepdims=True)
    weights = np.where(used, np.exp(x - peak), x * np.exp(-peak))
    total = weights.sum(axis=1, keepdims=True)
    return np.where(total == 0, 0.5, weights / np.where(total == 0, 1, total))


def _probit(x: Tensor) -> Tensor:
    p = 2 * x - 1
    log = np.log((1 - p) * (1 + p))
    v = 2 / (np.pi * 0.147) + 0.5 * log
    inverse = np.copysign(np.sqrt(np.sqrt(v * v - log / 0.147) - v), p)
    return np.asarray(np.sqrt(2) * inverse)


_TRANSFORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "NONE": lambda x: x,
    "LOGISTIC": sigmoid,
    "SOFTMAX": _softmax,
    "SOFTMAX_ZERO": _softmax_zero,
    "PROBIT": _probit,
}


def transformed(x: Tensor, name: str) -> Tensor:
    """`x` [N, C] after a post_transform. Raises: ValueError for an unknown one."""
    if name not in _TRANSFORMS:
        raise ValueError(f"post_transform {name!r} is none of {sorted(_TRANSFORMS)}")
    return _TRANSFORMS[name](x)


def _entries(
    place: dict[tuple[int, int], int], trees: Sequence[int], nodes: Sequence[int]
) -> Tensor:
    return np.array([place[key] for key in zip(trees, nodes, strict=True)], np.int64)


def _as_rows(x: Tensor) -> Tensor:
    rows = x.reshape(1, -1) if x.ndim == 1 else x
    return rows if rows.dtype.kind == "f" else rows.astype(np.float32)


@cpu_op("TreeEnsembleRegressor", since=1, domain=DOMAIN)
def tree_ensemble_regressor(
    x: Tensor,
    *,
    nodes_falsenodeids: Sequence[int],
    nodes_featureids: Sequence[int],
    nodes_modes: Sequence[str],
    nodes_nodeids: Sequence[int],
    nodes_treeids: Sequence[int],
    nodes_truenodeids: Sequence[int],
    target_ids: Sequence[int],
    target_nodeids: Sequence[int],
    target_treeids: Sequence[int],
    aggregate_function: str = "SUM",
    base_values: Sequence[float] | None = None,
    base_values_as_tensor: Tensor | None = None,
    n_targets: int = 1,
    nodes_hitrates: Sequence[float] | None = None,
    nodes_hitrates_as_tensor: Tensor | None = None,
    nodes_missing_value_tracks_true: Sequence[int] | None = None,
    nodes_values: Sequence[float] | None = None,
    nodes_values_as_tensor: Tensor | None = None,
    post_transform: str = "NONE",
    target_weights: Sequence[float] | None = None,
    target_weights_as_tensor: Tensor | None = None,
) -> Tensor:
    """Scores of `x` [N, F] summed over the leaves it reaches: [N, n_targets] float32.

    Raises: ValueError for unknown modes, aggregates or transforms.
    Source: ai.onnx.ml TreeEnsembleRegressor-5.
    """
    forest, place = _forest_by_id(
        nodes_treeids,
        nodes_nodeids,
        nodes_modes,
        (nodes_truenodeids, nodes_falsenodeids),
        nodes_featureids,
        _floats(nodes_values, nodes_values_as_tensor),
        nodes_missing_value_tracks_true,
    )
    weights = _floats(target_weights, target_weights_as_tensor)
    if weights is None:
        raise ValueError("TreeEnsembleRegressor has no target_weights")
    scores, _ = _collect(
        forest.leaves(_as_rows(x)),
        _entries(place, target_treeids, target_nodeids),
        np.asarray(target_ids, np.int64),
        weights,
        n_targets,
        aggregate_function,
    )
    base = _floats(base_values, base_values_as_tensor)
    if base is not None:
        scores = scores + base
    return transformed(scores, post_transform).astype(np.float32)


@cpu_op("TreeEnsembleClassifier", since=1, domain=DOMAIN)
def tree_ensemble_classifier(
    x: Tensor,
    *,
    class_ids: Sequence[int],
    class_nodeids: Sequence[int],
    class_treeids: Sequence[int],
    nodes_falsenodeids: Sequence[int],
    nodes_featureids: Sequence[int],
    nodes_modes: Sequence[str],
    nodes_nodeids: Sequence[int],
    nodes_treeids: Sequence[int],
    nodes_truenodeids: Sequence[int],
    base_values: Sequence[float] | None = None,
    base_values_as_tensor: Tensor | None = None,
    class_weights: Sequence[float] | None = None,
    class_weights_as_tensor: Tensor | None = None,
    classlabels_int64s: Sequence[int] | None = None,
    classlabels_strings: Sequence[str] | None = None,
    nodes_hitrates: Sequence[float] | None = None,
    nodes_hitrates_as_tensor: Tensor | None = None,
    nodes_missing_value_tracks_true: Sequence[int] | None = None,
    nodes_values: Sequence[float] | None = None,
    nodes_values_as_tensor: Tensor | None = None,
    post_transform: str = "NONE",
) -> tuple[Tensor, Tensor]:
    """Labels [N] and scores [N, classes] (float32) of `x` [N, F].

    Two classes with weights for one of them only: the score decides at 0.5 if no weight is
    negative, else at 0, and the other class gets the rest.

    Raises: ValueError for unknown modes or transforms, or without labels or weights.
    Source: ai.onnx.ml TreeEnsembleClassifier-5.
    """
    forest, place = _forest_by_id(
        nodes_treeids,
        nodes_nodeids,
        nodes_modes,
        (nodes_truenodeids, nodes_falsenodeids),
        nodes_featureids,
        _floats(nodes_values, nodes_values_as_tensor),
        nodes_missing_value_tracks_true,
    )
    weights = _floats(class_weights, class_weights_as_tensor)
    labels: Tensor = np.array(list(classlabels_strings or ()), object)
    if not classlabels_strings:
        labels = np.array(list(classlabels_int64s or ()), np.int64)
    if weights is None or not labels.size:
        raise ValueError("TreeEnsembleClassifier needs class weights and class labels")
    ids = np.asarray(class_ids, np.int64)
    nodes = _entries(place, class_treeids, class_nodeids)
    leaves = forest.leaves(_as_rows(x))
    base = _floats(base_values, base_values_as_tensor)
    width = max(labels.size, int(ids.max()) + 1)
    scores, _ = _collect(leaves, nodes, ids, weights, width, "SUM")
    if width == 2 and np.unique(ids).size == 1:
        return _one_sided(scores[:, ids[0]], weights, base, labels, post_transform)
    if base is not None:
        scores = scores + base
    best = np.argmax(scores, axis=1)
    return labels[best], transformed(scores, post_transform).astype(np.float32)


def _one_sided(
    score: Tensor, weights: Tensor, base: Tensor | None, labels: Tensor, post_transform: str
) -> tuple[Tensor, Tensor]:
    """Labels and scores of two classes whose trees vote for the second one only."""
    if base is not None:
        score = score + base.reshape(-1)[-1]
    positive = bool((weights >= 0).all())
    chosen = (score > (0.5 if positive else 0)).astype(np.int64)
    if post_transform == "PROBIT":
        score = _probit(score)
        return labels[chosen], np.stack([1 - score, score], axis=1).astype(np.float32)
    other = 1 - score if positive and post_transform == "NONE" else -score
    both = np.stack([other, score], axis=1)
    return labels[chosen], transformed(both, post_transform).astype(np.float32)


def _membership(modes: Tensor, values: Tensor | None) -> dict[int, Tensor]:
    """Sets of the member nodes, in node order, from a list with NaN behind each set."""
    nodes = np.nonzero(modes == _MODES.index("BRANCH_MEMBER"))[0]
    if values is None:
        if nodes.size:
            raise ValueError("TreeEnsemble has set nodes but no membership_values")
        return {}
    ends = np.nonzero(np.isnan(values))[0]
    if ends.size != nodes.size:
        raise ValueError(f"{ends.size} sets of members for {nodes.size} set nodes")
    sets = np.split(values, ends + 1)[: nodes.size]
    return {int(node): part[:-1] for node, part in zip(nodes, sets, strict=True)}


@cpu_op("TreeEnsemble", since=5, domain=DOMAIN)
def tree_ensemble(
    x: Tensor,
    *,
    leaf_targetids: Sequence[int],
    leaf_weights: Tensor,
    nodes_falseleafs: Sequence[int],
    nodes_falsenodeids: Sequence[int],
    nodes_featureids: Sequence[int],
    nodes_modes: Tensor,
    nodes_splits: Tensor,
    nodes_trueleafs: Sequence[int],
    nodes_truenodeids: Sequence[int],
    tree_roots: Sequence[int],
    aggregate_function: int = 1,
    membership_values: Tensor | None = None,
    n_targets: int = 1,
    nodes_hitrates: Tensor | None = None,
    nodes_missing_value_tracks_true: Sequence[int] | None = None,
    post_transform: int = 0,
) -> Tensor:
    """Scores of `x` [N, F] over the leaves it reaches: [N, n_targets] of the type of `x`.

    Raises: ValueError if sets and set nodes do not match. Source: ai.onnx.ml TreeEnsemble-5.
    """
    count, leaf = len(nodes_modes), _MODES.index("LEAF")
    ends: tuple[Any, Any] = (np.asarray(nodes_trueleafs, bool), np.asarray(nodes_falseleafs, bool))
    links = (np.asarray(nodes_truenodeids), np.asarray(nodes_falsenodeids))
    modes = nodes_modes.astype(np.int64)
    yes, no = (np.where(end, link + count, link) for end, link in zip(ends, links, strict=True))
    roots = np.asarray(tree_roots, np.int64)
    only = ends[0][roots] & ends[1][roots] & (links[0][roots] == links[1][roots])
    n_leaves = len(leaf_targetids)
    missing = nodes_missing_value_tracks_true or [0] * count
    forest = _Forest(
        feature=np.asarray(nodes_featureids, np.int64),
        value=nodes_splits,
        mode=np.concatenate([modes, np.full(n_leaves, leaf)]),
        missing_true=np.asarray(missing, bool),
        yes=yes,
        no=no,
        roots=np.where(only, yes[roots], roots),
        members=_membership(modes, membership_values),
    )
    names = ("AVERAGE", "SUM", "MIN", "MAX")
    transforms = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
    scores, _ = _collect(
        forest.leaves(x),
        np.arange(n_leaves) + count,
        np.asarray(leaf_targetids, np.int64),
        leaf_weights,
        n_targets,
        names[aggregate_function],
    )
    return transformed(scores, transforms[post_transform]).astype(x.dtype)
