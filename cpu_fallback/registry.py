"""The table of NumPy operators: `cpu_op` fills it, `lookup`, `exists` and `run` read it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import ml_dtypes  # noqa: F401  (registers bfloat16, float8, int4, ... with NumPy)
import numpy as np

Tensor = np.ndarray[Any, np.dtype[Any]]
Value = Tensor | list[Any] | None
"""A tensor, a sequence (list of values), or an optional without content (None)."""

_F = TypeVar("_F", bound=Callable[..., Any])


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
    """One registered function and what `run` has to know to call it."""

    op_type: str
    domain: str
    since_version: int
    function: Callable[..., Any]
    attributes: frozenset[str]
    takes_n_outputs: bool


_OPS: dict[tuple[str, str], dict[int, CpuOp]] = {}


def _canonical(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def cpu_op(op_type: str, since: int, domain: str = "") -> Callable[[_F], _F]:
    """Register the decorated function as `op_type` from opset `since` on; may be stacked.

    Inputs are positional in ONNX order (None if omitted); attributes are keyword-only, with ONNX
    names and the defaults of the specification. A keyword `n_outputs` receives the number of
    outputs the node uses. Several outputs are returned as a tuple.

    Raises: ValueError if the same operator and version is registered twice.
    """
    key = (_canonical(domain), op_type)

    def register(function: _F) -> _F:
        keywords = {
            name
            for name, parameter in inspect.signature(function).parameters.items()
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY
        }
        versions = _OPS.setdefault(key, {})
        if since in versions:
            raise ValueError(f"{op_type}-{since} of domain {domain!r} is registered twice")
        versions[since] = CpuOp(
            op_type=op_type,
            domain=key[0],
            since_version=since,
            function=function,
            attributes=frozenset(keywords - {"n_outputs"}),
            takes_n_outputs="n_outputs" in keywords,
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
    domain = _canonical(domain)
    values = [_as_value(value) for value in inputs]
    op = lookup(op_type, since_version, domain)
    if op is None:
        from cpu_fallback import reference

        with np.errstate(all="ignore"):
            results = reference.run(op_type, domain, since_version, attrs, values, n_outputs)
        return _as_outputs(results, op_type, n_outputs)
    keywords = {name: value for name, value in attrs.items() if name in op.attributes}
    if len(keywords) < len(attrs):
        _refuse_unknown(op, since_version, attrs)
    if op.takes_n_outputs:
        keywords["n_outputs"] = n_outputs
    with np.errstate(all="ignore"):
        result = op.function(*values, **keywords)
    return _as_outputs(result if isinstance(result, tuple) else (result,), op_type, n_outputs)


def _as_value(value: Any) -> Value:
    return np.asarray(value) if isinstance(value, np.generic) else value


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
