//! What only a GPU can show: run with `cargo test -p flashtile --test gpu -- --ignored` on a machine that has one.
//! (`flashtile verify --all --device cuda:0` checks results; this checks the launcher.)

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use flashtile::cache::Cache;
use flashtile::device::{DeviceError, LaunchOptions, Origin};
use flashtile::toolchain::{Toolchain, ToolchainOptions};
use flashtile::tuner::{TuneOptions, tune};
use flashtile::{Arch, Device, Elem, Error, Kernel, LoadedKernel, Stream, Tensor, f16};

const SHAPE: [usize; 4] = [1, 4, 512, 64];

struct Problem {
    device: Device,
    q: Tensor<f16>,
    k: Tensor<f16>,
    v: Tensor<f16>,
    o: Tensor<f16>,
    lse: Tensor<f32>,
}

impl Problem {
    fn new() -> Self {
        Self::of(&Device::cuda(0).expect("a GPU"), SHAPE)
    }

    fn of(device: &Device, shape: [usize; 4]) -> Self {
        let values = |seed: usize| -> Vec<f32> {
            (0..shape.iter().product()).map(|i| ((i * 7919 + seed * 104_729) % 1009) as f32 / 504.5 - 1.0).collect()
        };
        let tensor = |seed| Tensor::from_f32(device, &shape, &values(seed)).expect("fits");
        let (q, k, v) = (tensor(1), tensor(2), tensor(3));
        let o = Tensor::zeros(device, &shape).expect("fits");
        let lse = Tensor::zeros(device, &shape[..3]).expect("fits");
        Self { device: device.clone(), q, k, v, o, lse }
    }

    fn kernel(&self, options: LaunchOptions) -> LoadedKernel {
        let kernel = Kernel::builtin("causal_attention").expect("a built-in").bind(Elem::F16, [("D", 64)]).expect("binds");
        kernel.on_with(&self.device, options).expect("loads")
    }

    fn launch(&mut self, kernel: &LoadedKernel, scale: f32, stream: Option<&Stream>) -> Result<(), Error> {
        let arguments =
            [(&self.q).into(), (&self.k).into(), (&self.v).into(), scale.into(), (&mut self.o).into(), (&mut self.lse).into()];
        match stream {
            Some(stream) => kernel.launch_on(stream, &arguments),
            None => kernel.launch(&arguments),
        }
    }
}

fn fresh(cache: &Cache) -> LaunchOptions {
    LaunchOptions { cache: cache.clone(), ..LaunchOptions::default() }
}

#[test]
#[ignore = "needs a GPU"]
fn a_launch_can_be_captured_into_a_graph() {
    let mut p = Problem::new();
    let kernel = p.kernel(fresh(&Cache::disabled()));
    p.launch(&kernel, 0.125, None).expect("launches");
    let expected = p.o.to_vec().expect("reads");
    let stream = Stream::new(&p.device).expect("a stream");
    p.o.copy_from_slice(&vec![f16::NAN; expected.len()]).expect("writes");
    let graph = stream.capture(|| p.launch(&kernel, 0.125, Some(&stream))).expect("captures");
    assert!(p.o.to_vec().expect("reads")[0].is_nan(), "a capture runs nothing");
    graph.launch(&stream).expect("launches");
    stream.synchronize().expect("ends");
    assert_eq!(p.o.to_vec().expect("reads"), expected);
}

#[test]
#[ignore = "needs a GPU"]
fn a_launch_costs_the_host_less_than_ten_microseconds() {
    let mut p = Problem::new();
    let kernel = p.kernel(fresh(&Cache::disabled()));
    let mut best = f64::INFINITY;
    for _ in 0..20 {
        p.device.synchronize().expect("ends");
        let start = Instant::now();
        for _ in 0..50 {
            p.launch(&kernel, 0.125, None).expect("launches");
        }
        best = best.min(start.elapsed().as_secs_f64() / 50.0);
    }
    println!("{:.2} us a launch", best * 1e6);
    assert!(best < 10e-6, "{:.2} us", best * 1e6);
}

