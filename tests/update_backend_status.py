"""Runs the cases of `onnx.backend.test` and writes what came out into the status file.

    python -m tests.update_backend_status [REGEX] [--device CPU|GPU]

A case that fails keeps the reason that the file has, if it has one. The device is asked for the
baseline, as the tests do.
"""

from __future__ import annotations

import argparse
import os
import re

from tests.backend_suite import PASSES, RANDOM, load_cases, outcome, read_status, write_status


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("regex", nargs="?", default="", help="only cases whose name it matches")
    parser.add_argument("--device", choices=("CPU", "GPU"), help="only this device")
    arguments = parser.parse_args()
    os.environ["ENGINE_TARGET"] = "baseline"
    cases, old = load_cases(), read_status()
    status = {name: old.get(name, ("fail: not run", "fail: not run")) for name in cases}
    for name, case in cases.items():
        if not re.search(arguments.regex, name):
            continue
        new = []
        for device, before in zip(("CPU", "GPU"), status[name], strict=True):
            if arguments.device in (None, device):
                new.append(_new(outcome(case, device, before.startswith(RANDOM)), before))
            else:
                new.append(before)
        if tuple(new) != status[name]:
            print(f"{name}: {' | '.join(status[name])} -> {' | '.join(new)}")
            status[name] = new[0], new[1]
    write_status(status)


def _new(found: str, before: str) -> str:
    if before.startswith(RANDOM) and found in PASSES:
        return before
    keep = found.startswith("fail: ") and before not in PASSES and before != "fail: not run"
    return before if keep else found.replace(" | ", " / ")


if __name__ == "__main__":
    main()
