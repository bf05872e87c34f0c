//! How the warp-specialised sm_90a kernels of the tests are called: four tensor maps and a parameter block.

use flashtile_emulator::{Buffer, GlobalMemory, Kernel, Launch, Options, Report, Swizzle, TensorMap};

use super::{Attention, Element, Parameters, Shape};

/// A kernel's compile-time choices.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    pub text: &'static str,
    pub element: Element,
    pub causal: bool,
    /// Consumer warpgroups of 64 rows each.
    pub consumers: usize,
    /// Rows of a key tile.
    pub block_n: usize,
    pub shared_bytes: u32,
    /// Blocks stay for several tiles.
    pub persistent: bool,
}

/// A map of a (B, H, S, D) tensor: 64 columns, rows, slabs of 64 columns, heads, batches.
fn map(buffer: Buffer, heads: usize, batches: usize, rows: usize, d: usize, box_rows: usize) -> Vec<u8> {
    let row = 2 * d as u64;
    let extents = [64, rows, d / 64, heads, batches].map(|x| x as u64);
    let strides = [row, 128, row * rows as u64, row * (rows * heads) as u64];
    let tile = [64, box_rows as u32, d as u32 / 64, 1, 1];
    TensorMap::new(buffer, 2, &extents, &strides, &tile, Swizzle::Bytes128).expect("legal").encode().into()
}

/// Runs it on so many blocks at most; o, lse and the report.
pub fn run(
    kernel: &Kernel<'_>,
    config: &Config,
    problem: &Attention,
    most: usize,
    options: &Options,
) -> (Vec<f32>, Vec<f32>, Report) {
    let Shape { b, h, g, m, n, d } = problem.shape;
    let element = config.element;
    let mut memory = GlobalMemory::new();
    let q = memory.allocate_from(&element.encode(&problem.q));
    let k = memory.allocate_from(&element.encode(&problem.k));
    let v = memory.allocate_from(&element.encode(&problem.v));
    let o = memory.allocate((b * h * m * d * 2) as u64);
    let lse = memory.allocate((b * h * m * 4) as u64);
    let counter = memory.allocate_from(&[0; 8]);
    let tiles = m.div_ceil(64 * config.consumers);
    let total = tiles * b * h;
    let block = Parameters::default()
        .pointer(o)
        .pointer(lse)
        .pointer(counter)
        .strides(&[(h * m * d) as i64, (m * d) as i64, d as i64])
        .sizes(&[b, h, h / g, m, n].map(|x| x as i32))
        .scalar(problem.scale)
        .sizes(&[tiles, total, if config.causal { b * h } else { 1 }].map(|x| x as i32))
        .finish();
    let parameters = vec![
        map(q, h, b, m, d, 64),
        map(k, g, b, n, d, config.block_n),
        map(v, g, b, n, d, config.block_n),
        map(o, h, b, m, d, 64),
        block,
    ];
    let blocks = if config.persistent { total.min(most) } else { total } as u32;
    let threads = 128 * (config.consumers as u32 + 1);
    let launch =
        Launch { grid: [blocks, 1, 1], block: [threads, 1, 1], shared_bytes: config.shared_bytes, parameters, pending: vec![] };
    let report = kernel.launch(&memory, &launch, options).expect("launches");
    assert_eq!(memory.read(counter), [0; 8], "the kernel leaves the counter as it was");
    (element.decode(&memory.read(o)), Element::F32.decode(&memory.read(lse)), report)
}

/// Runs a kernel of specialised roles that flashtile compiled, with tiles of 128 x 32, on three blocks at most.
pub fn run_specialised(kernel: &Kernel<'_>, problem: &Attention, options: &Options) -> (Vec<f32>, Vec<f32>, Report) {
    let Shape { b, h, g, m, n, d } = problem.shape;
    let element = Element::Bf16;
    let mut memory = GlobalMemory::new();
    let q = memory.allocate_from(&element.encode(&problem.q));
    let k = memory.allocate_from(&element.encode(&problem.k));
    let v = memory.allocate_from(&element.encode(&problem.v));
    let o = memory.allocate((b * h * m * d * 2) as u64);
    let lse = memory.allocate((b * h * m * 4) as u64);
    let workspace = memory.allocate_from(&[0; 8]);
    let map = |buffer: Buffer, heads: usize, rows: usize, box_rows: u32| -> Vec<u8> {
        let extents = [d, rows, heads, b].map(|x| x as u64);
        let strides = [d, rows * d, heads * rows * d].map(|x| 2 * x as u64);
        TensorMap::new(buffer, 2, &extents, &strides, &[64, box_rows, 1, 1], Swizzle::Bytes128).expect("legal").encode().into()
    };
    let strides = |heads: usize, rows: usize| [(heads * rows * d) as i64, (rows * d) as i64, d as i64];
    let block = Parameters::default()
        .pointer(q)
        .strides(&strides(h, m))
        .pointer(k)
        .strides(&strides(g, n))
        .pointer(v)
        .strides(&strides(g, n))
        .pointer(o)
        .strides(&strides(h, m))
        .pointer(lse)
        .strides(&[(h * m) as i64, m as i64])
        .sizes(&[b, h, m, g, n].map(|x| x as i32))
        .scalar(problem.scale)
        .pointer(workspace)
        .finish();
    let blocks = (b * h * m.div_ceil(128)).min(3) as u32;
    let parameters = vec![map(q, h, m, 128), map(k, g, n, 32), map(v, g, n, 32), block];
    let launch = Launch { grid: [blocks, 1, 1], block: [384, 1, 1], shared_bytes: 32888, parameters, pending: vec![] };
    let report = kernel.launch(&memory, &launch, options).expect("launches");
    (element.decode(&memory.read(o)), Element::F32.decode(&memory.read(lse)), report)
}
