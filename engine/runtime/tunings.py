"""Where tuned styles of kernels are kept: shipped for some adapters, or measured by `tune`."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import platformdirs

from engine import tuning
from engine.errors import EngineError
from engine.runtime import adapter_files
from engine.runtime.device import AdapterInfo
from engine.target import Target
from engine.tuning import Tuning

log = logging.getLogger(__name__)

SHIPPED = Path(__file__).parent.parent / "profiles" / "tuning"
OFF = "off"
"""The name of a tuning without styles."""
VARIABLE = "ENGINE_TUNING"
"""Environment variable with the name that counts where none is given."""


def user_folder() -> Path:
    """Where `tune` keeps what it found."""
    return Path(platformdirs.user_data_dir("onnx-wgpu")) / "tuning"


def resolve(
    wanted: Tuning | str | None, info: AdapterInfo, target: Target, folder: Path | None = None
) -> Tuning:
    """A tuning; none for "off"; else what is shipped and what was measured for an adapter.

    Raises: EngineError for another name.
    """
    if isinstance(wanted, Tuning):
        return wanted
    wanted = wanted or os.environ.get(VARIABLE)
    if wanted == OFF:
        return Tuning()
    if wanted:
        raise EngineError(f"tuning is a Tuning, {OFF!r} or None, not {wanted!r}")
    found = Tuning()
    for path in (*sorted(SHIPPED.glob("*.json")), user_file(info, target, folder)):
        try:
            found = found.merged(tuning.load(path, info.title, target.features))
        except FileNotFoundError:
            continue
        except (EngineError, OSError) as error:
            log.warning("ignoring tuned kernels: %s", error)
    return found


def user_file(info: AdapterInfo, target: Target, folder: Path | None = None) -> Path:
    """The file of an adapter, its driver, and the features that kernels may use."""
    name = adapter_files.file_name(info.title, tuning.VERSION, sorted(target.features))
    return (folder or user_folder()) / name


def keep(found: Tuning, path: Path, adapter: str, features: frozenset[str]) -> None:
    """Adds styles to a file for adapters whose names begin so, whole or not at all.

    Raises: OSError if it cannot be written.
    """
    try:
        before = tuning.load(path, adapter, features)
    except FileNotFoundError:
        before = Tuning()
    except EngineError as error:
        log.warning("writing tuned kernels anew: %s", error)
        before = Tuning()
    adapter_files.write(path, tuning.to_json(before.merged(found), adapter, features))
