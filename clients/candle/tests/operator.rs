//! Operators of any kernel: inputs in order and by name, several outputs, sizes and types that
//! follow from inputs, and what is refused.

mod reference;

use candle_core::{D, DType, Device, IndexOp, Tensor, Var};
use flashtile::Elem;
use flashtile::launch::ArgumentError;
use flashtile_candle::{Error, Input, Operator};
use reference::{attention, difference, random};

/// A kernel of one's own: a mask of truth values, and a constant that no input determines.
const MASKED_SUM: &str = "flash_kernel! {
    pub fn masked_sum<T: Element, const W: usize>(
        x: &Tensor<T, (M, N)>, seen: &Tensor<bool, (M, N)>, bias: i32,
        total: &mut Tensor<f32, (M)>, scaled: &mut Tensor<T, (M, N)>,
    ) {
        let i = program(tiles(M));
        let mut sum = zeros(i);
        for j in tiles(N) {
            let x_ij = load(x, [i, j]);
            sum = sum + rowsum(select(load(seen, [i, j]), x_ij, 0.0));
            store(scaled, [i, j], (x_ij * W + bias).to::<T>());
        }
        store(total, [i], sum);
    }
}";

#[test]
fn a_kernel_text_with_several_outputs() -> Result<(), Box<dyn std::error::Error>> {
    let operator = Operator::from_text(MASKED_SUM)?.with_size("W", 3);
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let x = Tensor::arange(0u8, 12, &Device::Cpu)?.reshape((3, 4))?.to_dtype(dtype)?;
        let seen = Tensor::new(&[[1u8, 0, 0, 2], [0, 0, 0, 0], [1, 1, 1, 1]], &Device::Cpu)?;
        let outputs = operator.call(&[(&x).into(), (&seen).into(), 5.into()])?;
        assert_eq!(outputs.get("total")?.to_vec1::<f32>()?, [3.0, 0.0, 38.0]);
        let scaled = outputs.get("scaled")?;
        assert_eq!(scaled.dtype(), dtype);
        assert_eq!(difference(scaled, &x.to_dtype(DType::F32)?.affine(3.0, 5.0)?)?, 0.0);
        let named = operator.call_named(&[("bias", 5.into()), ("seen", (&seen).into()), ("x", (&x).into())])?;
        assert_eq!(difference(named.get("scaled")?, scaled)?, 0.0);
        assert!(matches!(outputs.get("sum"), Err(Error::Unknown { what: "output", .. })));
    }
    Ok(())
}

#[test]
fn attention_gives_its_lse() -> Result<(), Box<dyn std::error::Error>> {
    let operator = Operator::builtin("attention")?;
    let (q, k, v) =
        (random(&[2, 4, 5, 16], DType::F32)?, random(&[2, 2, 9, 16], DType::F32)?, random(&[2, 2, 9, 16], DType::F32)?);
    let outputs = operator.call(&[(&q).into(), (&k).into(), (&v).into(), 0.25.into()])?;
    assert!(difference(outputs.get("o")?, &attention(&q, &k, &v, |s| s * 0.25)?)? < 1e-5);
    let k = k.unsqueeze(2)?.broadcast_as((2, 2, 2, 9, 16))?.reshape((2, 4, 9, 16))?;
    let lse = (q.matmul(&k.t()?.contiguous()?)? * 0.25)?.log_sum_exp(D::Minus1)?;
    assert_eq!(outputs.get("lse")?.dims(), [2, 4, 5]);
    assert!(difference(outputs.get("lse")?, &lse)? < 1e-5);
    Ok(())
}

#[test]
fn elements_of_a_byte_are_read() -> Result<(), Box<dyn std::error::Error>> {
    const SCALED: &str = "flash_kernel! {
        pub fn scaled(x: &Tensor<f8e4m3, (N)>, by: &Tensor<u8, (N)>, y: &mut Tensor<f32, (N)>) {
            let i = program(tiles(N));
            store(y, [i], load(x, [i]) * load(by, [i]));
        }
    }";
    let x = Tensor::new(&[1.0f32, -0.5, 96.0], &Device::Cpu)?.to_dtype(DType::F8E4M3)?;
    let by = Tensor::new(&[3u8, 255, 2], &Device::Cpu)?;
    let y = Operator::from_text(SCALED)?.call(&[(&x).into(), (&by).into()])?.into_first();
    assert_eq!(y.to_vec1::<f32>()?, [3.0, -127.5, 192.0]);
    Ok(())
}

