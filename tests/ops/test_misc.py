"""ReverseSequence, and StringNormalizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from cpu_fallback.misc import string_normalizer
from tests.ops.harness import OpCase, check_cpu, check_engine_cpu, check_infer
from tests.ops.standard import for_each, node_suite, on_gpu_both_ways

F = "float32"
LENGTHS = np.array([0, 1, 4, 7, 3])
BATCH_FIRST = {"batch_axis": 0, "time_axis": 1}

CASES = [
    OpCase("ReverseSequence", (((7, 5), F), LENGTHS)),
    OpCase("ReverseSequence", (((5, 7), F), LENGTHS), BATCH_FIRST),
    OpCase("ReverseSequence", (((7, 5, 3, 5), F), LENGTHS)),
    OpCase("ReverseSequence", (((5, 7, 13), "int64"), LENGTHS), BATCH_FIRST),
    OpCase("ReverseSequence", (((5, 7, 2), "bool"), LENGTHS), BATCH_FIRST),
    OpCase("ReverseSequence", (((7, 5, 3), "float16"), LENGTHS)),
    OpCase("ReverseSequence", (((1, 1), F), np.array([1]))),
    OpCase("ReverseSequence", (((7, 5, 0), F), LENGTHS)),
]


test_cpu = for_each(CASES, check_cpu, check_engine_cpu, check_infer)
test_gpu = on_gpu_both_ways(CASES)
test_node_suite = node_suite("ReverseSequence")


@pytest.mark.parametrize(
    ("attrs", "expected"),
    [
        ({}, ["Été", "the End", "", "THE", "ß"]),
        ({"case_change_action": "UPPER"}, ["ÉTÉ", "THE END", "", "THE", "SS"]),
        ({"case_change_action": "LOWER", "stopwords": ["the"]}, ["été", "the end", "", "ß"]),
        ({"stopwords": ["the", ""], "is_case_sensitive": 1}, ["Été", "the End", "THE", "ß"]),
        ({"stopwords": ["été", "The end", "", "the", "ß"]}, [""]),
    ],
)
def test_strings_are_left_out_whole_and_keep_their_accents(
    attrs: Mapping[str, Any], expected: list[str]
) -> None:
    x = np.array(["Été", "the End", "", "THE", "ß"], object)
    assert string_normalizer(x, **attrs).tolist() == expected
    assert string_normalizer(x[None], **attrs).tolist() == [expected]
