//! What is not built says so, and what to write.
use flashtile::flash_kernel;

flash_kernel! {
    fn double(x: f32) -> f32 {
        x * 2.0
    }

    pub fn number<T: Element>(x: &Tensor<T, (M, 64)>, y: &mut Tensor<T, (M, 64)>) {
        let i = program(tiles(M));
        store(y, [i, ..], load(x, [i, ..]));
    }

    pub fn computed<T: Element, const D: usize>(x: &Tensor<T, (M, D + 1)>, y: &mut Tensor<T, (M, D)>) {
        let i = program(tiles(M));
        store(y, [i, ..], load(x, [i, ..D]));
    }
}

fn main() {}
