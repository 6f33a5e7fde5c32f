// Resize by nearest element, linear or cubic interpolation: four neighbouring outputs at a time.
// spec: ONNX Resize-19
// x: [in0, in1, ...] any, axes merged where they keep their size
// y: [out0, out1, ...] any
// flags: CUBIC; the generated code knows rank, resized axes, and how outputs map to inputs
// dispatch: one workgroup computes 4 * WORKGROUP_SIZE outputs
struct Params {
    tiles: u32,
    tiles_w: u32,
    out_w: u32,
}
@group(0) @binding(0) var<storage, read> x: array<T>;
@group(0) @binding(1) var<storage, read_write> y: array<T>;
@group(0) @binding(2) var<uniform> params: Params;
override WORKGROUP_SIZE: u32 = 64u;
//# include lib/index.wgsl

// Where an output lies in the input: element `base` and `rest` / `whole` of the way to the next.
struct Place {
    base: i32,
    rest: i32,
    whole: i32,
}

fn place_of(number: i32, whole: i32) -> Place {
    let cut = number / whole;
    let base = select(cut, cut - 1, cut * whole > number);
    return Place(base, number - base * whole, whole);
}

fn clamped(index: i32, size: u32) -> u32 {
    return u32(clamp(index, 0, i32(size) - 1));
}

//# if CUBIC
// The cubic convolution kernel at `distance`. Source: Keys 1981, equation (4).
fn cubic(distance: f32, a: f32) -> f32 {
    let d = abs(distance);
    let near = ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0;
    let far = ((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a;
    return select(select(0.0, far, d < 2.0), near, d <= 1.0);
}
//# endif

${FUNCTIONS}

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let tile = flat_index(id, groups);
    if (tile >= params.tiles) {
        return;
    }
    let outer = tile / params.tiles_w;
    let column = (tile % params.tiles_w) * 4u;
${BODY}
}
