"""WGSL templates to kernels: a small strict preprocessor, generated accessors, and reflection.

A shader file is plain WGSL with three constructs, all comments or `string.Template` fields:

    //# include lib/index.wgsl
    //# if FLAG  |  //# if not FLAG  |  //# else  |  //# endif
    ${NAME}

Tensors are declared as `@group(0) @binding(0) var<storage, read> x: array<T>;` and reached through
`load_x(i)`, `load4_x(i)`, `store_y(i, v)` and `store4_y(i, v)` only: `render` writes the real
declaration and these functions for how the elements of the value lie in its buffer. `i` counts
elements in row-major order; the `4` forms take four neighbours from an `i` that 4 divides.
`quad_x(q)` is `load4_x(4 * q)` for hot loops: GPUs then need one instruction for its place, not
three. `plane_quad_x(p, q)` is the same for elements of plane p, and `channel_quad_x(p, c, q)` if
that is channel c of an image. A file that calls `repeat_index()` is dispatched many times in turn,
and gets the index of the repetition from a uniform of its own.
"""

from engine.shader.accessors import Placed, Tensor
from engine.shader.kernel import Fused, Kernel, render
from engine.shader.opaque import opaque
from engine.shader.template import declared, preprocess, source

__all__ = [
    "Fused",
    "Kernel",
    "Placed",
    "Tensor",
    "declared",
    "opaque",
    "preprocess",
    "render",
    "source",
]
