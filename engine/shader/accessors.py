"""Accessors: `load_x`, `store_y` and their four-wide forms, written for how a value is kept.

`plane_load_x(p, i)` and `plane_quad_x(p, q)` are the same as those without `plane_`, and say that
the elements lie in plane p of x: what is computed in the place of a load may need that.
`max_x(i, v)` makes element i of a u32 tensor v if that is more, whichever invocation comes first; a
kernel that calls it does nothing else with the tensor.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import ShaderError

STORED = {"f32": "f32", "i32": "i32", "u32": "u32", "bool": "u32"}


@dataclass(frozen=True)
class Tensor:
    """A storage buffer of a kernel: its name in WGSL, element type and access.

    `element` is what `load_` returns: "f32", "i32", "u32" or "bool" (u32 0 or 1 in the buffer). A
    `narrow` format has fewer bits: `packing` elements share a word, or each has one and is rounded
    or wrapped when it is stored (`lib/narrow_<format>.wgsl`). If it is `growing`, rows of
    `<name>_row` elements lie `<name>_pitch` apart; both become words of Params.
    """

    name: str
    element: str
    writable: bool = False
    growing: bool = False
    narrow: str = ""
    packing: int = 1

    @property
    def params(self) -> tuple[tuple[str, str], ...]:
        """The words of Params that its accessors read."""
        names = (f"{self.name}_row", f"{self.name}_pitch") if self.growing else ()
        return tuple((name, "u32") for name in names)


def is_atomic(tensor: Tensor, body: str) -> bool:
    """Whether a kernel updates a tensor by atomics. Raises: ShaderError if it is none of u32."""
    found = f"max_{tensor.name}(" in body
    if found and (tensor.element != "u32" or tensor.narrow or tensor.growing):
        raise ShaderError(f"{tensor.name} is no plain tensor of u32, as atomics need")
    return found


def is_wide(tensor: Tensor, body: str) -> bool:
    """Whether `body` takes four elements at a time from a tensor kept so that this is one load."""
    fours = (f"{form}_{tensor.name}(" for form in ("load4", "quad", "store4"))
    return not tensor.growing and any(four in body for four in fours)


def accessors(tensor: Tensor, wide: bool, body: str, native: bool) -> str:
    """The accessors of one tensor that `body` calls; `native` has elements of type f16."""
    name, element = tensor.name, tensor.element
    if is_atomic(tensor, body):
        return f"fn max_{name}(i: u32, v: u32) {{ atomicMax(&{name}[i], v); }}"
    place = f"{name}[i >> 2u][i & 3u]" if wide else f"{name}[i]"
    is_bool = element == "bool"
    load = f"{place} != 0u" if is_bool else place
    load4, quad = (
        f"{name}[{at}]" + (" != vec4<u32>()" if is_bool else "") for at in ("i >> 2u", "q")
    )
    value = "select(0u, 1u, v)" if is_bool else "v"
    value4 = "select(vec4<u32>(), vec4<u32>(1u), v)" if is_bool else "v"
    if tensor.narrow:
        value, value4 = f"narrow_{tensor.narrow}(v)", f"narrow4_{tensor.narrow}(v)"
    forms = {
        f"load_{name}": f"(i: u32) -> {element} {{ return {load}; }}",
        f"load4_{name}": f"(i: u32) -> vec4<{element}> {{ return {load4}; }}",
        f"quad_{name}": f"(q: u32) -> vec4<{element}> {{ return {quad}; }}",
        f"store_{name}": f"(i: u32, v: {element}) {{ {place} = {value}; }}",
        f"store4_{name}": f"(i: u32, v: vec4<{element}>) {{ {name}[i >> 2u] = {value4}; }}",
    }
    if native:
        forms = _native_forms(tensor, place)
    elif tensor.packing > 1:
        forms = _packed_forms(tensor, wide)
        if f"store_{name}(" in body:
            raise ShaderError(f"{name} is packed, and its kernel does not store whole words")
    if tensor.growing:
        forms = _growing_forms(tensor)
        for _ in range(2):
            body += "".join(text for f, text in forms.items() if f"{f}(" in body)
    forms[f"plane_load_{name}"] = f"(p: u32, i: u32) -> {element} {{ return load_{name}(i); }}"
    forms[f"plane_quad_{name}"] = (
        f"(p: u32, q: u32) -> vec4<{element}> {{ return quad_{name}(q); }}"
    )
    return "\n".join(f"fn {f}{text}" for f, text in forms.items() if f"{f}(" in body)


def _native_forms(tensor: Tensor, place: str) -> dict[str, str]:
    """Accessors of a tensor of f16, where kernels have that type: any invocation may store one."""
    name, four = tensor.name, f"{tensor.name}[i >> 2u]"
    return {
        f"load_{name}": f"(i: u32) -> f32 {{ return f32({place}); }}",
        f"load4_{name}": f"(i: u32) -> vec4<f32> {{ return vec4<f32>({four}); }}",
        f"quad_{name}": f"(q: u32) -> vec4<f32> {{ return vec4<f32>({name}[q]); }}",
        f"store_{name}": f"(i: u32, v: f32) {{ {place} = f16(narrow_f16(v)); }}",
        f"store4_{name}": f"(i: u32, v: vec4<f32>) {{ {four} = vec4<f16>(narrow4_f16(v)); }}",
    }


def _packed_forms(tensor: Tensor, wide: bool) -> dict[str, str]:
    """Accessors of a tensor with several elements a word; whoever stores writes four of them."""
    name, element, form = tensor.name, tensor.element, tensor.narrow
    if tensor.packing == 4:
        word, lane = f"{name}[i >> 2u]", "i & 3u"
    else:
        word, lane = f"{name}[i >> 1u]", "i & 1u"
        if wide:
            word = f"{name}[i >> 2u][(i >> 1u) & 1u]"
    four = f"{name}[i >> 2u]"
    return {
        f"load_{name}": f"(i: u32) -> {element} {{ return unpack_{form}({word}, {lane}); }}",
        f"load4_{name}": f"(i: u32) -> vec4<{element}> {{ return unpack4_{form}({four}); }}",
        f"quad_{name}": f"(q: u32) -> vec4<{element}> {{ return unpack4_{form}({name}[q]); }}",
        f"store4_{name}": f"(i: u32, v: vec4<{element}>) {{ {four} = pack4_{form}(v); }}",
    }


def _growing_forms(tensor: Tensor) -> dict[str, str]:
    """Accessors of a tensor whose rows have gaps between them; one element at a time."""
    name, element = tensor.name, tensor.element
    row, pitch = f"params.{name}_row", f"params.{name}_pitch"
    place = f"let at = i / {row} * {pitch} + i % {row}; "
    load = f"{name}[at] != 0u" if element == "bool" else f"{name}[at]"
    value = "select(0u, 1u, v)" if element == "bool" else "v"
    if tensor.narrow:
        value = f"narrow_{tensor.narrow}(v)"
    lanes = ("x", "y", "z", "w")
    loads = ", ".join(f"load_{name}(i + {k}u)" for k in range(4))
    stores = " ".join(f"store_{name}(i + {k}u, v.{lane});" for k, lane in enumerate(lanes))
    return {
        f"load_{name}": f"(i: u32) -> {element} {{ {place}return {load}; }}",
        f"store_{name}": f"(i: u32, v: {element}) {{ {place}{name}[at] = {value}; }}",
        f"load4_{name}": f"(i: u32) -> vec4<{element}> {{ return vec4<{element}>({loads}); }}",
        f"quad_{name}": f"(q: u32) -> vec4<{element}> {{ return load4_{name}(q * 4u); }}",
        f"store4_{name}": f"(i: u32, v: vec4<{element}>) {{ {stores} }}",
    }
