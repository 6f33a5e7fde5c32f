"""The table of operators: which forms are read, where each can run, and what limits that.

Made from the registries of `engine.ops` and `cpu_fallback` and onnx's schemas, so that it can't
differ from what the engine does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx

from cpu_fallback import registry
from engine import ops
from engine.errors import UnsupportedOpError
from engine.importer.opsets import OLDEST, PINNED
from engine.ir import CONTROL_FLOW
from engine.records import dataclass
from engine.target import Target

CONTRIB = "com.microsoft"
DOMAINS = ("", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training", CONTRIB)
_DTYPES = ("float32", "float16", "bfloat16", "int8", "uint8", "int32", "uint32", "int64", "bool")

LEGEND = (
    "Forms   versions of the operator that are read",
    "GPU     kernel, expression or view; - where a pass makes others of it, or the CPU computes it",
    f"Limits  what stays on the CPU; for all: rank over {ops.MAX_RANK}, values over 128 MiB, "
    f"loops of over {Target.baseline().max_loop_trips} trips in one invocation, and inputs that "
    "say how to dispatch (axes, sizes) unless they are known before the run",
)
"""What the columns of the table mean, in lines for a terminal."""

INTRODUCTION = f"""# Operators

Made by `onnx-wgpu ops --markdown > docs/operators.md`; a test compares it with the code.

- **Forms**: the operator's versions that occur in models of opset {OLDEST} to {PINNED}; the
  importer converts all of them to the last. `gone`: newer opsets have another operator, to which
  it is converted.
- **GPU**: `kernel` is a shader, `expression` one that is fused with its neighbours, `view` another
  shape of the same buffer. `-`: the CPU computes it, or a pass turns it into other operators.
- **Types** are those of the inputs that the kernel reads. An int64 is an i32 on the GPU, and only
  where all values are proven or checked to fit.
- **CPU**: `NumPy` is a function of `cpu_fallback`, `reference` onnx's own implementation or
  function body, `host` control flow that runs its bodies on either device.
- **Limits**: what stays on the CPU. For all: rank over {ops.MAX_RANK}, values over 128 MiB, more
  loop trips than a driver takes in one invocation ({Target.baseline().max_loop_trips}), and inputs
  that say how to dispatch (axes, sizes) unless they are known before the run.
"""


@dataclass(frozen=True)
class Row:
    """What is known of one operator.

    Attributes:
        domain: "" is ai.onnx.
        versions: since-versions of its forms, as opsets; empty outside ONNX's schemas.
        deprecated: whether newer opsets have it no more.
        gpu: "kernel", "expression", "view" or "".
        dtypes: what its kernel takes.
        cpu: "NumPy", "reference", "host", or "" if nothing runs it, or it is always converted.
        limits: in words.
    """

    domain: str
    op_type: str
    versions: tuple[int, ...]
    deprecated: bool
    gpu: str
    dtypes: tuple[str, ...]
    cpu: str
    limits: str

    @property
    def cells(self) -> tuple[str, ...]:
        """The row as text: operator, forms, GPU, types, CPU, limits."""
        versions = ", ".join(map(str, self.versions)) + (" (gone)" if self.deprecated else "")
        dtypes = ", ".join(self.dtypes)
        return self.op_type, versions, self.gpu or "-", dtypes, self.cpu or "-", self.limits


def types_text(dtypes: Sequence[str]) -> str:
    """Types for narrow tables: "float32/16, int8/32, bool"."""
    sizes: dict[str, list[int]] = {}
    for name in dtypes:
        kind = name.rstrip("0123456789")
        sizes.setdefault(kind, []).extend(int(bits) for bits in [name.removeprefix(kind)] if bits)
    return ", ".join(kind + "/".join(map(str, sorted(found))) for kind, found in sizes.items())


COLUMNS = ("Operator", "Forms", "GPU", "Types", "CPU", "Limits")


def operator_rows() -> tuple[Row, ...]:
    """Every operator of ONNX at the pinned opset and of com.microsoft, by domain and name."""
    forms: dict[tuple[str, str], list[onnx.defs.OpSchema]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain in DOMAINS and (schema.domain or schema.since_version <= PINNED):
            forms.setdefault((schema.domain, schema.name), []).append(schema)
    own = {(op.domain, op.op_type) for op in registry.registered()}
    own |= {(op.domain, op.op_type) for op in ops.registered()}
    known = forms.keys() | {key for key in own if key[0] == CONTRIB}
    ordered = sorted(known, key=lambda key: (DOMAINS.index(key[0]), key))
    return tuple(_row(*key, forms.get(key, ())) for key in ordered)


def _row(domain: str, op_type: str, schemas: Sequence[onnx.defs.OpSchema]) -> Row:
    versions = sorted({s.since_version for s in schemas})
    last = versions[-1] if versions else 1
    if not domain:
        first = max((v for v in versions if v <= OLDEST), default=versions[0])
        versions = [v for v in versions if v >= first]
    op = ops.lookup(op_type, last, domain)
    deprecated = any(s.deprecated for s in schemas)
    dtypes = op.dtypes if op is not None and op.on_gpu and not op.view else frozenset[str]()
    return Row(
        domain,
        op_type,
        tuple(versions),
        deprecated,
        _gpu(op),
        tuple(
            sorted(dtypes, key=lambda name: (_DTYPES.index(name) if name in _DTYPES else 99, name))
        ),
        "" if deprecated and not domain else _cpu(domain, op_type, last),
        op.limits if op is not None else "",
    )


def _gpu(op: ops.OpDef | None) -> str:
    if op is None or not op.on_gpu:
        return ""
    return "view" if op.view else "expression" if op.elementwise is not None else "kernel"


def _cpu(domain: str, op_type: str, since_version: int) -> str:
    if not domain and op_type in CONTROL_FLOW:
        return "host"
    found = registry.exists(op_type, domain, since_version)
    return "NumPy" if found == "numpy" else found or ""


def select(rows: Sequence[Row], names: Sequence[str]) -> tuple[Row, ...]:
    """The rows of operators given as "Name" or "domain:Name", all if none is given.

    Raises: UnsupportedOpError for a name that no operator has.
    """
    wanted = [name.lower().removeprefix("ai.onnx:") for name in names]
    known = {name for row in rows for name in _names(row)}
    unknown = [name for name, key in zip(names, wanted, strict=True) if key not in known]
    if unknown:
        raise UnsupportedOpError(f"no operator is named {', '.join(unknown)}; see `onnx-wgpu ops`")
    return tuple(row for row in rows if not names or _names(row) & set(wanted))


def _names(row: Row) -> set[str]:
    return {row.op_type.lower(), f"{row.domain}:{row.op_type}".lower()}


def to_markdown(rows: Iterable[Row]) -> str:
    """The whole document: an introduction and a table for each domain."""
    rows = tuple(rows)
    parts = [INTRODUCTION]
    for domain in dict.fromkeys(row.domain for row in rows):
        mine = [row for row in rows if row.domain == domain]
        on_gpu = sum(bool(row.gpu) for row in mine)
        lines = [
            f"## {domain or 'ai.onnx'}",
            "",
            f"{len(mine)} operators, {on_gpu} with a GPU form.",
            "",
            f"| {' | '.join(COLUMNS)} |",
            "|" + " --- |" * len(COLUMNS),
            *(f"| {' | '.join(row.cells)} |" for row in mine),
        ]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)
