"""Text files about an adapter, in the user's folders: measured speeds and tuned kernels."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path


def file_name(title: str, *depends: object) -> str:
    """A name that can be read, and is another one for another title or for other `depends`."""
    words = "".join(c if c.isalnum() else "-" for c in title.lower())
    key = json.dumps([title, *depends])
    return f"{words[:48].strip('-')}-{hashlib.sha256(key.encode()).hexdigest()[:12]}.json"


def write(path: Path, text: str) -> None:
    """Writes a file whole or not at all. Raises: OSError if it cannot be written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
