"""One engine, one model, one process: started by `contest`, in the environment of the engine.

    worker.py KIND MODEL FOLDER OPTIONS

OPTIONS is JSON. Commands come as lines of JSON on standard input, answers go out as such. It needs
NumPy and the engine, nothing of this project (but for this project's own engine).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time

BEGIN = time.perf_counter()

from collections.abc import Callable  # noqa: E402
from typing import Any, TextIO  # noqa: E402

import numpy as np  # noqa: E402

Arrays = dict[str, Any]
Options = dict[str, Any]
Made = tuple[float, Any, Callable[[Arrays], Arrays]]
"""When the import was done, what must stay alive, and a call."""
TOLD: dict[str, float] = {}
"""What an engine can tell of its start besides: "device_s", seconds for making the device."""


def own(model: str, folder: str, options: Options, feeds: Arrays) -> Made:
    import engine

    made = time.perf_counter()
    if options["device"] != "cpu":
        from engine.runtime.device import open_device

        begin = time.perf_counter()
        open_device(target=options["target"])
        TOLD["device_s"] = time.perf_counter() - begin
    session = engine.InferenceSession(model, device=options["device"], target=options.get("target"))
    names = [o.name for o in session.get_outputs()]
    return made, session, lambda given: dict(zip(names, session.run(None, given), strict=True))


def onnxruntime(model: str, folder: str, options: Options, feeds: Arrays) -> Made:
    import onnxruntime as runtime

    made = time.perf_counter()
    settings = runtime.SessionOptions()
    settings.log_severity_level = 3
    settings.intra_op_num_threads = options["threads"]
    settings.inter_op_num_threads = 1
    wanted = options["provider"]
    providers = [(wanted, options.get("settings", {}))]
    if wanted != "CPUExecutionProvider":
        providers.append(("CPUExecutionProvider", {}))
    session = runtime.InferenceSession(model, settings, providers=providers)
    if session.get_providers()[0] != wanted:
        raise RuntimeError(f"{wanted} did not start")
    names = [o.name for o in session.get_outputs()]
    return made, session, lambda given: dict(zip(names, session.run(None, given), strict=True))


def reference(model: str, folder: str, options: Options, feeds: Arrays) -> Made:
    from onnx.reference import ReferenceEvaluator

    made = time.perf_counter()
    session = ReferenceEvaluator(model)
    names = session.output_names
    return made, session, lambda given: dict(zip(names, session.run(None, given), strict=True))


def openvino(model: str, folder: str, options: Options, feeds: Arrays) -> Made:
    import openvino

    made = time.perf_counter()
    settings = {
        "INFERENCE_NUM_THREADS": options["threads"],
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
    }
    compiled = openvino.Core().compile_model(model, "CPU", settings)
    request = compiled.create_infer_request()
    names = [o.get_any_name() for o in compiled.outputs]

    def call(given: Arrays) -> Arrays:
        found = request.infer(given)
        return {n: np.array(found[o]) for n, o in zip(names, compiled.outputs, strict=True)}

    return made, request, call


def ncnn(model: str, folder: str, options: Options, feeds: Arrays) -> Made:
    """Converted by pnnx, which numbers inputs and outputs; batches of one are left out."""
    import ncnn as library

    text, weights = converted(model, folder, options, feeds)
    made = time.perf_counter()
    net = library.Net()
    settings = net.opt
    settings.use_vulkan_compute = options["vulkan"]
    settings.num_threads = options["threads"]
    for name in ("fp16_packed", "fp16_storage", "fp16_arithmetic", "bf16_storage", "bf16_packed"):
        if hasattr(settings, f"use_{name}"):
            setattr(settings, f"use_{name}", False)
    if options["vulkan"]:
        if library.get_gpu_count() < 1:
            raise RuntimeError("it sees no Vulkan device")
        net.set_vulkan_device(0)
    if net.load_param(text) or net.load_model(weights):
        raise RuntimeError("it cannot load what pnnx made of the model")
    names = options["outputs"]

    def call(given: Arrays) -> Arrays:
        extractor = net.create_extractor()
        for place, array in enumerate(given.values()):
            inner = array[0] if array.ndim > 2 and array.shape[0] == 1 else array
            extractor.input(f"in{place}", library.Mat(np.ascontiguousarray(inner)).clone())
        found = {}
        for place, name in enumerate(names):
            status, result = extractor.extract(f"out{place}")
            if status:
                raise RuntimeError(f"extracting output {place} gave {status}")
            found[name] = np.array(result)
        return found

    return made, net, call


def converted(model: str, folder: str, options: Options, feeds: Arrays) -> tuple[str, str]:
    base = os.path.join(folder, "ncnn", os.path.splitext(os.path.basename(model))[0])
    text, weights = os.path.join(base, "model.ncnn.param"), os.path.join(base, "model.ncnn.bin")
    if not os.path.exists(text):
        os.makedirs(base, exist_ok=True)
        local = os.path.join(base, "model.onnx")
        if not os.path.exists(local):
            os.symlink(os.path.abspath(model), local)
        shapes = ",".join(
            str(list(a.shape)).replace(" ", "")
            + {"f": "f32", "i": f"i{a.itemsize * 8}"}[a.dtype.kind]
            for a in feeds.values()
        )
        done = subprocess.run(
            [options["pnnx"], "model.onnx", f"inputshape={shapes}", "fp16=0"],
            cwd=base,
            capture_output=True,
            text=True,
            errors="replace",
        )
        if not os.path.exists(text):
            said = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no message"]
            raise RuntimeError(f"pnnx made nothing of it: {said[0]}")
    with open(text) as lines:
        kinds = {line.split()[0] for line in lines if line.strip()}
    foreign = sorted(k for k in kinds if "." in k)
    if foreign:
        raise RuntimeError(f"it lacks {', '.join(foreign[:4])}")
    return text, weights


def wonnx(model: str, folder: str, options: Options, feeds: Arrays) -> Made:
    """It takes opsets up to 12; what these models use means the same there."""
    import onnx
    import wonnx as library

    loaded = onnx.load(model)
    if loaded.opset_import[0].version > 12:
        loaded.opset_import[0].version = 12
        model = os.path.join(folder, "opset12.onnx")
        onnx.save(loaded, model)
    shapes = {
        o.name: [d.dim_value for d in o.type.tensor_type.shape.dim] for o in loaded.graph.output
    }
    made = time.perf_counter()
    session = library.Session.from_path(model)

    def call(given: Arrays) -> Arrays:
        found = session.run({n: a.reshape(-1) for n, a in given.items()})
        return {n: np.asarray(v, np.float32).reshape(shapes[n]) for n, v in found.items()}

    return made, session, call


def tinygrad(model: str, folder: str, options: Options, feeds: Arrays) -> Made:
    from tinygrad import Tensor, TinyJit
    from tinygrad.nn.onnx import OnnxRunner

    made = time.perf_counter()
    runner = OnnxRunner(model)
    names = list(feeds)

    @TinyJit
    def run(*tensors: Any) -> Arrays:
        found = runner(dict(zip(names, tensors, strict=True)))
        return {n: t.contiguous().realize() for n, t in found.items()}

    def call(given: Arrays) -> Arrays:
        found = run(*(Tensor(a).realize() for a in given.values()))
        return {n: t.numpy() for n, t in found.items()}

    return made, runner, call


def stored(folder: str, place: int) -> Arrays:
    with np.load(os.path.join(folder, f"feeds{place}.npz")) as arrays:
        return {name: arrays[name] for name in arrays.files}


def serve(
    kind: str, model: str, folder: str, options: Options, tell: Callable[[Arrays], None]
) -> None:
    feeds = [stored(folder, place) for place in range(2)]
    made, _alive, call = globals()[kind](model, options["cache"], options, feeds[0])
    created = time.perf_counter()
    tell({"import_s": made - BEGIN, "create_s": created - made, **TOLD})
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["do"] == "check":
            begin = time.perf_counter()
            found = call(feeds[asked["feeds"]])
            spent = time.perf_counter() - begin
            np.savez(asked["file"], **{n: np.asarray(a) for n, a in found.items()})
            tell({"ms": spent * 1e3})
        elif asked["do"] == "call":
            tell(timed(call, feeds[0], asked["ms"], asked["most"]))


WARM_MS = 500.0
"""Longer calls are all counted: what a wait leaves behind costs them little."""


def timed(call: Callable[[Arrays], Arrays], feeds: Arrays, budget_ms: float, most: int) -> Arrays:
    """Calls until the budget is spent; each by the clock and in CPU time of the process.

    A first one that takes up to `WARM_MS` is not counted: it finds caches and threads as the wait
    for this turn left them.
    """

    def one() -> tuple[float, float]:
        spent, start = time.process_time(), time.perf_counter()
        call(feeds)
        return (time.perf_counter() - start) * 1e3, (time.process_time() - spent) * 1e3

    calls = [one()]
    if calls[0][0] <= WARM_MS:
        calls, begin = [one()], time.perf_counter()
        while len(calls) < most and (time.perf_counter() - begin) * 1e3 < budget_ms:
            calls.append(one())
    wall, cpu = zip(*calls, strict=True)
    return {"wall_ms": [*wall], "cpu_ms": [*cpu], "peak_nbytes": resident_peak()}


def resident_peak() -> int | None:
    try:
        with open("/proc/self/status") as lines:
            return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return None


def main() -> None:
    kind, model, folder, options = sys.argv[1:5]
    answers: TextIO = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not get between the answers

    def tell(found: Arrays) -> None:
        answers.write(json.dumps(found) + "\n")
        answers.flush()

    try:
        serve(kind, model, folder, json.loads(options), tell)
    except Exception as error:
        text = str(error).strip().splitlines() or [type(error).__name__]
        tell({"error": f"{type(error).__name__}: {text[0]}"[:240]})
    answers.flush()
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()  # it may be writing what later starts use
    os._exit(0)  # some drivers crash when they are unloaded


if __name__ == "__main__":
    main()
