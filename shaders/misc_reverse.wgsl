// The first steps of each sequence of a batch in reverse order, the rest as it is.
// spec: ONNX ReverseSequence-28
// x: [first, second, inner] any
// sequence_lens: [batch] i32, how many steps of each sequence are reversed
// y: [first, second, inner] any
// flags: TIME_FIRST (the first axis is time and the second the batch, else the other way)
// dispatch: one workgroup computes WORKGROUP_SIZE elements
struct Params {
    size: u32,
    second: u32,
    steps: u32,
    inner: u32,
}
@group(0) @binding(0) var<storage, read> x: array<T>;
@group(0) @binding(1) var<storage, read> sequence_lens: array<i32>;
@group(0) @binding(2) var<storage, read_write> y: array<T>;
@group(0) @binding(3) var<uniform> params: Params;
override WORKGROUP_SIZE: u32 = 64u;
//# include lib/index.wgsl

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let i = flat_index(id, groups);
    if (i >= params.size) {
        return;
    }
    let row = i / params.inner;
//# if TIME_FIRST
    let time = row / params.second;
    let batch = row % params.second;
    let stride = params.second * params.inner;
//# else
    let time = row % params.second;
    let batch = row / params.second;
    let stride = params.inner;
//# endif
    let length = min(u32(max(i32(load_sequence_lens(batch)), 0)), params.steps);
    let source = select(time, length - 1u - time, time < length);
    store_y(i, load_x(i - time * stride + source * stride));
}
