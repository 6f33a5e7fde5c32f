"""Default kernels of products suit a small GPU, by what their text shows.

An integrated GPU has 256 registers a lane for all waves of a unit, loads what is the same for a
wave only once, and computes while it loads: four waves should fit, and products should outnumber
loads by far. What its compiler makes of the text is not known here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from engine.ops import KernelCall, Lowering, definition
from engine.target import Target
from tests.ops.conv_cases import conv, transposed
from tests.ops.harness import OpCase, case_id, inferred

F = "float32"
MOST_SUMS, LEAST_PRODUCTS = 32, 64
REUSE = 4
"""Products of an invocation for each of its loads, at least."""
KERNELS = ("conv_dense", "conv_pointwise", "conv_transpose_phases", "matmul")


def product(a: tuple[int, ...], b: tuple[int, ...], **attrs: Any) -> OpCase:
    return OpCase("Gemm" if attrs else "MatMul", ((a, F), (b, F)), attrs, constants=(1,))


CASES = [
    conv((1, 64, 56, 56), (64, 64, 3, 3), pads=[1] * 4),
    conv((1, 256, 14, 14), (256, 256, 3, 3), pads=[1] * 4),
    conv((1, 512, 7, 7), (512, 512, 3, 3), pads=[1] * 4),
    conv((1, 64, 27, 27), (24, 64, 3, 3), strides=[2, 2]),
    conv((1, 64, 28, 28), (64, 64, 3, 3), pads=[2] * 4, dilations=[2, 2]),
    conv((1, 32, 28, 28), (64, 32, 5, 5), pads=[2] * 4),
    conv((1, 8, 64, 64), (64, 8, 9, 9), pads=[4] * 4),
    conv((1, 64, 28, 28), (64, 16, 3, 3), pads=[1] * 4, group=4),
    conv((1, 64, 1000), (64, 64, 8), strides=[4]),
    conv((1, 64, 56, 56), (256, 64, 1, 1)),
    conv((1, 96, 56, 56), (24, 96, 1, 1)),
    conv((1, 512, 7, 7), (2048, 512, 1, 1)),
    conv((1, 64, 28, 28), (128, 64, 1, 1), strides=[2, 2]),
    transposed((1, 64, 28, 28), (64, 32, 4, 4), strides=[2, 2], pads=[1] * 4),
    transposed((1, 64, 7, 7), (64, 24, 2, 2), strides=[2, 2]),
    product((128, 768), (768, 768)),
    product((12, 384), (384, 1536)),
    product((1000, 64), (64, 32)),
    product((12, 128, 64), (12, 64, 128)),
    product((128, 768), (768, 768), transB=1),
    product((768, 50), (768, 70), transA=1),
]


def calls(case: OpCase, dynamic: bool) -> Iterator[KernelCall]:
    """All alternatives that register tiles compute."""
    graph, node, _ = inferred(case, dynamic=dynamic)
    op = definition(node)
    assert op is not None and op.lower is not None
    target = Target.baseline()
    for stage in op.lower(Lowering(graph, node, target, lambda t: "s", lambda *a: "d")):
        yield from (
            c
            for c in stage
            if c.shader in KERNELS
            and "SHARED" not in c.flags  # few rows: as fast as the memory gives the other operand
            and "2 >= " not in str([*c.when, ""][0])  # images of two pixels at most
        )


def words(kind: str) -> int:
    """Of a type in WGSL."""
    found = re.match(r"vec(\d)", kind)
    return int(found[1]) if found else 1


def products(text: str, kind: str) -> int:
    """Multiply-adds of an invocation."""
    return words(kind) * len(re.findall(r"\b(?:a\d+_\d+ \+=|sum\d+_\d+ = fma\()", text))


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_tiles_leave_room_for_waves_that_compute(case: OpCase, dynamic: bool) -> None:
    found = list(calls(case, dynamic))
    assert found
    for call in found:
        text = call.text.get("BODY") or call.text["START"] + "\n" + call.text["SUM"]
        kind = "vec4<f32>"
        if call.shader == "matmul":
            (kind,) = set(re.findall(r"var sum\d+_\d+ = ([^(]*)\(", text))
        sums = words(kind) * len(re.findall(r"\b(?:a|sum)\d+_\d+ = (?:bias|vec|f32)", text))
        assert 8 <= sums <= MOST_SUMS
        lanes = call.overrides["WORKGROUP_X"], call.overrides["WORKGROUP_Y"]
        assert lanes == (64, 1), "what a wave shares is not the same for all of it"
        trip = max(text.split("for ("), key=lambda loop: products(loop, kind))
        count = products(trip, kind)
        assert count >= LEAST_PRODUCTS, "a trip's own instructions weigh too much"
        loads = len(re.findall(r"\b(?:load|load4|quad|channel_load|channel_quad)_[xb]\(", trip))
        assert count >= REUSE * loads


NEVER_OUTSIDE = [
    conv((1, 16, 100), (24, 16, 5), strides=[2], pads=[2, 2]),
    conv((1, 16, 30, 100), (24, 16, 3, 3), pads=[0, 1, 0, 1]),
    transposed((1, 64, 7, 7), (64, 24, 2, 2), strides=[2, 2]),
    transposed((1, 64, 300), (64, 24, 5), strides=[5]),
]
PADDED = [
    conv((1, 16, 30, 100), (24, 16, 3, 3), pads=[1] * 4),
    conv((1, 16, 30, 100), (24, 16, 3, 3), auto_pad="SAME_UPPER"),
    transposed((1, 64, 7, 7), (64, 24, 3, 3), strides=[2, 2]),
    transposed((1, 64, 7, 7), (64, 24, 2, 2), strides=[2, 2], output_padding=[1, 0]),
]


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_rows_are_tested_only_where_some_are_outside(dynamic: bool) -> None:
    """Behind a row that some invocations leave out, a wave counts the trips of each by itself."""
    for cases, inside in ((NEVER_OUTSIDE, True), (PADDED, False)):
        for case in cases:
            flags = [call.flags for call in calls(case, dynamic)]
            assert flags
            assert all(("INSIDE" in found) == inside for found in flags), case_id(case)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_transposed_kernels_as_wide_as_their_stride_meet_no_edge(dynamic: bool) -> None:
    for case, met in ((NEVER_OUTSIDE[2], False), (PADDED[2], True)):
        for call in calls(case, dynamic):
            assert ("select(" in call.text["SUM"]) == met


@pytest.mark.parametrize("case", [c for c in CASES if c.op != "MatMul"], ids=case_id)
def test_what_moves_on_is_the_same_for_all(case: OpCase) -> None:
    """So that an invocation adds it to its own place in the instruction that makes an address."""
    for call in calls(case, True):
        if call.shader != "matmul" and "for (var c " in call.text["SUM"]:
            assert "ahead += " in call.text["SUM"]
            assert not re.search(r"\b(?:row|place) \+= ", call.text["SUM"])


def test_loads_say_their_channel() -> None:
    """What is computed in front finds what is one for a channel without dividing."""
    for case in (CASES[0], CASES[6], CASES[8], NEVER_OUTSIDE[0]):
        graph, node, _ = inferred(case)
        op = definition(node)
        assert op is not None
        assert op.by_plane(Lowering(graph, node, Target.baseline(), lambda t: "s", lambda *a: "d"))
        for call in calls(case, dynamic=False):
            loads = re.findall(r"\b(channel_)?(?:load|quad)_x\(", call.text["SUM"])
            assert loads and all(loads)


def test_of_few_channels_two_pixels_come_before_one() -> None:
    """What a load takes besides is as much for four products as for 16."""
    for channels, expected in ((4, [4, 2, 1]), (8, [4, 2, 1]), (64, [4, 1])):
        found = [
            (c.params["columns"], len(c.when))
            for c in calls(conv((1, 64, 9, 9), (channels, 64, 1, 1)), dynamic=True)
        ]
        assert list(dict.fromkeys(columns for columns, _ in found)) == expected
        assert found[-1][1] == 0 < min(when for _, when in found[:-1])


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_taps_of_a_long_kernel_are_tested_only_where_some_are_outside(dynamic: bool) -> None:
    """With one channel, for which there is no loop that tests could stand in front of."""
    both, one = r"u32\(first \+ \d+\) < ", r"first (?:>=|<) "
    for channels, found in ((1, (one, both)), (2, (both, one))):
        case = conv((1, channels, 3000), (8, channels, 128), strides=[32], pads=[32, 32])
        for call in calls(case, dynamic):
            assert re.search(found[0], call.text["SUM"])
            assert not re.search(found[1], call.text["SUM"])
            loops = re.findall(r"for \(var kx = (\d+)u; kx < (\d+)u", call.text["SUM"])
            stops = ("0", "32"), ("32", "96"), ("96", "128")
            assert loops == (list(stops) if channels == 1 else [("0", "128")])


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_loops_behind_rows_that_some_leave_out_have_a_function(dynamic: bool) -> None:
    for case, apart in [(c, True) for c in PADDED] + [(c, False) for c in NEVER_OUTSIDE]:
        for call in calls(case, dynamic):
            assert ("APART" in call.flags) == apart
            declared = re.findall(r"var<private> (a\d+_\d+): ", call.text.get("SUMS", ""))
            started = re.findall(r"^    (a\d+_\d+) = ", call.text["START"], re.MULTILINE)
            assert declared == started
            assert bool(declared) == apart
