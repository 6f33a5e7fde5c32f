"""Tuning: which of an operator's styles of kernel is fastest on a device, for the sizes it met."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from engine.dims import evaluate, symbols_of
from engine.errors import EngineError
from engine.ir import Graph, Node
from engine.records import dataclass

VERSION = 1
"""Raised when `tuned_as` or the meaning of styles change, so that older files are not used."""

DEFAULT = ""
"""The style that suits integrated and mobile GPUs, and of every operator that has no others."""


@dataclass(frozen=True)
class Tuning:
    """Styles by `tuned_as`; what is not among them is lowered in the default style."""

    styles: Mapping[str, str] = field(default_factory=dict)

    def choose(self, tuned: str, offered: tuple[str, ...]) -> str:
        """The style for a node: one that its operator offers, or the default."""
        style = self.styles.get(tuned, DEFAULT)
        return style if style in offered else DEFAULT

    def merged(self, other: Tuning) -> Tuning:
        """This one with the styles of another, which win."""
        return Tuning({**self.styles, **other.styles})


@dataclass(frozen=True)
class Trial(Tuning):
    """What the tuner measures, at the sizes of its own calls: of a trial no plan is kept or found.

    Attributes:
        place: of a style in each operator's list; None: `styles` count.
    """

    place: int | None = None

    def choose(self, tuned: str, offered: tuple[str, ...]) -> str:
        if self.place is None:
            return super().choose(tuned, offered)
        return offered[self.place] if self.place < len(offered) else DEFAULT


def tuned_as(graph: Graph, node: Node, binding: Mapping[str, int]) -> str:
    """What decides the speed of a node's kernels: operator, attributes, types and sizes.

    Empty if a size is not in `binding`, or the rank of an input is unknown: nothing is tuned then.
    """
    texts = []
    for name in node.inputs:
        tensor = graph.tensor(name) if name else None
        if not name:
            texts.append("-")
            continue
        if tensor is None or tensor.shape is None:
            return ""
        if not set().union(*map(symbols_of, tensor.shape)) <= binding.keys():
            return ""
        sizes = (str(evaluate(d, binding)) for d in tensor.shape)
        texts.append(f"{tensor.dtype.name}[{'x'.join(sizes)}]")
    attributes = " ".join(
        f"{name}={value}"
        for name, value in sorted(node.attrs.items())
        if isinstance(value, (int, float, str, tuple, list))
    )
    operator = f"{node.domain}:{node.op_type}" if node.domain else node.op_type
    return f"{operator}({', '.join(texts)}) {attributes}".rstrip()


def to_json(tuning: Tuning, adapter: str, features: frozenset[str]) -> str:
    """A file's text. `adapter`: begin of the name of those that it is for."""
    content = {
        "version": VERSION,
        "adapter": adapter,
        "features": sorted(features),
        "styles": dict(sorted(tuning.styles.items())),
    }
    return json.dumps(content, indent=1) + "\n"


def load(path: Path, adapter: str, features: frozenset[str]) -> Tuning:
    """The tuning in a file; none if it is for other adapters, features or an older version.

    Raises: EngineError for a damaged file; FileNotFoundError.
    """
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
        version, owner = content["version"], content["adapter"]
        styles = {str(k): str(v) for k, v in content["styles"].items()}
        wanted = frozenset(content["features"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise EngineError(f"{path} is no file of tuned kernels: {error!r}") from error
    if version != VERSION or not adapter.startswith(owner) or wanted != features:
        return Tuning()
    return Tuning(styles)
