"""Pads that convolutions do where they load: every mode, kernel and kind of loading, against NumPy.

The oracle runs the Pad by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import engine
from engine.ops import _conv_winograd as winograd
from engine.runtime import targets
from tests.ops.conv_cases import winograd_sizes
from tests.ops.harness import compare
from tests.ops.test_prologues import Net, floats, labels

pytestmark = pytest.mark.gpu
MODES = ("wrap", "reflect", "edge")


@dataclass(frozen=True)
class Case:
    """A Pad of `pads` (begin of each spatial axis, then end) in front of a convolution."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    pads: tuple[int, ...]
    own: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    group: int = 1

    def add(self, net: Net, mode: str, x: str) -> str:
        """A Conv with its Pad."""
        rank = len(self.x) - 2
        pads = np.array((0, 0, *self.pads[:rank], 0, 0, *self.pads[rank:]))
        padded = net.add("Pad", x, net.constant(pads), mode=mode)
        attrs = {"pads": self.own, "strides": self.strides, "dilations": self.dilations}
        given = {k: list(v) for k, v in attrs.items() if v}
        weights, bias = net.constant(floats(*self.w)), net.constant(floats(self.w[0]))
        return net.add("Conv", padded, weights, bias, group=self.group, **given)


CASES = {
    "row": Case((1, 3, 13), (5, 3, 3), (1, 1)),
    "row of fours": Case((2, 4, 16), (16, 4, 3), (1, 1)),
    "row of fours, wide": Case((1, 4, 32), (8, 4, 5), (4, 3)),
    "one side": Case((1, 3, 12), (4, 3, 3), (0, 2)),
    "dilated": Case((1, 4, 19), (8, 4, 3), (6, 6), dilations=(6,)),
    "dilated by fours": Case((1, 4, 24), (8, 4, 3), (8, 8), dilations=(8,)),
    "as far as it goes": Case((1, 2, 5), (4, 2, 4), (4, 4)),
    "a whole turn": Case((1, 2, 4), (4, 2, 4), (4, 4)),
    "strided": Case((1, 2, 40), (4, 2, 6), (4, 4), strides=(3,)),
    "long kernel": Case((1, 1, 60), (9, 1, 40), (20, 20), strides=(2,)),
    "long kernel, one side": Case((2, 1, 96), (8, 1, 64), (0, 30), strides=(16,)),
    "long kernel, other side": Case((1, 1, 64), (8, 1, 27), (13, 0), strides=(2,)),
    "long kernel, both sides of a tap": Case((1, 1, 30), (8, 1, 40), (28, 25)),
    "long kernel, dilated": Case((2, 1, 90), (4, 1, 20), (30, 9), dilations=(3,)),
    "long kernel of fours, one channel": Case((2, 1, 64), (8, 1, 24), (12, 12)),
    "long kernel of fours": Case((1, 2, 64), (8, 2, 24), (12, 12)),
    "plane": Case((1, 3, 9, 11), (6, 3, 3, 3), (1, 1, 1, 1)),
    "plane of fours": Case((2, 8, 16, 24), (16, 8, 3, 3), (1, 1, 1, 1)),
    "columns only, zeros in rows": Case(
        (1, 4, 12, 16), (8, 4, 3, 3), (0, 1, 0, 1), own=(1, 0, 1, 0)
    ),
    "rows only, zeros in columns": Case(
        (1, 4, 12, 16), (8, 4, 3, 3), (1, 0, 1, 0), own=(0, 1, 0, 1)
    ),
    "groups": Case((1, 8, 10, 10), (8, 4, 5, 5), (2, 2, 2, 2), group=2),
    "one by one": Case((1, 4, 6, 8), (8, 4, 1, 1), (1, 2, 2, 1)),
    "cube": Case((1, 2, 5, 6, 8), (4, 2, 3, 3, 3), (1, 1, 2, 1, 1, 0)),
}


