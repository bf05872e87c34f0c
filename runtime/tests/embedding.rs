//! flashtile inside a program that has memory and streams of its own, on devices without a GPU. `docs/embedding.md` is the page.

use flashtile::device::DeviceError;
use flashtile::launch::ArgumentError;
use flashtile::{Argument, ArgumentForm, ArgumentValue, Device, Elem, Error, Kernel, LoadedKernel, Stream, Tensor, f16, lend};

/// Batches, heads, rows, keys, head dim.
const SIZES: [usize; 5] = [2, 3, 20, 33, 16];

fn attention(device: &Device, elem: Elem) -> LoadedKernel {
    Kernel::builtin("attention").expect("a built-in").bind(elem, [("D", 16)]).expect("binds").on(device).expect("loads")
}

/// Values that differ from place to place.
fn values(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7919 + seed * 104_729) % 1009) as f32 / 504.5 - 1.0).collect()
}

/// The output and the LSE of packed tensors.
fn packed(q: &[f32], k: &[f32], v: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let [b, h, m, n, d] = SIZES;
    let device = Device::cpu();
    let tensor = |shape: &[usize], values: &[f32]| Tensor::from_slice(&device, shape, values).expect("fits");
    let (q, k, v) = (tensor(&[b, h, m, d], q), tensor(&[b, h, n, d], k), tensor(&[b, h, n, d], v));
    let mut o = Tensor::<f32>::zeros(&device, &[b, h, m, d]).expect("fits");
    let mut lse = Tensor::<f32>::zeros(&device, &[b, h, m]).expect("fits");
    let kernel = attention(&device, Elem::F32);
    let arguments = [(&q).into(), (&k).into(), (&v).into(), 0.25.into(), (&mut o).into(), (&mut lse).into()];
    kernel.launch(&arguments).expect("launches");
    (o.to_vec().expect("reads"), lse.to_vec().expect("reads"))
}

fn problem() -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    let [b, h, m, n, d] = SIZES;
    (values(b * h * m * d, 1), values(b * h * n * d, 2), values(b * h * n * d, 3))
}

#[test]
fn a_kernel_runs_on_slices_that_are_lent() {
    let [b, h, m, n, d] = SIZES;
    let (q, k, v) = problem();
    let kernel = attention(&Device::cpu(), Elem::F32);
    let (mut o, mut lse) = (vec![0.0; b * h * m * d], vec![0.0; b * h * m]);
    lend(|loans| {
        let (q, k) = (loans.read(&q, &[b, h, m, d])?, loans.read(&k, &[b, h, n, d])?);
        let v = loans.read(&v, &[b, h, n, d])?;
        let (mut o, mut lse) = (loans.write(&mut o, &[b, h, m, d])?, loans.write(&mut lse, &[b, h, m])?);
        kernel.launch(&[(&q).into(), (&k).into(), (&v).into(), 0.25.into(), (&mut o).into(), (&mut lse).into()])
    })
    .expect("launches");
    assert_eq!((o, lse), packed(&q, &k, &v));
}

#[test]
fn a_prepared_launch_takes_addresses_and_checks_what_depends_on_them() {
    let [b, h, m, n, d] = SIZES;
    let (q, k, v) = problem();
    let expected = packed(&q, &k, &v);
    let device = Device::cpu();
    let kernel = attention(&device, Elem::F32);
    let (rows, keys, sums) = ([b, h, m, d], [b, h, n, d], [b, h, m]);
    let (of_rows, of_keys) = ([h * m * d, m * d, d, 1], [h * n * d, n * d, d, 1]);
    let of_sums = [h * m, m, 1];
    let form = |shape, strides| ArgumentForm::Tensor { elem: Elem::F32, shape, strides };
    let forms = [
        form(&rows, &of_rows),
        form(&keys, &of_keys),
        form(&keys, &of_keys),
        ArgumentForm::F32,
        form(&rows, &of_rows),
        form(&sums, &of_sums),
    ];
    let prepared = kernel.prepare(&forms).expect("fits");
    let (mut o, mut lse) = (vec![0.0f32; q.len()], vec![0.0f32; b * h * m]);
    let at = |pointer: *const f32| ArgumentValue::Address(pointer.expose_provenance() as u64);
    let values =
        [at(q.as_ptr()), at(k.as_ptr()), at(v.as_ptr()), ArgumentValue::F32(0.25), at(o.as_mut_ptr()), at(lse.as_mut_ptr())];
    let stream = Stream::new(&device).expect("a stream");
    for _ in 0..2 {
        // SAFETY: the vectors are of these shapes, and nothing else uses them before the launch has
        // ended, when it returns.
        unsafe { prepared.launch_on(&stream, &values) }.expect("launches");
        assert_eq!((&o, &lse), (&expected.0, &expected.1));
        o.fill(f32::NAN);
    }
    let error = |position: usize, value: ArgumentValue| {
        let mut values = values;
        values[position] = value;
        // SAFETY: what does not fit is refused before anything is read or written.
        unsafe { prepared.launch_on(&stream, &values) }.expect_err("does not fit").to_string()
    };
    assert!(error(4, values[0]).starts_with("argument `o` is written by the kernel and shares memory with argument `q`"));
    let inside = error(5, at(o.as_ptr().wrapping_add(m)));
    assert!(inside.starts_with("argument `o` is written by the kernel and shares memory with argument `lse`"), "{inside}");
    assert!(error(1, at(k.as_ptr().wrapping_byte_add(2))).starts_with("argument `k`"));
    assert!(error(3, ArgumentValue::I32(1)).contains("argument `scale` must be an f32"));
    // SAFETY: as above.
    let few = unsafe { prepared.launch_on(&stream, &values[..5]) }.expect_err("too few").to_string();
    assert!(few.contains("takes 6 arguments"), "{few}");
    let (gaps, repeated) = ([h * n * d, n * d, d, 2], [h * m * d, m * d, 0, 1]);
    let refused = |position: usize, other| {
        let mut forms = forms;
        forms[position] = other;
        kernel.prepare(&forms).expect_err("does not fit").to_string()
    };
    assert!(refused(1, form(&keys, &gaps)).contains("argument `k`"), "rows with gaps");
    assert!(refused(4, form(&rows, &repeated)).contains("argument `o`"), "an output that overlaps itself");
    assert!(refused(2, form(&rows, &of_rows)).contains("argument `v`: dimension 2 must be N"), "another extent");
    assert!(refused(3, ArgumentForm::I32).contains("argument `scale` must be a scalar of type f32, but is an i32"));
}

