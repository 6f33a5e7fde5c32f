// An ONNX index counted from the front: not below `size` if it is outside [-size, size).
fn wrap_index(index: i32, size: u32) -> u32 {
    return u32(select(index, index + i32(size), index < 0));
}
