// The first k elements of each row in order, by a bitonic sort of the row in workgroup memory.
// spec: ONNX TopK-24
// x: [rows / inner, count, inner] any
// values: [rows / inner, k, inner] any
// indices: [rows / inner, k, inner] i32
// flags: VALUES, INDICES (outputs)
// text: KEY with `order_key(value)`, smaller the earlier an element comes
// dispatch: one workgroup sorts one row of at most 1024 elements
struct Params {
    rows: u32,
    count: u32,
    k: u32,
    inner: u32,
}
@group(0) @binding(0) var<storage, read> x: array<T>;
//# if VALUES
@group(0) @binding(1) var<storage, read_write> values: array<T>;
//# endif
//# if INDICES
@group(0) @binding(2) var<storage, read_write> indices: array<i32>;
//# endif
@group(0) @binding(3) var<uniform> params: Params;
override WORKGROUP_SIZE: u32 = 256u;
var<workgroup> keys: array<u32, 1024>;
var<workgroup> places: array<u32, 1024>;
${KEY}
// Whether slot a comes before slot b; equal elements keep their order, padding is last.
fn comes_before(a: u32, b: u32) -> bool {
    return keys[a] < keys[b] || (keys[a] == keys[b] && places[a] < places[b]);
}

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
    let outer = row / params.inner;
    let within = row % params.inner;
    var padded = 1u;
    while (padded < params.count) {
        padded *= 2u;
    }
    for (var i = lane; i < padded; i += WORKGROUP_SIZE) {
        var key = 0xffffffffu;
        if (i < params.count) {
            key = order_key(load_x((outer * params.count + i) * params.inner + within));
        }
        keys[i] = key;
        places[i] = i;
    }
    workgroupBarrier();
    for (var span = 2u; span <= padded; span *= 2u) {
        for (var gap = span / 2u; gap > 0u; gap /= 2u) {
            for (var pair = lane; pair < padded / 2u; pair += WORKGROUP_SIZE) {
                let low = pair / gap * gap * 2u + pair % gap;
                let high = low + gap;
                if (comes_before(high, low) == ((low & span) == 0u)) {
                    let key = keys[low];
                    let place = places[low];
                    keys[low] = keys[high];
                    places[low] = places[high];
                    keys[high] = key;
                    places[high] = place;
                }
            }
            workgroupBarrier();
        }
    }
    for (var r = lane; r < params.k; r += WORKGROUP_SIZE) {
        let target_at = (outer * params.k + r) * params.inner + within;
        let place = places[r];
//# if VALUES
        let source = (outer * params.count + place) * params.inner + within;
        store_values(target_at, load_x(source));
//# endif
//# if INDICES
        store_indices(target_at, i32(place));
//# endif
    }
}
