use flashtile::{Device, Result, Tensor, flash_kernel};

flash_kernel! {
    #[grad(q, key, lens, q)]
    pub fn names<T: Element>(q: &Tensor<T, (M, N)>, keys: &Tensor<T, (N)>, lens: &Tensor<i32, (M)>, o: &mut Tensor<T, (M)>) {
        let i = program(tiles(M));
        let mut a = zeros(i);
        for j in tiles(N) {
            a += rowsum(load(q, [i, j]) * select(pos(j) < load(lens, [i]), load(keys, [j]), 0.0));
        }
        store(o, [i], a);
    }

    #[grad(x, from(x, out))]
    pub fn outputs<T: Element>(x: &Tensor<T, (M)>, o: &mut Tensor<T, (M)>) {
        let i = program(tiles(M));
        store(o, [i], load(x, [i]));
    }

    #[grad(x)]
    pub fn no_output(x: &Tensor<f32, (M)>, o: &mut Tensor<f32, (M)>) {
        let i = program(tiles(M));
        store(o, [i], load(x, [i]));
    }

    #[grad]
    pub fn nothing(x: &Tensor<f32, (M)>, o: &mut Tensor<f32, (M)>) {
        let i = program(tiles(M));
        store(o, [i], load(x, [i]));
    }

    #[grad(x, of(o))]
    pub fn other_list(x: &Tensor<f32, (M)>, o: &mut Tensor<f32, (M)>) {
        let i = program(tiles(M));
        store(o, [i], load(x, [i]));
    }

    #[grad(x, from(o), form(quick))]
    pub fn other_form(x: &Tensor<f32, (M)>, o: &mut Tensor<f32, (M)>) {
        let i = program(tiles(M));
        store(o, [i], load(x, [i]));
    }

    #[grad(x, from(o))]
    #[grad(x, from(o))]
    pub fn twice(x: &Tensor<f32, (M)>, o: &mut Tensor<f32, (M)>) {
        let i = program(tiles(M));
        store(o, [i], load(x, [i]));
    }
}

flash_kernel! {
    #[grad(x, from(o), form(fused))]
    pub fn no_such_form(x: &Tensor<f32, (M)>, o: &mut Tensor<f32, (M)>) {
        let i = program(tiles(M));
        store(o, [i], load(x, [i]));
    }
}

flash_kernel! {
    #[grad(q, k)]
    pub fn top<T: Element, const D: usize>(q: &Tensor<T, (M, D)>, k: &Tensor<T, (N, D)>, o: &mut Tensor<T, (M)>) {
        let i = program(tiles(M));
        let mut m = full(i, -INF);
        for j in tiles(N) {
            m = max(m, rowmax(dot(load(q, [i, ..]), load(k, [j, ..]).t())));
        }
        store(o, [i], m * 2.0);
    }
}

flash_kernel! {
    #[grad(q)]
    pub fn weighted<T: Element>(q: &Tensor<T, (M, N)>, k: &Tensor<T, (N)>, o: &mut Tensor<T, (M)>) {
        let i = program(tiles(M));
        let mut a = zeros(i);
        for j in tiles(N) {
            a += rowsum(load(q, [i, j]) * load(k, [j]));
        }
        store(o, [i], a);
    }
}

fn read_only(device: &Device, k: &Tensor<f32>, grad_o: &Tensor<f32>, grad_q: &Tensor<f32>) -> Result<()> {
    let mut workspace = flashtile::Workspace::new();
    weighted::<f32>::on(device)?.backward(&mut workspace, k, grad_o, grad_q)
}

fn main() {}