#[test]
#[ignore = "needs a GPU"]
fn a_warm_start_needs_no_nvrtc_and_little_time() {
    let directory = tempfile::tempdir().expect("a directory");
    let cache = Cache::at(directory.path());
    let mut p = Problem::new();
    p.launch(&p.kernel(fresh(&cache)), 0.125, None).expect("launches");
    let expected = p.o.to_vec().expect("reads");
    let toolchain = Toolchain::new(ToolchainOptions { nvrtc: None, install: false, ..ToolchainOptions::default() });
    let start = Instant::now();
    let kernel = p.kernel(LaunchOptions { toolchain: toolchain.clone(), ..fresh(&cache) });
    let bound = start.elapsed().as_secs_f64();
    p.launch(&kernel, 0.125, None).expect("launches from the cache alone");
    let seconds = start.elapsed().as_secs_f64();
    println!("{:.2} ms for a warm start, {:.2} of them to bind the kernel", seconds * 1e3, bound * 1e3);
    assert!(toolchain.found().is_none(), "NVRTC is not looked for");
    assert_eq!(p.o.to_vec().expect("reads"), expected);
    if !cfg!(debug_assertions) {
        assert!(seconds < 10e-3, "{:.2} ms", seconds * 1e3);
    }
}

/// A kernel that was tuned at one length, in a new process: a server whose lengths change.
#[test]
#[ignore = "needs a GPU"]
fn a_first_launch_for_new_sizes_takes_little_time() {
    let directory = tempfile::tempdir().expect("a directory");
    let cache = Cache::at(directory.path());
    let mut p = Problem::new();
    let kernel = Kernel::builtin("causal_attention").expect("a built-in").bind(Elem::F16, [("D", 64)]).expect("binds");
    let sizes = |n: i64| BTreeMap::from([("B", 1), ("H", 4), ("G", 4), ("M", n), ("N", n)].map(|(k, v)| (k.to_owned(), v)));
    let options = TuneOptions { budget: Duration::from_secs(4), cache: cache.clone(), ..TuneOptions::default() };
    tune(&kernel, &sizes(512), &p.device, &options).expect("tunes");
    let loaded = p.kernel(fresh(&cache));
    p.launch(&loaded, 0.125, None).expect("launches");
    assert!(loaded.variants().iter().all(|v| v.origin == Origin::Tuned), "{:?}", loaded.variants());
    let mut worst = 0.0f64;
    for n in [257, 300, 700, 1025, 1900] {
        let mut p = Problem::of(&p.device, [1, 4, n, 64]);
        p.device.synchronize().expect("ends");
        let start = Instant::now();
        p.launch(&loaded, 0.125, None).expect("launches");
        let seconds = start.elapsed().as_secs_f64();
        let variants = loaded.variants();
        let variant = variants.last().expect("a variant");
        println!("N = {n}: {:.2} ms, {:?}, {}", seconds * 1e3, variant.origin, variant.schedule);
        assert_ne!(variant.origin, Origin::Model, "what was tuned nearby serves this");
        worst = worst.max(seconds);
    }
    if !cfg!(debug_assertions) {
        assert!(worst < 10e-3, "{:.2} ms", worst * 1e3);
    }
}

#[test]
#[ignore = "needs a GPU"]
fn facts_choose_the_variant_and_older_architectures_run_through_ptx() {
    let mut p = Problem::new();
    let kernel = p.kernel(fresh(&Cache::disabled()));
    p.launch(&kernel, 0.125, None).expect("launches");
    let expected = p.o.to_vec().expect("reads");
    for scale in [-0.125, 0.0, 0.25] {
        p.launch(&kernel, scale, None).expect("launches");
    }
    p.device.synchronize().expect("ends");
    let variants = kernel.variants();
    assert_eq!(variants.len(), 2, "one for positive scales, one for others: {variants:?}");
    assert!(
        variants.iter().all(|v| v.origin == Origin::Model && v.resources.is_some_and(|r| r.registers > 0 && r.blocks_per_sm > 0))
    );
    for name in ["sm_75", "sm_80"] {
        let kernel = p.kernel(LaunchOptions { arch: Arch::named(name), ..fresh(&Cache::disabled()) });
        p.launch(&kernel, 0.125, None).expect("launches");
        let found = p.o.to_vec().expect("reads");
        let error = found.iter().zip(&expected).map(|(a, b)| (a.to_f32() - b.to_f32()).abs()).fold(0.0, f32::max);
        assert!(error < 5e-3, "{name}: {error}");
    }
}

#[test]
#[ignore = "needs a GPU"]
fn too_large_a_tensor_is_a_typed_error_and_harms_nothing() {
    let device = Device::cuda(0).expect("a GPU");
    let error = Tensor::<f32>::zeros(&device, &[1 << 42]).expect_err("too large");
    assert!(matches!(error, Error::Device(DeviceError::OutOfMemory { requested, .. }) if requested == 1 << 44), "{error}");
    assert_eq!(Tensor::<f32>::zeros(&device, &[4]).expect("fits").to_vec().expect("reads"), [0.0; 4]);
}

