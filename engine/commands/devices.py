"""`onnx-wgpu devices`: the adapters that can be used."""

from __future__ import annotations

import argparse

HELP = "the GPUs that can be used, and their limits"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds nothing: the command has no arguments."""


def execute(arguments: argparse.Namespace) -> int:
    """Prints the adapters; the status is 1 if there is none."""
    from engine.runtime.device import adapters
    from engine.tools.console import console, devices_text

    found = adapters()
    if not found:
        print(
            "No GPU adapter was found; models run on the CPU.\n"
            "  Linux: install your GPU's Vulkan driver, or `apt-get install mesa-vulkan-drivers`\n"
            "         for Mesa's drivers and lavapipe, which runs on the CPU.\n"
            "  Windows and macOS: update the graphics driver; DX12 and Metal come with the system."
        )
        return 1
    console().print(devices_text(found), markup=False, highlight=False, soft_wrap=True)
    return 0
