"""The checks themselves: what is wrong is seen, and a test that never used the GPU fails."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from engine import ops
from engine.ops import Elementwise
from tests.choices import Choices
from tests.properties import check
from tests.properties.cases import Case
from tests.properties.check import agree
from tests.properties.drawing import Data, Form
from tests.properties.test_gpu_operators import must_have_run

X = np.array([1, 2, np.nan, np.inf], np.float32)
CASE = Case([X])


class Lowest(Choices):
    def int(self, low: int, high: int) -> int:
        return low


@pytest.mark.parametrize(
    ("got", "want", "case"),
    [
        (X, X[:3], CASE),
        (X[:2], X[:2].astype(np.int32), CASE),
        (X, np.where(np.isnan(X), 0, X), CASE),
        (X, -X, CASE),
        (X, np.where(np.isinf(X), 9, X), CASE),
        (X[:2], X[:2] + np.float32(1e-3), CASE),
        (np.float32([1, 1e6]), np.float32([1.5, 1e6]), Case([X], each=True)),
        (np.int32([3]), np.int32([4]), CASE),
        (np.int32([3]), np.int32([5]), Case([X], steps=1)),
        (np.array([True]), np.array([False]), CASE),
    ],
)
def test_what_is_wrong_is_seen(got: Any, want: Any, case: Case) -> None:
    with pytest.raises(AssertionError):
        with np.errstate(invalid="ignore"):
            agree(got, want, 1e-5, case, "a")


def test_zero_tolerance_compares_bits() -> None:
    with pytest.raises(AssertionError):
        agree(np.float32([0.0]), np.float32([-0.0]), 0, CASE, "a")
    agree(X, X.copy(), 0, CASE, "a")


@pytest.mark.parametrize(
    ("got", "want", "case"),
    [
        (X, X.astype(np.float64), CASE),
        (np.float32([np.inf]), np.array([1e39]), CASE),
        (np.float32([1e-7, 1e6]), np.array([0, 1e6]), CASE),
        (np.float16([0.1]), np.array([0.1]), CASE),
        (np.uint8([3]), np.array([4.0]), Case([X], steps=1)),
    ],
)
def test_what_is_right_passes(got: Any, want: Any, case: Case) -> None:
    agree(got, want, 1e-5, case, "a")


def test_the_form_is_drawn_once() -> None:
    form = Form(Lowest())
    assert form.int(1, 3) == 1
    form.again()
    with pytest.raises(AssertionError, match="depend on each other"):
        form.int(1, 4)


def test_a_reason_goes_with_another_oracle() -> None:
    with pytest.raises(AssertionError, match="say why"):
        Case([X], oracle="runtime")
    with pytest.raises(AssertionError, match="say why"):
        Case([X], because="it is wrong")


@pytest.mark.gpu
def test_a_wrong_kernel_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ops.lookup("Sub")
    assert right is not None
    wrong = dataclasses.replace(right, elementwise=Elementwise("{0} - {1} + {T}(1)"))
    monkeypatch.setitem(ops._REGISTRY, ("", "Sub"), [wrong])
    with pytest.raises(AssertionError, match="the GPU and the oracle"):
        must_have_run("Sub", 20)


@pytest.mark.gpu
def test_never_on_the_gpu_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def draw(op: str, form: Form, data: Data) -> Case:
        return Case([np.ones(data.size(1, 3))], tol=1e-6)

    monkeypatch.setattr(check, "strategies", lambda: {"Neg": draw})
    with pytest.raises(AssertionError, match="no kernel computes with float64"):
        must_have_run("Neg", 4)
