"""The process that compiles: kernels come pickled, and `layer.c` writes down what they become."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

from engine.errors import EngineError
from engine.runtime.device import Device, adapters
from engine.target import Target


def main() -> None:
    kernels = pickle.load(sys.stdin.buffer)
    found = [a for a in adapters() if "RADV" in a.title]
    if not found:
        sys.exit(f"no adapter is RADV's: {', '.join(a.title for a in adapters()) or 'none at all'}")
    device = Device(found[0], Target.baseline())
    Path(os.environ["ENGINE_COMPILED"]).write_text("")  # wgpu has compiled kernels of its own
    for kernel in kernels:
        try:
            device.compile(kernel)
        except EngineError as error:
            sys.exit(" ".join(str(error).split())[:500])
    sys.stdout.flush()
    os._exit(0)  # the device is only half there, and not to be taken apart


if __name__ == "__main__":
    main()
