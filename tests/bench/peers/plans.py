"""What the plan of a model costs, against what the model must cost."""

from __future__ import annotations

import onnx

from tests.bench.peers.contest import Case, Found
from tests.plan_costs import bodies, ideal, planned

GOALS = {"kernels": 1.15, "bytes": 1.3, "memory": 1.2}
"""Most that a plan for what every device guarantees may take, as a share of the least."""


def plan_costs(case: Case) -> Found:
    """Figures of a plan for the GPU, bound to the sizes of the first input.

    Returns: `kernels` of a call, `bytes` that they move, and `memory` of activations in bytes,
        each as a pair: of the plan, and the least (nodes that need a kernel; their inputs and
        outputs once; most bytes that are alive at once). Nothing for a model with bodies, which
        have plans of their own.
    """
    model = onnx.load(case.path)
    if bodies(model):
        return {}
    plan, best = planned(case.path, case.feeds[0]), ideal(model, case.feeds[0])
    memory = plan.plan.memory
    return {
        "kernels": (len(plan.groups), best.kernels),
        "bytes": (sum(nbytes for _, nbytes in plan.moved()), best.nbytes),
        "memory": (memory.peak_nbytes, memory.lower_bound_nbytes),
    }
