"""Kernels whose params tell the driver nothing: for Mesa's software Vulkan.

That driver compiles a kernel once more for each content of the uniforms which alone decide an `if`
or the length of a loop, which takes as long as the first time, and looks for it at every dispatch,
which takes milliseconds of a large kernel. No word decides alone once the dispatch has a part in
it: here the index of a workgroup, of which the highest bit is never set.
"""

from __future__ import annotations

import re

from engine.shader.kernel import UNIFORM, Kernel

_MAIN = re.compile(r"\bfn main\((.*?)\)\s*\{\n", re.DOTALL)
_GROUP = re.compile(r"@builtin\(workgroup_id\) (\w+)")
_ADDED = {
    "u32": "params.{0} += never;",
    "i32": "params.{0} += i32(never);",
    "f32": "params.{0} = bitcast<f32>(bitcast<u32>(params.{0}) + never);",
}


def opaque(kernel: Kernel) -> str:
    """The text of a kernel, with params that are known only once a workgroup runs."""
    if not kernel.params:
        return kernel.wgsl
    text = UNIFORM.sub(
        lambda found: found[0].replace("params:", "given:") + "\nvar<private> params: Params;",
        kernel.wgsl,
    )
    main = _MAIN.search(text)
    if main is None:  # the driver will say so
        return kernel.wgsl
    inputs = main[1]
    group = _GROUP.search(inputs)
    if group is None:
        inputs = f"@builtin(workgroup_id) never_group: vec3<u32>, {inputs}"
    name = group[1] if group else "never_group"
    words = [_ADDED[kind].format(word) for word, kind in kernel.params]
    lines = ["params = given;", f"let never = {name}.x >> 31u;", *words]
    start = "".join(f"    {line}\n" for line in lines)
    return f"{text[: main.start()]}fn main({inputs}) {{\n{start}{text[main.end() :]}"
