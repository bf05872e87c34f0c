//! What is not built says so, and what to write.
use flashtile::flash_kernel;

flash_kernel! {
    pub fn quotient<T: Element>(x: &Tensor<T, (M, H / G)>, y: &mut Tensor<T, (M, 64)>) {
        let i = program(tiles(M));
        store(y, [i, ..], load(x, [i, ..]));
    }
}

fn main() {}