/// A type that no input determines.
#[test]
fn types_can_be_fixed() -> Result<(), Box<dyn std::error::Error>> {
    const ROUNDED: &str = "flash_kernel! {
        pub fn rounded<T: Element>(x: &Tensor<f32, (N)>, y: &mut Tensor<T, (N)>) {
            let i = program(tiles(N));
            store(y, [i], load(x, [i]).to::<T>());
        }
    }";
    let x = Tensor::new(&[1.0f32, 1.001, -3.0], &Device::Cpu)?;
    for (elem, dtype) in [(Elem::Bf16, DType::BF16), (Elem::F16, DType::F16), (Elem::F32, DType::F32)] {
        let y = Operator::from_text(ROUNDED)?.with_type("T", elem).call(&[(&x).into()])?.into_first();
        assert_eq!(y.dtype(), dtype);
        assert_eq!(difference(&y, &x.to_dtype(dtype)?)?, 0.0);
    }
    let error = Operator::from_text(ROUNDED)?.call(&[(&x).into()]).expect_err("T is open").to_string();
    assert_eq!(error, "kernel `rounded` has no value for T; `Kernel::bind` gives type parameters and constants theirs");
    Ok(())
}

#[test]
fn views_are_read_where_they_lie() -> Result<(), Box<dyn std::error::Error>> {
    let softmax = Operator::builtin("row_softmax")?;
    let x = random(&[6, 8, 20], DType::F32)?;
    let view = x.i((.., 3, 5..18))?;
    let found = softmax.call(&[(&view).into()])?.into_first();
    let expected = softmax.call(&[(&view.contiguous()?).into()])?.into_first();
    assert_eq!(difference(&found, &expected)?, 0.0);
    Ok(())
}

#[test]
fn outputs_lie_in_the_order_that_is_asked_for() -> Result<(), Box<dyn std::error::Error>> {
    let x = random(&[2, 3, 5, 16], DType::F32)?;
    let call = |operator: Operator| operator.call(&[(&x).into(), (&x).into(), (&x).into(), 1.0.into()]);
    let expected = call(Operator::builtin("attention")?)?;
    let found = call(Operator::builtin("attention")?.with_layout("o", [2, 0, 1, 3]).with_layout("lse", [1, 0, 2]))?;
    assert_eq!(found.get("o")?.dims(), [2, 3, 5, 16]);
    assert!(found.get("o")?.permute((2, 0, 1, 3))?.is_contiguous());
    for name in ["o", "lse"] {
        assert_eq!(difference(found.get(name)?, expected.get(name)?)?, 0.0);
    }
    for order in [&[0, 2, 1][..], &[0, 1, 3, 2], &[0, 1, 1, 3]] {
        let error = call(Operator::builtin("attention")?.with_layout("o", order)).expect_err("no order").to_string();
        assert!(error.starts_with("output `o` of kernel `attention` cannot lie in memory as "), "{error}");
    }
    Ok(())
}

#[test]
fn settings_of_what_the_kernel_has_not_are_refused() -> Result<(), Box<dyn std::error::Error>> {
    let x = random(&[2, 3, 5, 16], DType::F32)?;
    let refused = |operator: Operator| {
        operator.call(&[(&x).into(), (&x).into(), (&x).into(), 1.0.into()]).expect_err("a wrong name").to_string()
    };
    let attention = || Operator::builtin("attention");
    assert!(refused(attention()?.with_size("DD", 16)).contains("no further size `DD`; it has "));
    assert!(refused(attention()?.with_type("U", Elem::F16)).contains("no further type parameter `U`; it has T"));
    assert!(refused(attention()?.with_layout("oo", [0, 2, 1, 3])).contains("no further output `oo`; it has o, lse"));
    Ok(())
}

/// Tiles behind the length of a sequence are not read: what they hold changes nothing.
#[test]
fn padding_is_not_seen() -> Result<(), Box<dyn std::error::Error>> {
    let operator = Operator::from_text(include_str!("../examples/minilm/padded_attention.rs"))?;
    let lens = [150i64, 64, 3, 0];
    let shape = [lens.len(), 2, 150, 32];
    let (q, k, v) = (random(&shape, DType::F32)?, random(&shape, DType::F32)?, random(&shape, DType::F32)?);
    let padding: Vec<u8> = lens.iter().flat_map(|&len| (0..150).map(move |at| u8::from(at >= len))).collect();
    let padding = Tensor::from_vec(padding, (lens.len(), 1, 150, 1), &Device::Cpu)?.broadcast_as(&shape)?;
    let nan = Tensor::full(f32::NAN, &shape, &Device::Cpu)?;
    let spoiled = |x: &Tensor| padding.where_cond(&nan, x);
    let lens = Tensor::from_vec(lens.map(|len| len as i32).to_vec(), lens.len(), &Device::Cpu)?;
    let call = |k: &Tensor, v: &Tensor| {
        Ok::<_, Error>(operator.call(&[(&q).into(), k.into(), v.into(), (&lens).into(), 0.2.into()])?.into_first())
    };
    assert_eq!(difference(&call(&spoiled(&k)?, &spoiled(&v)?)?, &call(&k, &v)?)?, 0.0);
    let one = attention(&q.i(1..2)?, &k.i((1..2, .., ..64))?, &v.i((1..2, .., ..64))?, |s| s * 0.2)?;
    assert!(difference(&call(&k, &v)?.i(1..2)?, &one)? < 1e-5);
    Ok(())
}

