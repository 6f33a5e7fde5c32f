"""Accessors: `load_x`, `store_y` and their four-wide forms, written for how a value is kept.

`plane_load_x(p, i)` and `plane_quad_x(p, q)` are the same as those without `plane_`, and say that
the elements lie in plane p of x: what is computed in the place of a load may need that.
`channel_load_x(p, c, i)` and `channel_quad_x(p, c, q)` also say which channel of an image that is.
`lane_x(q, k)` is element k of `quad_x(q)`.
`begin_x()` is what a kernel that calls it adds to where it starts to read x: the place of the first
element, where all lie side by side from there. Otherwise it is 0, and each access finds its place.
`max_x(i, v)` makes element i of a u32 tensor v if that is more, whichever invocation comes first; a
kernel that calls it does nothing else with the tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from engine.errors import ShaderError
from engine.records import dataclass

STORED = {"f32": "f32", "i32": "i32", "u32": "u32", "bool": "u32"}


@dataclass(frozen=True)
class Placed:
    """That the elements of a tensor do not lie side by side from the start of its buffer.

    Attributes:
        shifted: the first lies at `part_<name>_begin`, a word of Params like those that follow.
        runs: how often there are gaps: `part_<name>_gap<k>` elements after each
            `part_<name>_row<k>`.
        fours: groups of four neighbours stay together and aligned, and the size is made of them.
            Otherwise a store of four writes only those within `part_<name>_size`.
    """

    shifted: bool = False
    runs: int = 0
    fours: bool = False


@dataclass(frozen=True)
class Tensor:
    """A storage buffer of a kernel: its name in WGSL, element type and access.

    `element` is what `load_` returns: "f32", "i32", "u32" or "bool" (u32 0 or 1 in the buffer). A
    `narrow` format has fewer bits: `packing` elements share a word, or each has one and is rounded
    or wrapped when it is stored (`lib/narrow_<format>.wgsl`). It may be `placed` among others. As
    WebGPU lets a dispatch bind a buffer that it writes to only once, a tensor that lies in the
    buffer of another one, `of`, has no binding of its own.
    """

    name: str
    element: str
    writable: bool = False
    narrow: str = ""
    packing: int = 1
    placed: Placed | None = None
    of: str = ""

    @property
    def params(self) -> tuple[tuple[str, str], ...]:
        """The words of Params that its accessors read."""
        placed = self.placed
        if placed is None:
            return ()
        names = ["begin"] * placed.shifted
        names += [f"{word}{k}" for k in range(placed.runs) for word in ("row", "gap")]
        names += ["size"] * (self.writable and not placed.fours)
        return tuple((f"part_{self.name}_{name}", "u32") for name in names)

    @property
    def in_fours(self) -> bool:
        """Whether four neighbours can be one access."""
        return self.placed is None or self.placed.fours

    def at(self, i: str) -> str:
        """Where element `i` lies in the buffer, in WGSL."""
        placed, name = self.placed or Placed(), f"params.part_{self.name}"
        terms = [i, *([f"{name}_begin"] if placed.shifted else ())]
        terms += [f"{i} / {name}_row{k} * {name}_gap{k}" for k in range(placed.runs)]
        return " + ".join(terms)


def is_atomic(tensor: Tensor, body: str) -> bool:
    """Whether a kernel updates a tensor by atomics. Raises: ShaderError if it is none of u32."""
    found = f"max_{tensor.name}(" in body
    if found and (tensor.element != "u32" or tensor.narrow or tensor.placed or tensor.of):
        raise ShaderError(f"{tensor.name} is no plain tensor of u32, as atomics need")
    return found


def is_wide(tensors: Sequence[Tensor], body: str) -> bool:
    """Whether `body` takes four elements at a time from tensors that share a buffer, and all of
    them lie so that this is one access."""
    fours = (f"{form}_{t.name}(" for t in tensors for form in ("load4", "quad", "store4"))
    return all(t.in_fours for t in tensors) and any(four in body for four in fours)


def accessors(tensor: Tensor, wide: bool, body: str, native: bool) -> str:
    """The accessors of one tensor that `body` calls.

    Args:
        wide: its buffer is declared as groups of four.
        native: its elements are of type f16.
    """
    name, element = tensor.name, tensor.element
    begin = "0u"
    if f"begin_{name}(" in body and _begins_once(tensor, body):
        begin, tensor = f"params.part_{name}_begin", replace(tensor, placed=None)
    if is_atomic(tensor, body):
        return f"fn max_{name}(i: u32, v: u32) {{ atomicMax(&{name}[i], v); }}"
    if native:
        forms = _native_forms(tensor, wide)
    elif tensor.packing > 1:
        forms = _packed_forms(tensor, wide)
        if tensor.placed is not None or tensor.of:
            raise ShaderError(f"{name} is packed, and part of another tensor's buffer")
        if f"store_{name}(" in body:
            raise ShaderError(f"{name} is packed, and its kernel does not store whole words")
    else:
        forms = _plain_forms(tensor, wide)
    if not wide and (native or tensor.packing == 1):
        forms.update(_lane_forms(tensor))
    if not wide or tensor.packing > 1:
        for _ in range(2):
            body += "".join(text for f, text in forms.items() if f"{f}(" in body)
    forms[f"plane_load_{name}"] = f"(p: u32, i: u32) -> {element} {{ return load_{name}(i); }}"
    forms[f"plane_quad_{name}"] = (
        f"(p: u32, q: u32) -> vec4<{element}> {{ return quad_{name}(q); }}"
    )
    forms[f"channel_load_{name}"] = (
        f"(p: u32, c: u32, i: u32) -> {element} {{ return load_{name}(i); }}"
    )
    forms[f"channel_quad_{name}"] = (
        f"(p: u32, c: u32, q: u32) -> vec4<{element}> {{ return quad_{name}(q); }}"
    )
    forms[f"begin_{name}"] = f"() -> u32 {{ return {begin}; }}"
    return "\n".join(f"fn {f}{text}" for f, text in forms.items() if f"{f}(" in body)


def _begins_once(tensor: Tensor, body: str) -> bool:
    """Whether the first element tells where all others that `body` accesses lie."""
    placed = tensor.placed
    if placed is None or not placed.shifted or placed.runs or tensor.packing > 1:
        return False
    return tensor.in_fours or not is_wide([replace(tensor, placed=None)], body)


def _places(tensor: Tensor, wide: bool) -> tuple[str, str, str, str]:
    """Where a tensor is indexed: a statement to begin with, then one element by its index, four by
    the index of the first, and four by their own index."""
    array, placed = tensor.of or tensor.name, tensor.placed
    at, start = ("i", "") if placed is None else ("at", f"let at = {tensor.at('i')}; ")
    one = f"{array}[{at} >> 2u][{at} & 3u]" if wide else f"{array}[{at}]"
    if placed is None:
        quad = "q"
    elif placed.runs:
        quad = f"({tensor.at('(q << 2u)')}) >> 2u"
    else:
        quad = f"q + (params.part_{tensor.name}_begin >> 2u)" if placed.shifted else "q"
    return start, one, f"{array}[{at} >> 2u]", f"{array}[{quad}]"


def _plain_forms(tensor: Tensor, wide: bool) -> dict[str, str]:
    """Accessors of a tensor whose elements have a word each."""
    name, element = tensor.name, tensor.element
    start, one, four, quad = _places(tensor, wide)
    lane = f"{quad}[k]"
    value, value4, test, test4 = "v", "v", "", ""
    if element == "bool":
        value, test = "select(0u, 1u, v)", " != 0u"
        value4, test4 = "select(vec4<u32>(), vec4<u32>(1u), v)", " != vec4<u32>()"
    if tensor.narrow:
        value, value4 = f"narrow_{tensor.narrow}(v)", f"narrow4_{tensor.narrow}(v)"
    return {
        f"load_{name}": f"(i: u32) -> {element} {{ {start}return {one}{test}; }}",
        f"load4_{name}": f"(i: u32) -> vec4<{element}> {{ {start}return {four}{test4}; }}",
        f"quad_{name}": f"(q: u32) -> vec4<{element}> {{ return {quad}{test4}; }}",
        f"lane_{name}": f"(q: u32, k: u32) -> {element} {{ return {lane}{test}; }}",
        f"store_{name}": f"(i: u32, v: {element}) {{ {start}{one} = {value}; }}",
        f"store4_{name}": f"(i: u32, v: vec4<{element}>) {{ {start}{four} = {value4}; }}",
    }


def _native_forms(tensor: Tensor, wide: bool) -> dict[str, str]:
    """Accessors of a tensor of f16, where kernels have that type: any invocation may store one."""
    name = tensor.name
    start, one, four, quad = _places(tensor, wide)
    lane = f"{quad}[k]"
    return {
        f"load_{name}": f"(i: u32) -> f32 {{ {start}return f32({one}); }}",
        f"load4_{name}": f"(i: u32) -> vec4<f32> {{ {start}return vec4<f32>({four}); }}",
        f"quad_{name}": f"(q: u32) -> vec4<f32> {{ return vec4<f32>({quad}); }}",
        f"lane_{name}": f"(q: u32, k: u32) -> f32 {{ return f32({lane}); }}",
        f"store_{name}": f"(i: u32, v: f32) {{ {start}{one} = f16(narrow_f16(v)); }}",
        f"store4_{name}": (
            f"(i: u32, v: vec4<f32>) {{ {start}{four} = vec4<f16>(narrow4_f16(v)); }}"
        ),
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
        f"lane_{name}": f"(q: u32, k: u32) -> {element} {{ return load_{name}(q * 4u + k); }}",
        f"store4_{name}": f"(i: u32, v: vec4<{element}>) {{ {four} = pack4_{form}(v); }}",
    }


def _lane_forms(tensor: Tensor) -> dict[str, str]:
    """Accessors of four neighbours that do not lie together: one at a time, none past the end."""
    name, element = tensor.name, tensor.element
    loads = ", ".join(f"load_{name}(i + {k}u)" for k in range(4))
    checked = tensor.writable and not tensor.in_fours
    stores = [f"store_{name}(i, v.x);"]
    for k, lane in enumerate("yzw", 1):
        store = f"store_{name}(i + {k}u, v.{lane});"
        within = f"if (i + {k}u < params.part_{name}_size) {{ {store} }}"
        stores.append(within if checked else store)
    return {
        f"load4_{name}": f"(i: u32) -> vec4<{element}> {{ return vec4<{element}>({loads}); }}",
        f"quad_{name}": f"(q: u32) -> vec4<{element}> {{ return load4_{name}(q * 4u); }}",
        f"lane_{name}": f"(q: u32, k: u32) -> {element} {{ return load_{name}(q * 4u + k); }}",
        f"store4_{name}": f"(i: u32, v: vec4<{element}>) {{ {' '.join(stores)} }}",
    }
