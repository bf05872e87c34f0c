//! Handles of several kernels, generic and not, used and inspected.

use flashtile::{Device, Result, Stream, Tensor, Workspace, flash_kernel};

mod kernels {
    use flashtile::flash_kernel;

    flash_kernel! {
        /// Doubles every element.
        ///
        /// Twice.
        pub fn double<T: Element>(x: &Tensor<T, (N)>, y: &mut Tensor<T, (N)>) {
            let i = program(tiles(N));
            store(y, [i], 2.0 * load(x, [i])); // a comment
        }

        /// Rows of a table.
        pub(crate) fn gather<const D: usize>(
            table: &Tensor<f16, (R, D)>, rows: &Tensor<i32, (N)>, shift: f32, skip: i32, r#type: &mut Tensor<f32, (N, D)>,
        ) {
            let n = program(N);
            let row = load(rows, [n]);
            store(r#type, [n, ..], load(table, [row, ..]) + shift + skip);
        }
    }
}

flash_kernel! {
    /// The sum of the squares of each row.
    #[grad(x)]
    fn squares<T: Element>(x: &Tensor<T, (M, N)>, scale: f32, y: &mut Tensor<T, (M)>) {
        let i = program(tiles(M));
        let mut sum = zeros(i);
        for j in tiles(N) {
            let x_ij = load(x, [i, j]);
            sum += rowsum(x_ij * x_ij * scale);
        }
        store(y, [i], sum);
    }

    fn private(y: &mut Tensor<f32, (N)>) {
        let i = program(tiles(N));
        store(y, [i], 1);
    }
}

#[allow(dead_code)]
fn run(device: &Device, x: &Tensor<f32>, y: &mut Tensor<f32>) -> Result<()> {
    kernels::double::<f32>::on(device)?.launch(x, y)?;
    private::on(device)?.launch(y)?;
    let (mut workspace, mut grad_x) = (Workspace::new(), Tensor::<f32>::zeros(device, &[3, 4])?);
    let squares = squares::<f32>::on(device)?;
    squares.forward(x, 0.5, y)?;
    squares.backward(&mut workspace, x, 0.5, x, &mut grad_x)?;
    squares.backward_on(&Stream::new(device)?, &mut workspace, x, 0.5, x, &mut grad_x)?;
    assert_eq!((squares.gradient().kernels().count(), squares.forward_handle().kernel().ir().params.len()), (1, 3));
    let table = Tensor::<flashtile::f16>::zeros(device, &[8, 4])?;
    let rows = Tensor::<i32>::zeros(device, &[2])?;
    let kernel = kernels::gather::<4>::on_with(device, Default::default())?;
    kernel.launch(&table, &rows, 0.5, 1, y)
}

fn main() {
    let source = kernels::gather::<4>::source();
    assert_eq!(source.name, "gather");
    assert_eq!(source.line, 9);
    assert!(source.file.ends_with("sound.rs"));
    assert!(source.text.lines().nth(12).unwrap().contains("let n = program(N);"));
    source.kernel().expect("the macro has checked it");
    kernels::double::<f32>::source().kernel().expect("the macro has checked it");
}
