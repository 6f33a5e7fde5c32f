"""JSON that every reader takes: numbers that are not finite become strings."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def dumps(content: Any, **options: Any) -> str:
    """JSON of plain data, in which "NaN", "Infinity" and "-Infinity" stand for such floats.

    RFC 8259 has no numbers for these; `json.dumps` would write words that most readers refuse.
    """
    return json.dumps(_finite(content), allow_nan=False, **options)


def _finite(content: Any) -> Any:
    if isinstance(content, float) and not math.isfinite(content):
        return "NaN" if math.isnan(content) else "Infinity" if content > 0 else "-Infinity"
    if isinstance(content, Mapping):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_finite(value) for value in content]
    return content
