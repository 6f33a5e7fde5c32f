// The positions, from -1 to 1, to which an affine map takes each output pixel.
// spec: ONNX AffineGrid-20
// theta: [N, rank, rank + 1] f32
// y: [N, points, rank] f32
// flags: ALIGN (-1 and 1 are the centres of the outer pixels, not their edges)
// text: BODY that adds theta times each coordinate, the last one first
// dispatch: one workgroup computes WORKGROUP_SIZE elements
struct Params {
    size: u32,
    points: u32,
}
@group(0) @binding(0) var<storage, read> theta: array<T>;
@group(0) @binding(1) var<storage, read_write> y: array<T>;
@group(0) @binding(2) var<uniform> params: Params;
override WORKGROUP_SIZE: u32 = 64u;
//# include lib/index.wgsl

fn coordinate(step: u32, size: u32) -> f32 {
//# if ALIGN
    return select(0.0, -1.0 + f32(step) * (2.0 / f32(max(size, 2u) - 1u)), size > 1u);
//# else
    return f32(2u * step + 1u) / f32(size) - 1.0;
//# endif
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let i = flat_index(id, groups);
    if (i >= params.size) {
        return;
    }
    var rest = i / ${RANK};
    let first = (rest / params.points * ${RANK} + i % ${RANK}) * (${RANK} + 1u);
    var value = load_theta(first + ${RANK});
${BODY}
    store_y(i, value);
}
