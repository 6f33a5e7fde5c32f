// Params, tensors and overrides of kernels that standardize rows of neighbouring elements.
struct Params {
    rows: u32,
    count: u32,
    epsilon: f32,
}
@group(0) @binding(0) var<storage, read> x: array<T>;
@group(0) @binding(1) var<storage, read> scale: array<T>;
//# if BIAS
@group(0) @binding(2) var<storage, read> b: array<T>;
//# endif
@group(0) @binding(3) var<storage, read_write> y: array<T>;
//# if MEAN
@group(0) @binding(4) var<storage, read_write> mean: array<T>;
//# endif
//# if INV_STD_DEV
@group(0) @binding(5) var<storage, read_write> inv_std_dev: array<T>;
//# endif
@group(0) @binding(6) var<uniform> params: Params;
override WORKGROUP_SIZE: u32 = 64u;
