//! Errors of a launch's arguments: each names the argument and both values. A contract, so the texts are tested.

use flashtile::{Argument, Device, Elem, Kernel, LoadedKernel, Tensor, f16};

fn attention(device: &Device) -> LoadedKernel {
    Kernel::builtin("attention").expect("a built-in").bind(Elem::F16, [("D", 8)]).expect("binds").on(device).expect("loads")
}

fn zeros(device: &Device, shape: &[usize]) -> Tensor<f16> {
    Tensor::zeros(device, shape).expect("fits")
}

#[test]
fn every_mistake_names_the_argument() {
    let device = Device::cpu();
    let kernel = attention(&device);
    let (q, k, v) = (zeros(&device, &[2, 4, 5, 8]), zeros(&device, &[2, 2, 7, 8]), zeros(&device, &[2, 2, 7, 8]));
    let lse = Tensor::<f32>::zeros(&device, &[2, 4, 5]).expect("fits");
    let (long, flat, wide) = (zeros(&device, &[2, 2, 9, 8]), zeros(&device, &[2, 7, 8]), zeros(&device, &[2, 4, 5, 16]));
    let singles = Tensor::<f32>::zeros(&device, &[2, 2, 7, 8]).expect("fits");
    let (o, shared) = (zeros(&device, &[2, 4, 5, 8]), q.clone());
    let good: Vec<Argument<'_>> =
        vec![(&q).into(), (&k).into(), (&v).into(), 0.5.into(), Argument::Output(o.as_any()), Argument::Output(lse.as_any())];
    kernel.launch(&good).expect("fits");
    let error = |position: usize, argument: Argument<'_>| {
        let mut arguments: Vec<Argument<'_>> = good.clone();
        arguments[position] = argument;
        kernel.launch(&arguments).expect_err("does not fit").to_string()
    };
    assert_eq!(
        kernel.launch(&good[..5]).expect_err("too few").to_string(),
        "kernel `attention` takes 6 arguments (q, k, v, scale, o, lse), but 5 were given"
    );
    assert_eq!(error(2, (&long).into()), "argument `v`: dimension 2 must be N = 7 (from dimension 2 of `k`), but is 9");
    assert_eq!(error(0, (&wide).into()), "argument `q`: dimension 3 must be D = 8 (constant `D`), but is 16");
    assert_eq!(error(1, (&flat).into()), "argument `k` must have 4 dimensions (B, G, N, D), but has shape [2, 7, 8]");
    assert_eq!(error(1, (&singles).into()), "argument `k` must hold f16, but holds f32");
    assert_eq!(error(3, 1.into()), "argument `scale` must be a scalar of type f32, but is the i32 1");
    assert_eq!(error(3, (&q).into()), "argument `scale` must be a scalar of type f32, but is a tensor of f16 [2, 4, 5, 8]");
    assert_eq!(error(4, (&o).into()), "argument `o` is written by the kernel; give it as `&mut`");
    assert_eq!(
        error(4, Argument::Output(shared.as_any())),
        "argument `o` is written by the kernel and shares memory with argument `q`; give them memory of their own"
    );
}

/// Dimensions that are numbers or sums of sizes are checked as names are, and give the sizes that
/// stand nowhere alone.
#[test]
fn numbers_and_sums_of_sizes_are_dimensions() {
    let text = "pub fn f<const D: usize>(
        x: &Tensor<f32, (2 * N, 4)>, w: &Tensor<f32, (D + 1)>, ends: &Tensor<i32, (B + 1)>, y: &mut Tensor<f32, (N, B)>,
    ) {
        let (b, i) = program(B, tiles(N));
        let total = rowsum(full((i, D + 1), 1.0) * load(w, [..]));
        store(y, [i, b], total + load(x, [2 * N - 1, 3]) + load(ends, [b + 1]));
    }";
    let source = flashtile::SourceText { name: "f.rs".into(), text: text.into(), first_line: 1 };
    let device = Device::cpu();
    let kernel = Kernel::from_source(&source).expect("sound").remove(0);
    let kernel = kernel.bind(Elem::F32, [("D", 3)]).expect("binds").on(&device).expect("loads");
    let ones = |shape: &[usize]| Tensor::from_f32(&device, shape, &vec![1.0f32; shape.iter().product()]).expect("fits");
    let ends = |n: usize| Tensor::from_slice(&device, &[n], &(0..n as i32).collect::<Vec<_>>()).expect("fits");
    let launch = |x: &[usize], w: &[usize], b: usize, y: &[usize]| {
        let (x, w, ends, mut y) = (ones(x), ones(w), ends(b), ones(y));
        kernel.launch(&[(&x).into(), (&w).into(), (&ends).into(), (&mut y).into()]).map_err(|e| e.to_string())?;
        Ok(y.to_vec().expect("readable"))
    };
    let refused = |message: &str| Err(message.to_owned());
    assert_eq!(launch(&[10, 4], &[4], 3, &[5, 2]), Ok([6.0, 7.0].repeat(5)));
    assert_eq!(launch(&[10, 5], &[4], 3, &[5, 2]), refused("argument `x`: dimension 1 must be 4, but is 5"));
    let sum = "argument `x`: dimension 0 must be 2 * N = 10 (from dimension 0 of `y`), but is 9";
    assert_eq!(launch(&[9, 4], &[4], 3, &[5, 2]), refused(sum));
    let constant = "argument `w`: dimension 0 must be D + 1 = 4 (constant `D`), but is 3";
    assert_eq!(launch(&[10, 4], &[3], 3, &[5, 2]), refused(constant));
    let alone = "argument `ends`: dimension 0 must be B + 1 = 3 (from dimension 1 of `y`), but is 4";
    assert_eq!(launch(&[10, 4], &[4], 4, &[5, 2]), refused(alone));
}

