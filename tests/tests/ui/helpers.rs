//! Helper functions: errors stand in the helper and name the call; arguments, results and recursion are checked.
use flashtile::flash_kernel;

flash_kernel! {
    fn scaled(x: Tile, by: f32) -> Tile {
        x * by * D
    }

    fn both(x: Tile) -> (Tile, Tile) {
        (scaled(x, 2.0), x)
    }

    fn circle(x: Tile) -> Tile {
        circle(x)
    }

    fn stored(x: Tile, y: &mut Tensor) -> Tile {
        x
    }

    pub fn calls<T: Element, const D: usize>(x: &Tensor<T, (M, D)>, y: &mut Tensor<T, (M, D)>) {
        let i = program(tiles(M));
        let x_i = load(x, [i, ..]);
        let (a, b) = both(x_i);
        let c = scaled(x_i, x_i);
        let d = both(x_i);
        store(y, [i, ..], a + b + c + d + circle(x_i) + scaled(x_i));
    }
}

fn main() {}
