"""The layout of the repository: the same stem in each folder, and headers that tell the truth."""

from __future__ import annotations

import ast
import functools
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cpu_fallback import registry
from engine import ops

ROOT = Path(__file__).parent.parent
SHADERS = sorted((ROOT / "shaders").glob("*.wgsl"))
LIBRARY = sorted((ROOT / "shaders" / "lib").glob("*.wgsl"))
MODULES = sorted(
    path.stem
    for path in (ROOT / "engine" / "ops").glob("*.py")
    if not path.stem.startswith("_") and not path.stem.endswith("_common")
)
"""Modules of operators; helpers begin with an underscore or end in `_common`."""
FAMILIES = [m for m in MODULES if not any(m.startswith(other + "_") for other in MODULES)]
"""Modules whose stem no other's begins; `conv_transpose` is a part of the family `conv`."""

DECLARATION = re.compile(
    r"^@group\(0\) @binding\(\d+\) var<storage, (read|read_write)> (\w+): array<(\w+)>;", re.M
)
OVERRIDE = re.compile(r"^override (\w+):", re.M)
CONDITION = re.compile(r"^\s*//# if (?:not )?(\w+)", re.M)
INCLUDE = re.compile(r"^\s*//# include (\S+)", re.M)
HEADER_TENSOR = re.compile(r"^(\w+): \[[^\]]*\] \S+")
PRINTING = ("engine/cli.py", "engine/commands/", "engine/tools/", "engine/__main__.py")


def header(text: str) -> list[str]:
    """The comment lines that a shader begins with, without their slashes."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("//") or line.startswith("//#"):
            break
        lines.append(line.removeprefix("//").strip())
    return lines


def with_includes(text: str) -> str:
    """The text and that of the library files which it includes, directly or not."""
    inner = [
        (ROOT / "shaders" / name).read_text(encoding="utf-8") for name in INCLUDE.findall(text)
    ]
    return "\n".join([text, *map(with_includes, inner)])


def header_problems(text: str) -> list[str]:
    """What the header of a shader leaves out or says wrongly."""
    lines = header(text)
    fields = dict(line.split(":", 1) for line in lines if re.match(r"[\w]+:", line))
    problems = []
    if not lines or re.match(r"\w+:", lines[0]):
        problems.append("the first line does not say what the shader computes")
    problems += [f"no `{name}:` line" for name in ("spec", "dispatch") if not fields.get(name)]
    for _, name, _ in DECLARATION.findall(text):
        if not any(m and m.group(1) == name for m in map(HEADER_TENSOR.match, lines)):
            problems.append(f"no line `{name}: [shape] type`")
    told = set(re.findall(r"[A-Z][A-Z0-9_]*", fields.get("flags", "")))
    used = set(CONDITION.findall(with_includes(text)))
    problems += [f"flag {f} is not in `flags:`" for f in used - told]
    problems += [f"`flags:` names {f}, not used" for f in told - used]
    return problems


def family_of(stem: str) -> str | None:
    """The family with the longest name that a shader's stem begins with."""
    fitting = [f for f in FAMILIES if stem == f or stem.startswith(f + "_")]
    return max(fitting, key=len, default=None)


@pytest.mark.parametrize("path", SHADERS, ids=lambda path: path.stem)
def test_shader_header(path: Path) -> None:
    assert header_problems(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", LIBRARY, ids=lambda path: path.stem)
def test_library_file_says_what_it_is(path: Path) -> None:
    assert header(path.read_text(encoding="utf-8"))


def test_header_problems_are_seen() -> None:
    text = """// Doubles x.
// spec: ONNX Add-14
// x: [size] float32
// flags: FAST (skips the check), GONE
// dispatch: one workgroup computes 64 elements
@group(0) @binding(0) var<storage, read> x: array<T>;
@group(0) @binding(1) var<storage, read_write> y: array<T>;
//# if FAST
//# endif
//# if not SLOW
//# endif
"""
    assert header_problems(text) == [
        "no line `y: [shape] type`",
        "flag SLOW is not in `flags:`",
        "`flags:` names GONE, not used",
    ]
    bare = "@group(0) @binding(0) var<storage, read> x: array<T>;"
    assert len(header_problems(bare)) == 4


@pytest.mark.parametrize("path", SHADERS, ids=lambda path: path.stem)
def test_shader_belongs_to_a_family(path: Path) -> None:
    assert family_of(path.stem) is not None


@functools.cache
def registrations() -> dict[str, bool]:
    """Module of operators -> whether one of its operators dispatches a shader of its own.

    Seen from a fresh interpreter, where `register` notes the module that is being imported.
    """
    script = """
import json, sys
from engine import ops
plain, seen = ops.register, {}
def noting(op):
    frame = sys._getframe(1)
    while not frame.f_globals["__name__"].startswith("importlib"):
        module, frame = frame.f_globals["__name__"], frame.f_back
    name = module.removeprefix("engine.ops.")
    seen[name] = seen.get(name, False) or op.lower is not None
    return plain(op)
ops.register = noting
ops.registered()
print(json.dumps(seen))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found: dict[str, bool] = json.loads(done.stdout)
    return {module: found[module] for module in MODULES if module in found}


@pytest.mark.parametrize("family", FAMILIES)
def test_family_has_the_same_stem_everywhere(family: str) -> None:
    missing = [
        name
        for name in (f"cpu_fallback/{family}.py", f"tests/ops/test_{family}.py")
        if not (ROOT / name).is_file()
    ]
    parts = [m for m in MODULES if m == family or m.startswith(family + "_")]
    dispatches = any(registrations()[part] for part in parts)
    if dispatches and not any(family_of(path.stem) == family for path in SHADERS):
        missing.append(f"shaders/{family}.wgsl")
    assert missing == []


def test_every_module_registers_something() -> None:
    assert set(registrations()) == set(MODULES)


def test_every_operator_has_a_fallback() -> None:
    everything = ops.registered()
    assert everything
    without = [
        f"{op.domain or 'ai.onnx'}:{op.op_type}-{op.since}"
        for op in everything
        if registry.exists(op.op_type, op.domain, op.since) is None
    ]
    assert without == []


def test_library_does_not_print() -> None:
    wrong = []
    for path in [*ROOT.glob("engine/**/*.py"), *ROOT.glob("cpu_fallback/**/*.py")]:
        name = path.relative_to(ROOT).as_posix()
        if name.startswith(PRINTING):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "print":
                wrong.append(f"{name}:{node.lineno}")
    assert wrong == []
