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
        "argument `o` is written by the kernel and shares its memory with argument `q`; give them memory of their own"
    );
}
