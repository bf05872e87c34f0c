use flashtile::flash_kernel;

flash_kernel! {
    pub fn bounds<T: Clone, const D: u32>(x: &Tensor<T, (M, D)>, n: usize, y: &mut Tensor<f64, (M)>) -> f32 {
        let i = program(tiles(M));
        store(y, [i], rowsum(load(x, [i, ..])) + n);
    }

    pub fn twice(x: &Tensor<f32, (M)>, x: &mut Tensor<f32, (M)>) {
        let i = program(tiles(M));
        store(x, [i], load(x, [i]));
    }

    pub fn same(y: &mut Tensor<f32, (M)>) {
        let i = program(tiles(M));
        store(y, [i], 1.0);
    }

    pub fn same(y: &mut Tensor<f32, (M)>) {
        let i = program(tiles(M));
        store(y, [i], 2.0);
    }

    const NOT_A_KERNEL: usize = 1;
}

flash_kernel! {}

fn main() {}
