// Standardize rows of neighbouring elements, then scale and shift; LANES
// invocations of a workgroup a row.
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
// overrides: LANES, a power of two that divides WORKGROUP_SIZE
// dispatch: one workgroup computes WORKGROUP_SIZE / LANES rows
//# include lib/norm_tensors.wgsl
override LANES: u32 = 64u;
var<workgroup> shared_values: array<f32, WORKGROUP_SIZE>;
//# include lib/tree.wgsl
${AFFINE}
@compute @workgroup_size(WORKGROUP_SIZE)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    // the last workgroup may have rows too many: they are empty, as all must reach the barriers
    let row = (group.x + group.y * groups.x) * (WORKGROUP_SIZE / LANES) + local / LANES;
    let lane = local % LANES;
    let first = row * params.count;
    let count = select(0u, params.count, row < params.rows);
    var middle = 0.0;
//# if not RMS
    var sum = 0.0;
//# if VEC4
    var sums = vec4<f32>();
    for (var k = lane * 4u; k < count; k += LANES * 4u) {
        sums += load4_x(first + k);
    }
    sum = (sums.x + sums.y) + (sums.z + sums.w);
//# else
    for (var k = lane; k < count; k += LANES) {
        sum += load_x(first + k);
    }
//# endif
    middle = tree_sum_of(LANES, local, sum) / f32(params.count);
//# endif
    var square = 0.0;
//# if VEC4
    var squares = vec4<f32>();
    for (var k = lane * 4u; k < count; k += LANES * 4u) {
        let d = load4_x(first + k) - middle;
        squares += d * d;
    }
    square = (squares.x + squares.y) + (squares.z + squares.w);
//# else
    for (var k = lane; k < count; k += LANES) {
        let d = load_x(first + k) - middle;
        square += d * d;
    }
//# endif
    let inverse = 1.0 / sqrt(tree_sum_of(LANES, local, square) / f32(params.count) + params.epsilon);
//# if VEC4
    for (var k = lane * 4u; k < count; k += LANES * 4u) {
        store4_y(first + k, affine4((load4_x(first + k) - middle) * inverse, row, k));
    }
//# else
    for (var k = lane; k < count; k += LANES) {
        store_y(first + k, affine((load_x(first + k) - middle) * inverse, row, k));
    }
//# endif
    if (lane == 0u && row < params.rows) {
//# if MEAN
        store_mean(row, middle);
//# endif
//# if INV_STD_DEV
        store_inv_std_dev(row, inverse);
//# endif
    }
}
