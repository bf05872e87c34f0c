use flashtile::flash_kernel;

flash_kernel! {
    pub fn unknown<T: Element>(x: &Tensor<T, (M, N)>, scale: f32, y: &mut Tensor<f32, (M)>) {
        let i = program(tiles(M));
        let mut l = zeros(i);
        for j in tiles(N) {
            let s = load(x, [i, j]) * sclae;
            l = l + row_sum(s) + later;
            let later = s.exp();
        }
        store(y, [i], l * scale);
    }

    pub fn arity(x: &Tensor<f32, (N)>, y: &mut Tensor<f32, (N)>) {
        let i = program(tiles(N));
        let a = exp(load(x, [i]), 2.0);
        let b = load(x, [i, ..]);
        store(y, [i], max(a));
    }
}

fn main() {}
