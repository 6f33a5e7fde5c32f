// Params, tensors and overrides of kernels over rows along an axis: as many elements out as in.
struct Params {
    rows: u32,
    count: u32,
    stride: u32,
}
@group(0) @binding(0) var<storage, read> input: array<T>;
@group(0) @binding(1) var<storage, read_write> output: array<T>;
@group(0) @binding(2) var<uniform> params: Params;
override WORKGROUP_SIZE: u32 = 64u;
