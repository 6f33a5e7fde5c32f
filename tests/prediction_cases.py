"""Small models of one kind of work each: predicted and measured times, as JSON on stdout.

    OPENBLAS_NUM_THREADS=1 LP_NUM_THREADS=1 python -m tests.prediction_cases [--gpu]

With one thread for BLAS and for software Vulkan, the CPU time of the process is what a call takes
on an idle machine; the GPU is only measured where it is such software.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

import engine
from engine.rates import DeviceProfile
from engine.runtime import calibrate_cpu
from engine.runtime.calibrate_gpu import measure_gpu
from engine.runtime.device import open_device

REPEATS = 12
Shape = tuple[int, ...]


def model(nodes: list[tuple[str, list[Any], dict[str, Any]]], shape: Shape) -> bytes:
    """A chain of nodes (operator, constant operands, attributes) from input "x" on."""
    made, weights, last = [], [], "x"
    for index, (op_type, constants, attributes) in enumerate(nodes):
        names = [last]
        for number, array in enumerate(constants):
            weights.append(onnx.numpy_helper.from_array(array, f"w{index}_{number}"))
            names.append(weights[-1].name)
        last = f"v{index}"
        made.append(onnx.helper.make_node(op_type, names, [last], **attributes))
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)
    y = onnx.helper.make_tensor_value_info(last, onnx.TensorProto.FLOAT, None)
    graph = onnx.helper.make_graph(made, "case", [x], [y], weights)
    opsets = [onnx.helper.make_opsetid("", 20)]
    return onnx.helper.make_model(graph, opset_imports=opsets).SerializeToString()


def noise(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(len(shape)).standard_normal(shape, np.float32)


def conv(out: int, channels: int, kernel: int, group: int = 1, stride: int = 1) -> Any:
    pad = kernel // 2
    attributes = {"pads": [pad] * 4, "group": group, "strides": [stride] * 2}
    return "Conv", [noise(out, channels // group, kernel, kernel)], attributes


CASES: dict[str, tuple[list[Any], Shape]] = {
    "tiny": ([("Relu", [], {})] * 3, (16,)),
    "elementwise": ([("HardSwish", [], {}), ("Sigmoid", [], {})], (64, 64, 64)),
    "pass": ([("Relu", [], {})], (128, 128, 64)),
    "product": ([("MatMul", [noise(384, 384)], {})], (256, 384)),
    "thin product": ([("MatMul", [noise(768, 768)], {})], (4, 768)),
    "pointwise": ([conv(128, 128, 1)], (1, 128, 28, 28)),
    "dense": ([conv(64, 64, 3)], (1, 64, 40, 40)),
    "strided": ([conv(48, 16, 3, stride=2)], (1, 16, 64, 64)),
    "depthwise": ([conv(96, 96, 3, group=96)], (1, 96, 40, 40)),
    "pool": ([("MaxPool", [], {"kernel_shape": [3, 3], "strides": [2, 2]})], (1, 64, 64, 64)),
    "softmax": ([("Softmax", [], {"axis": -1})], (256, 512)),
    "norm": ([("LayerNormalization", [noise(512), noise(512)], {})], (128, 512)),
    # no power of two: columns that far apart share a set of some caches, and take 7x as long
    "transpose": ([("Transpose", [], {"perm": [1, 0]}), ("Relu", [], {})], (500, 500)),
}


def usual_ms(call: Callable[[], Any]) -> float:
    """A lower quartile of the CPU time of a call."""
    call()
    times = []
    for _ in range(REPEATS):
        before = time.process_time()
        call()
        times.append((time.process_time() - before) * 1e3)
    return sorted(times)[REPEATS // 4]


def main() -> None:
    typical = DeviceProfile.builtin("lavapipe")
    profile = DeviceProfile("here", typical.gpu, calibrate_cpu.measure_cpu())
    devices = ["cpu"]
    if "--gpu" in sys.argv:
        device = open_device()
        profile = DeviceProfile("here", measure_gpu(device, profile), profile.cpu)
        devices += ["gpu"] if device.info.kind == "CPU" else []
    found: dict[str, dict[str, tuple[float, float]]] = {d: {} for d in devices}
    for device_name in devices:
        for name, (nodes, shape) in CASES.items():
            feeds = {"x": noise(*shape)}
            with engine.InferenceSession(
                model(nodes, shape), device=device_name, profile=profile, target="adapter"
            ) as session:
                took = usual_ms(lambda s=session, f=feeds: s.run(None, f))  # type: ignore[misc]
                found[device_name][name] = session.plan().partition.predicted_ms, took
    print(json.dumps(found))


if __name__ == "__main__":
    main()
