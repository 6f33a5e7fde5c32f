// Merges sorted runs of the elements of each row by fours; of each run the first k live on.
// Each element finds its place by a search in the other three.
// spec: ONNX TopK-24
// x: [rows / inner, count, inner] any
// values: [rows / inner, k, inner] any
// indices: [rows / inner, k, inner] i32
// keys: [2, rows, pitch] u32, smaller the earlier an element comes; runs side by side
// places: [2, rows, pitch] u32, where the elements stand in the row
// flags: FINAL: a row becomes one run, which is the output; VALUES (with FINAL), INDICES (with FINAL): what of it
// dispatch: one workgroup moves WORKGROUP_SIZE elements; repeated for each level without FINAL
struct Params {
    rows: u32,
    count: u32,
    k: u32,
    pitch: u32,
    width: u32,
//# if FINAL
    inner: u32,
    level: u32,
//# endif
}
//# if VALUES
@group(0) @binding(0) var<storage, read> x: array<T>;
@group(0) @binding(1) var<storage, read_write> values: array<T>;
//# endif
//# if INDICES
@group(0) @binding(2) var<storage, read_write> indices: array<i32>;
//# endif
//# if FINAL
@group(0) @binding(3) var<storage, read> keys: array<u32>;
@group(0) @binding(4) var<storage, read> places: array<u32>;
//# else
@group(0) @binding(3) var<storage, read_write> keys: array<u32>;
@group(0) @binding(4) var<storage, read_write> places: array<u32>;
//# endif
@group(0) @binding(5) var<uniform> params: Params;
override WORKGROUP_SIZE: u32 = 64u;
const BLOCK = 1024u;
const FAN = 4u;
//# include lib/index.wgsl
// How many keys of a sorted run come before a key; `ties`: equal ones do.
fn count_before(first: u32, length: u32, key: u32, ties: bool) -> u32 {
    var low = 0u;
    var high = length;
    while (low < high) {
        let middle = (low + high) / 2u;
        let other = load_keys(first + middle);
        let before = other < key || (ties && other == key);
        low = select(low, middle + 1u, before);
        high = select(middle, high, before);
    }
    return low;
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let i = flat_index(id, groups);
    let row = i / params.width;
    if (row >= params.rows) {
        return;
    }
//# if FINAL
    let level = params.level;
//# else
    let level = repeat_index();
//# endif
    // elements of the row that a run stands for, and how many of them it has
    let span = BLOCK << (2u * level);
    let most = min(params.k, span);
    let place = i % params.width;
    let run = place / most;
    if (run * span >= params.count || place % most >= params.count - run * span) {
        return;
    }
    let half = params.rows * params.pitch;
    let source = (level & 1u) * half + row * params.pitch;
    let key = load_keys(source + place);
    let keeps = min(params.k, span * FAN);
    var rank = place % most;
    let first = run / FAN * FAN;
    for (var other = first; other < first + FAN && rank < keeps; other++) {
        let start = other * span;
        if (other != run && start < params.count) {
            let length = min(most, params.count - start);
            rank += count_before(source + other * most, length, key, other < run);
        }
    }
    if (rank >= keeps) {
        return;
    }
    let origin = load_places(source + place);
//# if FINAL
    let outer = row / params.inner;
    let within = row % params.inner;
    let target_at = (outer * params.k + rank) * params.inner + within;
//# if VALUES
    store_values(target_at, load_x((outer * params.count + origin) * params.inner + within));
//# endif
//# if INDICES
    store_indices(target_at, i32(origin));
//# endif
//# else
    let target_at = (1u - (level & 1u)) * half + row * params.pitch + run / FAN * keeps + rank;
    store_keys(target_at, key);
    store_places(target_at, origin);
//# endif
}