/// Work that keeps a GPU busy for long after it was queued: a wait that is missing then shows.
fn keep_busy(device: &Device, stream: Option<&Stream>) {
    let kernel = Kernel::builtin("causal_attention").expect("a built-in").bind(Elem::F16, [("D", 64)]).expect("binds");
    let kernel = kernel.on_with(device, fresh(&Cache::disabled())).expect("loads");
    let shape = [4, 16, 8192, 64];
    let zeros = || Tensor::<f16>::zeros(device, &shape).expect("fits");
    let (q, k, v, mut o) = (zeros(), zeros(), zeros(), zeros());
    let mut lse = Tensor::<f32>::zeros(device, &shape[..3]).expect("fits");
    for _ in 0..50 {
        let arguments = [(&q).into(), (&k).into(), (&v).into(), 0.125.into(), (&mut o).into(), (&mut lse).into()];
        match stream {
            Some(stream) => kernel.launch_on(stream, &arguments).expect("launches"),
            None => kernel.launch(&arguments).expect("launches"),
        }
    }
    // Freeing the tensors would wait for the work.
    std::mem::forget((q, k, v, o, lse, kernel));
}

#[test]
#[ignore = "needs a GPU"]
fn reads_and_writes_wait_for_a_launch_on_another_stream() {
    let mut p = Problem::new();
    let kernel = p.kernel(fresh(&Cache::disabled()));
    p.launch(&kernel, 0.125, None).expect("launches");
    let expected = p.o.to_vec().expect("reads");
    let stream = Stream::new(&p.device).expect("a stream");
    let nan = vec![f16::NAN; expected.len()];
    p.o.copy_from_slice(&nan).expect("writes");
    keep_busy(&p.device, Some(&stream));
    p.launch(&kernel, 0.125, Some(&stream)).expect("launches");
    assert_eq!(p.o.to_vec().expect("reads"), expected, "a read waits");
    keep_busy(&p.device, Some(&stream));
    p.launch(&kernel, 0.125, Some(&stream)).expect("launches");
    p.o.copy_from_slice(&nan).expect("writes");
    stream.synchronize().expect("ends");
    assert!(p.o.to_vec().expect("reads").iter().all(|x| x.is_nan()), "a write comes after the launch before it");
}

#[test]
#[ignore = "needs a GPU"]
fn a_launch_waits_for_what_it_reads_and_overwrites_on_other_streams() {
    let mut p = Problem::new();
    let kernel = p.kernel(fresh(&Cache::disabled()));
    let mut second = Problem::new();
    p.launch(&kernel, 0.125, None).expect("launches");
    std::mem::swap(&mut second.q, &mut p.o);
    second.launch(&kernel, 0.125, None).expect("launches");
    let expected = second.o.to_vec().expect("reads");
    std::mem::swap(&mut second.q, &mut p.o);
    let nan = vec![f16::NAN; expected.len()];
    for (one, other) in [(true, false), (false, true), (true, true)] {
        let stream = |new: bool| new.then(|| Stream::new(&p.device).expect("a stream"));
        let (one, other) = (stream(one), stream(other));
        p.o.copy_from_slice(&nan).expect("writes");
        second.o.copy_from_slice(&nan).expect("writes");
        keep_busy(&p.device, one.as_ref());
        p.launch(&kernel, 0.125, one.as_ref()).expect("launches");
        std::mem::swap(&mut second.q, &mut p.o);
        second.launch(&kernel, 0.125, other.as_ref()).expect("launches");
        std::mem::swap(&mut second.q, &mut p.o);
        assert_eq!(second.o.to_vec().expect("reads"), expected);
    }
}

#[test]
#[ignore = "needs a GPU"]
fn reads_wait_for_a_graph_and_a_graph_without_its_tensors_is_an_error() {
    let mut p = Problem::new();
    let kernel = p.kernel(fresh(&Cache::disabled()));
    p.launch(&kernel, 0.125, None).expect("launches");
    let expected = p.o.to_vec().expect("reads");
    let stream = Stream::new(&p.device).expect("a stream");
    let graph = stream.capture(|| p.launch(&kernel, 0.125, Some(&stream))).expect("captures");
    p.o.copy_from_slice(&vec![f16::NAN; expected.len()]).expect("writes");
    keep_busy(&p.device, Some(&stream));
    graph.launch(&stream).expect("launches");
    assert_eq!(p.o.to_vec().expect("reads"), expected, "no synchronize");
    drop(p);
    let error = graph.launch(&stream).expect_err("its tensors are gone");
    assert!(matches!(error, Error::Device(DeviceError::GivenBack { .. })), "{error}");
}

