"""Kernel: rendered text with its bindings, parameters and sizes, as the text declares them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache

from engine.errors import ShaderError
from engine.records import dataclass
from engine.shader.accessors import STORED, Placed, Tensor, accessors, is_atomic, is_wide
from engine.shader.template import DECLARATION, declared, library, resolve

_COMMENT = re.compile(r" *//.*")
UNIFORM = re.compile(r"^@group\(0\) @binding\(\d+\) var<uniform> params: Params;$", re.MULTILINE)
_STRUCT = re.compile(r"^struct Params \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"^\s*(\w+): (\w+),")
_OVERRIDE = re.compile(r"^override (\w+): (\w+) = (\w+);", re.MULTILINE)
_WORKGROUP = re.compile(r"@workgroup_size\(([^)]*)\)")
_REPEAT = "repeat_index()"


@dataclass(frozen=True)
class Kernel:
    """A rendered compute shader with all that is needed to bind and dispatch it.

    Attributes:
        name: for labels and listings.
        wgsl: the whole text, without `enable` lines (`runtime/device.py` adds those of `features`).
        tensors: storage buffers in binding order; the uniform `params` comes last if there are any.
        params: (name, "u32" | "i32" | "f32") of each uniform word in order.
        workgroup: invocations per workgroup in x, y, z, overrides applied.
        workgroup_nbytes: bytes of workgroup memory.
        overrides: pipeline-overridable constants.
        features: WebGPU features it needs.
        repeats: it calls `repeat_index()`, which reads the uniform bound behind `params`.
        stem: the file that it was made from, `shaders/<stem>.wgsl`.
        riders: tensors that lie in the buffer of another one, and have no binding of their own.
    """

    name: str
    wgsl: str
    tensors: tuple[Tensor, ...]
    params: tuple[tuple[str, str], ...]
    workgroup: tuple[int, int, int]
    workgroup_nbytes: int = 0
    overrides: tuple[tuple[str, int], ...] = ()
    features: frozenset[str] = frozenset()
    repeats: bool = False
    stem: str = ""
    riders: tuple[Tensor, ...] = ()

    @cached_property
    def key(self) -> str:
        """Hash of text (without comments), overrides and features: equal keys, one pipeline."""
        text = _COMMENT.sub("", self.wgsl)
        parts = (text, repr(self.overrides), repr(sorted(self.features)))
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    @property
    def params_nbytes(self) -> int:
        """Bytes of the uniform block, padded to 16."""
        return -(-len(self.params) * 4 // 16) * 16


@dataclass(frozen=True)
class Fused:
    """Generated code that takes the place of accessors of a template.

    Attributes:
        replaces: names of tensors of the template whose declaration and accessors are left out.
        tensors: storage buffers that come instead, in binding order.
        params: further uniform words.
        functions: WGSL with the accessors that the template calls, such as `store_y`.
        includes: library files that `functions` calls into.
    """

    replaces: frozenset[str] = frozenset()
    tensors: tuple[Tensor, ...] = ()
    params: tuple[tuple[str, str], ...] = ()
    functions: str = ""
    includes: tuple[str, ...] = ()

    def __add__(self, other: Fused) -> Fused:
        """Both in one kernel."""
        return Fused(
            self.replaces | other.replaces,
            self.tensors + other.tensors,
            self.params + other.params,
            "\n".join(filter(None, (self.functions, other.functions))),
            self.includes + other.includes,
        )


NOT_FUSED = Fused()


def render(
    name: str,
    stem: str,
    elements: Mapping[str, str],
    *,
    flags: Iterable[str] = (),
    text: Mapping[str, str] | None = None,
    overrides: Mapping[str, int] | None = None,
    features: Iterable[str] = (),
    fused: Fused = NOT_FUSED,
    narrow: Mapping[str, tuple[str, int]] | None = None,
    placed: Mapping[str, Placed] | None = None,
    buffers: Mapping[str, int] | None = None,
) -> Kernel:
    """The kernel that a shader file becomes for given element types.

    Args:
        name: label of the kernel.
        stem: the file, `shaders/<stem>.wgsl`.
        elements: tensor name to "f32", "i32", "u32" or "bool".
        flags, text, overrides: values of the file's flags, fields and override constants.
        features: WebGPU features it needs; with "shader-f16", two packed float16 are declared
            as such, and may be stored singly.
        fused: generated code that replaces accessors.
        narrow: names of tensors of a narrow type to its format and packing.
        placed: names of tensors to how they lie in their buffers, if not by themselves.
        buffers: names of tensors that lie in one buffer with others to a number of the buffer.

    Raises: ShaderError if anything is missing, unused or contradictory.
    """
    return _render(
        name,
        stem,
        tuple(sorted(elements.items())),
        frozenset(flags),
        tuple(sorted((text or {}).items())),
        tuple(sorted((overrides or {}).items())),
        frozenset(features),
        fused,
        tuple(sorted((narrow or {}).items())),
        tuple(sorted((placed or {}).items(), key=lambda item: item[0])),
        tuple(sorted((buffers or {}).items())),
    )


@lru_cache(maxsize=4096)
def _render(
    name: str,
    stem: str,
    element_of: tuple[tuple[str, str], ...],
    flags: frozenset[str],
    text: tuple[tuple[str, str], ...],
    overrides: tuple[tuple[str, int], ...],
    features: frozenset[str],
    fused: Fused,
    narrow: tuple[tuple[str, tuple[str, int]], ...],
    placed_of: tuple[tuple[str, Placed], ...],
    buffer_of: tuple[tuple[str, int], ...],
) -> Kernel:
    body, seen = resolve(stem, flags, text)
    elements, formats, placed = dict(element_of), dict(narrow), dict(placed_of)
    tensors = []
    for tensor, writable, _ in declared(body):
        if tensor in fused.replaces:
            continue
        if tensor not in elements:
            raise ShaderError(f"{stem}.wgsl: no element type given for {tensor!r}")
        form = formats.get(tensor, ("", 1))
        tensors.append(Tensor(tensor, elements[tensor], writable, *form))
    # read-only tensors come first, as in the files
    everything = [
        replace(t, placed=placed[t.name]) if t.name in placed else t
        for t in (*tensors, *fused.tensors)
    ]
    ordered = tuple(t for t in everything if not t.writable) + tuple(
        t for t in everything if t.writable
    )
    ordered = _shared(ordered, dict(buffer_of))
    formats_used = dict.fromkeys(f"lib/narrow_{t.narrow}.wgsl" for t in ordered if t.narrow)
    files = library((*fused.includes, *formats_used), seen)
    fields = _params(stem, body) + fused.params
    fields += tuple(word for t in ordered for word in t.params)
    core = UNIFORM.sub("", _STRUCT.sub("", DECLARATION.sub("", body)))
    whole = core + files + fused.functions
    declarations = _declarations(ordered, fields, whole, "shader-f16" in features)
    parts = [_header(core), *declarations, _without_header(core)]
    parts += [files, fused.functions]
    wgsl = "\n".join(p.strip("\n") for p in parts if p.strip()) + "\n"
    constants = _overrides(stem, core, dict(overrides))
    return Kernel(
        name,
        wgsl,
        tuple(t for t in ordered if not t.of),
        fields,
        _workgroup(stem, wgsl, constants),
        _workgroup_memory(stem, wgsl, constants),
        overrides,
        features,
        _REPEAT in whole,
        stem,
        tuple(t for t in ordered if t.of),
    )


def _shared(tensors: tuple[Tensor, ...], buffers: Mapping[str, int]) -> tuple[Tensor, ...]:
    """The tensors, where those in a buffer that is written to ride on the first that writes."""
    owners: dict[int, str] = {}
    for tensor in tensors:
        if tensor.writable and tensor.name in buffers:
            owners.setdefault(buffers[tensor.name], tensor.name)
    if not owners:
        return tensors
    found = []
    for tensor in tensors:
        owner = owners.get(buffers.get(tensor.name, -1), "")
        found.append(replace(tensor, of="" if owner == tensor.name else owner))
    return tuple(found)


def _header(text: str) -> str:
    lines = []
    for line in text.splitlines():
        if not line.startswith("//"):
            break
        lines.append(line)
    return "\n".join(lines)


def _without_header(text: str) -> str:
    return text[len(_header(text)) :]


def _params(stem: str, body: str) -> tuple[tuple[str, str], ...]:
    match = _STRUCT.search(body)
    if match is None:
        return ()
    fields = []
    for line in match.group(1).splitlines():
        if not line.strip() or line.strip().startswith("//"):
            continue
        entry = _FIELD.match(line)
        if entry is None or entry.group(2) not in ("u32", "i32", "f32"):
            raise ShaderError(
                f"{stem}.wgsl: Params may hold u32, i32 and f32, not {line.strip()!r}"
            )
        fields.append((entry.group(1), entry.group(2)))
    return tuple(fields)


def _declarations(
    tensors: Sequence[Tensor], params: Sequence[tuple[str, str]], body: str, halves: bool
) -> list[str]:
    parts = []
    if params:
        fields = "\n".join(f"    {name}: {kind}," for name, kind in params)
        parts.append(f"struct Params {{\n{fields}\n}}")
    functions = []
    bound = [t for t in tensors if not t.of]
    for index, tensor in enumerate(bound):
        together = (tensor, *(t for t in tensors if t.of == tensor.name))
        wide = is_wide(together, body)
        stored = STORED[tensor.element]
        array = f"vec4<{stored}>" if wide else stored
        native = halves and tensor.narrow == "f16" and tensor.packing == 2
        if native:
            array = "vec4<f16>" if wide else "f16"
        elif tensor.packing > 1:
            array = "vec2<u32>" if wide and tensor.packing == 2 else "u32"
        if is_atomic(tensor, body):
            array = "atomic<u32>"
        access = "read_write" if tensor.writable else "read"
        parts.append(
            f"@group(0) @binding({index}) var<storage, {access}> {tensor.name}: array<{array}>;"
        )
        functions += [accessors(t, wide, body, native) for t in together]
    if params:
        parts.append(f"@group(0) @binding({len(bound)}) var<uniform> params: Params;")
    if _REPEAT in body:
        binding = len(bound) + bool(params)
        parts += [f"@group(0) @binding({binding}) var<uniform> repeat: vec4<u32>;"]
        functions.append("fn repeat_index() -> u32 { return repeat.x; }")
    return parts + functions


def _overrides(stem: str, text: str, given: Mapping[str, int]) -> dict[str, int]:
    known = {
        name: int(value.rstrip("uif")) if value not in ("true", "false") else int(value == "true")
        for name, _, value in _OVERRIDE.findall(text)
    }
    if set(given) - set(known):
        raise ShaderError(f"{stem}.wgsl has no override {sorted(set(given) - set(known))}")
    return {**known, **given}


def _number(text: str, constants: Mapping[str, int]) -> int:
    total = 1
    for factor in text.split("*"):
        word = factor.strip()
        total *= constants[word] if word in constants else int(word.rstrip("ui"))
    return total


def _workgroup(stem: str, text: str, constants: Mapping[str, int]) -> tuple[int, int, int]:
    match = _WORKGROUP.search(text)
    if match is None:
        raise ShaderError(f"{stem}.wgsl has no entry point with a workgroup size")
    sizes = [_number(t, constants) for t in match.group(1).split(",") if t.strip()]
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


_SHARED = re.compile(r"^var<workgroup> \w+: (?:array<([\w<>]+), ([^>]+)>|([\w<>]+));", re.MULTILINE)
_SIZES = {
    **dict.fromkeys(("f32", "i32", "u32", "T"), 4),
    **dict.fromkeys(("vec2<f32>", "vec2<u32>"), 8),
    **dict.fromkeys(("vec4<f32>", "vec4<u32>", "vec4<i32>"), 16),
}


def _workgroup_memory(stem: str, text: str, constants: Mapping[str, int]) -> int:
    total = 0
    for element, count, scalar in _SHARED.findall(text):
        kind = element or scalar
        if kind not in _SIZES:
            raise ShaderError(f"{stem}.wgsl: workgroup memory of {kind!r} is not measured")
        total += _SIZES[kind] * (_number(count, constants) if count else 1)
    return total