#[test]
fn a_kernel_runs_on_raw_parts_with_strides() {
    let [b, h, m, n, d] = SIZES;
    let (q, k, v) = problem();
    let (expected, _) = packed(&q, &k, &v);
    let device = Device::cpu();
    // Keys and values lie side by side: (B, H, N, 2, D). The output is (B, M, H, D), as models have it.
    let mut pairs: Vec<f32> = k.chunks(d).zip(v.chunks(d)).flat_map(|(k, v)| [k, v].concat()).collect();
    let (mut q, mut o, mut lse) = (q, vec![f32::NAN; b * m * h * d], vec![0.0f32; b * h * m]);
    {
        let strides = [h * n * 2 * d, n * 2 * d, 2 * d, 1];
        let raw = |pointer: *mut f32, shape: &[usize], strides: &[usize]| {
            // SAFETY: the vectors live longer than the tensors, and nothing else uses them meanwhile; k and v are only read.
            unsafe { Tensor::from_raw_parts(&device, pointer, shape, strides) }.expect("fits")
        };
        let packed = |shape: &[usize]| Tensor::<f32>::packed_strides(shape).expect("small");
        let q = raw(q.as_mut_ptr(), &[b, h, m, d], &packed(&[b, h, m, d]));
        let keys = pairs.as_mut_ptr();
        let (k, v) = (raw(keys, &[b, h, n, d], &strides), raw(keys.wrapping_add(d), &[b, h, n, d], &strides));
        let mut o = raw(o.as_mut_ptr(), &[b, h, m, d], &[m * h * d, d, h * d, 1]);
        let mut lse = raw(lse.as_mut_ptr(), &[b, h, m], &packed(&[b, h, m]));
        let stream = Stream::new(&device).expect("a stream");
        let kernel = attention(&device, Elem::F32);
        let arguments = [(&q).into(), (&k).into(), (&v).into(), 0.25.into(), (&mut o).into(), (&mut lse).into()];
        kernel.launch_on(&stream, &arguments).expect("launches");
        stream.synchronize().expect("ends");
    }
    let at = |b: usize, h: usize, m: usize| ((b * SIZES[2] + m) * SIZES[1] + h) * d;
    let found: Vec<f32> = (0..b)
        .flat_map(|b| (0..h).flat_map(move |h| (0..m).map(move |m| (b, h, m))))
        .flat_map(|(b, h, m)| o[at(b, h, m)..][..d].to_vec())
        .collect();
    assert_eq!(found, expected);
}

