"""What an integrated GPU makes of the kernels, read from its driver's compiler without the GPU.

Mesa's RADV compiles for any AMD GPU by name, and says of each kernel how many registers went to
memory, how many waves fit on a SIMD, and what the machine code is. Nothing runs, so there are no
times.

radv.py          kernels to what RADV's compiler says of them
  child.py       the process that compiles them, on the engine's own `Device`
  layer.c        the Vulkan layer that lets wgpu open a device without hardware
machine_code.py  machine code to its hot loop, and that to the share of the peak it can reach
fitness.py       a model to figures of its convolutions and matrix products, and the goals for them
section.py       those figures to a section of the benchmarks' page
"""