/// Memory and a stream of cudarc, as a program with candle has them: no copy, the same bits, and cudarc reads the result in
/// the order of its own stream.
#[test]
#[ignore = "needs a GPU"]
fn a_kernel_runs_on_slices_and_a_stream_of_cudarc() {
    use cudarc::driver::{CudaContext, DevicePtr, DevicePtrMut};
    let mut p = Problem::new();
    let kernel = p.kernel(fresh(&Cache::disabled()));
    p.launch(&kernel, 0.125, None).expect("launches");
    let bits = |tensor: &Tensor<f16>| -> Vec<u16> { tensor.to_vec().expect("reads").into_iter().map(f16::to_bits).collect() };
    let expected = bits(&p.o);
    let context = CudaContext::new(0).expect("a context");
    let queue = context.new_stream().expect("a stream");
    let slice = |tensor: &Tensor<f16>| queue.clone_htod(&bits(tensor)).expect("fits");
    let (q, k, v) = (slice(&p.q), slice(&p.k), slice(&p.v));
    let mut o = queue.alloc_zeros::<u16>(expected.len()).expect("fits");
    let mut lse = queue.alloc_zeros::<f32>(expected.len() / SHAPE[3]).expect("fits");
    // SAFETY: cudarc's stream of the primary context, which lives as long as `queue`.
    let stream = unsafe { Stream::from_raw(&p.device, queue.cu_stream().cast()) }.expect("a stream");
    let before = p.device.memory_use().current;
    keep_busy(&p.device, Some(&stream));
    let busy = p.device.memory_use().current;
    assert!(before < busy);
    // SAFETY: as above; cudarc orders all work on the slices on `queue`.
    let ordered = unsafe { Stream::from_raw_ordered(&p.device, queue.cu_stream().cast()) }.expect("a stream");
    for (stream, is_ordered) in [(stream, false), (ordered, true)] {
        queue.memset_zeros(&mut o).expect("writes");
        {
            let (q, _q) = q.device_ptr(&queue);
            let (k, _k) = k.device_ptr(&queue);
            let (v, _v) = v.device_ptr(&queue);
            let (o, _o) = o.device_ptr_mut(&queue);
            let (lse, _lse) = lse.device_ptr_mut(&queue);
            let strides = Tensor::<f16>::packed_strides(&SHAPE).expect("small");
            // SAFETY: the slices are as large as the shape and live beyond the launch; cudarc orders what it does with them on `queue`, on
            // which the launch is queued.
            let tensor =
                |pointer: u64| unsafe { Tensor::from_raw_parts(&p.device, pointer as *mut f16, &SHAPE, &strides) }.expect("fits");
            let (q, k, v, mut o) = (tensor(q), tensor(k), tensor(v), tensor(o));
            let strides = Tensor::<f32>::packed_strides(&SHAPE[..3]).expect("small");
            // SAFETY: as above.
            let lse = unsafe { Tensor::<f32>::from_raw_parts(&p.device, lse as *mut f32, &SHAPE[..3], &strides) };
            let mut lse = lse.expect("fits");
            assert_eq!(o.as_any().address() % 256, 0);
            let arguments = [(&q).into(), (&k).into(), (&v).into(), 0.125.into(), (&mut o).into(), (&mut lse).into()];
            kernel.launch_on(&stream, &arguments).expect("launches");
            if !is_ordered {
                assert_eq!(bits(&o), expected, "read by flashtile");
            }
        }
        assert_eq!(p.device.memory_use().current, busy, "nothing is allocated for foreign tensors");
        assert_eq!(queue.clone_dtoh(&o).expect("reads"), expected, "read by cudarc");
        assert!(queue.clone_dtoh(&lse).expect("reads").iter().all(|x| x.is_finite()));
    }
}

