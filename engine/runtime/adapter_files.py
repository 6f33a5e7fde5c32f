"""Text files about an adapter, in the user's folders: measured speeds and tuned kernels."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from engine.runtime.files import replacing


def file_name(title: str, *depends: object) -> str:
    """A name that can be read, and is another one for another title or for other `depends`."""
    words = "".join(c if c.isalnum() else "-" for c in title.lower())
    key = json.dumps([title, *depends])
    return f"{words[:48].strip('-')}-{hashlib.sha256(key.encode()).hexdigest()[:12]}.json"


def write(path: Path, text: str) -> None:
    """Writes a file whole or not at all. Raises: OSError if it cannot be written."""
    with replacing(path) as file:
        file.write(text.encode())
