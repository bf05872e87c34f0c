use flashtile::flash_kernel;

flash_kernel! {
    pub fn rust(x: &Tensor<f32, (M)>, scale: f32, y: &mut Tensor<f32, (M)>) {
        let i = program(tiles(M));
        let x_i = load(x, [i]);
        while scale > 0.0 {}
        let a = if scale > 0.0 { 1.0 } else { 2.0 };
        let f = |v| v * 2.0;
        let b = scale as f64;
        let c = x[0];
        let d: f32 = 1.0;
        #[cfg(any())]
        let e = 2.0;
        for j in x_i {}
        println!("{}", scale);
        store(y, [i], x_i);
    }

    pub fn configured(#[cfg(all())] x: &Tensor<f32, (M)>, y: &mut Tensor<f32, (M)>) {
        let i = program(tiles(M));
        store(y, [i], lod(x, [i]));
    }

    pub fn broken(y: &mut Tensor<f32, (M)>) {
        let i = program(tiles(M))
        store(y, [i], 1.0);
    }
}

fn main() {}
