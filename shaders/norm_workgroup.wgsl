// Standardize rows of neighbouring elements, then scale and shift; one row a workgroup.
// spec: ONNX LayerNormalization-17, RMSNormalization-23, InstanceNormalization-22,
//     GroupNormalization-21
// x: [rows, count] f32
// scale: [...] f32, read by the generated `affine` and `affine4`
// b: [...] f32, likewise
// mean: [rows] f32, the mean of each row
// inv_std_dev: [rows] f32, one over the standard deviation of each row
// y: [rows, count] f32
// flags: RMS (no mean), BIAS (b is given), MEAN, INV_STD_DEV (outputs), VEC4 (4 divides count)
// text: AFFINE with `affine(v, row, k)` and `affine4(v, row, k)`, and the maps that they call
// dispatch: one workgroup computes one row
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
var<workgroup> shared_values: array<f32, WORKGROUP_SIZE>;
//# include lib/tree.wgsl
${AFFINE}
@compute @workgroup_size(WORKGROUP_SIZE)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = group.x + group.y * groups.x;
    if (row >= params.rows) {
        return;
    }
    let first = row * params.count;
    let count = params.count;
    var middle = 0.0;
//# if not RMS
    var sum = 0.0;
//# if VEC4
    var sums = vec4<f32>();
    for (var k = lane * 4u; k < count; k += WORKGROUP_SIZE * 4u) {
        sums += load4_x(first + k);
    }
    sum = (sums.x + sums.y) + (sums.z + sums.w);
//# else
    for (var k = lane; k < count; k += WORKGROUP_SIZE) {
        sum += load_x(first + k);
    }
//# endif
    middle = tree_sum(lane, sum) / f32(count);
//# endif
    var square = 0.0;
//# if VEC4
    var squares = vec4<f32>();
    for (var k = lane * 4u; k < count; k += WORKGROUP_SIZE * 4u) {
        let d = load4_x(first + k) - middle;
        squares += d * d;
    }
    square = (squares.x + squares.y) + (squares.z + squares.w);
//# else
    for (var k = lane; k < count; k += WORKGROUP_SIZE) {
        let d = load_x(first + k) - middle;
        square += d * d;
    }
//# endif
    let inverse = 1.0 / sqrt(tree_sum(lane, square) / f32(count) + params.epsilon);
//# if VEC4
    for (var k = lane * 4u; k < count; k += WORKGROUP_SIZE * 4u) {
        store4_y(first + k, affine4((load4_x(first + k) - middle) * inverse, row, k));
    }
//# else
    for (var k = lane; k < count; k += WORKGROUP_SIZE) {
        store_y(first + k, affine((load_x(first + k) - middle) * inverse, row, k));
    }
//# endif
    if (lane == 0u) {
//# if MEAN
        store_mean(row, middle);
//# endif
//# if INV_STD_DEV
        store_inv_std_dev(row, inverse);
//# endif
    }
}
