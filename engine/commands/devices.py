"""`onnx-wgpu devices`: the adapters that can be used, and how fast they are."""

from __future__ import annotations

import argparse

from engine.commands.arguments import adapter

HELP = "the GPUs that can be used, their limits, and their measured speed"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments."""
    parser.add_argument(
        "--profile",
        nargs="?",
        const="",
        metavar="NAME",
        help="how fast the device and NumPy are, measured once; or a profile that comes with the "
        "engine",
    )
    parser.add_argument("--refresh", action="store_true", help="measure the profile anew")
    parser.add_argument("--adapter", help="only this one: index or part of the name")
    parser.add_argument("--json", action="store_true", help="print the profile as JSON")


def execute(arguments: argparse.Namespace) -> int:
    """Prints the adapters, or a profile; the status is 1 if there is no adapter."""
    from engine.runtime.device import adapters, choose_adapter
    from engine.tools.console import devices_text, say

    if arguments.profile is None and (arguments.refresh or arguments.json):
        arguments.profile = ""
    if arguments.profile:
        return _profile(arguments)
    found = adapters()
    if not found:
        print(
            "No GPU adapter was found; models run on the CPU.\n"
            "  Linux: install your GPU's Vulkan driver, or `apt-get install mesa-vulkan-drivers`\n"
            "         for Mesa's drivers and lavapipe, which runs on the CPU.\n"
            "  Windows and macOS: update the graphics driver; DX12 and Metal come with the system."
        )
        return 1
    if arguments.profile is not None:
        return _profile(arguments)
    chosen = adapter(arguments)
    say(devices_text(found if chosen is None else [choose_adapter(chosen)]))
    return 0


def _profile(arguments: argparse.Namespace) -> int:
    """Prints a profile: measured, or one of the engine's."""
    from engine.rates import DeviceProfile, builtin_names
    from engine.runtime import calibrate
    from engine.runtime.device import open_device
    from engine.tools.console import say, status
    from engine.tools.rates_text import profile_text

    if arguments.profile:
        profile = DeviceProfile.named(arguments.profile)
    else:
        with status("measuring the device"):
            device = open_device(adapter(arguments))
            with device.lock:
                profile = calibrate.device_profile(device, refresh=arguments.refresh)
    if arguments.json:
        print(profile.to_json(), end="")
        return 0
    lines = profile_text(profile)
    if not arguments.profile:
        lines += ["", f"others, by `explain --profile NAME`: {', '.join(builtin_names())}"]
    say(*lines)
    return 0
