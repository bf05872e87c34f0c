//! Element types and directions of arguments are checked by rustc.

use flashtile::{Device, Result, Tensor, bf16, flash_kernel};

flash_kernel! {
    pub fn double<T: Element>(x: &Tensor<T, (N)>, factor: f32, y: &mut Tensor<T, (N)>) {
        let i = program(tiles(N));
        store(y, [i], factor * load(x, [i]));
    }
}

fn run(device: &Device, x: &Tensor<f32>, y: &mut Tensor<bf16>) -> Result<()> {
    double::<f32>::on(device)?.launch(x, 2.0, y)?;
    double::<bf16>::on(device)?.launch(y, 2.0, y)?;
    double::<f32>::on(device)?.launch(x, x)
}

fn main() {}
