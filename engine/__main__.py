"""`python -m engine ...` is `onnx-wgpu ...`."""

from engine.cli import command

command()
