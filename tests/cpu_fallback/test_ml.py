"""Maps and categories of ai.onnx.ml, with results worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from cpu_fallback import registry
from tests.cpu_fallback.node_cases import direct_cases, failures

ML = "ai.onnx.ml"


@pytest.mark.slow
def test_node_suite() -> None:
    cases = [c for c in direct_cases().values() if c.model.graph.node[0].domain == ML]
    assert len(cases) >= 8
    assert failures(cases) == {}


def test_zip_map_pairs_labels_with_columns() -> None:
    x = np.array([[0.25, 0.75], [1, 0]], np.float32)
    got = registry.run("ZipMap", ML, 1, {"classlabels_strings": ["no", "yes"]}, [x], 1)[0]
    assert got == [{"no": 0.25, "yes": 0.75}, {"no": 1.0, "yes": 0.0}]
    with pytest.raises(ValueError, match="3 labels for 2"):
        registry.run("ZipMap", ML, 1, {"classlabels_int64s": [1, 2, 3]}, [x], 1)


def test_cast_map_dense_and_sparse() -> None:
    table = {4: 1.5, 1: 2.5}
    dense = registry.run("CastMap", ML, 1, {"cast_to": "TO_INT64"}, [table], 1)[0]  # type: ignore[list-item]
    assert dense.tolist() == [[2, 1]]
    attributes = {"map_form": "SPARSE", "max_map": 5}
    sparse = registry.run("CastMap", ML, 1, attributes, [table], 1)[0]  # type: ignore[list-item]
    assert sparse.tolist() == [[0, 2.5, 0, 0, 1.5]]
    assert sparse.dtype == np.float32


def test_category_mapper_goes_both_ways() -> None:
    attributes = {"cats_int64s": [3, 5], "cats_strings": ["cat", "dog"]}
    words = np.array([["dog", "cow"]], object)
    assert registry.run("CategoryMapper", ML, 1, attributes, [words], 1)[0].tolist() == [[5, -1]]
    numbers = np.array([3, 4])
    back = registry.run("CategoryMapper", ML, 1, attributes, [numbers], 1)[0]
    assert back.tolist() == ["cat", "_Unused"]
