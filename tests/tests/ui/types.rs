use flashtile::flash_kernel;

flash_kernel! {
    pub fn shapes<T: Element, const D: usize>(
        q: &Tensor<T, (M, D)>,
        k: &Tensor<T, (N, D)>,
        v: &Tensor<f32, (N, D)>,
        o: &mut Tensor<T, (M, D)>,
    ) {
        let i = program(tiles(M));
        let q_i = load(q, [i, ..]);
        let mut acc = zeros((i, D));
        for j in tiles(N) {
            let s = dot(q_i, load(k, [j, ..]));
            let p = dot(q_i, load(v, [j, ..]).t());
            let r = dot(rowsum(q_i), q_i);
            let m = mask(q_i, pos(i) >= pos(j));
            let t = q_i + load(k, [j, ..]);
            let u = i + 1;
            let w = exp(pos(i) > 3) || q_i;
            let z = zeros((i, j, D));
        }
        store(o, [i, ..], acc);
    }
}

fn main() {}
