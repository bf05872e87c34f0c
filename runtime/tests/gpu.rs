//! What only a GPU can show: run with `cargo test -p flashtile --test gpu -- --ignored` on a machine that has one.
//! (`flashtile verify --all --device cuda:0` checks results; this checks the launcher.)

use std::time::Instant;

use flashtile::cache::Cache;
use flashtile::device::{DeviceError, LaunchOptions, Origin};
use flashtile::toolchain::{Toolchain, ToolchainOptions};
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
        let device = Device::cuda(0).expect("a GPU");
        let values = |seed: usize| -> Vec<f32> {
            (0..SHAPE.iter().product()).map(|i| ((i * 7919 + seed * 104_729) % 1009) as f32 / 504.5 - 1.0).collect()
        };
        let tensor = |seed| Tensor::from_f32(&device, &SHAPE, &values(seed)).expect("fits");
        let (q, k, v) = (tensor(1), tensor(2), tensor(3));
        let o = Tensor::zeros(&device, &SHAPE).expect("fits");
        let lse = Tensor::zeros(&device, &SHAPE[..3]).expect("fits");
        Self { device, q, k, v, o, lse }
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
    let none = ToolchainOptions { nvrtc: Some("/nonexistent".into()), install: false, ..ToolchainOptions::default() };
    let start = Instant::now();
    let kernel = p.kernel(LaunchOptions { toolchain: Toolchain::new(none), ..fresh(&cache) });
    p.launch(&kernel, 0.125, None).expect("launches from the cache alone");
    let seconds = start.elapsed().as_secs_f64();
    println!("{:.2} ms for a warm start", seconds * 1e3);
    assert_eq!(p.o.to_vec().expect("reads"), expected);
    if !cfg!(debug_assertions) {
        assert!(seconds < 10e-3, "{:.2} ms", seconds * 1e3);
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
