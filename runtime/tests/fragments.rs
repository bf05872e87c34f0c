//! Kernels that other macros write, comments between tokens, raw names, and a crate without the
//! prelude.

use flashtile::{Device, Result, Tensor, flash_kernel};

macro_rules! changed {
    ($name:ident, $of:ident, $t:ty, $by:expr, $rows:expr, $step:stmt) => {
        flash_kernel! {
            /// What the macro is given.
            pub fn $name(x: &Tensor<$t, ($rows)>, y: &mut Tensor<$t, ($rows)>) {
                let i = program(tiles($rows));
                let mut $of = load(x, [i]) * $by;
                $step;
                store(y, [i], $of);
            }
        }
    };
}

changed!(minus, t, f32, 3.0 - 1.0, N, t = t + 1.0);
changed!(negative, t, f32, -2.0, 2 * N, t = -t);
changed!(counted, t, f32, 1.0, N, t += 2.0 - 1.0);

macro_rules! row {
    ($name:ident, $columns:expr) => {
        flash_kernel! {
            /// The sums of rows.
            pub fn $name(x: &Tensor<f32, (M, 2)>, y: &mut Tensor<f32, (M)>) {
                let i = program(tiles(M));
                store(y, [i], rowsum(load(x, [i, $columns])));
            }
        }
    };
}

row!(sums, ..);

flash_kernel! {
    /** Comments of one line, and of
        several. */
    pub fn commented(/** What is read. */ x: &Tensor<f32, (N)>, y: &mut Tensor<f32, (N)>) {
        let i = program(tiles(N));
        let t = load(x, [i]);
        /** Three times. */ let t = t * 3.0;
        /// Once more: `*/` ends nothing here.
        let t = t + 1.0;
        store(y, [i], t);
    }

    /// Adds one.
    pub fn r#match(r#type: &Tensor<f32, (N)>, r#fn: &mut Tensor<f32, (N)>) {
        let r#in = program(tiles(N));
        store(r#fn, [r#in], load(r#type, [r#in]) + 1.0);
    }
}

#[no_implicit_prelude]
mod bare {
    ::flashtile::flash_kernel! {
        /// Twice.
        #[grad(x)]
        pub fn doubled<T: Element>(x: &Tensor<T, (N)>, y: &mut Tensor<T, (N)>) {
            let i = program(tiles(N));
            store(y, [i], load(x, [i]) * 2.0);
        }
    }
}

fn of(values: &[f32], launch: impl FnOnce(&Device, &Tensor<f32>, &mut Tensor<f32>) -> Result<()>) -> Result<Vec<f32>> {
    let device = Device::cpu();
    let x = Tensor::from_f32(&device, &[values.len()], values)?;
    let mut y = Tensor::zeros(&device, &[values.len()])?;
    launch(&device, &x, &mut y)?;
    y.to_vec()
}

#[test]
fn fragments_of_macros_hold_together() -> Result<()> {
    assert_eq!(of(&[1.0, 2.0], |device, x, y| minus::on(device)?.launch(x, y))?, [3.0, 5.0]);
    assert_eq!(of(&[1.0, 2.0], |device, x, y| negative::on(device)?.launch(x, y))?, [2.0, 4.0]);
    assert_eq!(of(&[1.0, 2.0], |device, x, y| counted::on(device)?.launch(x, y))?, [2.0, 3.0]);
    let device = Device::cpu();
    let x = Tensor::from_f32(&device, &[2, 2], &[1.0, 2.0, 3.0, 4.0])?;
    let mut y = Tensor::zeros(&device, &[2])?;
    sums::on(&device)?.launch(&x, &mut y)?;
    assert_eq!(y.to_vec()?, [3.0, 7.0]);
    Ok(())
}

#[test]
fn comments_end_where_they_end() -> Result<()> {
    assert_eq!(of(&[1.0, 2.0], |device, x, y| commented::on(device)?.launch(x, y))?, [4.0, 7.0]);
    Ok(())
}

#[test]
fn names_may_be_words_of_rust() -> Result<()> {
    assert_eq!(of(&[1.0, 2.0], |device, x, y| r#match::on(device)?.launch(x, y))?, [2.0, 3.0]);
    Ok(())
}

#[test]
fn a_crate_may_lack_the_prelude() -> Result<()> {
    assert_eq!(of(&[1.0, 2.0], |device, x, y| bare::doubled::<f32>::on(device)?.launch(x, y))?, [2.0, 4.0]);
    Ok(())
}
