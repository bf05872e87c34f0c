//! A matrix product with a fused activation: the compiler is driven by what a kernel does, not by attention.
//!
//! `cargo run -p flashtile --example fused_matmul`

use flashtile::{Device, Tensor, f16, flash_kernel};

flash_kernel! {
    /// `max(a b + bias, 0)`.
    pub fn matmul_relu<T: Element>(
        a: &Tensor<T, (M, K)>,
        b: &Tensor<T, (K, N)>,
        bias: &Tensor<T, (N)>,
        c: &mut Tensor<T, (M, N)>,
    ) {
        let (i, j) = program(tiles(M), tiles(N));
        let mut acc = zeros((i, j));
        for k in tiles(K) {
            acc = acc + dot(load(a, [i, k]), load(b, [k, j]));
        }
        store(c, [i, j], max(acc + load(bias, [j]), 0.0));
    }
}

const ROWS: usize = 130;
const DEPTH: usize = 72;
const COLUMNS: usize = 200;

fn main() -> flashtile::Result<()> {
    let device = Device::best();
    // Small whole numbers, so that every device gets the same result to the last bit.
    let values = |count: usize, step: usize| -> Vec<f32> { (0..count).map(|i| (i * step % 7) as f32 - 3.0).collect() };
    let (a, b, bias) = (values(ROWS * DEPTH, 5), values(DEPTH * COLUMNS, 3), values(COLUMNS, 1));
    let a_tensor = Tensor::<f16>::from_f32(&device, &[ROWS, DEPTH], &a)?;
    let b_tensor = Tensor::<f16>::from_f32(&device, &[DEPTH, COLUMNS], &b)?;
    let bias_tensor = Tensor::<f16>::from_f32(&device, &[COLUMNS], &bias)?;
    let mut c = Tensor::<f16>::zeros(&device, &[ROWS, COLUMNS])?;

    matmul_relu::<f16>::on(&device)?.launch(&a_tensor, &b_tensor, &bias_tensor, &mut c)?;

    let found = c.to_vec()?;
    for row in 0..ROWS {
        for column in 0..COLUMNS {
            let sum: f32 = (0..DEPTH).map(|k| a[row * DEPTH + k] * b[k * COLUMNS + column]).sum();
            assert_eq!(found[row * COLUMNS + column].to_f32(), (sum + bias[column]).max(0.0), "at [{row}, {column}]");
        }
    }
    println!("{ROWS} x {DEPTH} x {COLUMNS} product with a fused activation on {device}: every element is exact");
    Ok(())
}
