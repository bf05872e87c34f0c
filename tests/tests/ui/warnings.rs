//! What is no error: names without use, and what a kernel loses. Warnings, denied here so that they are seen.
#![deny(deprecated)]

use flashtile::flash_kernel;

flash_kernel! {
    fn seen(s: Tile, kept: Tile, unread: Tile) -> Tile {
        exp(mask(s, kept > 0))
    }

    fn uncalled(x: Tile) -> Tile {
        x
    }

    pub fn lost_sum<T: Element, const D: usize, const C: usize>(
        q: &Tensor<T, (M, D)>,
        k: &Tensor<T, (N, D)>,
        o: &mut Tensor<T, (M, D)>,
    ) {
        let i = program(tiles(M));
        let q_i = load(q, [i, ..]);
        let mut acc = zeros((i, D));
        let mut count = zeros(i);
        for j in tiles(N) {
            let k_j = load(k, [j, ..]);
            let p = exp(dot(q_i, k_j.t()));
            let acc = acc + dot(p.to::<T>(), k_j);
            count += rowsum(p);
        }
        store(o, [i, ..], acc);
    }

    pub fn lost_skips<T: Element, const D: usize>(
        q: &Tensor<T, (M, D)>,
        k: &Tensor<T, (N, D)>,
        o: &mut Tensor<T, (B, M, D)>,
    ) {
        let (b, i) = program(B, tiles(M));
        let mut acc = zeros((i, D));
        for j in tiles(N) {
            let k_j = load(k, [j, ..]);
            let p = seen(dot(load(q, [i, ..]), k_j.t()), pos(i) / (pos(j) + 1), 1.0);
            acc += dot(p.to::<T>(), k_j);
        }
        store(o, [b, i, ..], acc);
    }

    /// Silent.
    #[allow(deprecated)]
    pub fn known<T: Element>(x: &Tensor<T, (N)>, y: &mut Tensor<T, (N)>) {
        let i = program(tiles(N));
        let unread = load(x, [i]);
        store(y, [i], load(x, [i]));
    }

    pub fn meant<T: Element>(x: &Tensor<T, (N)>, y: &mut Tensor<T, (N)>) {
        let i = program(tiles(N));
        let _unread = load(x, [i]);
        store(y, [i], load(x, [i]));
    }
}

fn main() {}
