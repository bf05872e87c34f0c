//! A kernel whose names are all taken in C++, in CUDA, or by the templates.

/// Its text. Valid Rust, and attention but for its names.
pub const ODD_NAMES: &str = "
pub fn int<T: Element, const D: usize>(
    EACH: &Tensor<T, (new, D)>,
    float4: &Tensor<T, (threadIdx, D)>,
    r#type: &Tensor<T, (threadIdx, D)>,
    __half: f32,
    q_stride0: i32,
    workspace: &mut Tensor<T, (new, D)>,
    α: &mut Tensor<f32, (new)>,
) {
    let r#in = program(tiles(new));
    let shared = load(EACH, [r#in, ..]);
    let mut widen = full(r#in, -INF);
    let mut operator = zeros(r#in);
    let mut a = zeros((r#in, D));
    for lane in tiles(threadIdx) {
        let b = dot(shared, load(float4, [lane, ..]).t()) * __half;
        let x = mask(b, pos(lane) < q_stride0);
        let namespace = max(widen, rowmax(x));
        let switch_ = visible_or_zero(namespace);
        let double = exp(widen - switch_);
        let k_slot = exp(x - switch_);
        operator = operator * double + rowsum(k_slot);
        a = a * double + dot(k_slot.to::<T>(), load(r#type, [lane, ..]));
        widen = namespace;
    }
    store(workspace, [r#in, ..], div_or_zero(a, operator));
    store(α, [r#in], widen + ln(operator));
}
";
