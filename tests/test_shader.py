"""The preprocessor, the accessors and the reflection of shaders."""

from __future__ import annotations

import re

import pytest

from engine.errors import ShaderError
from engine.shader import Fused, Tensor, declared, opaque, preprocess, render, template

TEMPLATE = """// A test.
// spec: none
struct Params {
    size: u32,
    alpha: f32,
}
@group(0) @binding(0) var<storage, read> x: array<T>;
@group(0) @binding(1) var<storage, read_write> y: array<T>;
@group(0) @binding(2) var<uniform> params: Params;
override WORKGROUP_SIZE: u32 = 64u;
//# include lib/index.wgsl
var<workgroup> tile: array<vec4<f32>, WORKGROUP_SIZE>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>) {
    let i = flat_index(id, n);
    //# if NEGATE
    store_y(i, -load_x(i));
    //# else
    store_y(i, ${VALUE});
    //# endif
}
"""


@pytest.fixture(autouse=True)
def own_file(monkeypatch: pytest.MonkeyPatch) -> None:
    real = template.source
    monkeypatch.setattr(template, "source", lambda s: TEMPLATE if s == "test" else real(s))


def test_a_condition_keeps_one_branch_and_its_fields() -> None:
    kept = preprocess("test", (), {"VALUE": "load_x(i) * params.alpha"})
    assert "store_y(i, load_x(i) * params.alpha);" in kept
    assert "-load_x" not in kept and "//#" not in kept
    assert "store_y(i, -load_x(i));" in preprocess("test", {"NEGATE"})


@pytest.mark.parametrize(
    ("flags", "text", "message"),
    [
        ((), {}, "has the fields"),
        ({"NEGATE"}, {"VALUE": "1"}, "has the fields"),
        ({"NEGATE", "OTHER"}, {}, "does not know the flags"),
    ],
)
def test_what_is_missing_or_unused_is_an_error(
    flags: set[str], text: dict[str, str], message: str
) -> None:
    with pytest.raises(ShaderError, match=message):
        preprocess("test", flags, text)


def test_a_directive_that_nobody_knows_names_file_and_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(template, "source", lambda s: "// x\n//# for i in 3\n")
    with pytest.raises(ShaderError, match=r"bad.wgsl:2: .*for i in 3"):
        preprocess("bad")


def test_declarations_are_read_in_binding_order() -> None:
    assert declared(TEMPLATE) == (("x", False, "T"), ("y", True, "T"))


def test_accessors_follow_the_element_type() -> None:
    kernel = render("k", "test", {"x": "f32", "y": "bool"}, text={"VALUE": "load_x(i) > 0.0"})
    assert "fn load_x(i: u32) -> f32 { return x[i]; }" in kernel.wgsl
    assert "fn store_y(i: u32, v: bool) { y[i] = select(0u, 1u, v); }" in kernel.wgsl
    assert "var<storage, read_write> y: array<u32>;" in kernel.wgsl
    assert kernel.params == (("size", "u32"), ("alpha", "f32"))
    assert kernel.params_nbytes == 16


def test_wide_access_makes_the_buffer_an_array_of_vectors() -> None:
    kernel = render("k", "test", {"x": "f32", "y": "f32"}, text={"VALUE": "load4_x(i * 4u).x"})
    assert "var<storage, read> x: array<vec4<f32>>;" in kernel.wgsl
    assert "fn load4_x(i: u32) -> vec4<f32> { return x[i >> 2u]; }" in kernel.wgsl


def test_a_kernel_that_repeats_reads_its_index_from_a_uniform_behind_params() -> None:
    kernel = render("k", "test", {"x": "f32", "y": "f32"}, text={"VALUE": "f32(repeat_index())"})
    assert kernel.repeats
    assert "@group(0) @binding(2) var<uniform> params: Params;" in kernel.wgsl
    assert "@group(0) @binding(3) var<uniform> repeat: vec4<u32>;" in kernel.wgsl
    once = render("k", "test", {"x": "f32", "y": "f32"}, text={"VALUE": "1.0"})
    assert not once.repeats and "repeat" not in once.wgsl


def test_reflection_applies_overrides() -> None:
    kernel = render(
        "k", "test", {"x": "f32", "y": "f32"}, flags={"NEGATE"}, overrides={"WORKGROUP_SIZE": 32}
    )
    assert kernel.workgroup == (32, 1, 1)
    assert kernel.workgroup_nbytes == 32 * 16
    with pytest.raises(ShaderError, match="no override"):
        render("k", "test", {"x": "f32", "y": "f32"}, flags={"NEGATE"}, overrides={"SIZE": 1})


