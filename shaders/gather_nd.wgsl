// Slices of x whose leading axes are addressed by tuples of indices; zeros for those outside.
// spec: ONNX GatherND-13
// x: [batch, axes..., inner] any
// indices: [tuples, depth] i32, negative from the end
// y: [tuples, inner] any
// BODY: adds what each index of the tuple addresses to `source`, clears `inside` if it is outside
// dispatch: one workgroup computes WORKGROUP_SIZE elements
struct Params {
    size: u32,
    inner: u32,
    per_batch: u32,
    batch_stride: u32,
}
@group(0) @binding(0) var<storage, read> x: array<T>;
@group(0) @binding(1) var<storage, read> indices: array<i32>;
@group(0) @binding(2) var<storage, read_write> y: array<T>;
@group(0) @binding(3) var<uniform> params: Params;
override WORKGROUP_SIZE: u32 = 64u;
//# include lib/index.wgsl
//# include lib/wrap_index.wgsl

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let i = flat_index(id, groups);
    if (i >= params.size) {
        return;
    }
    let tuple = i / params.inner;
    var source = tuple / params.per_batch * params.batch_stride + i % params.inner;
    var inside = true;
${BODY}
    var value = ${T}();
    if (inside) {
        value = load_x(source);
    }
    store_y(i, value);
}
