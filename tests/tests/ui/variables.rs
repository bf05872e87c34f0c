use flashtile::flash_kernel;

flash_kernel! {
    pub fn assignments(x: &Tensor<f32, (M, N)>, scale: f32, y: &mut Tensor<f32, (M)>) {
        let i = program(tiles(M));
        let fixed = zeros(i);
        let mut l = 0.0;
        for j in tiles(N) {
            l = l + rowsum(load(x, [i, j]));
            fixed = fixed + 1.0;
            scale = 2.0;
            j = 0;
            nothing = 1.0;
        }
        store(y, [i], scale * l);
    }

    pub fn late(y: &mut Tensor<f32, (M)>) {
        let one = 1.0;
        let i = program(tiles(M));
        let k = program(M);
        store(y, [i], one);
    }
}

fn main() {}
