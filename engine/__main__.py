"""`python -m engine ...` is `onnx-wgpu ...`."""

import sys

from engine.cli import main

sys.exit(main())
