"""Inputs for a model from files or a seeded generator, for the command line and benchmarks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from engine.dtypes import from_name
from engine.errors import InputError
from engine.ir import Array
from engine.runtime.face import NodeArg
from engine.runtime.session import InferenceSession

_DTYPES = {"float": "float32", "double": "float64"}
_MAGIC = b"\x93NUMPY"
_STARTS = (_MAGIC, b"PK")
"""How files of one array, and of several, begin."""
LENGTH = 64
"""Stands for an open size that is not the first of its input."""


def parse_pairs(items: Sequence[str], what: str) -> dict[str, str]:
    """`["a=1", "b=2"]` as a dict. Raises: InputError for one without "=", or a second of a name."""
    pairs: dict[str, str] = {}
    for item in items:
        name, sign, value = item.partition("=")
        if not sign or not name or not value:
            raise InputError(f"{what} must look like NAME=VALUE, not {item!r}")
        if name in pairs:
            raise InputError(f"{what} {name} is given twice, as {pairs[name]} and as {value}")
        pairs[name] = value
    return pairs


def make_inputs(
    session: InferenceSession,
    given: Mapping[str, str],
    dims: Mapping[str, str],
    seed: int = 0,
    values: bool = True,
) -> dict[str, Any]:
    """An array for each input that the model needs.

    Args:
        session: tells names, types and shapes.
        given: input name to the path of a .npy file, or "random".
        dims: symbolic size to its number; those left out are as in a file, or see `guess_dims`.
        seed: of the generator.
        values: whether values count; if not, something of the type stands for what can't be drawn.

    Raises: InputError for unknown names, unreadable files, and sizes that are no numbers or not
        those of a file.
    """
    wanted = {a.name: a for a in session.get_inputs()}
    unknown = sorted(set(given) - set(wanted))
    if unknown:
        raise InputError(f"the model has no inputs {unknown}; it has {sorted(wanted)}")
    files = {n: path for n, path in given.items() if path != "random"}
    loaded = {n: _load(n, path) for n, path in files.items()}
    known = sizes_of(wanted.values(), loaded)
    sizes = {**guess_dims(wanted.values()), **{n: size for n, (size, _) in known.items()}}
    if set(dims) - sizes.keys():
        unknown = sorted(set(dims) - sizes.keys())
        raise InputError(f"no size is named {unknown}; there are {sorted(sizes)}")
    for name, size in dims.items():
        try:
            sizes[name] = int(size)
        except ValueError as error:
            raise InputError(f"a size is not a number: {name}={size}") from error
        if name in known and known[name][0] != sizes[name]:
            of, source = known[name][0], known[name][1]
            raise InputError(
                f"--dim {name}={size}, but {name} is {of} in {files[source]}, the input {source!r}"
            )
    negative = sorted(name for name, size in sizes.items() if size < 0)
    if negative:
        raise InputError(f"sizes {negative} are negative")
    rng = np.random.default_rng(seed)
    feeds = {}
    for name, arg in wanted.items():
        try:
            feeds[name] = loaded[name] if name in loaded else _random(arg, sizes, rng, values)
        except InputError:
            raise
        except (MemoryError, ValueError) as error:
            raise InputError(f"input {name!r} can't be made: {error}") from error
    return feeds


def guess_dims(inputs: Iterable[NodeArg]) -> dict[str, int]:
    """A number for each symbolic size: 1 where it comes first in an input, else `LENGTH`."""
    sizes: dict[str, int] = {}
    for arg in inputs:
        for axis, dim in enumerate(arg.shape or ()):
            if isinstance(dim, str):
                size = 1 if axis == 0 and len(arg.shape or ()) > 1 else LENGTH
                sizes[dim] = min(size, sizes.get(dim, size))
    return sizes


def sizes_of(inputs: Iterable[NodeArg], arrays: Mapping[str, Array]) -> dict[str, tuple[int, str]]:
    """The symbolic sizes that arrays have, by name, each with the input that has it first."""
    sizes: dict[str, tuple[int, str]] = {}
    for arg in inputs:
        shape = arg.shape or ()
        if arg.name in arrays and len(shape) == arrays[arg.name].ndim:
            for dim, size in zip(shape, arrays[arg.name].shape, strict=True):
                if isinstance(dim, str):
                    sizes.setdefault(dim, (size, arg.name))
    return sizes


def guess_hint(drawn: Mapping[str, Array], guessed: Mapping[str, int], message: str) -> str:
    """Lines to put behind an error with inputs that nobody gave: what to give instead.

    Args:
        drawn: inputs that are random.
        guessed: symbolic sizes that were guessed; those that `message` speaks of are named, or all.
        message: the error.
    """
    lines = []
    if guessed:
        named = [n for n in guessed if re.search(rf"(?<![\w.]){re.escape(n)}(?![\w.])", message)]
        names = sorted(named or guessed, key=lambda n: -guessed[n])
        sizes = ", ".join(f"{n}={guessed[n]}" for n in names)
        ways = " ".join(f"--dim {n}=SIZE" for n in names[:3])
        lines.append(f"sizes guessed: {sizes}; if the model wants others: {ways}")
    if drawn:
        first = next(iter(drawn))
        lines.append(f"inputs drawn: {describe(drawn)}; give real ones as --input {first}=FILE.npy")
    return "".join(f"\n  {line}" for line in lines)


def describe(feeds: Mapping[str, Any]) -> str:
    """Names, dtypes and shapes of inputs in one line."""
    return ", ".join(
        f"{name} {a.dtype}{list(a.shape)}" if isinstance(a, np.ndarray) else name
        for name, a in feeds.items()
    )


def _load(name: str, path: str) -> Array:
    try:
        with Path(path).expanduser().open("rb") as file:
            start = file.read(len(_MAGIC))
            file.seek(0)
            found = np.load(file, allow_pickle=False) if start.startswith(_STARTS) else None
    except (OSError, ValueError, EOFError, RuntimeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        if "Object arrays" in str(error):
            why = "it holds Python objects; strings are saved as a `<U` array: array.astype(str)"
        raise InputError(f"input {name!r}: cannot read {path}: {why}") from error
    if found is None:
        raise InputError(f"input {name!r}: cannot read {path}: numpy.save did not write it")
    if not isinstance(found, np.ndarray):
        raise InputError(f"input {name!r}: {path} holds several arrays; give it as one .npy")
    return found


def _random(arg: NodeArg, sizes: Mapping[str, int], rng: np.random.Generator, values: bool) -> Any:
    if not values and not arg.type.startswith("tensor("):
        return [] if arg.type.startswith("seq(") else None
    if not arg.type.startswith("tensor("):
        raise InputError(
            f"input {arg.name!r} is a {arg.type}, which no .npy file holds: call the model from "
            "Python, where it is a list or None"
        )
    shape = [d if isinstance(d, int) else sizes[d] for d in arg.shape or ()]
    if arg.type == "tensor(string)" and values:
        raise InputError(
            f"input {arg.name!r} is a {arg.type}, which is not drawn: give it as "
            f"--input {arg.name}=FILE.npy, a `<U` array that numpy.save wrote"
        )
    if arg.type == "tensor(string)":
        return np.full(shape, "")
    kind = arg.type.removeprefix("tensor(").removesuffix(")")
    dtype = from_name(_DTYPES.get(kind, kind)).numpy
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    return np.asarray(rng.integers(0, 2, shape).astype(dtype))
