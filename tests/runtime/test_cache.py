"""Files that shorten later starts: kept whole or not at all, bounded, and never trusted blindly."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from engine.runtime import cache, header
from engine.runtime.files import replacing

SESSION = """
import numpy as np
from engine import InferenceSession
from engine.runtime import cache
from tests.runtime.models import AFFINE, parse

x, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones(3, np.float32)
y, z = InferenceSession(parse(AFFINE), device="gpu").run(None, dict(x=x, b=b))
np.testing.assert_allclose(y, np.tanh(x + b), rtol=1e-5)
np.testing.assert_array_equal(z, -(x + b))
cache.flush(wait=True)
from wgpu.backends.wgpu_native import ffi
print(type(ffi).__name__)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "kept"))
    return tmp_path / "kept" / "onnx-wgpu"


def test_what_is_stored_is_loaded(place: Path) -> None:
    parts = [b"some", memoryview(np.arange(1000, dtype=np.uint8)), b""]
    assert cache.load("a") is None
    assert cache.store("a", parts)
    found = cache.load("a")
    assert found is not None and bytes(found) == b"some" + bytes(parts[1])
    assert cache.store("a", [b"other"])
    again = cache.load("a")
    assert again is not None and bytes(again) == b"other"
    assert bytes(found[:4]) == b"some", "a replaced file stays as long as it is in use"
    assert [p.name for p in place.iterdir()] == ["a"]


@pytest.mark.parametrize("at", [0, 31, 40, 64, 70, -1])
def test_a_damaged_file_counts_as_missing(place: Path, at: int) -> None:
    cache.store("a", [b"0123456789"])
    data = bytearray((place / "a").read_bytes())
    data[at] ^= 1
    (place / "a").write_bytes(data)
    assert cache.load("a") is None
    assert cache.store("a", [b"new"]) and cache.load("a") is not None


@pytest.mark.parametrize("nbytes", [0, 1, 20, 63, 64, 73])
def test_a_truncated_file_counts_as_missing(place: Path, nbytes: int) -> None:
    cache.store("a", [b"0123456789"])
    (place / "a").write_bytes((place / "a").read_bytes()[:nbytes])
    assert cache.load("a") is None


def test_the_files_used_longest_ago_go_first(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for age, name in enumerate("abc"):
        cache.store(name, [bytes(1000)])
        os.utime(place / name, (1000 + age, 1000 + age))
    assert cache.load("a") is not None
    monkeypatch.setattr(cache, "MAX_NBYTES", 3500)
    cache.store("d", [bytes(1000)])
    assert sorted(p.name for p in place.iterdir()) == ["a", "c", "d"]
    monkeypatch.setattr(cache, "MAX_NBYTES", 10)
    cache.store("e", [bytes(1000)])
    assert not list(place.iterdir())


def test_files_of_others_stay(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.parent.mkdir()
    (place.parent / "mine").write_bytes(bytes(1000))
    monkeypatch.setattr(cache, "MAX_NBYTES", 10)
    assert cache.store("a", [bytes(1000)])
    assert (place.parent / "mine").exists() and not list(place.iterdir())


def test_a_folder_that_is_only_read(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.store("a", [b"some"])

    def refused(path: Path) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "utime", refused)
    found = cache.load("a")
    assert found is not None and bytes(found) == b"some"


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_what_was_not_written_to_the_end_leaves_what_was_there(
    tmp_path: Path, error: type[BaseException]
) -> None:
    path = tmp_path / "folder" / "a"
    for content in (b"first", b"second"):
        with replacing(path) as file:
            file.write(content)
    with pytest.raises(error), replacing(path) as file:
        file.write(b"half")
        raise error
    assert path.read_bytes() == b"second" and list(path.parent.iterdir()) == [path]


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for word in ("off", "0", "OFF"):
        monkeypatch.setenv(cache.VARIABLE, word)
        assert cache.folder() is None and not cache.store("a", [b"x"]) and cache.load("a") is None
    monkeypatch.delenv(cache.VARIABLE)
    assert cache.folder() is not None


def test_a_folder_that_cannot_be_written_is_no_error_and_said_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "file"))
    for name in "ab":
        assert not cache.store(name, [b"x"])
        assert cache.load(name) is None
    (said,) = (r.getMessage() for r in caplog.records if r.levelname == "WARNING")
    assert f"nothing can be kept for later starts in {tmp_path / 'file'}" in said
    assert f"{cache.VARIABLE} is another folder, or off" in said


def test_keys_tell_parts_apart() -> None:
    keys = {cache.key("ab", "c"), cache.key("a", "bc"), cache.key("abc"), cache.key(b"ab", "d")}
    assert len(keys) == 4


def test_what_is_put_off_is_done_once_and_may_fail(caplog: pytest.LogCaptureFixture) -> None:
    done: list[str] = []
    main = threading.current_thread()
    cache.later(lambda: done.append("a"))
    cache.later(lambda: 1 // 0)
    cache.later(lambda: done.append("b" if threading.current_thread() is not main else "main"))
    cache.flush(wait=True)
    cache.flush(wait=True)
    assert done == ["a", "b"]
    assert "could not be kept" in caplog.text


def start(place: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SESSION],
        capture_output=True,
        text=True,
        env={**os.environ, cache.VARIABLE: str(place.parent)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.gpu
def test_the_header_is_parsed_once(place: Path) -> None:
    assert start(place) == "FFI"
    (path,) = place.glob("header-*")
    assert start(place) == "ReadyFFI"
    data = path.read_bytes()
    path.write_bytes(data[:5000])
    assert start(place) == "FFI"
    assert path.read_bytes() == data, "a damaged file is replaced"


def test_tables_survive_being_written() -> None:
    tables = {"_version": 9729, "_types": bytes(range(256)), "_globals": (b"a\xff", 3, (b"", ()))}
    assert header._from_json(memoryview(header._to_json(tables).encode())) == tables


def test_tables_that_look_otherwise_are_refused() -> None:
    for text in ("x = 1", "f(_version=1)", "f(_version=1, _types=b'', _more=2)", "f() + g()"):
        with pytest.raises(ValueError, match="cffi writes"):
            header._arguments(text)
    assert header._arguments("f('m', _version=1, _types=b'a')") == {"_version": 1, "_types": b"a"}
