"""Shader files: includes, conditionals and fields resolved, and what they declare."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from functools import cache, lru_cache
from importlib import resources
from string import Template

from engine.errors import ShaderError

DECLARATION = re.compile(
    r"^@group\(0\) @binding\((\d+)\) var<storage, (read|read_write)> (\w+): array<(\w+)>;.*$",
    re.MULTILINE,
)
_DIRECTIVE = re.compile(r"^\s*//# (\w+)\s*(.*)$")


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
    return resolve(stem, frozenset(flags), tuple(sorted((text or {}).items())))[0]


@lru_cache(maxsize=1024)
def resolve(
    stem: str, flags: frozenset[str], text: tuple[tuple[str, str], ...]
) -> tuple[str, frozenset[str]]:
    """The text of `preprocess`, and the library files in it."""
    seen: set[str] = set()
    used: set[str] = set()
    values = dict(text)
    lines = expand(stem, set(flags), seen, used)
    body = Template("\n".join(lines) + "\n")
    fields = set(body.get_identifiers())
    if fields != set(values) or not body.is_valid():
        raise ShaderError(f"{stem}.wgsl has the fields {sorted(fields)}, given {sorted(values)}")
    if flags - used:
        raise ShaderError(f"{stem}.wgsl does not know the flags {sorted(flags - used)}")
    return body.substitute(values), frozenset(seen)


def expand(stem: str, flags: set[str], seen: set[str], used: set[str]) -> list[str]:
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
                out.extend(expand(rest.removesuffix(".wgsl"), flags, seen, used))
        else:
            raise ShaderError(f"{stem}.wgsl:{number}: cannot read the directive {line.strip()!r}")
    if len(active) != 1:
        raise ShaderError(f"{stem}.wgsl: an `if` has no `endif`")
    return out


def declared(text: str) -> tuple[tuple[str, bool, str], ...]:
    """(name, writable, declared element) of each tensor of a preprocessed text, in order."""
    found = sorted(DECLARATION.findall(text), key=lambda m: int(m[0]))
    return tuple((name, access == "read_write", element) for _, access, name, element in found)


def library(includes: Iterable[str], seen: Collection[str]) -> str:
    """Library files with all that they include, without those that are there already."""
    present, used = set(seen), set[str]()
    lines: list[str] = []
    for file in includes:
        if file not in present:
            present.add(file)
            lines += expand(file.removesuffix(".wgsl"), set(), present, used)
    return "\n".join(lines)
