// The first k elements in order, of each row or of each block of one: a merge sort in workgroup memory.
// Runs are merged in pairs: each element finds its place by a search in the other run, and those
// past the first k are dropped on the way.
// spec: ONNX TopK-24
// x: [rows / inner, count, inner] any
// values: [rows / inner, k, inner] any
// indices: [rows / inner, k, inner] i32
// keys: [2, rows, pitch] u32, those of the blocks of a row side by side, min(k, 1024) each
// places: [2, rows, pitch] u32, where they stand in the row
// flags: BLOCKS: keys and places are the outputs; VALUES (without BLOCKS), INDICES (without BLOCKS): these are
// text: KEY with `order_key(value)`, smaller the earlier an element comes
// dispatch: one workgroup sorts `share` rows; with BLOCKS, one block of 1024 elements of a row
struct Params {
    rows: u32,
    count: u32,
    k: u32,
    inner: u32,
//# if BLOCKS
    blocks: u32,
    pitch: u32,
//# else
    share: u32,
//# endif
}
@group(0) @binding(0) var<storage, read> x: array<T>;
//# if VALUES
@group(0) @binding(1) var<storage, read_write> values: array<T>;
//# endif
//# if INDICES
@group(0) @binding(2) var<storage, read_write> indices: array<i32>;
//# endif
//# if BLOCKS
@group(0) @binding(3) var<storage, read_write> keys: array<u32>;
@group(0) @binding(4) var<storage, read_write> places: array<u32>;
//# endif
@group(0) @binding(5) var<uniform> params: Params;
override WORKGROUP_SIZE: u32 = 256u;
const CAPACITY = 1024u;
const GROUP = 8u;
// what is read and what is written, in turn
var<workgroup> run_keys: array<u32, 2048>;
var<workgroup> run_places: array<u32, 2048>;
${KEY}
// Where a row begins in a tensor that has `count` elements of each.
fn element(row: u32, count: u32) -> u32 {
    let outer = row / params.inner;
    return outer * count * params.inner + row - outer * params.inner;
}

// How many of the `length` keys from `first` on, a power of two, come before a key; `ties`: equal ones do.
fn count_before(first: u32, length: u32, key: u32, ties: bool) -> u32 {
    var found = 0u;
    for (var step = length / 2u; step > 0u; step /= 2u) {
        let other = run_keys[first + found + step - 1u];
        found += select(0u, step, other < key || (ties && other == key));
    }
    let other = run_keys[first + found];
    return found + select(0u, 1u, other < key || (ties && other == key));
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = group.x + group.y * groups.x;
//# if BLOCKS
    let share = 1u;
    let first_row = index / params.blocks;
    let start = index % params.blocks * CAPACITY;
//# else
    let share = params.share;
    let first_row = index * share;
    let start = 0u;
//# endif
    if (first_row >= params.rows) {
        return;
    }
    let size = min(params.count - start, CAPACITY);
    // of a row: a power of two
    var padded = GROUP;
    while (padded < size) {
        padded *= 2u;
    }
    let row_bits = firstTrailingBit(padded);
    let slots = share * padded;
    // as many of a run as live on: a power of two
    var most = 1u;
    while (most < min(params.k, padded)) {
        most *= 2u;
    }
    for (var i = lane; i < slots; i += WORKGROUP_SIZE) {
        let place = i & (padded - 1u);
        let row = first_row + (i >> row_bits);
        var key = 0xffffffffu;
        if (place < size && row < params.rows) {
            key = order_key(load_x(element(row, params.count) + (start + place) * params.inner));
        }
        run_keys[i] = key;
    }
    workgroupBarrier();
    // equal elements keep their order, so padding is last
    var kept = min(most, GROUP);
    for (var i = lane; i < slots; i += WORKGROUP_SIZE) {
        let key = run_keys[i];
        let first = i / GROUP * GROUP;
        var rank = 0u;
        for (var j = 0u; j < GROUP; j++) {
            let other = run_keys[first + j];
            rank += select(0u, 1u, other < key || (other == key && first + j < i));
        }
        if (rank < kept) {
            let target_at = CAPACITY + i / GROUP * kept + rank;
            run_keys[target_at] = key;
            run_places[target_at] = i & (padded - 1u);
        }
    }
    workgroupBarrier();
    var source = CAPACITY;
    for (var length = GROUP; length < padded; length *= 2u) {
        let keeps = min(most, length * 2u);
        let bits = firstTrailingBit(kept);
        for (var i = lane; i < (slots / length) << bits; i += WORKGROUP_SIZE) {
            let key = run_keys[source + i];
            let run = i >> bits;
            let other = source + ((run ^ 1u) << bits);
            let rank = (i & (kept - 1u)) + count_before(other, kept, key, (run & 1u) == 1u);
            if (rank < keeps) {
                let target_at = (source ^ CAPACITY) + run / 2u * keeps + rank;
                run_keys[target_at] = key;
                run_places[target_at] = run_places[source + i];
            }
        }
        workgroupBarrier();
        source ^= CAPACITY;
        kept = keeps;
    }
//# if BLOCKS
    let own = min(params.k, CAPACITY);
    let first = first_row * params.pitch + index % params.blocks * own;
    for (var r = lane; r < min(own, size); r += WORKGROUP_SIZE) {
        store_keys(first + r, run_keys[source + r]);
        store_places(first + r, start + run_places[source + r]);
    }
//# else
    let last_row = min(first_row + share, params.rows);
    for (var r = lane; r < (last_row - first_row) * params.k; r += WORKGROUP_SIZE) {
        let turn = r / params.k;
        let row = first_row + turn;
        let rank = r - turn * params.k;
        let target_at = element(row, params.k) + rank * params.inner;
        let place = run_places[source + turn * kept + rank];
//# if VALUES
        store_values(target_at, load_x(element(row, params.count) + place * params.inner));
//# endif
//# if INDICES
        store_indices(target_at, i32(place));
//# endif
    }
//# endif
}
