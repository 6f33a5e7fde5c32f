// Params, tensors and overrides of attention kernels; fields of flags are added by engine/ops/attention.py
struct Params {
    rows: u32,
    queries: u32,
    keys: u32,
    size: u32,
    value_size: u32,
    groups: u32,
    scale: f32,
    q_batch: u32,
    q_head: u32,
    q_stride: u32,
    k_batch: u32,
    k_head: u32,
    k_stride: u32,
    v_batch: u32,
    v_head: u32,
    v_stride: u32,
    y_batch: u32,
    y_head: u32,
    y_stride: u32,
}
@group(0) @binding(0) var<storage, read> q: array<T>;
@group(0) @binding(1) var<storage, read> k: array<T>;
@group(0) @binding(2) var<storage, read> v: array<T>;
//# if MASK
@group(0) @binding(3) var<storage, read> attn_mask: array<T>;
//# endif
//# if VALID
@group(0) @binding(4) var<storage, read> nonpad_kv_seqlen: array<i32>;
//# endif
@group(0) @binding(5) var<storage, read_write> y: array<T>;
@group(0) @binding(6) var<uniform> params: Params;
override WORKGROUP_SIZE: u32 = 64u;
