"""Inputs for a model from files or a seeded generator, for the command line and benchmarks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from engine.dtypes import from_name
from engine.errors import InputError
from engine.ir import Array
from engine.runtime.face import NodeArg
from engine.runtime.session import InferenceSession

_DTYPES = {"float": "float32", "double": "float64"}
LENGTH = 64
"""Stands for an open size that is not the first of its input."""


def parse_pairs(items: Sequence[str], what: str) -> dict[str, str]:
    """`["a=1", "b=2"]` as a dict. Raises: InputError for an item without "="."""
    pairs = {}
    for item in items:
        name, sign, value = item.partition("=")
        if not sign or not name or not value:
            raise InputError(f"{what} must look like NAME=VALUE, not {item!r}")
        pairs[name] = value
    return pairs


def make_inputs(
    session: InferenceSession,
    given: Mapping[str, str],
    dims: Mapping[str, str],
    seed: int = 0,
) -> dict[str, Array]:
    """An array for each input that the model needs.

    Args:
        session: tells names, types and shapes.
        given: input name to the path of a .npy file, or "random".
        dims: symbolic size to its number; see `guess_dims` for those left out.
        seed: of the generator.

    Raises: InputError for unknown names, unreadable files and sizes that are no numbers.
    """
    wanted = {a.name: a for a in session.get_inputs()}
    unknown = sorted(set(given) - set(wanted))
    if unknown:
        raise InputError(f"the model has no inputs {unknown}; it has {sorted(wanted)}")
    sizes = guess_dims(wanted.values())
    if set(dims) - sizes.keys():
        unknown = sorted(set(dims) - sizes.keys())
        raise InputError(f"no size is named {unknown}; there are {sorted(sizes)}")
    for name, size in dims.items():
        try:
            sizes[name] = int(size)
        except ValueError as error:
            raise InputError(f"a size is not a number: {name}={size}") from error
    negative = sorted(name for name, size in sizes.items() if size < 0)
    if negative:
        raise InputError(f"sizes {negative} are negative")
    rng = np.random.default_rng(seed)
    feeds = {}
    for name, arg in wanted.items():
        source = given.get(name, "random")
        try:
            feeds[name] = _random(arg, sizes, rng) if source == "random" else _load(name, source)
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


def describe(feeds: Mapping[str, Array]) -> str:
    """Names, dtypes and shapes of inputs in one line."""
    return ", ".join(f"{name} {a.dtype}{list(a.shape)}" for name, a in feeds.items())


def _load(name: str, path: str) -> Array:
    try:
        found = np.load(Path(path), allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"input {name!r}: cannot read {path}: {error}") from error
    if not isinstance(found, np.ndarray):
        raise InputError(f"input {name!r}: {path} holds several arrays; give it as one .npy")
    return found


def _random(arg: NodeArg, sizes: Mapping[str, int], rng: np.random.Generator) -> Array:
    if not arg.type.startswith("tensor("):
        raise InputError(
            f"input {arg.name!r} is a {arg.type}, which no .npy file holds: call the model from "
            "Python, where it is a list or None"
        )
    if arg.type == "tensor(string)":
        raise InputError(f"input {arg.name!r} is a {arg.type}: give it with --input")
    shape = [d if isinstance(d, int) else sizes[d] for d in arg.shape or ()]
    kind = arg.type.removeprefix("tensor(").removesuffix(")")
    dtype = from_name(_DTYPES.get(kind, kind)).numpy
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    return np.asarray(rng.integers(0, 2, shape).astype(dtype))
