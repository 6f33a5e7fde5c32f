"""Single nodes drawn at random, one strategy for each operator that has a GPU form.

`families/` has a module for each family of `engine/ops`, in which `@draws(...)` registers a
function that draws a `Case`: first what makes the model, then sizes and contents of a call.
`test_gpu_operators.py` runs the cases on the GPU, on the CPU and through an oracle.
"""
