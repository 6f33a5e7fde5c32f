// Elements of x with borders around them, or without some of its outer elements.
// spec: ONNX Pad-25
// x: [...] any
// constant_value: [1] any; with the flag VALUE
// y: [size] any
// flags: VALUE the border is constant_value
// BORDER: the value of elements that are not in x
// BODY: sets `index`, the element of x, and `inside`, whether there is one
// dispatch: one workgroup computes WORKGROUP_SIZE elements
struct Params {
    size: u32,
}
@group(0) @binding(0) var<storage, read> x: array<T>;
//# if VALUE
@group(0) @binding(1) var<storage, read> constant_value: array<T>;
//# endif
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
    var rest = i;
    var index = 0u;
    var inside = true;
${BODY}
    var value = ${BORDER};
    if (inside) {
        value = load_x(index);
    }
    store_y(i, value);
}
