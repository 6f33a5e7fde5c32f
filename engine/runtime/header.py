"""Header: the C header of wgpu, parsed once on a machine instead of in every process.

wgpu's Python package gives its header to cffi as text, which takes 150 ms to parse, and cffi parses
the texts of C types later on. cffi can also write down what it parsed as tables, and be made from
them; that is what its documentation calls the out-of-line ABI mode. Here those tables are kept in
the cache, under the hash of the header and the versions of cffi.

So that wgpu uses them, `cffi.FFI` is another function while wgpu's backend is imported, for that
module alone. Where anything is not as expected, wgpu is imported as it is.
"""

from __future__ import annotations

import ast
import importlib.util
import io
import json
import logging
import sys
from pathlib import Path
from typing import Any

from engine.runtime import cache

log = logging.getLogger(__name__)

_BACKEND = "wgpu.backends.wgpu_native"
_HEADER = ("resources", "combined_header.h")
_TABLES = ("_types", "_globals", "_struct_unions", "_enums", "_typenames")


def load_backend() -> None:
    """Imports wgpu's backend, by means of the tables if there are any; else has them made later."""
    if f"{_BACKEND}._ffi" in sys.modules or cache.folder() is None:
        return
    text = _header_text()
    if text is None:
        return
    try:
        import _cffi_backend
        import cffi
    except ImportError:
        return
    name = f"header-{cache.key(text, cffi.__version__, _cffi_backend.__version__, sys.platform)}"
    content = cache.load(name)
    if content is None:
        cache.later(lambda: _keep(name))
        return
    try:
        tables = _from_json(content)
        ready = _ready(_cffi_backend.FFI, text, tables)
    except (ValueError, KeyError, TypeError) as error:
        log.warning("wgpu's header is parsed anew: %s", error)
        return
    original = cffi.FFI

    def make(*args: Any, **options: Any) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__")
        if caller == f"{_BACKEND}._ffi" and not args and not options:
            return ready
        return original(*args, **options)

    cffi.FFI = make
    try:
        importlib.import_module(_BACKEND)
    finally:
        cffi.FFI = original


def _header_text() -> str | None:
    """The header as wgpu's package will read it; None if it is elsewhere."""
    spec = importlib.util.find_spec("wgpu")
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = Path(place, *_HEADER)
        if path.is_file():
            return path.read_text()
    return None


def _ready(base: Any, text: str, tables: dict[str, Any]) -> Any:
    """What cffi makes of tables, with the two methods by which wgpu gives it the header."""

    class ReadyFFI(base):  # type: ignore[misc]
        def cdef(self, source: str) -> None:
            """Takes the header that the tables were made of. Raises: ImportError for another."""
            if source != text:
                raise ImportError("wgpu's package reads another header than it brings")

        def set_source(self, name: str, source: str | None) -> None:
            """Nothing is compiled."""

    return ReadyFFI("onnx_wgpu_header", **tables)


def _keep(name: str) -> None:
    """Puts the tables of the header, as wgpu has parsed it meanwhile, into the cache."""
    from cffi import recompiler
    from wgpu.backends.wgpu_native import ffi

    written = io.StringIO()
    recompiler.make_py_source(ffi, "onnx_wgpu_header", written, verbose=False)
    cache.store(name, [_to_json(_arguments(written.getvalue())).encode()])


def _arguments(written: str) -> dict[str, Any]:
    """The tables in the module that cffi wrote. Raises: ValueError if it looks otherwise."""
    calls = [node for node in ast.walk(ast.parse(written)) if isinstance(node, ast.Call)]
    if len(calls) != 1:
        raise ValueError("cffi writes its tables in another way")
    found = {k.arg: ast.literal_eval(k.value) for k in calls[0].keywords if k.arg is not None}
    if not {"_version", "_types"} <= found.keys() <= {"_version", *_TABLES}:
        raise ValueError(f"cffi writes other tables: {sorted(found)}")
    return found


def _to_json(tables: dict[str, Any]) -> str:
    def plain(value: Any) -> Any:
        if isinstance(value, bytes):
            return value.decode("latin-1")
        return [plain(v) for v in value] if isinstance(value, tuple) else value

    return json.dumps({key: plain(value) for key, value in tables.items()})


def _from_json(content: memoryview) -> dict[str, Any]:
    def tables(value: Any) -> Any:
        if isinstance(value, str):
            return value.encode("latin-1")
        return tuple(map(tables, value)) if isinstance(value, list) else value

    return {key: tables(value) for key, value in json.loads(bytes(content)).items()}
