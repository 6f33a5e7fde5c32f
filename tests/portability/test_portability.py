"""Every shader compiles where a browser runs it, and with every combination of its flags.

These tests run last, on what the tests before them rendered.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

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

FLAG = re.compile(r"\b([A-Z][A-Z0-9_]*)\b(?: \((with|without) ([A-Z][A-Z0-9_]*)\))?")
STEMS = [path.stem for path in SHADERS]


def combinations(lines: list[str]) -> Iterator[frozenset[str]]:
    """The flags that a header's `flags:` line allows together; "A (with B)" is none without B."""
    text = next((line.removeprefix("flags:") for line in lines if line.startswith("flags:")), "")
    found = FLAG.findall(text)
    names = list(dict.fromkeys(name for name, _, _ in found))
    for chosen in itertools.product((False, True), repeat=len(names)):
        flags = frozenset(itertools.compress(names, chosen))
        needs = [(how, other) for name, how, other in found if how and name in flags]
        if all((other in flags) == (how == "with") for how, other in needs):
            yield flags


def variant(recorded: list[Rendered], flags: frozenset[str]) -> Kernel:
    """A kernel with these flags: the elements and text of the rendered one that is most like it.

    Raises: ShaderError if none fits.
    """
    elements = {name: kind for r in recorded for name, kind in r.elements.items()}
    problem = ShaderError("nothing was rendered")
    for near in sorted(recorded, key=lambda r: (len(r.flags ^ flags), len(r.kernel.tensors))):
        try:
            kernel = near.rendered_with({**elements, **near.elements}, flags)
        except ShaderError as error:
            problem = error
            continue
        if len(kernel.tensors) <= Target.baseline().max_storage_buffers_per_shader_stage:
            return kernel
        problem = ShaderError(f"{kernel.name} binds {len(kernel.tensors)} storage buffers")
    raise problem


def needs_rendered(stem: str, whole_run: bool) -> list[Rendered]:
    """The kernels that the tests made from a file; skips the test where not all of them ran."""
    if not whole_run:
        pytest.skip("not all tests ran before it, which render the shaders")
    recorded = RECORDER.of(stem)
    assert recorded, f"no test renders {stem}.wgsl"
    return recorded


def flags_of(stem: str) -> list[frozenset[str]]:
    path = next(path for path in SHADERS if path.stem == stem)
    return list(combinations(header(path.read_text(encoding="utf-8"))))


@pytest.mark.gpu
@pytest.mark.parametrize("stem", STEMS)
def test_every_combination_of_flags_compiles(stem: str, whole_run: bool) -> None:
    recorded = needs_rendered(stem, whole_run)
    for flags in flags_of(stem):
        open_device().pipeline(variant(recorded, flags))


def test_tint_compiles_every_kernel(whole_run: bool) -> None:
    need_tint()
    kernels = [r.kernel for r in RECORDER.seen.values()]
    if whole_run:
        for stem in STEMS:
            kernels += [variant(RECORDER.of(stem), flags) for flags in flags_of(stem)]
    if not kernels:
        pytest.skip("no test before it rendered a kernel")
    errors = compile_all(kernels)
    assert not any(errors), report(kernels, errors)


def kernel(body: str, *features: str) -> Kernel:
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
        kernel("y[id.x] = part[id.x];"),
        kernel("if (id.x > 3u) { return; } workgroupBarrier(); y[0] = part[0];"),
        kernel("y[id.x] = z;"),
        kernel("y[id.x] = f32(f16(part[id.x]));", "shader-f16"),
        kernel("y[id.x] = f32(f16(part[id.x]));"),
        kernel("y[id.x] = subgroupAdd(part[id.x]);", "subgroups"),
        kernel("y[id.x] = subgroupAdd(part[id.x]);"),
    ]
    errors = compile_all(kernels)
    assert [bool(found) for found in errors] == [False, True, True, False, True, False, True]
    assert "uniform" in errors[1][0]
    assert errors[2][0].startswith("line 6:")
    assert "sample: line 6:" in report(kernels, errors)


def test_tint_has_the_limits_of_the_baseline() -> None:
    need_tint()
    small = kernel("y[id.x] = part[id.x];")
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
    ],
)
def test_combinations_follow_the_header(line: str, count: int) -> None:
    found = list(combinations(["what it computes", line]))
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
