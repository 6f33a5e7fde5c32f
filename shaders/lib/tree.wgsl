// Sum and maximum over a workgroup, or over each run of `lanes` (a power of two) of its invocations;
// every invocation must call them, and gets the result.
// Uses the kernel's `shared_values` and WORKGROUP_SIZE (a power of two).
fn tree_sum_of(lanes: u32, lane: u32, value: f32) -> f32 {
    shared_values[lane] = value;
    workgroupBarrier();
    for (var half = lanes / 2u; half > 0u; half /= 2u) {
        if (lane % lanes < half) {
            shared_values[lane] += shared_values[lane + half];
        }
        workgroupBarrier();
    }
    let total = shared_values[lane / lanes * lanes];
    workgroupBarrier();
    return total;
}

fn tree_max_of(lanes: u32, lane: u32, value: f32) -> f32 {
    shared_values[lane] = value;
    workgroupBarrier();
    for (var half = lanes / 2u; half > 0u; half /= 2u) {
        if (lane % lanes < half) {
            shared_values[lane] = max(shared_values[lane], shared_values[lane + half]);
        }
        workgroupBarrier();
    }
    let largest = shared_values[lane / lanes * lanes];
    workgroupBarrier();
    return largest;
}

fn tree_sum(lane: u32, value: f32) -> f32 {
    return tree_sum_of(WORKGROUP_SIZE, lane, value);
}

fn tree_max(lane: u32, value: f32) -> f32 {
    return tree_max_of(WORKGROUP_SIZE, lane, value);
}
