// Standardize rows of neighbouring elements, then scale and shift; one row an invocation.
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
// dispatch: one workgroup computes WORKGROUP_SIZE rows
//# include lib/norm_tensors.wgsl
//# include lib/index.wgsl
${AFFINE}
@compute @workgroup_size(WORKGROUP_SIZE)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let row = flat_index(id, groups);
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
    for (var k = 0u; k < count; k += 4u) {
        sums += load4_x(first + k);
    }
    sum = (sums.x + sums.y) + (sums.z + sums.w);
//# else
    for (var k = 0u; k < count; k++) {
        sum += load_x(first + k);
    }
//# endif
    middle = sum / f32(count);
//# endif
    var square = 0.0;
//# if VEC4
    var squares = vec4<f32>();
    for (var k = 0u; k < count; k += 4u) {
        let d = load4_x(first + k) - middle;
        squares += d * d;
    }
    square = (squares.x + squares.y) + (squares.z + squares.w);
//# else
    for (var k = 0u; k < count; k++) {
        let d = load_x(first + k) - middle;
        square += d * d;
    }
//# endif
    let inverse = 1.0 / sqrt(square / f32(count) + params.epsilon);
//# if VEC4
    for (var k = 0u; k < count; k += 4u) {
        store4_y(first + k, affine4((load4_x(first + k) - middle) * inverse, row, k));
    }
//# else
    for (var k = 0u; k < count; k++) {
        store_y(first + k, affine((load_x(first + k) - middle) * inverse, row, k));
    }
//# endif
//# if MEAN
    store_mean(row, middle);
//# endif
//# if INV_STD_DEV
    store_inv_std_dev(row, inverse);
//# endif
}
