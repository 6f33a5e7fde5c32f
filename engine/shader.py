"""WGSL templates to kernels: a small strict preprocessor, generated accessors, and reflection.

A shader file is plain WGSL with three constructs, all comments or `string.Template` fields:

    //# include lib/index.wgsl
    //# if FLAG  |  //# if not FLAG  |  //# else  |  //# endif
    ${NAME}

Tensors are declared as `@group(0) @binding(0) var<storage, read> x: array<T>;` and reached through
`load_x(i)`, `load4_x(i)`, `store_y(i, v)` and `store4_y(i, v)` only: `render` writes the real
declaration and these functions for the `Element` that the value has in its buffer. `i` counts
elements in row-major order; the `4` forms take four neighbours from an `i` that 4 divides. A file
that calls `repeat_index()` is dispatched many times in turn, and gets the index of the repetition
from a uniform of its own.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from importlib import resources
from string import Template

from engine.errors import ShaderError

_COMMENT = re.compile(r" *//.*")
_DECLARATION = re.compile(
    r"^@group\(0\) @binding\((\d+)\) var<storage, (read|read_write)> (\w+): array<(\w+)>;.*$",
    re.MULTILINE,
)
_UNIFORM = re.compile(r"^@group\(0\) @binding\(\d+\) var<uniform> params: Params;$", re.MULTILINE)
_STRUCT = re.compile(r"^struct Params \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"^\s*(\w+): (\w+),")
_OVERRIDE = re.compile(r"^override (\w+): (\w+) = (\w+);", re.MULTILINE)
_WORKGROUP = re.compile(r"@workgroup_size\(([^)]*)\)")
_DIRECTIVE = re.compile(r"^\s*//# (\w+)\s*(.*)$")
_REPEAT = "repeat_index()"
_STORED = {"f32": "f32", "i32": "i32", "u32": "u32", "bool": "u32"}


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


@dataclass(frozen=True)
class Kernel:
    """A rendered compute shader with all that is needed to bind and dispatch it.

    Attributes:
        name: for labels and listings.
        wgsl: the whole text, without `enable` lines (the runner adds those of `features`).
        tensors: storage buffers in binding order; the uniform `params` comes last if there are any.
        params: (name, "u32" | "i32" | "f32") of each uniform word in order.
        workgroup: invocations per workgroup in x, y, z, overrides applied.
        workgroup_nbytes: bytes of workgroup memory.
        overrides: pipeline-overridable constants.
        features: WebGPU features it needs.
        repeats: it calls `repeat_index()`, which reads the uniform bound behind `params`.
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


@cache
def source(stem: str) -> str:
    """Text of `shaders/<stem>.wgsl`. Raises: ShaderError if there is none."""
    path = resources.files("shaders").joinpath(*f"{stem}.wgsl".split("/"))
    if not path.is_file():
        raise ShaderError(f"there is no shader file {stem}.wgsl")
    return path.read_text(encoding="utf-8")


def preprocess(stem: str, flags: Iterable[str] = (), text: Mapping[str, str] | None = None) -> str:
    """A shader file with includes, conditionals and fields resolved.

    Raises: ShaderError, with file and line, for an unknown directive, a field without a value, or
        a value or flag that the file does not use.
    """
    return _preprocess(stem, frozenset(flags), tuple(sorted((text or {}).items())))[0]


@lru_cache(maxsize=1024)
def _preprocess(
    stem: str, flags: frozenset[str], text: tuple[tuple[str, str], ...]
) -> tuple[str, frozenset[str]]:
    """The text of `preprocess`, and the library files in it."""
    seen: set[str] = set()
    used: set[str] = set()
    values = dict(text)
    lines = _expand(stem, set(flags), seen, used)
    body = Template("\n".join(lines) + "\n")
    fields = set(body.get_identifiers())
    if fields != set(values) or not body.is_valid():
        raise ShaderError(f"{stem}.wgsl has the fields {sorted(fields)}, given {sorted(values)}")
    if flags - used:
        raise ShaderError(f"{stem}.wgsl does not know the flags {sorted(flags - used)}")
    return body.substitute(values), frozenset(seen)


def _expand(stem: str, flags: set[str], seen: set[str], used: set[str]) -> list[str]:
    out: list[str] = []
    active = [True]
    for number, line in enumerate(source(stem).splitlines(), 1):
        match = _DIRECTIVE.match(line)
        if match is None:
            if all(active):
                out.append(line)
            continue
        word, rest = match.group(1), match.group(2).strip()
        if word == "if":
            negated, flag = rest.startswith("not "), rest.removeprefix("not ").strip()
            used.add(flag)
            active.append((flag in flags) != negated)
        elif word in ("else", "endif") and len(active) > 1:
            last = active.pop()
            if word == "else":
                active.append(not last)
        elif word == "include" and rest.endswith(".wgsl"):
            if all(active) and rest not in seen:
                seen.add(rest)
                out.extend(_expand(rest.removesuffix(".wgsl"), flags, seen, used))
        else:
            raise ShaderError(f"{stem}.wgsl:{number}: cannot read the directive {line.strip()!r}")
    if len(active) != 1:
        raise ShaderError(f"{stem}.wgsl: an `if` has no `endif`")
    return out


def declared(text: str) -> tuple[tuple[str, bool, str], ...]:
    """(name, writable, declared element) of each tensor of a preprocessed text, in order."""
    found = sorted(_DECLARATION.findall(text), key=lambda m: int(m[0]))
    return tuple((name, access == "read_write", element) for _, access, name, element in found)


