"""Options: what the user chose, and what calls have shown since, as the compiler takes it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field
from typing import Literal

from engine.errors import EngineError
from engine.records import dataclass
from engine.tuning import Tuning

DeviceChoice = Literal["auto", "gpu", "cpu"]


@dataclass(frozen=True)
class Options:
    """What the user chose.

    Attributes:
        device: "auto" (least predicted time), "gpu" (whatever has a kernel) or "cpu".
        no_gpu: whether "cpu" is only because "auto" found no adapter.
        disable: names of passes and fusion rules to leave out.
        wide_inputs: int64 inputs whose values were too large, so that they stay on the CPU.
        held_inputs: int64 inputs that are on the GPU already.
        refused: nodes (by key) that the GPU must not run, with the reason.
        growing: (input, output) pairs that stay on the device, where the output appends to the
            input by Concat.
        tuning: styles of kernels.
    """

    device: DeviceChoice = "auto"
    no_gpu: bool = False
    disable: frozenset[str] = frozenset()
    wide_inputs: frozenset[str] = frozenset()
    held_inputs: frozenset[str] = frozenset()
    refused: Mapping[str, str] = field(default_factory=dict)
    growing: frozenset[tuple[str, str]] = frozenset()
    tuning: Tuning = field(default_factory=Tuning)


def names_of(names: Collection[str] | str) -> frozenset[str]:
    """Names as a set; a string is one name, not its letters."""
    return frozenset({names} if isinstance(names, str) else names)


def check_device(device: str) -> DeviceChoice:
    """`device` if it is one. Raises: EngineError with what there is."""
    choices: dict[str, DeviceChoice] = {"auto": "auto", "gpu": "gpu", "cpu": "cpu"}
    if device not in choices:
        raise EngineError(f"device is one of {list(choices)}, not {device!r}")
    return choices[device]
