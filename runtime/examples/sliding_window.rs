//! A mask of one's own: causal attention over the last `W` keys. The mask is one line; which tiles are skipped follows.
//!
//! `cargo run -p flashtile --example sliding_window`

use flashtile::{Device, Tensor, f16, flash_kernel};

flash_kernel! {
    /// Causal attention in which a query sees its own key and the `window - 1` keys before it.
    pub fn sliding_window<T: Element, const D: usize, const W: usize>(
        q: &Tensor<T, (H, M, D)>,
        k: &Tensor<T, (H, M, D)>,
        v: &Tensor<T, (H, M, D)>,
        scale: f32,
        o: &mut Tensor<T, (H, M, D)>,
    ) {
        let (h, i) = program(H, tiles(M));
        let q_i = load(q, [h, i, ..]);
        let mut m = full(i, -INF);
        let mut l = zeros(i);
        let mut acc = zeros((i, D));
        for j in tiles(M) {
            let s = dot(q_i, load(k, [h, j, ..]).t()) * scale;
            let s = mask(s, pos(i) >= pos(j) && pos(j) + W > pos(i));
            let m_new = max(m, rowmax(s));
            let m_ref = visible_or_zero(m_new);
            let alpha = exp(m - m_ref);
            let p = exp(s - m_ref);
            l = l * alpha + rowsum(p);
            acc = acc * alpha + dot(p.to::<T>(), load(v, [h, j, ..]));
            m = m_new;
        }
        store(o, [h, i, ..], div_or_zero(acc, l));
    }
}

const HEADS: usize = 2;
const ROWS: usize = 300;
const HEAD_DIM: usize = 32;
const WINDOW: usize = 70;

fn main() -> flashtile::Result<()> {
    let device = Device::best();
    let shape = [HEADS, ROWS, HEAD_DIM];
    let count = shape.iter().product();
    let values = |step: f32| -> Vec<f32> { (0..count).map(|i| (i as f32 * step).sin()).collect() };
    let q = Tensor::<f16>::from_f32(&device, &shape, &values(0.37))?;
    let k = Tensor::<f16>::from_f32(&device, &shape, &values(0.53))?;
    // Values that say where they come from: the result is the mean position of the keys that a query sees.
    let positions: Vec<f32> = (0..count).map(|i| (i / HEAD_DIM % ROWS) as f32).collect();
    let v = Tensor::<f16>::from_f32(&device, &shape, &positions)?;
    let mut o = Tensor::<f16>::zeros(&device, &shape)?;

    // With scale 0 all visible keys weigh the same.
    sliding_window::<f16, HEAD_DIM, WINDOW>::on(&device)?.launch(&q, &k, &v, 0.0, &mut o)?;

    let found = o.to_vec()?;
    for row in 0..ROWS {
        let first = (row + 1).saturating_sub(WINDOW);
        let mean = (first + row) as f32 / 2.0;
        let x = found[row * HEAD_DIM].to_f32();
        assert!((x - mean).abs() <= 0.001 * mean + 0.01, "row {row}: {x} for {mean}");
    }
    println!("sliding window of {WINDOW} keys on {device}: every row sees what it should");
    Ok(())
}
