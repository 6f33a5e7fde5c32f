// One value everywhere.
// spec: ONNX ConstantOfShape-25
// y: [size] any
// VALUE: the element, from the bit pattern in params
// dispatch: one workgroup computes 4 * WORKGROUP_SIZE elements
struct Params {
    size: u32,
    bits: u32,
}
@group(0) @binding(0) var<storage, read_write> y: array<T>;
@group(0) @binding(1) var<uniform> params: Params;
override WORKGROUP_SIZE: u32 = 64u;
//# include lib/index.wgsl

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let i = flat_index(id, groups) * 4u;
    if (i >= params.size) {
        return;
    }
    let value = ${VALUE};
    store4_y(i, vec4(value, value, value, value));
}
