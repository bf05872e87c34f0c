//! Kernels of the suite that load single elements, at the positions that tiles of integers have.

use super::softmax::softmax_attention;

/// Elements of a matrix at loaded rows and columns, and of a table of bytes at what is computed of
/// a loaded integer and of a position.
pub(super) const GATHERED: &str = "
pub fn gathered<T: Element>(
    x: &Tensor<T, (B, M, N)>,
    row_ids: &Tensor<i32, (M)>,
    column_ids: &Tensor<i32, (N)>,
    small: &Tensor<u8, (C)>,
    kept: &Tensor<bool, (C, 2)>,
    y: &mut Tensor<f32, (B, M, N)>,
) {
    let (b, i, j) = program(B, tiles(M), tiles(N));
    let (row, column) = (load(row_ids, [i]), load(column_ids, [j]));
    let byte = load(small, [column - pos(i)]);
    let keep = load(kept, [column, pos(i) % 2]);
    store(y, [b, i, j], select(keep, load(x, [b, row, column]) + load(x, [b, i, row]), byte * 1.5));
}
";

/// Biases whose rows in memory are no rows of the tile: stored transposed, and with heads last.
pub(super) const TURNED_BIAS: &str = softmax_attention!(
    "turned_bias",
    keys: "T",
    parameters: "
    turned: &Tensor<T, (H, N, M)>,
    heads_last: &Tensor<f32, (M, N, H)>,
    scale: f32,",
    scores: "
        let s = dot(q_i, load(k, [b, g, j, ..]).t()) * scale;
        let s = mask(s + load(turned, [h, j, i]).t() + load(heads_last, [i, j, h]), pos(i) + N - M >= pos(j));",
    values: "load(v, [b, g, j, ..])",
);
