"""Every shader compiles where a browser runs it, and with every combination of its flags.

These tests run last, on what the tests before them rendered.
"""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

import engine
from engine.errors import ShaderError
from engine.runtime.device import open_device
from engine.shader import Kernel, Tensor
from engine.target import Target
from tests.portability.record import RECORDER, Recorder, Rendered
from tests.portability.tint import compile_all, need_tint, report
from tests.runtime.models import parse
from tests.test_layout import SHADERS, header

GROUP = re.compile(
    r"\b[A-Z][A-Z0-9_]*(?: \| [A-Z][A-Z0-9_]*)*\b(?: \((?:with|without) [A-Z0-9_]+\))?"
)
MOST = 256
"""Combinations of flags up to which a file is compiled with all of them."""
STEMS = [path.stem for path in SHADERS]


def combinations(lines: list[str]) -> list[frozenset[str]]:
    """The combinations of flags that a header's `flags:` line allows.

    "A | B | C" is exactly one of them; "A (with B)" is no A without B, "A (without B)" none with B.
    """
    text = next((line.removeprefix("flags:") for line in lines if line.startswith("flags:")), "")
    choices: list[tuple[str, ...]] = []
    needs: list[tuple[str, str, bool]] = []
    for group in dict.fromkeys(GROUP.findall(text)):
        names, _, condition = group.partition(" (")
        alternatives = names.split(" | ")
        if alternatives[0] in itertools.chain(*choices):
            continue
        choices.append(tuple(alternatives) if len(alternatives) > 1 else ("", *alternatives))
        if condition:
            how, other = condition.rstrip(")").split()
            needs.append((names, other, how == "with"))
    found = [frozenset(chosen) - {""} for chosen in itertools.product(*choices)]
    return [
        flags
        for flags in found
        if all((other in flags) == wanted for name, other, wanted in needs if name in flags)
    ]


def decisive(recorded: list[Rendered]) -> frozenset[str]:
    """Flags that come with other elements of some tensor than their absence."""
    found = set()
    for flag in {flag for r in recorded for flag in r.flags}:
        kinds: dict[str, tuple[set[str], set[str]]] = {}
        for r in recorded:
            for name, kind in r.elements.items():
                kinds.setdefault(name, (set(), set()))[flag in r.flags].add(kind)
        if any(a and b and a.isdisjoint(b) for a, b in kinds.values()):
            found.add(flag)
    return frozenset(found)


def variant(recorded: list[Rendered], flags: frozenset[str]) -> Kernel | None:
    """A kernel with these flags: the elements and text of the rendered one that is most like it.

    None if it would bind more buffers than WebGPU guarantees, so that no node can be lowered to it.

    Raises: ShaderError if the file wants what no rendered kernel has.
    """
    words = {name: kind for r in recorded for name, kind in r.params}
    problem: ShaderError | None = None
    weighty = decisive(recorded)

    def distance(r: Rendered) -> tuple[int, int, int]:
        differ = r.flags ^ flags
        return len(differ & weighty), len(differ), len(r.kernel.tensors)

    nearest = sorted(recorded, key=distance)
    elements = {name: kind for r in reversed(nearest) for name, kind in r.elements.items()}
    for near in nearest:
        try:
            found = near.rendered_with({**elements, **near.elements}, flags, words)
        except ShaderError as error:
            problem = problem or error
            continue
        if len(found.tensors) <= Target.baseline().max_storage_buffers_per_shader_stage:
            return found
        problem = None
    if problem is not None:
        raise problem
    return None


def variants(stem: str, recorded: list[Rendered]) -> list[Kernel]:
    """A kernel for each combination of flags that the header of a file allows.

    If these are too many, for those which differ in one flag from a kernel that was rendered.
    """
    path = next(path for path in SHADERS if path.stem == stem)
    wanted = combinations(header(path.read_text(encoding="utf-8")))
    rendered = {r.flags for r in recorded}
    assert rendered <= set(wanted), f"{stem}.wgsl is rendered with flags that its header rules out"
    if len(wanted) > MOST:
        wanted = [f for f in wanted if any(len(f ^ other) < 2 for other in rendered)]
    found = [variant(recorded, flags) for flags in wanted]
    return [kernel for kernel in found if kernel is not None]