@pytest.mark.parametrize("target", ["baseline", pytest.param("adapter", marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_borders(case: Case, mode: str, target: str) -> None:
    net = Net()
    y = case.add(net, mode, net.feed(floats(*case.x)))
    too_far = mode == "reflect" and case is CASES["a whole turn"]
    assert labels(net, y, target=target) == (["Pad", "Conv"] if too_far else ["Pad + Conv"])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", sorted(winograd.POINTS))
def test_winograd(mode: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = winograd_sizes(monkeypatch)
    monkeypatch.setattr(targets, "is_software", lambda kind: True)
    monkeypatch.setattr(winograd, "best_size", lambda view, geo: size)
    for case in (CASES["plane"], CASES["columns only, zeros in rows"]):
        net = Net()
        assert labels(net, case.add(net, mode, net.feed(floats(*case.x)))) == ["Pad + Conv"]
    assert made == [size, size]


@pytest.mark.parametrize("mode", MODES)
def test_a_depthwise_convolution_gets_a_copy(mode: str) -> None:
    net = Net()
    y = Case((1, 8, 9, 12), (8, 1, 3, 3), (1, 1, 1, 1), group=8).add(
        net, mode, net.feed(floats(1, 8, 9, 12))
    )
    assert labels(net, y) == ["Pad", "Conv"]


def test_more_than_one_period_is_copied() -> None:
    net = Net()
    y = Case((1, 2, 4), (4, 2, 3), (7, 9)).add(net, "wrap", net.feed(floats(1, 2, 4)))
    assert labels(net, y) == ["Pad", "Conv"]


@pytest.mark.parametrize("mode", MODES)
def test_calls_of_open_sizes_that_are_too_short_get_another_plan(mode: str) -> None:
    net = Net()
    y = Case((1, 2, 10), (4, 2, 3), (3, 2)).add(
        net, mode, net.feed(floats(1, 2, 10), ("b", 2, "n"))
    )
    model, kernels = net.model([y]), []
    with (
        engine.InferenceSession(model, device="gpu") as gpu,
        engine.InferenceSession(model, device="cpu") as cpu,
    ):
        for batch, size in ((1, 10), (2, 4), (1, 3), (1, 2), (3, 12)):
            feeds = {"x0": floats(batch, 2, size)}
            (found,), (wanted,) = gpu.run(None, feeds), cpu.run(None, feeds)
            compare(found, wanted, 2e-5)
            kernels.append([d.label for d in gpu.plan(feeds).dispatches])
    least = {"edge": 1, "reflect": 4, "wrap": 3}[mode]
    whole = [["Pad + Conv"] if size >= least else ["Conv"] for size in (10, 4, 3, 2, 12)]
    assert kernels == whole


def test_readers_share_a_pad_and_what_is_behind_may_read_its_input() -> None:
    net = Net()
    x = net.feed(floats(1, 8, 16))
    padded = net.add("Pad", x, net.constant(np.array([0, 0, 2, 0, 0, 2])), mode="wrap")
    first, second = (
        net.add("Conv", padded, net.constant(floats(8, 8, 3)), dilations=[2]) for _ in range(2)
    )
    outputs = [net.add("Add", net.add("Relu", first), x), second]
    assert labels(net, *outputs) == ["Pad + Conv + Relu + Add", "Pad + Conv"]


def test_a_pad_that_something_else_reads_is_stored() -> None:
    net = Net()
    padded = net.add(
        "Pad", net.feed(floats(1, 2, 9)), net.constant(np.array([0, 0, 1, 0, 0, 1])), mode="edge"
    )
    outputs = [net.add("Conv", padded, net.constant(floats(3, 2, 3))), net.add("Neg", padded)]
    found = labels(net, *outputs)
    assert "Pad + Conv" not in " ".join(found) and len(found) == 2


def test_an_input_that_is_a_part_in_pieces_is_loaded_where_it_lies_or_copied() -> None:
    net = Net()
    cut = net.add(
        "Slice",
        net.add("Relu", net.feed(floats(1, 4, 20))),
        net.constant(np.array([3])),
        net.constant(np.array([15])),
        net.constant(np.array([2])),
    )
    padded = net.add("Pad", cut, net.constant(np.array([0, 0, 1, 0, 0, 1])), mode="wrap")
    y = net.add("Conv", padded, net.constant(floats(8, 4, 3)))
    assert labels(net, y)[-1] == "Pad + Conv"
