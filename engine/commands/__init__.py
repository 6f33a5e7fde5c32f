"""The commands of `onnx-wgpu`, a module each: `HELP`, `configure(parser)`, `execute(arguments)`."""

COMMANDS = ("run", "explain", "bench", "profile", "compare", "tune", "ops", "devices")
"""Modules of this package, in the order in which `--help` lists them."""