def needs_rendered(stem: str, whole_run: bool) -> list[Rendered]:
    """The kernels that the tests made from a file; skips the test where not all of them ran."""
    if not whole_run:
        pytest.skip("not all tests ran before it, which render the shaders")
    recorded = RECORDER.of(stem)
    assert recorded, f"no test renders {stem}.wgsl"
    return recorded


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("stem", STEMS)
def test_every_combination_of_flags_compiles(stem: str, whole_run: bool) -> None:
    recorded = needs_rendered(stem, whole_run)
    kernels = variants(stem, recorded)
    assert kernels
    for kernel in kernels:
        open_device(target="adapter" if kernel.features else None).pipeline(kernel)


@pytest.mark.slow
def test_tint_compiles_every_kernel(whole_run: bool) -> None:
    need_tint()
    limit = Target.baseline().max_storage_buffers_per_shader_stage
    # those that bind more are for devices that offer more than Tint's has here
    kernels = [r.kernel for r in RECORDER.seen.values() if len(r.kernel.tensors) <= limit]
    if whole_run:
        kernels += [k for stem in STEMS for k in variants(stem, RECORDER.of(stem))]
    if not kernels:
        pytest.skip("no test before it rendered a kernel")
    errors = compile_all(kernels)
    assert not any(errors), report(kernels, errors)


def sample(body: str, *features: str) -> Kernel:
    text = f"""@group(0) @binding(0) var<storage, read_write> y: array<f32>;
override SIZE: u32 = 0u;
var<workgroup> part: array<f32, SIZE>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
    {body}
}}
"""
    tensors = (Tensor("y", "f32", writable=True),)
    return Kernel(
        "sample", text, tensors, (), (64, 1, 1), 256, (("SIZE", 64),), frozenset(features)
    )


def test_tint_refuses_what_browsers_refuse() -> None:
    need_tint()
    kernels = [
        sample("y[id.x] = part[id.x];"),
        sample("if (id.x > 3u) { return; } workgroupBarrier(); y[0] = part[0];"),
        sample("y[id.x] = z;"),
        sample("y[id.x] = f32(f16(part[id.x]));", "shader-f16"),
        sample("y[id.x] = f32(f16(part[id.x]));"),
        sample("y[id.x] = subgroupAdd(part[id.x]);", "subgroups"),
        sample("y[id.x] = subgroupAdd(part[id.x]);"),
    ]
    errors = compile_all(kernels)
    assert [bool(found) for found in errors] == [False, True, True, False, True, False, True]
    assert "uniform" in errors[1][0]
    assert errors[2][0].startswith("line 6:")
    assert "sample: line 6:" in report(kernels, errors)


def test_tint_has_the_limits_of_the_baseline() -> None:
    need_tint()
    small = sample("y[id.x] = part[id.x];")
    tensors = tuple(Tensor(f"x{i}", "f32") for i in range(8)) + small.tensors
    large = [
        Kernel("memory", small.wgsl, small.tensors, (), (64, 1, 1), 0, (("SIZE", 4097),)),
        Kernel("buffers", small.wgsl, tensors, (), (64, 1, 1), 0, (("SIZE", 64),)),
    ]
    assert all(compile_all(large))


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("dispatch: one", 1),
        ("flags: A, B (what B does)", 4),
        ("flags: A, B (with A)", 3),
        ("flags: A; B (without A): neither", 3),
        ("flags: A | B | C (the cell), D (with C), E (of a B)", 8),
    ],
)
def test_combinations_follow_the_header(line: str, count: int) -> None:
    found = combinations(["what it computes", line])
    assert len(found) == len(set(found)) == count


@pytest.mark.gpu
def test_what_a_session_compiles_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    recorder.install(monkeypatch)
    text = "both (float[n,3] x) => (float[n,3] y) { sum = ReduceSum(x) y = Sub(x, sum) }"
    with engine.InferenceSession(parse(text), device="gpu") as session:
        session.run(None, {"x": np.ones((2, 3), np.float32)})
    assert {r.stem for r in recorder.seen.values()} >= {"elementwise"}
    assert any(r.stem.startswith("reduce") for r in recorder.seen.values())
