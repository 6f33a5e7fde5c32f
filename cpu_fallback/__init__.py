"""NumPy implementations of ONNX operators: one module per family, found through `registry`.

Importing the package imports every module of this folder, so a new file registers its operators
without a list to edit. `reference.py` is left out: it needs `onnx` and is loaded when first used.
"""

from __future__ import annotations

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    if _module.name != "reference":
        importlib.import_module(f"{__name__}.{_module.name}")
