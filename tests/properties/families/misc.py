"""ReverseSequence, Det and Einsum."""

from __future__ import annotations

import numpy as np

from tests.properties.cases import Case, draws
from tests.properties.drawing import SPECIAL, Data, Form, rounding


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


@draws("Det")
def det(op: str, form: Form, data: Data) -> Case:
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    rows = form.int(1, 5)
    rank = form.rank(2, 5)
    x = data.floats(dtype, (*data.shape(rank - 2, long=False), rows, rows))
    sized = [(0, rank - 2), (0, rank - 1)]
    return Case([x], {}, opset, sized=sized, tol=rounding(dtype, 1e-5))


EQUATIONS = (
    *("ij,jk->ik", "ij,kj->ik", "ij,jk", "bij,bjk->bik", "ij,ij->", "i,j->ij", "ij->ji", "ij->j"),
    *("ii->i", "bii->b", "ii", "...ij,...jk->...ik", "...i->...", "bhid,bhjd->bhij", "ij,j->i"),
    *("i,i,i->i", "ij,jk,kl->il", "...ii->...i", "ab,b->ab", "bij,bij->b", "ia,jb->ijab"),
)


@draws("Einsum")
def einsum(op: str, form: Form, data: Data) -> Case:
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    equation = form.one_of(EQUATIONS)
    extra = form.int(0, 2)
    sizes = {letter: data.size(0, 5) for letter in "abhijkldm"}
    batch = tuple(data.size(1, 3) for _ in range(extra))
    arrays = []
    for term in equation.split("->")[0].split(","):
        tail = tuple(sizes[letter] for letter in term.replace(".", ""))
        arrays.append(data.array(dtype, (*(batch if "..." in term else ()), *tail)))
    attrs = {"equation": equation if form.chance(0.7) else equation.replace(",", " , ")}
    return Case(arrays, attrs, opset, tol=2e-5)
