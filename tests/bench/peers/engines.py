"""The engines that are compared: where each is installed, and how it is started."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import platformdirs

from tests.bench import vulkan_layer
from tests.bench.vulkan_layer import MissingError

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
DAWN_LAYER = "VK_LAYER_ENGINE_dynamic_indexing"


@dataclass(frozen=True)
class Peer:
    """An engine and how it is set up.

    Args:
        name: heads its column.
        kind: function of `worker` that runs it.
        packages: what its environment needs; empty for that of this project.
        options: of that function.
        note: what it is, for the list above the table.
        variables: environment; `{home}` stands for the folder of the environments.
        dawn: whether it is built on Dawn, which refuses old versions of software Vulkan.
        once: whether one call, without a warm-up, has to do.
        extra: whether it takes part only if it is named.
    """

    name: str
    kind: str
    note: str
    packages: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    dawn: bool = False
    once: bool = False
    extra: bool = False

    @property
    def environment(self) -> str:
        """The folder of its environment; empty for that of this project."""
        return self.packages[0].partition("=")[0] if self.packages else ""

    def python(self, home: Path) -> Path | None:
        """Its interpreter; None if it is not installed."""
        if not self.packages:
            return Path(sys.executable)
        found = home / self.environment / "bin" / "python"
        return found if found.exists() else None


GPU, GPU_BASELINE, CPU = "this, GPU", "this, GPU baseline", "this, CPU"
ORT_CPU, ORT_WEBGPU, NCNN = "ORT CPU", "ORT WebGPU", "ncnn Vulkan"
REFERENCE = "onnx.reference"

PEERS = (
    Peer(
        GPU,
        "own",
        "this engine on the GPU, with all that the adapter offers",
        options={"device": "gpu", "target": "adapter"},
    ),
    Peer(
        GPU_BASELINE,
        "own",
        "this engine on the GPU, with what every WebGPU device guarantees",
        options={"device": "gpu", "target": "baseline"},
    ),
    Peer(CPU, "own", "this engine in NumPy", options={"device": "cpu"}),
    Peer(
        ORT_CPU,
        "onnxruntime",
        "ONNX Runtime, CPU provider",
        options={"provider": "CPUExecutionProvider"},
    ),
    Peer(
        ORT_WEBGPU,
        "onnxruntime",
        "ONNX Runtime, WebGPU provider (Dawn), nodes that it lacks on the CPU",
        packages=("onnxruntime-webgpu==1.27.0", "numpy"),
        options={
            "provider": "WebGpuExecutionProvider",
            "settings": {"dawnBackendType": "Vulkan"},
        },
        dawn=True,
    ),
    Peer(
        NCNN,
        "ncnn",
        "ncnn on Vulkan in float32, models converted by pnnx",
        packages=("ncnn==1.0.20261020", "numpy"),
        options={"vulkan": True},
    ),
    Peer(
        "OpenVINO CPU",
        "openvino",
        "OpenVINO on the CPU in float32",
        packages=("openvino", "numpy"),
    ),
    Peer(
        "wonnx",
        "wonnx",
        "wonnx (wgpu)",
        packages=("wonnx==0.5.1", "numpy", "onnx"),
        extra=True,
    ),
    Peer(
        "tinygrad WebGPU",
        "tinygrad",
        "tinygrad, its WebGPU device (Dawn)",
        packages=("tinygrad==0.14.0", "dawn-python==0.3.0", "numpy", "onnx"),
        variables={"DEV": "WEBGPU", "WEBGPU_PATH": "{home}/tinygrad/libwebgpu_dawn.so"},
        dawn=True,
        extra=True,
    ),
    Peer(
        REFERENCE,
        "reference",
        "onnx.reference, the NumPy evaluator of the onnx package; one call",
        once=True,
    ),
)


def home_folder() -> Path:
    """Where the environments lie: `ENGINE_PEERS`, else `peers` in the user's cache folder."""
    override = os.environ.get("ENGINE_PEERS")
    return Path(override) if override else Path(platformdirs.user_cache_dir("onnx-wgpu"), "peers")


def variables(peer: Peer, home: Path, threads: int) -> dict[str, str]:
    """The environment variables of a peer's process."""
    found = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_")}
    found |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    found["LP_NUM_THREADS"] = str(threads)
    if not peer.packages:  # compiled once, as pip compiles what it installs, the peers among it
        found.pop("PYTHONDONTWRITEBYTECODE", None)
        found["PYTHONPYCACHEPREFIX"] = str(home / "bytecode")
    found["PYTHONPATH"] = str(ROOT) if not peer.packages else ""
    found |= {k: v.format(home=home) for k, v in peer.variables.items()}
    layer = home / "vulkan-layer"
    if peer.dawn and (layer / "layer.json").exists():
        found |= {"VK_LAYER_PATH": str(layer), "VK_INSTANCE_LAYERS": DAWN_LAYER}
    return found


def pnnx(home: Path) -> str:
    """The converter that ncnn needs: its program, or "" if it is not installed."""
    found = sorted(home.glob("pnnx/lib/python*/site-packages/pnnx/pnnx"))
    return str(found[0]) if found else ""


def install(home: Path) -> None:
    """Makes an environment for each peer that has none; says what could not be had.

    pnnx is installed without what it would pull in: its program needs none of it.
    """
    home.mkdir(parents=True, exist_ok=True)
    for peer in PEERS:
        if peer.packages and peer.python(home) is None:
            _environment(home / peer.environment, peer.packages)
    if not pnnx(home):
        _environment(home / "pnnx", ("--no-deps", "pnnx==20261020"))
    for library in (home / "tinygrad").glob("lib/python*/site-packages/pydawn/lib/libwebgpu_dawn*"):
        link = home / "tinygrad" / "libwebgpu_dawn.so"
        link.unlink(missing_ok=True)
        link.symlink_to(library)
    _vulkan_layer(home / "vulkan-layer")


def _environment(folder: Path, packages: tuple[str, ...]) -> None:
    print(f"installing {' '.join(packages)}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    done = subprocess.run(
        [folder / "bin" / "python", "-m", "pip", "install", "-qq", *packages], check=False
    )
    if done.returncode:
        print(f"  it cannot be had: {folder.name} is left out", flush=True)
        shutil.rmtree(folder)


def _vulkan_layer(folder: Path) -> None:
    """Builds the layer that lets Dawn take old software Vulkan; needs a compiler and headers."""
    if (folder / "layer.json").exists():
        return
    folder.mkdir(exist_ok=True)
    try:
        vulkan_layer.build(HERE / "dynamic_indexing_layer.c", folder)
    except MissingError as error:
        print(f"  engines on Dawn may refuse software Vulkan: {error}")
