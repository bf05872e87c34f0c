//! Causal attention written in the kernel language, run on the best device there is and compared with plain loops.
//!
//! `cargo run -p flashtile --example quick_start`

use flashtile::{Device, Tensor, bf16, flash_kernel};

flash_kernel! {
    /// Causal attention with a streaming softmax.
    pub fn causal<T: Element, const D: usize>(
        q: &Tensor<T, (B, H, M, D)>,
        k: &Tensor<T, (B, G, N, D)>,
        v: &Tensor<T, (B, G, N, D)>,
        scale: f32,
        o: &mut Tensor<T, (B, H, M, D)>,
        lse: &mut Tensor<f32, (B, H, M)>,
    ) {
        let (b, h, i) = program(B, H, tiles(M)); // one program owns one tile of query rows
        let g = h * G / H; // grouped queries
        let q_i = load(q, [b, h, i, ..]);
        let mut m = full(i, -INF);
        let mut l = zeros(i);
        let mut acc = zeros((i, D));
        for j in tiles(N) {
            let s = dot(q_i, load(k, [b, g, j, ..]).t()) * scale;
            let s = mask(s, pos(i) + N - M >= pos(j)); // bottom-right aligned
            let m_new = max(m, rowmax(s));
            let m_ref = visible_or_zero(m_new); // a row may see no key at all
            let alpha = exp(m - m_ref);
            let p = exp(s - m_ref);
            l = l * alpha + rowsum(p);
            acc = acc * alpha + dot(p.to::<T>(), load(v, [b, g, j, ..]));
            m = m_new;
        }
        store(o, [b, h, i, ..], div_or_zero(acc, l));
        store(lse, [b, h, i], m + ln(l));
    }
}

const HEADS: usize = 4;
const GROUPS: usize = 2;
const ROWS: usize = 203;
const HEAD_DIM: usize = 64;

fn main() -> flashtile::Result<()> {
    let device = Device::best();
    let (queries, keys) = ([1, HEADS, ROWS, HEAD_DIM], [1, GROUPS, ROWS, HEAD_DIM]);
    let q = Tensor::<bf16>::from_f32(&device, &queries, &wave(queries.iter().product(), 0.37))?;
    let k = Tensor::<bf16>::from_f32(&device, &keys, &wave(keys.iter().product(), 0.53))?;
    let v = Tensor::<bf16>::from_f32(&device, &keys, &wave(keys.iter().product(), 0.71))?;
    let mut o = Tensor::<bf16>::zeros(&device, &queries)?;
    let mut lse = Tensor::<f32>::zeros(&device, &[1, HEADS, ROWS])?;
    let scale = 1.0 / (HEAD_DIM as f32).sqrt();

    let kernel = causal::<bf16, HEAD_DIM>::on(&device)?;
    kernel.launch(&q, &k, &v, scale, &mut o, &mut lse)?;

    let widen = |t: &Tensor<bf16>| -> flashtile::Result<Vec<f64>> { Ok(t.to_vec()?.iter().map(|x| x.to_f64()).collect()) };
    let expected = attention(&widen(&q)?, &widen(&k)?, &widen(&v)?, f64::from(scale));
    let error = widen(&o)?.iter().zip(&expected).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max);
    println!("causal attention on {device}: largest error {error:.1e}");
    assert!(error < 0.02, "bf16 results of size 1 are this close");
    Ok(())
}

/// Smooth values between -1 and 1.
fn wave(count: usize, step: f32) -> Vec<f32> {
    (0..count).map(|i| (i as f32 * step).sin()).collect()
}

/// Causal attention in plain loops.
fn attention(q: &[f64], k: &[f64], v: &[f64], scale: f64) -> Vec<f64> {
    let row = |tensor: &[f64], head: usize, row: usize| tensor[(head * ROWS + row) * HEAD_DIM..][..HEAD_DIM].to_vec();
    let mut out = Vec::new();
    for head in 0..HEADS {
        let group = head * GROUPS / HEADS;
        for i in 0..ROWS {
            let query = row(q, head, i);
            let weight = |j: usize| {
                let key = row(k, group, j);
                (scale * query.iter().zip(&key).map(|(x, y)| x * y).sum::<f64>()).exp()
            };
            let weights: Vec<f64> = (0..=i).map(weight).collect();
            let sum: f64 = weights.iter().sum();
            let mut result = vec![0.0; HEAD_DIM];
            for (j, w) in weights.iter().enumerate() {
                result.iter_mut().zip(row(v, group, j)).for_each(|(r, x)| *r += w / sum * x);
            }
            out.extend(result);
        }
    }
    out
}
