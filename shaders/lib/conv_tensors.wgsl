// Tensors and overrides of convolutions in register tiles.
@group(0) @binding(0) var<storage, read> x: array<T>;
@group(0) @binding(1) var<storage, read> w: array<T>;
//# if BIAS
@group(0) @binding(2) var<storage, read> b: array<T>;
//# endif
@group(0) @binding(3) var<storage, read_write> y: array<T>;
@group(0) @binding(4) var<uniform> params: Params;
override WORKGROUP_X: u32 = 64u;
override WORKGROUP_Y: u32 = 1u;
override PACK: u32 = 8u;
override ROWS: u32 = 8u;
