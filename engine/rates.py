"""Device profiles: how fast a GPU, the way to it, and NumPy beside it are.

`runtime/calibrate.py` measures one for each adapter; `profiles/` has some of devices that are not
at hand. All figures are integers: nanoseconds, or amounts a second.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import field
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from engine.errors import EngineError
from engine.records import dataclass


@dataclass(frozen=True)
class GpuRates:
    """The speed of a GPU under this engine's kernels, and of the way to it.

    Attributes:
        submit_ns: what a call costs that uses the GPU at all: encoder, submit, wait.
        launch_ns: one more dispatch, from recording it to the end of one that does nothing.
        fma_per_s: multiply-adds in register tiles of matrix products, the loads of operands in it.
        loads_per_s: loads of single elements in a kernel's inner loop, with what is done to them.
        bytes_per_s: reads and writes of neighbours, four elements at a time.
        strided_per_s: elements moved one by one, their places worked out by divisions.
        gathers_per_s: elements moved from places that other elements say.
        ops_per_s: arithmetic operations on single elements, as `OpDef.flops` counts them.
        upload_latency_ns, upload_bytes_per_s: one value from an array into a buffer.
        readback_ns, download_bytes_per_s: one value back at the end of a call, which waits anyway.
        download_latency_ns: one value back in mid-run, with the submit and the wait it forces.
    """

    submit_ns: int
    launch_ns: int
    fma_per_s: int
    loads_per_s: int
    bytes_per_s: int
    strided_per_s: int
    gathers_per_s: int
    ops_per_s: int
    upload_latency_ns: int
    upload_bytes_per_s: int
    readback_ns: int
    download_latency_ns: int
    download_bytes_per_s: int


@dataclass(frozen=True)
class CpuRates:
    """The speed of NumPy, and of this engine's Python around it.

    Attributes:
        call_ns: a call of a session, whatever it does.
        node_ns: a node on the CPU, whatever it does.
        step_ns: a call of a NumPy function inside a node, whatever it does.
        product_ns: a matrix product in a batch, whatever its size.
        flops_per_s: operations of a large matrix product (two a multiply-add).
        panel_bytes_per_s: operands and result of a matrix product, each counted once, where they
            come from memory; those in the cache count as a pass.
        row_bytes_per_s: the matrix of a product with a vector.
        cache_bytes_per_s: a pass over arrays that fit the cache, reads and writes counted.
        memory_bytes_per_s: a pass over large arrays.
        strided_per_s: elements copied in steps.
        gathers_per_s: elements picked by indices.
        functions_per_s: elements of exp, tanh and their like.
    """

    call_ns: int
    node_ns: int
    step_ns: int
    product_ns: int
    flops_per_s: int
    panel_bytes_per_s: int
    row_bytes_per_s: int
    cache_bytes_per_s: int
    memory_bytes_per_s: int
    strided_per_s: int
    gathers_per_s: int
    functions_per_s: int


_Rates = TypeVar("_Rates", GpuRates, CpuRates)


@dataclass(frozen=True)
class DeviceProfile:
    """The speed of a GPU and of NumPy beside it.

    Attributes:
        name: the adapter, for people.
        sources: where figures come from that were not measured here, by "gpu.FIELD" or "cpu.FIELD".
    """

    name: str
    gpu: GpuRates
    cpu: CpuRates
    sources: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for part in (self.gpu, self.cpu):
            _check(self.name, part)

    @property
    def software(self) -> bool:
        """Whether a CPU runs the shaders, as drivers that do so say in their names."""
        return any(word in self.name.lower() for word in ("lavapipe", "llvmpipe", "swiftshader"))

    def to_json(self) -> str:
        """The profile as a JSON object, one line per figure."""
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> DeviceProfile:
        """The profile that `to_json` wrote.

        Raises: EngineError if the text is no such object, or a field is missing, unknown or wrong.
        """
        fields = _object(text)
        name = fields["name"]
        sources = fields.get("sources", {})
        if not isinstance(sources, dict) or not all(isinstance(v, str) for v in sources.values()):
            raise EngineError(f"device profile {name!r}: sources must be texts by field")
        _check_names(name, fields.keys() - {"sources"}, {"name", "gpu", "cpu"})
        known = {
            f"{part}.{f.name}"
            for part, kind in (("gpu", GpuRates), ("cpu", CpuRates))
            for f in dataclasses.fields(kind)
        }
        if sources.keys() - known:
            raise EngineError(
                f"device profile {name!r}: sources of unknown figures "
                f"{sorted(sources.keys() - known)}"
            )
        gpu, cpu = _part(name, GpuRates, fields["gpu"]), _part(name, CpuRates, fields["cpu"])
        return cls(name, gpu, cpu, sources)

    @classmethod
    def load(cls, path: str | Path) -> DeviceProfile:
        """The profile in a JSON file. Raises: EngineError if it is damaged, OSError if unread."""
        return cls.from_json(_text(path))

    @classmethod
    def builtin(cls, name: str = "integrated") -> DeviceProfile:
        """A profile that comes with the engine. Raises: EngineError if there is none so named."""
        if name not in builtin_names():
            raise EngineError(f"no device profile {name!r}; known are {', '.join(builtin_names())}")
        file = resources.files("engine") / "profiles" / f"{name}.json"
        return cls.from_json(file.read_text(encoding="utf-8"))

    @classmethod
    def named(cls, name: str | Path) -> DeviceProfile:
        """A profile by its name among the engine's own, or by the path of a JSON file.

        Raises: EngineError if there is none, or it is damaged.
        """
        if str(name) in builtin_names():
            return cls.builtin(str(name))
        if Path(name).suffix != ".json":
            return cls.builtin(str(name))
        try:
            return cls.load(name)
        except OSError as error:
            raise EngineError(f"device profile {str(name)!r} cannot be read: {error}") from error


def builtin_names() -> list[str]:
    """The profiles that come with the engine."""
    folder = resources.files("engine") / "profiles"
    names = (f.name for f in folder.iterdir())
    return sorted(n.removesuffix(".json") for n in names if n.endswith(".json"))


def rates_from_json(kind: type[_Rates], text: str) -> _Rates:
    """Figures that `rates_to_json` wrote. Raises: EngineError if they are damaged."""
    fields = _object(text)
    name = fields.pop("name")
    return _part(name, kind, fields)


def rates_to_json(name: str, rates: GpuRates | CpuRates) -> str:
    """Figures as a JSON object with a name, one line per figure."""
    return json.dumps({"name": name, **dataclasses.asdict(rates)}, indent=2) + "\n"


def load_rates(kind: type[_Rates], path: str | Path) -> _Rates:
    """Figures in a file. Raises: EngineError if it is damaged, OSError if it cannot be read."""
    return rates_from_json(kind, _text(path))


def _text(path: str | Path) -> str:
    try:
        return Path(path).read_bytes().decode()
    except UnicodeDecodeError as error:
        raise EngineError(f"device profile {path} is not UTF-8: {error}") from error


def _object(text: str) -> dict[str, Any]:
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise EngineError(f"a device profile must be JSON: {error}") from error
    if not isinstance(fields, dict) or not isinstance(fields.get("name"), str):
        raise EngineError("a device profile must be a JSON object with a name")
    return fields


def _part(name: str, kind: type[_Rates], found: Any) -> _Rates:
    if not isinstance(found, dict):
        raise EngineError(f"device profile {name!r}: gpu and cpu must be JSON objects")
    _check_names(name, found.keys(), {f.name for f in dataclasses.fields(kind)})
    rates = kind(**found)
    _check(name, rates)
    return rates


def _check_names(name: str, found: Any, wanted: set[str]) -> None:
    if found != wanted:
        raise EngineError(
            f"device profile {name!r}: missing {sorted(wanted - found)}, "
            f"unknown {sorted(found - wanted)}"
        )


def _check(name: str, rates: GpuRates | CpuRates) -> None:
    for entry in dataclasses.fields(rates):
        value = getattr(rates, entry.name)
        least = 1 if entry.name.endswith("_per_s") else 0
        if type(value) is not int or value < least:
            raise EngineError(
                f"device profile {name!r}: {entry.name} must be an integer of at least {least}, "
                f"but is {value!r}"
            )
