"""The long tail through onnx.reference and ONNX function bodies."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from cpu_fallback import reference, registry
from engine.ir import CONTROL_FLOW
from tests.cpu_fallback.node_cases import cases_of, failures
from tests.cpu_fallback.oracle import ort_node

TRAINING_ONLY = {"Gradient"}
TAIL = ("StringSplit", "TfIdfVectorizer", "RegexFullMatch", "MelWeightMatrix", "Det")


def test_every_operator_of_every_standard_domain_runs_somewhere() -> None:
    missing = {
        schema.name
        for schema in onnx.defs.get_all_schemas()
        if registry.exists(schema.name, schema.domain, schema.since_version) is None
        and not schema.deprecated
    }
    assert missing == CONTROL_FLOW | TRAINING_ONLY


@pytest.mark.parametrize("op_type", TAIL)
@pytest.mark.slow
def test_node_suite(op_type: str) -> None:
    assert failures(cases_of(op_type)) == {}


def test_a_function_body_that_depends_on_the_input_type_is_expanded() -> None:
    x = np.linspace(-3, 3, 13, dtype=np.float64)
    expected = ort_node("Gelu", [x], 1, approximate="tanh")[0]
    got = reference.run("Gelu", "", 20, {"approximate": "tanh"}, [x], 1)[0]
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_a_function_body_sees_the_defaults_of_its_attributes() -> None:
    x = np.linspace(-3, 3, 13, dtype=np.float32)
    expected = ort_node("HardSwish", [x], 1)[0]
    got = reference.run("HardSwish", "", 22, {}, [x], 1)[0]
    np.testing.assert_allclose(got, expected, rtol=1e-6)


ATTRIBUTES: list[tuple[str, int, dict[str, Any], list[Any], Any]] = [
    ("StringConcat", 20, {}, [np.array(["a"], object), np.array(["b"], object)], ["ab"]),
    (
        "LabelEncoder",
        4,
        {"keys_strings": ["x", "y"], "values_int64s": [3, 4], "default_int64": -1},
        [np.array(["y", "?", "x"], object)],
        [4, -1, 3],
    ),
    ("Binarizer", 1, {"threshold": 0.5}, [np.array([0.4, 0.6], np.float32)], [0, 1]),
]


@pytest.mark.parametrize("index", range(len(ATTRIBUTES)))
def test_attributes_of_every_kind_arrive(index: int) -> None:
    op_type, version, attributes, inputs, expected = ATTRIBUTES[index]
    domain = "" if op_type.startswith("String") else "ai.onnx.ml"
    got = reference.run(op_type, domain, version, attributes, inputs, 1)[0]
    assert got.tolist() == expected


def test_defaults_are_python_values() -> None:
    defaults = reference.attribute_defaults("LSTM", "", 22)
    assert defaults["direction"] == "forward"
    assert defaults["layout"] == 0
