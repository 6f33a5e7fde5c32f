// Maximum, mean or p-norm of each whole plane.
// spec: ONNX GlobalMaxPool-22, GlobalAveragePool-22, GlobalLpPool-22
// x: [planes, size] f32
// y: [planes] f32
// flags: MAX; SHARED: a workgroup a plane, else an invocation a plane
// dispatch: one workgroup computes WORKGROUP_SIZE planes, with SHARED one
struct Params {
    planes: u32,
    size: u32,
    start: f32,
}
@group(0) @binding(0) var<storage, read> x: array<T>;
@group(0) @binding(1) var<storage, read_write> y: array<T>;
@group(0) @binding(2) var<uniform> params: Params;
override WORKGROUP_SIZE: u32 = 64u;
//# if SHARED
var<workgroup> parts: array<f32, WORKGROUP_SIZE>;
//# else
//# include lib/index.wgsl
//# endif

//# if MAX
//# include lib/float.wgsl

fn merge(best: f32, v: f32) -> f32 {
    return select(best, v, v > best || is_nan(v));
}

fn join(best: f32, v: f32) -> f32 {
    return merge(best, v);
}
//# else
fn merge(sum: f32, v: f32) -> f32 {
    return sum + v;
}

fn join(sum: f32, v: f32) -> f32 {
    return sum + ${POWER};
}
//# endif

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_id) local: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
//# if SHARED
    let plane = workgroup.x + workgroup.y * groups.x;
    let step = WORKGROUP_SIZE;
    let begin = local.x;
//# else
    let plane = flat_index(id, groups);
    let step = 1u;
    let begin = 0u;
//# endif
    if (plane >= params.planes) {
        return;
    }
    let base = plane * params.size;
    var a = params.start;
    var b = params.start;
    var i = begin;
    for (; i + step < params.size; i += 2u * step) {
        a = join(a, load_x(base + i));
        b = join(b, load_x(base + i + step));
    }
    if (i < params.size) {
        a = join(a, load_x(base + i));
    }
    var v = merge(a, b);
//# if SHARED
    parts[local.x] = v;
    for (var reach = WORKGROUP_SIZE / 2u; reach > 0u; reach /= 2u) {
        workgroupBarrier();
        if (local.x < reach) {
            parts[local.x] = merge(parts[local.x], parts[local.x + reach]);
        }
    }
    if (local.x > 0u) {
        return;
    }
    v = parts[0];
//# endif
//# if not MAX
    v = ${ROOT};
//# endif
    store_y(plane, v);
}
