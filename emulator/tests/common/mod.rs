//! What the tests of whole kernels share: parameter blocks, random inputs, references in f64.

#![allow(dead_code, reason = "each test file uses its part")]

pub mod hopper;

use flashtile_emulator::{Buffer, GlobalMemory, Kernel, Launch, Options, Report};
use half::{bf16, f16};

/// A parameter block: fields at multiples of their size, the whole a multiple of 8 bytes.
#[derive(Default)]
pub struct Parameters(Vec<u8>);

impl Parameters {
    fn push(mut self, bytes: &[u8]) -> Self {
        self.0.resize(self.0.len().next_multiple_of(bytes.len()), 0);
        self.0.extend(bytes);
        self
    }

    pub fn pointer(self, buffer: Buffer) -> Self {
        self.push(&buffer.address.to_le_bytes())
    }

    pub fn strides(self, strides: &[i64]) -> Self {
        strides.iter().fold(self, |s, x| s.push(&x.to_le_bytes()))
    }

    pub fn sizes(self, sizes: &[i32]) -> Self {
        sizes.iter().fold(self, |s, x| s.push(&x.to_le_bytes()))
    }

    pub fn scalar(self, x: f32) -> Self {
        self.push(&x.to_le_bytes())
    }

    pub fn finish(mut self) -> Vec<u8> {
        self.0.resize(self.0.len().next_multiple_of(8), 0);
        self.0
    }
}

/// Element types.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Element {
    F16,
    Bf16,
    F32,
}

impl Element {
    pub fn bytes(self) -> usize {
        if self == Element::F32 { 4 } else { 2 }
    }

    pub fn encode(self, values: &[f32]) -> Vec<u8> {
        match self {
            Element::F16 => values.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect(),
            Element::Bf16 => values.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect(),
            Element::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        }
    }

    pub fn decode(self, bytes: &[u8]) -> Vec<f32> {
        match self {
            Element::F16 => bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
            Element::Bf16 => bytes.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
            Element::F32 => bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        }
    }

    /// Values as they are after rounding to the type.
    pub fn round(self, values: &[f32]) -> Vec<f32> {
        self.decode(&self.encode(values))
    }
}

/// Numbers between -1 and 1, the same for the same seed.
pub fn random(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

/// Shape of an attention problem: batches, query heads, key heads, queries, keys, head dimension.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub b: usize,
    pub h: usize,
    pub g: usize,
    pub m: usize,
    pub n: usize,
    pub d: usize,
}

/// An attention problem with its inputs, as rounded to their type.
pub struct Attention {
    pub shape: Shape,
    pub causal: bool,
    pub scale: f32,
    pub q: Vec<f32>,
    pub k: Vec<f32>,
    pub v: Vec<f32>,
}

impl Attention {
    pub fn new(shape: Shape, causal: bool, element: Element) -> Self {
        let Shape { b, h, g, m, n, d } = shape;
        let make = |seed, count| element.round(&random(seed, count));
        let scale = 1.0 / (d as f32).sqrt();
        Self { shape, causal, scale, q: make(1, b * h * m * d), k: make(2, b * g * n * d), v: make(3, b * g * n * d) }
    }

    /// o and lse.
    pub fn reference(&self) -> (Vec<f64>, Vec<f64>) {
        let Shape { b, h, g, m, n, d } = self.shape;
        let (mut o, mut lse) = (vec![], vec![]);
        for batch in 0..b {
            for head in 0..h {
                let kv = (batch * g + head * g / h) * n;
                for row in 0..m {
                    let q = &self.q[((batch * h + head) * m + row) * d..][..d];
                    let visible = if self.causal { (row + n + 1).saturating_sub(m).min(n) } else { n };
                    let dot = |col: usize| -> f64 {
                        let k = &self.k[(kv + col) * d..][..d];
                        q.iter().zip(k).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>() * f64::from(self.scale)
                    };
                    let scores: Vec<f64> = (0..visible).map(dot).collect();
                    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let sum: f64 = scores.iter().map(|s| (s - most).exp()).sum();
                    lse.push(if visible == 0 { f64::NEG_INFINITY } else { most + sum.ln() });
                    for e in 0..d {
                        let weighted = |(col, s): (usize, &f64)| (s - most).exp() * f64::from(self.v[(kv + col) * d + e]);
                        let x: f64 = scores.iter().enumerate().map(weighted).sum();
                        o.push(if visible == 0 { 0.0 } else { x / sum });
                    }
                }
            }
        }
        (o, lse)
    }
}

/// The largest difference, infinities being equal to themselves.
pub fn distance(ours: &[f32], reference: &[f64]) -> f64 {
    assert_eq!(ours.len(), reference.len());
    ours.iter()
        .zip(reference)
        .map(|(&x, &y)| if f64::from(x) == y { 0.0 } else { (f64::from(x) - y).abs() })
        .map(|d| if d.is_nan() { f64::INFINITY } else { d })
        .fold(0.0, f64::max)
}

/// Runs an attention kernel of this project's calling convention; o, lse and the report.
pub fn run_attention(
    kernel: &Kernel<'_>,
    problem: &Attention,
    element: Element,
    tile: usize,
    launch: (u32, u32),
    options: &Options,
) -> (Vec<f32>, Vec<f32>, Report) {
    let Shape { b, h, g, m, n, d } = problem.shape;
    let mut memory = GlobalMemory::new();
    let q = memory.allocate_from(&element.encode(&problem.q));
    let k = memory.allocate_from(&element.encode(&problem.k));
    let v = memory.allocate_from(&element.encode(&problem.v));
    let o = memory.allocate((b * h * m * d * element.bytes()) as u64);
    let lse = memory.allocate((b * h * m * 4) as u64);
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
        .finish();
    let blocks = (b * h * m.div_ceil(tile)) as u32;
    let launch = Launch {
        grid: [blocks, 1, 1],
        block: [launch.0, 1, 1],
        shared_bytes: launch.1,
        parameters: vec![block],
        pending: vec![],
    };
    let report = kernel.launch(&memory, &launch, options).expect("launches");
    (element.decode(&memory.read(o)), Element::F32.decode(&memory.read(lse)), report)
}

/// The findings as text.
pub fn findings(report: &Report) -> String {
    report.findings.iter().map(|f| format!("{f}\n")).collect()
}
