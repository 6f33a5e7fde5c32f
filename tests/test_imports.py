"""Who may import what: modules of the engine point backwards along the path of the data only."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

ORDER = (
    *("version", "json_text", "records", "errors", "progress", "dtypes", "dims", "target", "ir"),
    "indexing",
    *("shader", "windows", "rates", "work", "ops", "importer", "exporter", "passes"),
    *("intervals", "ranges", "costs", "tuning", "reasons", "options", "support"),
    *(
        "placement",
        "choice",
        "partition",
        "layout",
        "groups",
        "fusion_rules",
        "fusion",
        "prologue",
        "parts",
        "reach",
        "operands",
        "codegen",
        "schedule",
        "liveness",
        "memory",
        "checks",
    ),
    *(
        "plan",
        "appends",
        "sharing",
        "lowering",
        "planner",
        "splits",
        "bind",
        "compiler",
        "explain",
        "serialize",
        "runtime",
        "backend",
        "tools",
        "commands",
        "cli",
    ),
    "__main__",
)
"""Modules and packages of `engine/`; each may import those to its left, and its own parts."""

THIRD_PARTY = {
    "numpy": ("engine", "cpu_fallback"),
    "ml_dtypes": ("engine.dtypes", "cpu_fallback"),
    "onnx": (
        "engine.importer",
        "engine.exporter",
        "engine.ops",
        "engine.backend",
        "engine.tools.compare",
        "engine.tools.operators",
        "cpu_fallback.reference",
    ),
    "google": ("engine.importer",),
    "cpu_fallback": (
        "engine.ops._convolution_work",
        "engine.passes.infer",
        "engine.partition",
        "engine.runtime",
        "engine.tools.operators",
        "cpu_fallback",
    ),
    "shaders": (),
    "wgpu": ("engine.runtime",),
    "cffi": ("engine.runtime.header", "engine.runtime.loading"),
    "_cffi_backend": ("engine.runtime.header",),
    "networkx": ("engine.placement",),
    "platformdirs": ("engine.runtime", "engine.tools"),
    "rich": ("engine.tools",),
}
"""Modules (with their parts) that may import each package from outside the engine."""


@dataclass(frozen=True)
class Import:
    """`importer` (a dotted module of ours) imports the dotted `target` at `line`."""

    importer: str
    target: str
    line: int

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.target}"


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_module(dotted: str) -> bool:
    path = ROOT.joinpath(*dotted.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def imports_of(path: Path) -> Iterator[Import]:
    """Every import of a file, those inside functions too, down to the module that is meant."""
    importer = module_name(path)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(importer, alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{importer}:{node.lineno}: relative import"
            base = node.module or ""
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield Import(importer, inner if is_module(inner) else base, node.lineno)


def all_imports() -> list[Import]:
    files = sorted([*ROOT.glob("engine/**/*.py"), *ROOT.glob("cpu_fallback/**/*.py")])
    assert len(files) > 10
    return [found for file in files for found in imports_of(file)]


def place(dotted: str) -> int:
    """Position in `ORDER` of the module of the engine that `dotted` is, or is part of."""
    part = dotted.split(".")[1]
    assert part in ORDER, f"give engine/{part} a place in ORDER"
    return ORDER.index(part)


def belongs(module: str, owners: tuple[str, ...]) -> bool:
    return any(module == owner or module.startswith(owner + ".") for owner in owners)


def test_every_module_has_a_place() -> None:
    found = {p.stem for p in (ROOT / "engine").glob("*.py")} - {"__init__"}
    found |= {p.parent.name for p in (ROOT / "engine").glob("*/__init__.py")}
    assert found <= set(ORDER)


def test_engine_points_backwards() -> None:
    """`engine/__init__.py` gathers the public names, and nothing inside reads it."""
    wrong = []
    for found in all_imports():
        if found.target.split(".")[0] != "engine" or found.importer == "engine":
            continue
        if found.target == "engine":
            wrong.append(f"{found}: name the module itself")
        elif found.importer.startswith("cpu_fallback"):
            wrong.append(f"{found}: the fallback stands alone")
        elif place(found.target) > place(found.importer):
            wrong.append(f"{found}, which comes later")
    assert not wrong, "\n".join(wrong)


def test_third_party_stays_where_it_belongs() -> None:
    wrong = []
    for found in all_imports():
        package = found.target.split(".")[0]
        if package == "engine" or package in sys.stdlib_module_names:
            continue
        if not belongs(found.importer, THIRD_PARTY.get(package, ())):
            wrong.append(str(found))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("source", "targets"),
    [
        ("import os.path", ["os.path"]),
        ("from engine import dims, errors", ["engine.dims", "engine.errors"]),
        ("def f():\n    from engine.ir import Graph", ["engine.ir"]),
        ("from engine import InferenceSession", ["engine"]),
    ],
)
def test_imports_are_read(
    source: str, targets: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("dims", "errors", "ir", "user"):
        (tmp_path / "engine").mkdir(exist_ok=True)
        (tmp_path / "engine" / f"{name}.py").write_text(source)
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    found = list(imports_of(tmp_path / "engine" / "user.py"))
    assert [f.target for f in found] == targets
    assert {f.importer for f in found} == {"engine.user"}
