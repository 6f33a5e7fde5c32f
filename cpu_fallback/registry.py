"""The table of NumPy operators: `cpu_op` fills it, `lookup`, `exists`, `prepare`, `run` read it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_args

import ml_dtypes  # noqa: F401  (registers bfloat16, float8, int4, ... with NumPy)
import numpy as np

Tensor = np.ndarray[Any, np.dtype[Any]]
Value = Tensor | list[Any] | None
"""A tensor, a sequence (list of values), or an optional without content (None)."""

_F = TypeVar("_F", bound=Callable[..., Any])
_T = TypeVar("_T")
_SERVICES = frozenset({"n_outputs", "memo", "spare"})
"""Keywords of functions that are no attributes."""


class UnsupportedOp(Exception):  # noqa: N818  (a verdict on an operator, with its coordinates)
    """No implementation of this operator exists on the CPU.

    Attributes: op_type, domain, since_version as asked for.
    """

    def __init__(self, op_type: str, domain: str, since_version: int) -> None:
        self.op_type = op_type
        self.domain = domain
        self.since_version = since_version
        name = f"{domain or 'ai.onnx'}:{op_type}-{since_version}"
        super().__init__(f"no CPU implementation of operator {name}")


@dataclass(frozen=True)
class CpuOp:
    """One registered function and what a caller has to know.

    Attributes:
        attributes: names of the attributes that it takes.
        services: which of `n_outputs`, `memo` and `spare` it takes (see `cpu_op`).
    """

    op_type: str
    domain: str
    since_version: int
    function: Callable[..., Any]
    attributes: frozenset[str]
    services: frozenset[str]


@dataclass(frozen=True)
class Memo:
    """What one node remembers from call to call.

    Attributes:
        constants: positions of the inputs that are the same in every call.
        room: of how many sizes it remembers what `sized` made.
    """

    constants: frozenset[int] = frozenset()
    room: int = 16
    _kept: dict[Any, Any] = field(default_factory=dict)
    _sized: dict[Any, Any] = field(default_factory=dict)

    def of(self, positions: int | tuple[int, ...], key: Any, make: Callable[[], _T]) -> _T:
        """`make()`, which reads inputs at `positions` and what `key` says; once if all of those
        are constant."""
        if key in self._kept:
            return self._kept[key]  # type: ignore[no-any-return]
        made = make()
        if self.constants.issuperset((positions,) if isinstance(positions, int) else positions):
            self._kept[key] = made
        return made

    def sized(self, sizes: Any, make: Callable[[], _T]) -> _T:
        """`make()`, which reads attributes and `sizes`, whatever else the node does."""
        found = self._sized.get(sizes)
        if found is None:
            found = make()
            if self.room:
                while len(self._sized) >= self.room:
                    self._sized.pop(next(iter(self._sized)))
                self._sized[sizes] = found
        return found


NO_MEMO = Memo(room=0)


@dataclass(frozen=True, slots=True)
class PreparedNode:
    """A node ready to be called: the operator is looked up and the attributes are set.

    Attributes:
        function: takes the inputs, and `spare` if `takes_spare`.
    """

    op_type: str
    function: Callable[..., Any]
    n_outputs: int
    takes_spare: bool

    def __call__(self, inputs: Sequence[Value], spare: Tensor | None = None) -> list[Value]:
        """The outputs. `spare`: an input that nobody else reads, which may be overwritten.

        Floating-point warnings are the caller's business (`numpy.errstate`).
        """
        if spare is not None and self.takes_spare:
            result = self.function(*inputs, spare=spare)
        else:
            result = self.function(*inputs)
        if isinstance(result, np.ndarray) and self.n_outputs == 1:
            return [_as_value(result)]
        return _as_outputs(
            result if isinstance(result, tuple) else (result,), self.op_type, self.n_outputs
        )


_OPS: dict[tuple[str, str], dict[int, CpuOp]] = {}


def _canonical(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _keywords(function: Callable[..., Any]) -> frozenset[str]:
    """Names of what it takes by keyword only."""
    # not by `signature` and `get_type_hints`, which work out all the rest: 8 ms of every start
    code = inspect.unwrap(function).__code__
    begin = code.co_argcount
    end = begin + code.co_kwonlyargcount
    names = set(code.co_varnames[begin:end])
    if code.co_flags & inspect.CO_VARKEYWORDS:
        rest = code.co_varnames[end + bool(code.co_flags & inspect.CO_VARARGS)]
        (unpacked,) = get_args(eval(function.__annotations__[rest], function.__globals__))
        names |= unpacked.__annotations__.keys()
    return frozenset(names)


def cpu_op(op_type: str, since: int, domain: str = "") -> Callable[[_F], _F]:
    """Register the decorated function as `op_type` from opset `since` on; may be stacked.

    Inputs are positional in ONNX order (None if omitted); attributes are keyword-only, with ONNX
    names and the defaults of the specification, or keys of an unpacked `TypedDict`. Several outputs
    are returned as a tuple. Three keywords are no attributes: `n_outputs` receives the number of
    outputs the node uses; `memo` a `Memo`; `spare` (default None) an input that the function may
    overwrite with its result.

    Raises: ValueError if the same operator and version is registered twice.
    """
    key = (_canonical(domain), op_type)

    def register(function: _F) -> _F:
        keywords = _keywords(function)
        versions = _OPS.setdefault(key, {})
        if since in versions:
            raise ValueError(f"{op_type}-{since} of domain {domain!r} is registered twice")
        versions[since] = CpuOp(
            op_type=op_type,
            domain=key[0],
            since_version=since,
            function=function,
            attributes=keywords - _SERVICES,
            services=keywords & _SERVICES,
        )
        return function

    return register


def lookup(op_type: str, since_version: int, domain: str = "") -> CpuOp | None:
    """The newest registered version that is not newer than `since_version`, or None."""
    versions = _OPS.get((_canonical(domain), op_type), {})
    usable = [version for version in versions if version <= since_version]
    return versions[max(usable)] if usable else None


def registered() -> list[CpuOp]:
    """Every registered operator, ordered by domain, name and version."""
    ops = [op for versions in _OPS.values() for op in versions.values()]
    return sorted(ops, key=lambda op: (op.domain, op.op_type, op.since_version))


def exists(op_type: str, domain: str, since_version: int) -> str | None:
    """Where the operator would run: "numpy", "reference", or None if nothing knows it."""
    if lookup(op_type, since_version, domain) is not None:
        return "numpy"
    from cpu_fallback import reference

    known = reference.exists(op_type, _canonical(domain), since_version)
    return "reference" if known else None


def run(
    op_type: str,
    domain: str,
    since_version: int,
    attrs: Mapping[str, object],
    inputs: Sequence[Value],
    n_outputs: int,
) -> list[Value]:
    """Execute one node on the CPU.

    Args:
        op_type, domain, since_version: the operator; `since_version` that of the model's opset.
        attrs: Python values (int, float, str, lists of these, arrays for tensors).
        inputs: arrays, lists for sequences, None for omitted inputs and empty optionals.
        n_outputs: how many outputs the node uses.

    Returns: the outputs, `n_outputs` of them; scalars are 0-d arrays.

    Raises: UnsupportedOp if nothing implements the operator; TypeError for an unknown attribute
        or a missing required one.
    """
    call = prepare(op_type, domain, since_version, attrs, n_outputs)
    with np.errstate(all="ignore"):
        return call([_as_value(value) for value in inputs])


def prepare(
    op_type: str,
    domain: str,
    since_version: int,
    attrs: Mapping[str, object],
    n_outputs: int,
    constants: Collection[int] = (),
) -> PreparedNode:
    """A node for many calls; arguments and errors as of `run`.

    Args:
        constants: positions of the inputs that are the same array, unchanged, in every call.
    """
    domain = _canonical(domain)
    op = lookup(op_type, since_version, domain)
    if op is None:
        from cpu_fallback import reference

        def refer(*values: Value) -> Any:
            return tuple(
                reference.run(op_type, domain, since_version, attrs, list(values), n_outputs)
            )

        return PreparedNode(op_type, refer, n_outputs, False)
    keywords: dict[str, Any] = {k: value for k, value in attrs.items() if k in op.attributes}
    if len(keywords) < len(attrs):
        _refuse_unknown(op, since_version, attrs)
    if "n_outputs" in op.services:
        keywords["n_outputs"] = n_outputs
    if "memo" in op.services:
        keywords["memo"] = Memo(frozenset(constants))
    function = functools.partial(op.function, **keywords) if keywords else op.function
    return PreparedNode(op_type, function, n_outputs, "spare" in op.services)


def _as_value(value: Any) -> Value:
    """Scalars as arrays; strings as objects, as NumPy's own cut off what others write to them."""
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if isinstance(value, np.ndarray) and value.dtype.kind in "US":
        return value.astype(object)
    return value  # type: ignore[no-any-return]


def _as_outputs(results: Sequence[Any], op_type: str, n_outputs: int) -> list[Value]:
    if len(results) < n_outputs:
        raise ValueError(f"{op_type} gives {len(results)} outputs, the node uses {n_outputs}")
    return [_as_value(result) for result in results[:n_outputs]]


def _refuse_unknown(op: CpuOp, since_version: int, attrs: Mapping[str, object]) -> None:
    from cpu_fallback import reference

    defaults = reference.attribute_defaults(op.op_type, op.domain, since_version)
    for name in sorted(set(attrs) - op.attributes):
        if name not in defaults or defaults[name] != attrs[name]:
            raise TypeError(
                f"{op.op_type}-{op.since_version}: attribute {name}={attrs[name]!r} "
                f"is not implemented on the CPU; known are {sorted(op.attributes)}"
            )