def render(
    name: str,
    stem: str,
    elements: Mapping[str, str],
    *,
    flags: Iterable[str] = (),
    text: Mapping[str, str] | None = None,
    overrides: Mapping[str, int] | None = None,
    features: Iterable[str] = (),
    fused: Fused = Fused(),
    growing: Collection[str] = (),
    narrow: Mapping[str, tuple[str, int]] | None = None,
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
        growing: names of tensors with room to grow.
        narrow: names of tensors of a narrow type to its format and packing.

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
        frozenset(growing),
        tuple(sorted((narrow or {}).items())),
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
    growing: frozenset[str],
    narrow: tuple[tuple[str, tuple[str, int]], ...],
) -> Kernel:
    body, seen = _preprocess(stem, flags, text)
    elements, formats = dict(element_of), dict(narrow)
    tensors = []
    for tensor, writable, _ in declared(body):
        if tensor in fused.replaces:
            continue
        if tensor not in elements:
            raise ShaderError(f"{stem}.wgsl: no element type given for {tensor!r}")
        form = formats.get(tensor, ("", 1))
        tensors.append(Tensor(tensor, elements[tensor], writable, tensor in growing, *form))
    # read-only tensors come first, as in the files
    everything = (*tensors, *fused.tensors)
    ordered = tuple(t for t in everything if not t.writable) + tuple(
        t for t in everything if t.writable
    )
    formats_used = dict.fromkeys(f"lib/narrow_{t.narrow}.wgsl" for t in ordered if t.narrow)
    library = _library((*fused.includes, *formats_used), seen)
    fields = _params(stem, body) + fused.params
    fields += tuple(word for t in ordered for word in t.params)
    core = _UNIFORM.sub("", _STRUCT.sub("", _DECLARATION.sub("", body)))
    whole = core + library + fused.functions
    declarations = _declarations(ordered, fields, whole, "shader-f16" in features)
    parts = [_header(core), *declarations, _without_header(core)]
    parts += [library, fused.functions]
    wgsl = "\n".join(p.strip("\n") for p in parts if p.strip()) + "\n"
    constants = _overrides(stem, core, dict(overrides))
    return Kernel(
        name,
        wgsl,
        ordered,
        fields,
        _workgroup(stem, wgsl, constants),
        _workgroup_memory(stem, wgsl, constants),
        overrides,
        features,
        _REPEAT in whole,
    )


def _library(includes: Iterable[str], seen: Collection[str]) -> str:
    """Library files with all that they include, without those that are there already."""
    present, used = set(seen), set[str]()
    lines: list[str] = []
    for file in includes:
        if file not in present:
            present.add(file)
            lines += _expand(file.removesuffix(".wgsl"), set(), present, used)
    return "\n".join(lines)


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
    accessors = []
    for index, tensor in enumerate(tensors):
        wide = f"load4_{tensor.name}(" in body or f"store4_{tensor.name}(" in body
        wide = wide and not tensor.growing
        stored = _STORED[tensor.element]
        array = f"vec4<{stored}>" if wide else stored
        native = halves and tensor.narrow == "f16" and tensor.packing == 2
        if native:
            array = "vec4<f16>" if wide else "f16"
        elif tensor.packing > 1:
            array = "vec2<u32>" if wide and tensor.packing == 2 else "u32"
        access = "read_write" if tensor.writable else "read"
        parts.append(
            f"@group(0) @binding({index}) var<storage, {access}> {tensor.name}: array<{array}>;"
        )
        accessors.append(_accessors(tensor, wide, body, native))
    if params:
        parts.append(f"@group(0) @binding({len(tensors)}) var<uniform> params: Params;")
    if _REPEAT in body:
        binding = len(tensors) + bool(params)
        parts += [f"@group(0) @binding({binding}) var<uniform> repeat: vec4<u32>;"]
        accessors.append("fn repeat_index() -> u32 { return repeat.x; }")
    return parts + accessors


def _accessors(tensor: Tensor, wide: bool, body: str, native: bool) -> str:
    """The accessors of one tensor that `body` calls; `native` has elements of type f16."""
    name, element = tensor.name, tensor.element
    place = f"{name}[i >> 2u][i & 3u]" if wide else f"{name}[i]"
    is_bool = element == "bool"
    load = f"{place} != 0u" if is_bool else place
    load4 = f"{name}[i >> 2u]" + (" != vec4<u32>()" if is_bool else "")
    value = "select(0u, 1u, v)" if is_bool else "v"
    value4 = "select(vec4<u32>(), vec4<u32>(1u), v)" if is_bool else "v"
    if tensor.narrow:
        value, value4 = f"narrow_{tensor.narrow}(v)", f"narrow4_{tensor.narrow}(v)"
    forms = {
        f"load_{name}": f"(i: u32) -> {element} {{ return {load}; }}",
        f"load4_{name}": f"(i: u32) -> vec4<{element}> {{ return {load4}; }}",
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
        body += "".join(text for f, text in forms.items() if f"{f}(" in body)
    return "\n".join(f"fn {f}{text}" for f, text in forms.items() if f"{f}(" in body)


def _native_forms(tensor: Tensor, place: str) -> dict[str, str]:
    """Accessors of a tensor of f16, where kernels have that type: any invocation may store one."""
    name, four = tensor.name, f"{tensor.name}[i >> 2u]"
    return {
        f"load_{name}": f"(i: u32) -> f32 {{ return f32({place}); }}",
        f"load4_{name}": f"(i: u32) -> vec4<f32> {{ return vec4<f32>({four}); }}",
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
        f"store4_{name}": f"(i: u32, v: vec4<{element}>) {{ {stores} }}",
    }


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