/// Half of what an output lies in is an input, in every way to overlap without a common start.
#[test]
fn outputs_that_share_memory_are_refused() {
    let device = Device::cpu();
    let kernel = attention(&device);
    let (k, v) = (zeros(&device, &[2, 2, 7, 8]), zeros(&device, &[2, 2, 7, 8]));
    let lse = Tensor::<f32>::zeros(&device, &[2, 4, 5]).expect("fits");
    let both = zeros(&device, &[1000]);
    let view = |strides: &[usize], offset: usize| both.view(&[2, 4, 5, 8], strides, offset).expect("is in the tensor");
    let launch = |q: &Tensor<f16>, o: &Tensor<f16>| {
        let (o, lse) = (Argument::Output(o.as_any()), Argument::Output(lse.as_any()));
        kernel.launch(&[q.into(), (&k).into(), (&v).into(), 0.5.into(), o, lse]).map_err(|error| error.to_string())
    };
    let packed = [160, 40, 8, 1];
    let shares = "argument `o` is written by the kernel and shares memory with argument `q`; give them memory of their own";
    assert_eq!(launch(&view(&packed, 0), &view(&packed, 8)), Err(shares.into()));
    assert_eq!(launch(&view(&packed, 319), &view(&packed, 0)), Err(shares.into()));
    launch(&view(&packed, 0), &view(&packed, 320)).expect("one after the other");
    // Queries and outputs side by side in each row.
    let rows = [320, 80, 16, 1];
    launch(&view(&rows, 0), &view(&rows, 8)).expect("no element in common");
    assert_eq!(launch(&view(&rows, 0), &view(&rows, 7)), Err(shares.into()));
    let itself = launch(&zeros(&device, &[2, 4, 5, 8]), &view(&[0, 40, 8, 1], 0)).expect_err("stride 0");
    assert!(itself.starts_with("argument `o` is written by the kernel, but elements of it share their memory: shape [2, 4, 5, 8], strides [0, 40, 8, 1];"), "{itself}");
    assert!(launch(&zeros(&device, &[2, 4, 5, 8]), &view(&[160, 40, 4, 1], 0)).is_err(), "interleaved rows");
    launch(&view(&[0, 40, 8, 1], 0), &zeros(&device, &[2, 4, 5, 8])).expect("an input may repeat its elements");
}

/// The same on every device, before anything is compiled.
#[test]
fn what_a_kernel_computes_from_sizes_and_scalars_is_checked_at_the_call() {
    for device in [Device::cpu(), Device::emulator()] {
        let kernel = attention(&device);
        let (q, none) = (zeros(&device, &[2, 4, 5, 8]), zeros(&device, &[2, 0, 7, 8]));
        let (o, lse) = (zeros(&device, &[2, 4, 5, 8]), Tensor::<f32>::zeros(&device, &[2, 4, 5]).expect("fits"));
        let (o, lse) = (Argument::Output(o.as_any()), Argument::Output(lse.as_any()));
        let error = kernel.launch(&[(&q).into(), (&none).into(), (&none).into(), 0.5.into(), o, lse]).expect_err("no keys");
        let error = error.to_string();
        assert!(
            error.starts_with("argument `k`: dimension 1 has extent 0, but the kernel addresses 0 (`h * G / H` in line "),
            "{error}"
        );
        assert!(error.ends_with("; sizes are D = 8, B = 2, H = 4, M = 5, G = 0, N = 7"), "{error}");
        let text = "pub fn f(x: &Tensor<f32, (N)>, w: i32, o: &mut Tensor<f32, (N)>) {
            let n = program(N);
            store(o, [n], load(x, [n / w]));
        }";
        let source = flashtile::SourceText { name: "divide.rs".into(), text: text.into(), first_line: 1 };
        let kernel = Kernel::from_source(&source).expect("well formed").remove(0);
        let kernel = kernel.bind(Elem::F32, Vec::<(String, i64)>::new()).expect("binds").on(&device).expect("loads");
        let (x, o) = (Tensor::<f32>::zeros(&device, &[4]).expect("fits"), Tensor::<f32>::zeros(&device, &[4]).expect("fits"));
        let launch =
            |w: i32| kernel.launch(&[(&x).into(), w.into(), Argument::Output(o.as_any())]).expect_err("wrong").to_string();
        assert_eq!(launch(0), "kernel `f` divides by `w` in line 3, which is 0; sizes are N = 4, w = 0");
        assert_eq!(
            launch(-1),
            "argument `x`: dimension 0 has extent 4, but the kernel addresses -3 (`n / w` in line 3); sizes are N = 4, w = -1"
        );
    }
}
