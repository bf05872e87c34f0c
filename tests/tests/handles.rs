//! Handles of several kernels, generic and not, used and inspected.

use flashtile::{Device, LaunchOptions, Result, Stream, Tensor, Workspace, f16, flash_kernel};

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

#[test]
fn handles_launch_what_their_text_says() -> Result<()> {
    let device = &Device::cpu();
    let x = Tensor::<f32>::from_slice(device, &[3], &[1.0, 2.0, 3.0])?;
    let mut y = Tensor::<f32>::zeros(device, &[3])?;
    kernels::double::<f32>::on(device)?.launch(&x, &mut y)?;
    assert_eq!(y.to_vec()?, [2.0, 4.0, 6.0]);
    private::on(device)?.launch(&mut y)?;
    assert_eq!(y.to_vec()?, [1.0; 3]);

    let table: Vec<f16> = (0..32u8).map(|x| f16::from_f32(x.into())).collect();
    let table = Tensor::from_slice(device, &[8, 4], &table)?;
    let rows = Tensor::<i32>::from_slice(device, &[2], &[7, 1])?;
    let mut gathered = Tensor::<f32>::zeros(device, &[2, 4])?;
    let kernel = kernels::gather::<4>::on_with(device, LaunchOptions::default())?;
    kernel.launch(&table, &rows, 0.5, 1, &mut gathered)?;
    assert_eq!(gathered.to_vec()?, [29.5, 30.5, 31.5, 32.5, 5.5, 6.5, 7.5, 8.5]);
    Ok(())
}

#[test]
fn a_handle_with_a_gradient_goes_forward_and_back() -> Result<()> {
    let device = &Device::cpu();
    let x = Tensor::<f32>::from_slice(device, &[2, 2], &[1.0, 2.0, 3.0, 4.0])?;
    let grad_y = Tensor::<f32>::from_slice(device, &[2], &[1.0, 10.0])?;
    let (mut y, mut grad_x) = (Tensor::<f32>::zeros(device, &[2])?, Tensor::<f32>::zeros(device, &[2, 2])?);
    let mut workspace = Workspace::new();
    let squares = squares::<f32>::on(device)?;
    squares.forward(&x, 0.5, &mut y)?;
    assert_eq!(y.to_vec()?, [2.5, 12.5]);
    squares.backward(&mut workspace, &x, 0.5, &grad_y, &mut grad_x)?;
    assert_eq!(grad_x.to_vec()?, [1.0, 2.0, 30.0, 40.0]);
    squares.backward_on(&Stream::new(device)?, &mut workspace, &x, 0.5, &grad_y, &mut grad_x)?;
    assert_eq!((squares.gradient().kernels().count(), squares.forward_handle().kernel().ir().params.len()), (1, 3));
    Ok(())
}

#[test]
fn a_handle_knows_its_text_and_where_it_stands() {
    let source = kernels::gather::<4>::source();
    assert_eq!((source.name, source.line), ("gather", 9));
    assert!(source.file.ends_with("handles.rs"));
    assert!(source.text.lines().nth(12).expect("a line of the body").contains("let n = program(N);"));
    source.kernel().expect("the macro has checked it");
    kernels::double::<f32>::source().kernel().expect("the macro has checked it");
}