/// The error of a call of causal attention.
fn refused(q: &Tensor, k: &Tensor, v: &Tensor) -> Error {
    let operator = Operator::builtin("causal_attention").expect("a built-in kernel");
    operator.call(&[q.into(), k.into(), v.into(), 1.0.into()]).expect_err("is refused")
}

fn argument(error: Error) -> ArgumentError {
    let Error::Flashtile(error) = error else { panic!("not of flashtile: {error:?}") };
    match *error {
        flashtile::Error::Argument(error) => error,
        other => panic!("not of an argument: {other:?}"),
    }
}

#[test]
fn inputs_that_do_not_fit_are_named() -> Result<(), Box<dyn std::error::Error>> {
    let x = random(&[1, 2, 8, 16], DType::F32)?;
    let error = refused(&x.to_dtype(DType::F64)?, &x, &x);
    assert!(matches!(&error, Error::DType { name, dtype: DType::F64 } if name == "q"), "{error}");
    let error = argument(refused(&x, &x.to_dtype(DType::BF16)?, &x));
    assert!(matches!(&error, ArgumentError::Element { name, .. } if name == "k"), "{error}");
    let error = argument(refused(&x, &x, &x.squeeze(0)?));
    assert!(matches!(&error, ArgumentError::Rank { name, expected: 4, .. } if name == "v"), "{error}");
    let error = argument(refused(&x, &x.t()?.contiguous()?.t()?, &x));
    assert!(matches!(&error, ArgumentError::NotContiguous { name, .. } if name == "k"), "{error}");
    assert!(error.to_string().contains("`.contiguous()?` in candle"), "{error}");
    let error = argument(refused(&x, &x.narrow(2, 0, 7)?, &x));
    assert!(matches!(&error, ArgumentError::Extent { name, dimension: 2, .. } if name == "v"), "{error}");
    Ok(())
}

#[test]
fn variables_are_inputs() -> Result<(), Box<dyn std::error::Error>> {
    let x = Var::from_tensor(&random(&[6, 20], DType::F32)?)?;
    let softmax = Operator::builtin("row_softmax")?;
    let found = softmax.call(&[(&x).into()])?.into_first();
    assert_eq!(difference(&found, &softmax.call(&[x.as_tensor().into()])?.into_first())?, 0.0);
    Ok(())
}

#[test]
fn calls_that_do_not_fit_say_what_to_do() -> Result<(), Box<dyn std::error::Error>> {
    let attention = Operator::builtin("attention")?;
    let x = random(&[1, 2, 8, 16], DType::F32)?;
    let error = attention.call(&[(&x).into()]).expect_err("too few").to_string();
    assert_eq!(error, "kernel `attention` takes 4 inputs (q, k, v, scale), but 1 were given");
    let input: Input<'_> = (&x).into();
    let error = attention.call_named(&[("q", input), ("key", input)]).expect_err("no `key`").to_string();
    assert_eq!(error, "kernel `attention` has no further input `key`; it has q, k, v, scale");
    let error = attention.call_named(&[("q", input), ("q", input)]).expect_err("twice").to_string();
    assert_eq!(error, "kernel `attention` has no further input `q`; it has q, k, v, scale");
    let error = attention.call_named(&[("q", input), ("k", input)]).expect_err("no `v`").to_string();
    assert_eq!(error, "kernel `attention` needs its input `v`");
    let error = attention.call(&[1.into(), 1.into(), 1.into(), 1.into()]).expect_err("no tensor").to_string();
    assert_eq!(error, "kernel `attention` was given no tensor, so that nothing says where it runs");
    let error = attention.call(&[input, input, 1.0.into(), 1.0.into()]).expect_err("a scalar for `v`");
    assert!(matches!(argument(error), ArgumentError::Kind { name, .. } if name == "v"));
    let error = Operator::from_text(MASKED_SUM)?.call(&[(&x.i((0, 0))?).into(), (&x.i((0, 0))?).into(), 1.into()]);
    let error = error.expect_err("W is open").to_string();
    assert_eq!(error, "kernel `masked_sum` has no value for W; `Kernel::bind` gives type parameters and constants theirs");
    let two = MASKED_SUM.to_owned() + &MASKED_SUM.replace("masked_sum", "other");
    let error = Operator::from_text(&two).expect_err("two kernels").to_string();
    let told = "the text holds several kernels (masked_sum, other); give one of `Kernel::from_source` to `Operator::new`";
    assert_eq!(error, told);
    Ok(())
}
