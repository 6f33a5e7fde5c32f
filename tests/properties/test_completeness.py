"""Every operator that the GPU can run has a strategy, so that none is added untested."""

from __future__ import annotations

from pathlib import Path

from engine import ops
from tests.properties import families
from tests.properties.cases import strategies


def gpu_operators() -> set[str]:
    """Operators with a GPU form, as `draws` names them."""
    return {
        f"{op.domain}:{op.op_type}" if op.domain else op.op_type
        for op in ops.registered()
        if op.on_gpu
    }


def test_every_operator_with_a_gpu_form_has_a_strategy() -> None:
    missing = sorted(gpu_operators() - strategies().keys())
    assert not missing, f"give {missing} a strategy in tests/properties/families"


def test_every_strategy_is_of_an_operator_with_a_gpu_form() -> None:
    assert strategies().keys() <= gpu_operators()


def test_families_are_those_of_the_engine() -> None:
    mine = {path.stem for path in Path(families.__path__[0]).glob("*.py")} - {"__init__"}
    theirs = {path.stem for path in Path(ops.__path__[0]).glob("*.py")}
    assert mine <= theirs
