/// The gradient of `x`, a program for each tile of rows: of `rotate`.
pub fn rotate_grad_rows<T: Element, const D: usize>(
    cos: &Tensor<T, (N, C)>,
    sin: &Tensor<T, (N, C)>,
    grad_y: &Tensor<T, (B, H, N, D)>,
    grad_x: &mut Tensor<T, (B, H, N, D)>,
) {
    let (b, h, i) = program(B, H, tiles(N));
    let t1 = load(grad_y, [b, h, i, ..D / 2]);
    let t2 = load(grad_y, [b, h, i, D / 2..]);
    let sin_i = load(sin, [i, ..D / 2]);
    let dx1 = t2 * sin_i;
    let cos_i = load(cos, [i, ..D / 2]);
    let dx2 = t2 * cos_i;
    let dx22 = dx2 + -t1 * sin_i;
    let dx12 = dx1 + t1 * cos_i;
    store(grad_x, [b, h, i, ..D / 2], dx12);
    store(grad_x, [b, h, i, D / 2..], dx22);
}
