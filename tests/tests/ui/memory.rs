use flashtile::flash_kernel;

flash_kernel! {
    pub fn directions<const D: usize>(
        x: &Tensor<f32, (M, N, D)>,
        unused: &Tensor<f32, (N)>,
        y: &mut Tensor<f32, (M, D)>,
        never: &mut Tensor<f32, (M)>,
    ) {
        let i = program(tiles(M));
        let a = load(y, [i, ..]);
        let b = load(x, [i, i, ..]);
        let c = load(x, [0, 0, ..2 * D]);
        let d = load(x, [0, .., 0]);
        store(x, [i, 0, ..], 1.0);
        store(y, [i, ..], pos(i));
    }
}

flash_kernel! {
    pub fn shared(x: &Tensor<f32, (M, N)>, y: &mut Tensor<f32, (N)>) {
        let (a, i) = program(M, tiles(N));
        store(y, [i], load(x, [a, i]));
    }
}

fn main() {}
