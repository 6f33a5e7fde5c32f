"""ReverseSequence."""

from __future__ import annotations

import numpy as np

from tests.properties.cases import Case, draws
from tests.properties.drawing import SPECIAL, Data, Form


@draws("ReverseSequence")
def reverse_sequence(op: str, form: Form, data: Data) -> Case:
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    shape = data.shape(form.rank(2, 5), 1)
    time = form.int(0, 1)
    attrs = form.maybe({"time_axis": time, "batch_axis": 1 - time}, 0.7 if time == 0 else 1)
    lengths = data.integers(np.dtype(np.int64), (shape[1 - time],), 1, shape[time])
    x = data.array(dtype, shape, edges=SPECIAL)
    return Case([x, lengths], attrs, opset, tol=0)
