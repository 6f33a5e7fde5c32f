// Sum and maximum over a workgroup; every invocation must call them, and gets the result.
// Uses the kernel's `shared_values` and WORKGROUP_SIZE (a power of two).
fn tree_sum(lane: u32, value: f32) -> f32 {
    shared_values[lane] = value;
    workgroupBarrier();
    for (var half = WORKGROUP_SIZE / 2u; half > 0u; half /= 2u) {
        if (lane < half) {
            shared_values[lane] += shared_values[lane + half];
        }
        workgroupBarrier();
    }
    let total = shared_values[0];
    workgroupBarrier();
    return total;
}

fn tree_max(lane: u32, value: f32) -> f32 {
    shared_values[lane] = value;
    workgroupBarrier();
    for (var half = WORKGROUP_SIZE / 2u; half > 0u; half /= 2u) {
        if (lane < half) {
            shared_values[lane] = max(shared_values[lane], shared_values[lane + half]);
        }
        workgroupBarrier();
    }
    let largest = shared_values[0];
    workgroupBarrier();
    return largest;
}
