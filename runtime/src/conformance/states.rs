//! Kernels whose result is a state: sums over all positions, in tiles `(D, E)` whose rows are no
//! axis of the text.

/// What linear attention keeps of its keys and values, older ones less.
pub(super) const DECAYED_STATE: &str = "
pub fn decayed_state<T: Element, const D: usize, const E: usize>(
    k: &Tensor<T, (B, H, N, D)>,
    v: &Tensor<T, (B, H, N, E)>,
    scale: f32,
    state: &mut Tensor<f32, (B, H, D, E)>,
) {
    let (b, h) = program(B, H);
    let mut sum = zeros((D, E));
    for j in tiles(N) {
        let age = (N - 1 - pos(j)).to::<f32>();
        let k_j = (load(k, [b, h, j, ..]) * exp2(-scale * age)).to::<T>();
        sum += dot(k_j.t(), load(v, [b, h, j, ..]));
    }
    store(state, [b, h, .., ..], sum);
}
";

/// A state that goes on from an earlier one, each row and each column scaled; also stored
/// transposed, and the sums of its rows.
pub(super) const CONTINUED_STATE: &str = "
pub fn continued_state<T: Element, const D: usize, const E: usize>(
    k: &Tensor<T, (B, N, D)>,
    v: &Tensor<T, (B, N, E)>,
    before: &Tensor<T, (B, D, E)>,
    rows: &Tensor<f32, (D)>,
    columns: &Tensor<f32, (E)>,
    state: &mut Tensor<T, (B, D, E)>,
    turned: &mut Tensor<f32, (B, E, D)>,
    sums: &mut Tensor<f32, (B, D)>,
) {
    let b = program(B);
    let mut sum = load(before, [b, .., ..]) * load(rows, [..]) * load(columns, [..]);
    for j in tiles(N) {
        sum += dot(load(k, [b, j, ..]).t(), load(v, [b, j, ..]));
    }
    store(state, [b, .., ..], sum);
    store(turned, [b, .., ..], sum.t());
    store(sums, [b, ..], rowsum(sum));
}
";

/// Products of columns with columns: one load gives the rows and the columns of the result.
pub(super) const GRAM: &str = "
pub fn gram<T: Element, const D: usize>(x: &Tensor<T, (B, N, D)>, y: &mut Tensor<f32, (B, D, D)>) {
    let b = program(B);
    let mut sum = zeros((D, D));
    for j in tiles(N) {
        let x_j = load(x, [b, j, ..]);
        sum += dot(x_j.t(), x_j);
    }
    store(y, [b, .., ..], sum);
}
";

/// Scores that are the right operand of a product: every warp needs those of all.
pub(super) const SCORES_ON_THE_RIGHT: &str = "
pub fn scores_on_the_right<T: Element, const D: usize>(
    q: &Tensor<T, (B, H, M, D)>,
    k: &Tensor<T, (B, H, N, D)>,
    g: &Tensor<T, (B, H, E, M)>,
    scale: f32,
    o: &mut Tensor<f32, (B, H, E, N)>,
) {
    let (b, h, e, j) = program(B, H, tiles(E), tiles(N));
    let k_j = load(k, [b, h, j, ..]);
    let mut sum = zeros((e, j));
    for i in tiles(M) {
        let s = dot(load(q, [b, h, i, ..]), k_j.t()) * scale;
        sum += dot(load(g, [b, h, e, i]), max(s, 0.0).to::<T>());
    }
    store(o, [b, h, e, j], sum);
}
";
