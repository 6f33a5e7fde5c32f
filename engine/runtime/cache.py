"""Cache: files that shorten later starts (`start.py` fills them), in the platform's cache folder.

What is kept can be made again, so nothing here fails: a file that is missing, damaged, or of
another version counts as missing, and a folder that cannot be written is logged. Each file begins
with a checksum of the rest. The folder is bounded: the files that were used longest ago go first.

The environment variable ENGINE_CACHE is "off", or another folder, in which ours is made: files of
others that lie there do not count.
"""

from __future__ import annotations

import hashlib
import logging
import mmap
import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from weakref import WeakSet

import numpy as np

from engine.runtime.files import replacing

log = logging.getLogger(__name__)

VARIABLE = "ENGINE_CACHE"
MAX_NBYTES = 1 << 30
"""Of all files together."""

_MAGIC = b"onnx-wgpu cache 2\n".ljust(32, b"\0")
_DIGEST_NBYTES = 32
_HEADER_NBYTES = len(_MAGIC) + _DIGEST_NBYTES
_CHUNK_NBYTES = 1 << 20

_told: set[Path] = set()
"""Folders that could not be written, which is said once."""


def folder() -> Path | None:
    """Where files are kept; None if nothing is."""
    chosen = os.environ.get(VARIABLE, "")
    if chosen.lower() in ("off", "0", "no", "false"):
        return None
    if chosen:
        return Path(chosen) / "onnx-wgpu"
    import platformdirs

    return Path(platformdirs.user_cache_dir("onnx-wgpu")) / "starts"


def key(*parts: str | bytes) -> str:
    """A name for what depends on these, as a hash."""
    hasher = hashlib.blake2b(digest_size=20)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        hasher.update(len(data).to_bytes(8, "little") + data)
    return hasher.hexdigest()


def load(name: str) -> memoryview | None:
    """The content of a file, mapped into memory; None if there is no valid one."""
    place = folder()
    if place is None:
        return None
    path = place / name
    try:
        with path.open("rb") as file:
            whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError):
        return None
    with suppress(OSError):  # a folder that is only read was filled by others
        os.utime(path)
    content = whole[_HEADER_NBYTES:]
    if whole[: len(_MAGIC)] != _MAGIC:
        return None
    if whole[len(_MAGIC) : _HEADER_NBYTES] != _digest(content):
        log.warning("ignoring %s: it is damaged", path)
        return None
    return content


def store(name: str, parts: Iterable[bytes | memoryview]) -> bool:
    """Writes a file of these parts, whole or not at all, and drops the oldest of too many."""
    place = folder()
    if place is None:
        return False
    try:
        with replacing(place / name) as file:
            file.write(bytes(_HEADER_NBYTES))
            for part in parts:
                file.write(part)
            file.flush()
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole:
                digest = _digest(memoryview(whole)[_HEADER_NBYTES:])
            file.seek(0)
            file.write(_MAGIC + digest)
        _prune(place, name)
    except OSError as error:
        why = error.strerror or error
        level = logging.DEBUG if place in _told else logging.WARNING
        hint = f"{VARIABLE} is another folder, or off"
        log.log(level, "nothing can be kept for later starts in %s: %s; %s", place, why, hint)
        _told.add(place)
        return False
    return True


def _digest(content: memoryview) -> bytes:
    """A checksum of accidents, ten times as fast as a hash: sums and parities of 64-bit words."""
    data = np.frombuffer(content, np.uint8)
    hasher = hashlib.blake2b(len(data).to_bytes(8, "little"), digest_size=_DIGEST_NBYTES)
    for start in range(0, len(data), _CHUNK_NBYTES):
        chunk = data[start : start + _CHUNK_NBYTES]
        even = len(chunk) // 8 * 8
        words = chunk[:even].view(np.uint64)
        hasher.update(np.add.reduce(words).tobytes())
        hasher.update(np.bitwise_xor.reduce(words).tobytes())
        hasher.update(chunk[even:].tobytes())
    return hasher.digest()


def _prune(place: Path, kept: str) -> None:
    """Removes files until all together are small enough; `kept` was just written."""
    files = []
    for path in place.iterdir():
        try:
            state = path.stat()
        except OSError:
            continue
        files.append((path.name == kept, state.st_mtime, state.st_size, path))
    total = sum(size for _, _, size, _ in files)
    for _, _, size, path in sorted(files, key=lambda f: f[:2]):
        if total <= MAX_NBYTES:
            break
        path.unlink(missing_ok=True)
        total -= size


_waiting: list[Callable[[], object]] = []
_writers: WeakSet[threading.Thread] = WeakSet()
_lock = threading.Lock()


def later(action: Callable[[], object]) -> None:
    """Puts something off that later starts gain from, until `flush`."""
    with _lock:
        _waiting.append(action)


def flush(wait: bool = False) -> None:
    """Does in a thread what was put off; the process ends after it."""
    if not _waiting:
        return
    with _lock:
        actions = list(_waiting)
        _waiting.clear()
    if not actions:
        return
    thread = threading.Thread(target=_do, args=(actions,), name="onnx-wgpu cache")
    _writers.add(thread)
    thread.start()
    if wait:
        thread.join()


def finish() -> None:
    """Waits for the threads of `flush`."""
    for thread in tuple(_writers):
        if thread.is_alive():
            thread.join()


def _do(actions: list[Callable[[], object]]) -> None:
    for action in actions:
        try:
            action()
        except Exception:
            log.warning("something could not be kept for later starts", exc_info=True)