/// One code path for every device: views of packed memory in, a stream, a view out.
fn through_views(device: &Device) -> Vec<f32> {
    let [b, h, m, n, d] = SIZES;
    // (B, N, 3, H, D), as one projection writes it; heads and rows trade places.
    let qkv = Tensor::<f16>::from_f32(device, &[b, n, 3 * h * d], &values(b * n * 3 * h * d, 4)).expect("fits");
    let qkv = qkv.reshape(&[b, n, 3, h, d]).expect("a view");
    let part = |part: usize| qkv.select(2, part)?.transpose(1, 2);
    let (q, k) = (part(0).expect("a view"), part(1).expect("a view"));
    let q = q.slice(2, 0..m).expect("a view");
    // One batch of values serves both.
    let v = part(2).and_then(|v| v.slice(0, 1..2)).and_then(|v| v.broadcast(&[b, h, n, d])).expect("a view");
    assert_eq!((v.strides()[0], v.as_any().overlaps_itself()), (0, true));
    let mut o = Tensor::<f16>::zeros(device, &[b, m, h, d]).and_then(|o| o.transpose(1, 2)).expect("a view");
    let mut lse = Tensor::<f32>::zeros(device, &[b, h, m]).expect("fits");
    let stream = Stream::new(device).expect("a stream");
    let kernel = attention(device, Elem::F16);
    let arguments = [(&q).into(), (&k).into(), (&v).into(), 0.25.into(), (&mut o).into(), (&mut lse).into()];
    kernel.launch_on(&stream, &arguments).expect("launches");
    o.to_vec().expect("reads").into_iter().map(f16::to_f32).collect()
}

#[test]
fn views_and_streams_mean_the_same_on_every_device() {
    let (cpu, emulator) = (through_views(&Device::cpu()), through_views(&Device::emulator()));
    let error = cpu.iter().zip(&emulator).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(error < 2e-3 && cpu.iter().any(|x| x.abs() > 0.01), "{error}");
}

#[test]
fn what_a_kernel_cannot_take_names_the_argument() {
    let [b, h, m, n, d] = SIZES;
    let device = Device::cpu();
    let kernel = attention(&device, Elem::F32);
    let zeros = |shape: &[usize]| Tensor::<f32>::zeros(&device, shape).expect("fits");
    let (q, k, v) = (zeros(&[b, h, m, d]), zeros(&[b, h, n, d]), zeros(&[b, h, n, d]));
    let (mut o, mut lse) = (zeros(&[b, h, m, d]), zeros(&[b, h, m]));
    let columns = zeros(&[b, h, d, n]).transpose(2, 3).expect("a view");
    let arguments = [(&q).into(), (&columns).into(), (&v).into(), 1.0.into(), (&mut o).into(), (&mut lse).into()];
    let error = kernel.launch(&arguments).expect_err("columns are not contiguous");
    assert!(
        matches!(&error, Error::Argument(ArgumentError::NotContiguous { name, strides, .. }) if name == "k" && strides[3] == n),
        "{error}"
    );
    let lent = vec![0.0f32; b * h * m * d];
    lend(|loans| {
        let mut o = loans.read(&lent, &[b, h, m, d]).expect("fits");
        let arguments = [(&q).into(), (&k).into(), (&v).into(), 1.0.into(), (&mut o).into(), (&mut lse).into()];
        let error = kernel.launch(&arguments).expect_err("lent for reading");
        assert!(matches!(&error, Error::Argument(ArgumentError::ReadOnly { name }) if name == "o"), "{error}");
    });
    let kept = lend(|loans| loans.read(&lent, &[b, h, m, d]).expect("fits"));
    let arguments = [(&kept).into(), (&k).into(), (&v).into(), 1.0.into(), (&mut o).into(), (&mut lse).into()];
    let error = kernel.launch(&arguments).expect_err("given back");
    assert!(matches!(&error, Error::Device(DeviceError::GivenBack { .. })), "{error}");
}

#[test]
fn a_stream_of_another_device_is_refused() {
    let x = [1.0f32; 4];
    let mut y = [0.0f32; 4];
    let (cpu, emulator) = (Device::cpu(), Device::emulator());
    let softmax = Kernel::builtin("row_softmax").expect("a built-in").bind(Elem::F32, [] as [(&str, i64); 0]).expect("binds");
    let refused = |kernel: &LoadedKernel, stream: &Device, arguments: &[Argument<'_>]| {
        let stream = Stream::new(stream).expect("a stream");
        let error = kernel.launch_on(&stream, arguments).expect_err("another device");
        let name = kernel.device().to_string();
        assert!(matches!(&error, Error::Device(DeviceError::OtherDevice { device }) if *device == name), "{error}");
    };
    lend(|loans| {
        let (x, mut y) = (loans.read(&x, &[2, 2]).expect("fits"), loans.write(&mut y, &[2, 2]).expect("fits"));
        refused(&softmax.on(&cpu).expect("loads"), &emulator, &[(&x).into(), (&mut y).into()]);
    });
    let (x, mut y) =
        (Tensor::<f32>::zeros(&emulator, &[2, 2]).expect("fits"), Tensor::<f32>::zeros(&emulator, &[2, 2]).expect("fits"));
    refused(&softmax.on(&emulator).expect("loads"), &cpu, &[(&x).into(), (&mut y).into()]);
    assert_eq!(y.to_vec().expect("reads"), [0.0; 4]);
}