def test_params_may_be_hidden_from_the_driver() -> None:
    """Each word is added the highest bit of the index of a workgroup, which is never set."""
    text = opaque(render("k", "test", {"x": "f32", "y": "f32"}, text={"VALUE": "params.alpha"}))
    assert "var<uniform> given: Params;\nvar<private> params: Params;\n" in text
    main = text[text.index("fn main(") :]
    assert main.startswith(
        "fn main(@builtin(workgroup_id) never_group: vec3<u32>, "
        "@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>) {\n"
        "    params = given;\n"
        "    let never = never_group.x >> 31u;\n"
        "    params.size += never;\n"
        "    params.alpha = bitcast<f32>(bitcast<u32>(params.alpha) + never);\n"
        "    let i = flat_index(id, n);\n"
    )


def test_the_index_of_a_workgroup_that_a_kernel_has_hides_its_params() -> None:
    kernel = render("k", "softmax_workgroup", {"input": "f32", "output": "f32"})
    (name,) = re.findall(r"@builtin\(workgroup_id\) (\w+)", kernel.wgsl)
    text = opaque(kernel)
    assert text.count("@builtin(workgroup_id)") == 1 and f"let never = {name}.x >> 31u;" in text


def test_the_key_is_the_text_with_overrides() -> None:
    def key(**overrides: int) -> str:
        elements = {"x": "f32", "y": "f32"}
        return render("k", "test", elements, flags={"NEGATE"}, overrides=overrides).key

    assert key() == key()
    assert key(WORKGROUP_SIZE=32) != key()


def test_fused_code_takes_the_place_of_a_tensor() -> None:
    fused = Fused(
        frozenset({"y"}),
        (Tensor("bias", "f32"), Tensor("out0", "f32", True)),
        (("beta", "f32"),),
        "fn store_y(i: u32, v: f32) {\n    store_out0(i, v * params.beta + load_bias(i));\n}\n",
    )
    kernel = render("k", "test", {"x": "f32"}, flags={"NEGATE"}, fused=fused)
    assert [t.name for t in kernel.tensors] == ["x", "bias", "out0"]
    assert kernel.params[-1] == ("beta", "f32")
    assert "var<storage, read_write> y" not in kernel.wgsl


def test_an_element_type_must_be_given() -> None:
    with pytest.raises(ShaderError, match="no element type given for 'y'"):
        render("k", "test", {"x": "f32"}, flags={"NEGATE"})


def test_no_kernel_defines_what_a_chain_may_include() -> None:
    """A chain fused behind a kernel brings the library files that its expressions call."""
    import re
    from importlib.resources import files

    from engine.ops import registered

    def names(file: str) -> set[str]:
        text = files("shaders").joinpath(file).read_text()
        found = set(re.findall(r"^(?:fn|const|struct|alias) (\w+)", text, re.M))
        for inner in re.findall(r"^//# include (\S+)", text, re.M) if "lib/" in file else ():
            found |= names(inner)
        return found

    chains = [op.elementwise for op in registered() if op.elementwise is not None]
    library = set().union(*(names(file) for chain in chains for file in chain.includes))
    assert "is_nan" in library
    kernels = [f.name for f in files("shaders").iterdir() if f.name.endswith(".wgsl")]
    clashes = {kernel: names(kernel) & library for kernel in kernels}
    assert not {kernel: found for kernel, found in clashes.items() if found}


@pytest.mark.gpu
def test_pool_takes_a_chain_that_tests_for_nan() -> None:
    import numpy as np
    import onnx.parser

    import engine

    for pool in ("MaxPool<kernel_shape = [2]>(x)", "GlobalMaxPool(x)"):
        text = f"""<ir_version: 9, opset_import: ["": 20]>
        g (float[1, 2, 4] x, float[1] p) => (float y) {{ m = {pool} y = Pow(m, p) }}"""
        model = onnx.parser.parse_model(text).SerializeToString()
        x = np.arange(1, 9, dtype=np.float32).reshape(1, 2, 4)
        with engine.InferenceSession(model, device="gpu", require_gpu=True) as session:
            (got,) = session.run(None, {"x": x, "p": np.full(1, 2, np.float32)})
        most = np.maximum(x[..., 1:], x[..., :-1]) if "kernel" in pool else x[..., -1:]
        np.testing.assert_allclose(got, most**2, rtol=1e-6)


def test_atomics_are_for_plain_tensors_of_u32() -> None:
    flags = {"CLAIM"}
    text = {"MAP": "", "BODY": "place = u32(load_indices(item));"}
    kernel = render(
        "claim", "gather_scatter", {"indices": "i32", "winners": "u32"}, flags=flags, text=text
    )
    assert "winners: array<atomic<u32>>;" in kernel.wgsl
    assert "fn max_winners(i: u32, v: u32) { atomicMax(&winners[i], v); }" in kernel.wgsl
    with pytest.raises(ShaderError, match="winners is no plain tensor of u32"):
        render("c", "gather_scatter", {"indices": "i32", "winners": "i32"}, flags=flags, text=text)
