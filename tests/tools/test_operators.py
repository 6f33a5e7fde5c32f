"""The table of operators is current, and says what the registries say."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine import cli, ops
from engine.tools.operators import DOMAINS, Row, operator_rows, select, to_markdown, types_text

DOCUMENT = Path(__file__).parents[2] / "docs" / "operators.md"


def row(name: str) -> Row:
    (found,) = select(operator_rows(), [name])
    return found


def test_the_document_is_current(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ops", "--markdown"]) == 0
    made = capsys.readouterr().out
    written = DOCUMENT.read_text(encoding="utf-8")
    if made != written:
        changed = set(made.splitlines()) ^ set(written.splitlines())
        pytest.fail(
            "run `onnx-wgpu ops --markdown > docs/operators.md`; these lines differ:\n"
            + "\n".join(sorted(changed)),
            pytrace=False,
        )


def test_every_refusal_is_in_the_table() -> None:
    silent = {op.op_type for op in ops.registered() if op.supports is not None and not op.limits}
    assert silent == set()


def test_a_row_tells_forms_devices_and_limits() -> None:
    assert row("Softmax").cells[:2] == ("Softmax", "1, 11, 13")
    assert row("Add").gpu == "expression" and "int64" in row("Add").dtypes
    assert row("Reshape").gpu == "view" and row("Reshape").dtypes == ()
    assert row("ai.onnx:conv").gpu == "kernel" and "three spatial axes" in row("conv").limits
    assert row("If").cpu == "host" and row("If").gpu == ""
    assert row("StringSplit").cpu == "reference" and row("NonZero").cpu == "NumPy"
    assert row("Upsample").cells[1:] == ("1, 7, 9, 10 (gone)", "-", "", "-", "")
    assert row("com.microsoft:FusedMatMul").versions == ()


def test_every_operator_has_one_row() -> None:
    rows = operator_rows()
    assert len({(r.domain, r.op_type) for r in rows}) == len(rows) > 230
    own = {(op.domain, op.op_type) for op in ops.registered() if op.domain in DOMAINS}
    assert own <= {(r.domain, r.op_type) for r in rows}
    alone = {r.op_type for r in rows if not r.domain and not r.cpu and not r.deprecated}
    assert alone == set()
    assert to_markdown(rows).count("\n| ") == len(rows) + 2 * len({r.domain for r in rows})


def test_the_command_selects(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ops", "softmax", "rotaryembedding"]) == 0
    out = capsys.readouterr().out
    assert "Softmax" in out and "com.microsoft" in out and "Conv" not in out
    assert "\nLimits  what stays on the CPU; for all: rank over 8, " in out
    assert (
        types_text(("float32", "float16", "int32", "int8", "bool")) == "float16/32, int8/32, bool"
    )
    assert cli.main(["ops", "Sofmax"]) == 2
    assert "no operator is named Sofmax" in capsys.readouterr().err
