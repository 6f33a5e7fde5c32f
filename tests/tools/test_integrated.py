"""Kernels on an integrated GPU: machine code is read right, and RADV compiles where it is there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from engine.shader import Kernel, render
from tests.bench.integrated import fitness
from tests.bench.integrated.machine_code import Mix, hot_loop, mix
from tests.bench.integrated.radv import CompileError, Compiler
from tests.bench.integrated.section import section
from tests.bench.peers.contest import Case
from tests.bench.peers.tables import Result
from tests.bench.vulkan_layer import MissingError

SHADERS = Path(__file__).parents[2] / "shaders"

NESTED = """
BB0:
\ts_load_dwordx4 s[0:3], s[4:5], 0x0       ; c00a0002 00000000
\tv_mov_b32_e32 v0, 0                      ; 7e000280
BB1:
\tv_fma_f32 v0, v1, v2, v3                 ; d1cb0000 04060501
BB2:
\tbuffer_load_dwordx4 v[4:7], v1, s[0:3], 0 offen
\ts_buffer_load_dwordx8 s[8:15], s[0:3], s6
\ts_waitcnt vmcnt(0)
\tv_fmac_f32_e32 v0, v4, v5
\tv_mac_f32_e32 v0, v4, v5
\tv_mad_u32_u24 v8, v4, v5, v6
\ts_cbranch_scc1 BB4
BB3:
\tv_add_f32_e32 v0, v4, v5
\ts_branch BB2
BB4:
\ts_cbranch_vccnz BB2
BB5:
\ts_cbranch_scc0 BB1
BB6:
\tv_fma_f32 v0, v1, v2, v3
\tv_fma_f32 v0, v1, v2, v3
\ts_endpgm
"""


def test_the_hot_loop_is_the_innermost_with_most_multiply_adds() -> None:
    loop = hot_loop(NESTED)
    assert loop == Mix(vector=4, fma=2.5, cache_nbytes=16, workgroup_nbytes=0, scalar=5)
    later = "BB7:\n\tv_fma_f32 v0, v1, v2, v3\n" + "\tv_pk_fma_f16 v0, v1, v2, v3\n"
    found = hot_loop(NESTED + later + "\ts_cbranch_scc1 BB7\n")
    assert (found.vector, found.fma) == (2, 3.0)
    equal = "BB7:\n\tv_fma_f32 v0, v1, v2, v3\n" + "\tv_mul_f32_e32 v0, v1, v2\n" * 3
    assert hot_loop(NESTED + equal + "\ts_cbranch_scc1 BB7\n") == loop, "it has more instructions"


def test_without_a_loop_all_of_the_program_counts() -> None:
    code = "BB0:\n\tv_fma_f32 v0, v1, v2, v3\n\ts_cbranch_execz BB1\nBB1:\n\ts_endpgm\n"
    assert hot_loop(code) == Mix(vector=1, fma=1.0, scalar=2)
    assert hot_loop("") == Mix()


@pytest.mark.parametrize(
    ("line", "cache", "workgroup"),
    [
        ("buffer_load_dword v0, v1, s[0:3], 0 offen", 4, 0),
        ("buffer_load_dwordx3 v[0:2], v4, s[0:3], 0 offen", 12, 0),
        ("buffer_store_short v0, v1, s[0:3], 0 offen", 2, 0),
        ("global_load_ubyte v0, v[1:2], off", 1, 0),
        ("ds_read_b128 v[0:3], v4", 0, 16),
        ("ds_read2_b64 v[0:3], v4 offset1:1", 0, 16),
        ("ds_write2st64_b32 v4, v0, v1 offset1:1", 0, 8),
        ("s_load_dwordx16 s[0:15], s[16:17], 0x0", 0, 0),
    ],
)
def test_bytes_of_a_lane(line: str, cache: int, workgroup: int) -> None:
    found = mix([line])
    assert (found.cache_nbytes, found.workgroup_nbytes) == (cache, workgroup)


def test_the_slowest_unit_sets_the_bound() -> None:
    assert (Mix(vector=40, fma=32.0).bound, Mix(vector=40, fma=32.0).limit) == (0.8, "valu")
    loads = Mix(vector=40, fma=32.0, cache_nbytes=64, workgroup_nbytes=96)
    assert (loads.bound, loads.limit) == (0.5, "l1"), "64 bytes a clock"
    shared = Mix(vector=40, fma=32.0, cache_nbytes=16, workgroup_nbytes=160)
    assert (shared.bound, shared.limit) == (0.4, "lds"), "128 bytes a clock"
    assert Mix(scalar=3).bound == 0.0


def test_every_kernel_of_a_convolution_or_product_has_a_family() -> None:
    files = {p.stem for p in SHADERS.glob("*.wgsl") if {"conv", "matmul"} & {*p.stem.split("_")}}
    assert files == {*fitness.FAMILIES, *fitness.OTHERS}


def kernel_row(key: str, **figures: float | str) -> Result:
    row = {"key": key, "name": f"matmul {key}", "family": "matrix product", "predicted_ns": 1}
    loop = {"limit": "valu", "fma": 8.0, "vector": 10, "cache_nbytes": 16, "workgroup_nbytes": 0}
    return {**row, **loop, "spills": 0, "waves": 5, "bound": 0.9, **figures}


def test_the_section_has_models_families_and_what_is_under_a_goal() -> None:
    fit, low = kernel_row("fit", predicted_ns=3), kernel_row("low", bound=0.5, limit="l1")
    wide = kernel_row("wide", spills=2, waves=3, family="convolution", workgroup_nbytes=8)
    results = [
        {"model": "one", "integrated": [fit, low]},
        {"model": "two", "integrated": [wide, low]},
        {"model": "none", "integrated": []},
        {"model": "old"},
    ]
    page = section(json.loads(json.dumps(results)))
    lines = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("|")]
    rows = {cells[0]: cells[1:] for cells in lines}
    assert rows["one"] == ["2", "0", "5", "50%", "80%", "0", "0", "1"]
    assert rows["two"] == ["2", "2", "3", "50%", "70%", "1", "1", "1"]
    assert rows["matrix product"] == ["2", "0", "5", "50%", "74%", "0", "0", "1"]
    assert rows["all"] == ["3", "2", "3", "50%", "77%", "1", "1", "1"]
    assert rows["matmul low (one, two)"] == ["0", "5", "50%, l1", "8", "2", "16"]
    assert rows["matmul wide (two)"] == ["2", "3", "90%, valu", "8", "2", "16 + 8"]
    assert "none" not in rows and "matmul fit (one)" not in rows
    assert section([{"model": "old"}]) == ""


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    try:
        return Compiler()
    except MissingError as error:
        pytest.skip(str(error))


def some_kernel() -> Kernel:
    return render("GlobalMaxPool", "pool_global", {"x": "f32", "y": "f32"}, flags=["MAX"])


def test_a_model_gives_figures_of_its_products(tmp_path: Path, compiler: Compiler) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> '
        "small (float[64,64] x) => (float[64,64] y) { z = MatMul(x, x) y = Tanh(z) }"
    )
    onnx.save(model, tmp_path / "small.onnx")
    feeds = {"x": np.ones((64, 64), np.float32)}
    case = Case("small", tmp_path / "small.onnx", (feeds, feeds), ("y",))
    (found,) = fitness.fitness(case, compiler)
    assert found["name"].startswith("matmul MatMul") and found["predicted_ns"] > 0
    assert found["spills"] == 0 and 1 <= found["waves"] <= 10
    assert 0.1 < found["bound"] < 1 and found["fma"] < found["vector"]
    assert found["cache_nbytes"] > 0
    assert "| small | 1 |" in section([{"model": "small", "integrated": [found]}])


def test_a_kernel_is_compiled_once(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = some_kernel()
    first = compiler.compile([kernel, kernel])
    monkeypatch.setattr(Compiler, "_run", lambda *_: pytest.fail("it is known"))
    assert compiler.compile([replace(kernel, name="another")]) == first and len(first) == 1
    assert first[kernel.key].waves > 0


def test_a_kernel_that_does_not_compile_is_an_error_in_words(compiler: Compiler) -> None:
    wrong = replace(some_kernel(), name="wrong", wgsl="fn main() { nothing; }")
    with pytest.raises(CompileError, match=r"after 0 of 1 kernels: .*wrong.*nothing"):
        compiler.compile([wrong])


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.bench.integrated.radv._drivers", lambda: [Path("radeon.json")])
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(MissingError, match="no C compiler"):
        Compiler()
