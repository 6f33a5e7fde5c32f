"""A model's convolutions and matrix products as an integrated GPU would run them."""

from __future__ import annotations

from collections import Counter

import onnx

from engine.shader import Kernel
from tests.bench.integrated.radv import Compiler
from tests.bench.peers.contest import Case, Found
from tests.plan_costs import bodies, planned

MAX_SPILLS, MIN_WAVES, MIN_BOUND = 0, 4, 0.85
"""What a kernel is to keep to: registers spilled, waves that fit on a SIMD, and the share of the
peak of multiply-adds that its hot loop can reach."""

CONVOLUTION, DEPTHWISE = "convolution", "depthwise convolution"
PRODUCT, SHARED = "matrix product", "matrix product, inner axis shared"
FAMILIES = {
    "conv_dense": CONVOLUTION,
    "conv_pointwise": CONVOLUTION,
    "conv_transpose": CONVOLUTION,
    "conv_transpose_phases": CONVOLUTION,
    "conv_depthwise": DEPTHWISE,
    "matmul": PRODUCT,
}
"""Of kernels that multiply and add in float32, by the file that they were made from."""
OTHERS = ("conv_pack", "conv_winograd_input", "conv_winograd_output", "matmul_sum", "quant_conv")
"""Files of that name whose kernels move or add up numbers only, or multiply integers."""


def family(kernel: Kernel) -> str:
    """The family of a kernel; "" if it is neither a convolution nor a matrix product.

    A product is apart where its invocations share out the inner axis, and sum up in workgroup
    memory: rows are few there.
    """
    found = FAMILIES.get(kernel.stem, "")
    return SHARED if found == PRODUCT and kernel.workgroup_nbytes else found


def fitness(case: Case, compiler: Compiler) -> list[Found]:
    """Figures of the kernels that a call for the first input dispatches, each kernel once.

    The plan is for what every device guarantees, and no device is asked. Nothing for a model with
    bodies, which have plans of their own.

    Raises: CompileError if RADV does not compile them.
    """
    if bodies(onnx.load(case.path, load_external_data=False)):
        return []
    plan = planned(case.path, case.feeds[0])
    kernels, time_ns = dict[str, Kernel](), Counter[str]()
    for dispatch, choice in plan.chosen:
        kernel = plan.plan.kernels[dispatch.variants[choice.variant].kernel]
        if family(kernel):
            kernels[kernel.key] = kernel
            time_ns[kernel.key] += choice.predicted_ns * choice.repeats
    compiled = compiler.compile(kernels.values())
    found = []
    for key, kernel in kernels.items():
        result = compiled[key]
        found.append(
            {
                "key": key,
                "name": f"{kernel.stem} {kernel.name}",
                "family": family(kernel),
                "predicted_ns": time_ns[key],
                "spills": result.spills,
                "waves": result.waves,
                "bound": result.loop.bound,
                "limit": result.loop.limit,
                "fma": result.loop.fma,
                "vector": result.loop.vector,
                "cache_nbytes": result.loop.cache_nbytes,
                "workgroup_nbytes": result.loop.workgroup_nbytes,
            }
        )
    return found