#[test]
#[ignore = "needs a GPU"]
fn slices_of_cudarc_are_lent_and_given_back_in_order() {
    use cudarc::driver::CudaContext;
    let mut p = Problem::new();
    let kernel = p.kernel(fresh(&Cache::disabled()));
    p.launch(&kernel, 0.125, None).expect("launches");
    let bits = |tensor: &Tensor<f16>| -> Vec<u16> { tensor.to_vec().expect("reads").into_iter().map(f16::to_bits).collect() };
    let expected = bits(&p.o);
    let context = CudaContext::new(0).expect("a context");
    let queue = context.new_stream().expect("a stream");
    let other = context.new_stream().expect("a stream");
    let slice = |tensor: &Tensor<f16>| queue.clone_htod(&bits(tensor)).expect("fits");
    let (q, k, v) = (slice(&p.q), slice(&p.k), slice(&p.v));
    let strides = Tensor::<f16>::packed_strides(&SHAPE).expect("small");
    // The device's own stream, and one of cudarc: both must end before cudarc reads.
    // SAFETY: cudarc's stream of the primary context, which lives as long as `queue`.
    let theirs = unsafe { Stream::from_raw(&p.device, queue.cu_stream().cast()) }.expect("a stream");
    let mut kept = None;
    for stream in [None, Some(&theirs)] {
        let mut o = queue.clone_htod(&vec![f16::NAN.to_bits(); expected.len()]).expect("fits");
        keep_busy(&p.device, stream);
        let values = expected.len();
        // SAFETY: all bits are values of f16.
        let (q, k, v) = unsafe { (q.transmute::<f16>(values), k.transmute::<f16>(values), v.transmute::<f16>(values)) };
        // SAFETY: as above.
        let lent = unsafe { o.transmute_mut::<f16>(values) };
        flashtile::lend(|loans| -> flashtile::Result<()> {
            let read = |slice| loans.read_slice(&p.device, &queue, slice, &SHAPE, &strides);
            let (q, k, v) = (read(q.expect("as long"))?, read(k.expect("as long"))?, read(v.expect("as long"))?);
            let mut o = loans.write_slice(&p.device, &queue, lent.expect("as long"), &SHAPE, &strides)?;
            let arguments = [(&q).into(), (&k).into(), (&v).into(), 0.125.into(), (&mut o).into(), (&mut p.lse).into()];
            match stream {
                Some(stream) => kernel.launch_on(stream, &arguments)?,
                None => kernel.launch(&arguments)?,
            }
            kept = Some(q);
            Ok(())
        })
        .expect("launches");
        assert_eq!(other.clone_dtoh(&o).expect("reads"), expected, "another stream of cudarc waits for the launch");
        assert_eq!(queue.clone_dtoh(&o).expect("reads"), expected, "cudarc waits for the launch");
    }
    let error = kept.expect("kept").to_vec().expect_err("given back");
    assert!(matches!(error, Error::Device(DeviceError::GivenBack { .. })), "{error}");
}

#[test]
#[ignore = "needs a GPU"]
fn broadcast_keys_and_packed_heads_run_without_a_copy() {
    let device = Device::cuda(0).expect("a GPU");
    let kernel = Kernel::builtin("causal_attention").expect("a built-in").bind(Elem::F16, [("D", 64)]).expect("binds");
    let kernel = kernel.on_with(&device, fresh(&Cache::disabled())).expect("loads");
    let [b, h, n, d] = [3, 4, 512, 64];
    let values: Vec<f32> = (0..b * n * 3 * h * d).map(|i| ((i * 7919) % 1009) as f32 / 504.5 - 1.0).collect();
    let packed = Tensor::<f16>::from_f32(&device, &[b, n, 3, h, d], &values).expect("fits");
    let part = |part: usize| packed.select(2, part).and_then(|x| x.transpose(1, 2)).expect("a view");
    let v = part(2).slice(0, 1..2).and_then(|v| v.broadcast(&[b, h, n, d])).expect("a view");
    let (q, k) = (part(0), part(1));
    let run = |q: &Tensor<f16>, k: &Tensor<f16>, v: &Tensor<f16>| {
        let mut o = Tensor::<f16>::zeros(&device, &[b, h, n, d]).expect("fits");
        let mut lse = Tensor::<f32>::zeros(&device, &[b, h, n]).expect("fits");
        let arguments = [q.into(), k.into(), v.into(), 0.125.into(), (&mut o).into(), (&mut lse).into()];
        kernel.launch(&arguments).expect("launches");
        o.to_vec().expect("reads")
    };
    let copy = |x: &Tensor<f16>| Tensor::from_slice(&device, x.shape(), &x.to_vec().expect("reads")).expect("fits");
    let expected = run(&copy(&q), &copy(&k), &copy(&v));
    assert!(expected.iter().any(|x| x.to_f32().abs() > 0.01));
    assert_eq!(run(&q, &k, &v), expected);
}
