// The flat index of an invocation in a 1-D grid that may be folded into x and y.
fn flat_index(id: vec3<u32>, groups: vec3<u32>) -> u32 {
    return id.x + id.y * groups.x * WORKGROUP_SIZE;
}
