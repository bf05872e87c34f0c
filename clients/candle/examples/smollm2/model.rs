//! SmolLM2-135M: a Llama of 30 layers, 9 query heads and 3 key heads of width 64, read from GGUF.

use std::fs::File;
use std::path::Path;

use candle_core::quantized::gguf_file::{Content, Value};
use candle_core::{D, DType, Device, Result, Tensor, bail};
use candle_nn::ops::{rms_norm, silu, softmax};
use candle_nn::rotary_emb::rope_i;
use flashtile_candle::Operator;

/// Positions that a cache has room for.
const POSITIONS: usize = 256;

/// Which attention the model runs: causal, aligned at the last query and key. Queries are
/// `(1, 9, M, 64)`, keys and values `(1, 3, N, 64)`.
pub enum Attention {
    /// By candle's operators, with each key head repeated.
    Candle,
    /// By one kernel.
    Whole(Box<Operator>),
    /// A single query over halves of the keys by the kernel without a mask, whose results are
    /// combined by their LSE; several queries by the causal kernel.
    Split(Box<[Operator; 2]>),
}

impl Attention {
    pub fn whole() -> Result<Self> {
        Ok(Attention::Whole(Box::new(Operator::builtin("causal_attention")?)))
    }

    pub fn split() -> Result<Self> {
        Ok(Attention::Split(Box::new([Operator::builtin("attention")?, Operator::builtin("causal_attention")?])))
    }

    fn run(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let scale = 1.0 / (q.dim(D::Minus1)? as f64).sqrt();
        match self {
            Attention::Candle => by_candle(q, k, v, scale),
            Attention::Whole(causal) => by_kernel(causal, q, k, v, scale),
            Attention::Split(operators) => {
                let [full, causal] = &**operators;
                if q.dim(2)? > 1 { by_kernel(causal, q, k, v, scale) } else { by_halves(full, q, k, v, scale) }
            }
        }
    }
}

fn by_kernel(operator: &Operator, q: &Tensor, k: &Tensor, v: &Tensor, scale: f64) -> Result<Tensor> {
    Ok(operator.call(&[q.into(), k.into(), v.into(), (scale as f32).into()])?.into_first())
}

fn by_halves(operator: &Operator, q: &Tensor, k: &Tensor, v: &Tensor, scale: f64) -> Result<Tensor> {
    let n = k.dim(2)?;
    let half = |start: usize, len: usize| {
        let (k, v) = (k.narrow(2, start, len)?, v.narrow(2, start, len)?);
        let outputs = operator.call(&[q.into(), (&k).into(), (&v).into(), (scale as f32).into()])?;
        Ok::<_, candle_core::Error>((outputs.get("o")?.clone(), outputs.get("lse")?.unsqueeze(3)?))
    };
    let ((left, a), (right, b)) = (half(0, n / 2)?, half(n / 2, n - n / 2)?);
    // exp(a) / (exp(a) + exp(b)) of the left half.
    let share = ((b - a)?.exp()? + 1.0)?.recip()?;
    left.broadcast_mul(&share)? + right.broadcast_mul(&(1.0 - &share)?)?
}

fn by_candle(q: &Tensor, k: &Tensor, v: &Tensor, scale: f64) -> Result<Tensor> {
    let ((_, h, m, d), (_, g, n, _)) = (q.dims4()?, k.dims4()?);
    let repeat = |x: &Tensor| x.unsqueeze(2)?.broadcast_as((1, g, h / g, n, d))?.reshape((1, h, n, d));
    let hidden = (0..m * n).map(|at| if at / n + n >= m + at % n { 0.0 } else { f32::NEG_INFINITY });
    let hidden = Tensor::from_vec(hidden.collect::<Vec<_>>(), (m, n), &Device::Cpu)?;
    let scores = (q.contiguous()?.matmul(&repeat(k)?.t()?.contiguous()?)? * scale)?.broadcast_add(&hidden)?;
    softmax(&scores, D::Minus1)?.matmul(&repeat(v)?)
}

/// Keys and values of the positions so far, of all layers.
pub struct Cache {
    layers: Vec<(Tensor, Tensor)>,
    len: usize,
}

struct Layer {
    attention_norm: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    norm: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
}

pub struct Model {
    /// `(vocabulary, width)`; the last product has the same weights.
    words: Tensor,
    layers: Vec<Layer>,
    norm: Tensor,
    cos: Tensor,
    sin: Tensor,
    eps: f32,
    heads: usize,
    groups: usize,
}

impl Model {
    /// Reads a GGUF file; weights are expanded to f32, so that a difference of attention is not
    /// hidden or enlarged by the rounding of activations that products of Q4 make.
    pub fn open(path: &Path) -> Result<(Self, Content)> {
        let mut file = File::open(path)?;
        let content = Content::read(&mut file)?;
        let number = |name: &str| -> Result<&Value> {
            let found = content.metadata.get(&format!("llama.{name}"));
            found.ok_or_else(|| candle_core::Error::msg(format!("the file has no llama.{name}")))
        };
        let integer = |name: &str| Ok::<_, candle_core::Error>(number(name)?.to_u32()? as usize);
        let (layers, heads, width) = (integer("block_count")?, integer("attention.head_count")?, integer("embedding_length")?);
        let (groups, base) = (integer("attention.head_count_kv")?, number("rope.freq_base")?.to_f32()?);
        let eps = number("attention.layer_norm_rms_epsilon")?.to_f32()?;
        let mut weight = |name: &str| content.tensor(&mut file, name, &Device::Cpu)?.dequantize(&Device::Cpu);
        let words = weight("token_embd.weight")?;
        let norm = weight("output_norm.weight")?;
        let mut layer = |at: usize| {
            let mut weight = |name: &str| weight(&format!("blk.{at}.{name}.weight"));
            Ok::<_, candle_core::Error>(Layer {
                attention_norm: weight("attn_norm")?,
                query: weight("attn_q")?,
                key: weight("attn_k")?,
                value: weight("attn_v")?,
                output: weight("attn_output")?,
                norm: weight("ffn_norm")?,
                gate: weight("ffn_gate")?,
                up: weight("ffn_up")?,
                down: weight("ffn_down")?,
            })
        };
        let layers = (0..layers).map(&mut layer).collect::<Result<_>>()?;
        let (cos, sin) = rotations(width / heads, base)?;
        Ok((Self { words, layers, norm, cos, sin, eps, heads, groups }, content))
    }

    /// A cache with nothing in it.
    pub fn cache(&self) -> Result<Cache> {
        let width = self.words.dim(1)? / self.heads;
        let empty = || Tensor::zeros((1, self.groups, POSITIONS, width), DType::F32, &Device::Cpu);
        Ok(Cache { layers: self.layers.iter().map(|_| Ok((empty()?, empty()?))).collect::<Result<_>>()?, len: 0 })
    }

    /// Logits of the last of some tokens, which follow those of the cache.
    pub fn forward(&self, tokens: &[u32], cache: &mut Cache, attention: &Attention) -> Result<Tensor> {
        let m = tokens.len();
        if cache.len + m > POSITIONS {
            bail!("{} tokens are beyond the {POSITIONS} positions of the cache", cache.len + m);
        }
        let mut x = self.words.index_select(&Tensor::new(tokens, &Device::Cpu)?, 0)?;
        for (layer, stored) in self.layers.iter().zip(&cache.layers) {
            let h = rms_norm(&x, &layer.attention_norm, self.eps)?;
            x = (x + self.attend(layer, &h, stored, cache.len, attention)?)?;
            let h = rms_norm(&x, &layer.norm, self.eps)?;
            let gated = (silu(&by(&h, &layer.gate)?)? * by(&h, &layer.up)?)?;
            x = (x + by(&gated, &layer.down)?)?;
        }
        cache.len += m;
        let last = rms_norm(&x.narrow(0, m - 1, 1)?.contiguous()?, &self.norm, self.eps)?;
        by(&last, &self.words)?.squeeze(0)
    }

    fn attend(
        &self,
        layer: &Layer,
        x: &Tensor,
        (keys, values): &(Tensor, Tensor),
        before: usize,
        attention: &Attention,
    ) -> Result<Tensor> {
        let (m, width) = x.dims2()?;
        let heads = |weight: &Tensor, heads: usize| by(x, weight)?.reshape((1, m, heads, width / self.heads))?.transpose(1, 2);
        let (cos, sin) = (self.cos.narrow(0, before, m)?, self.sin.narrow(0, before, m)?);
        let q = rope_i(&heads(&layer.query, self.heads)?.contiguous()?, &cos, &sin)?;
        let k = rope_i(&heads(&layer.key, self.groups)?.contiguous()?, &cos, &sin)?;
        keys.slice_set(&k, 2, before)?;
        values.slice_set(&heads(&layer.value, self.groups)?.contiguous()?, 2, before)?;
        // Views of the cache, which kernels read where it lies.
        let (k, v) = (keys.narrow(2, 0, before + m)?, values.narrow(2, 0, before + m)?);
        let o = attention.run(&q, &k, &v)?;
        by(&o.transpose(1, 2)?.reshape((m, width))?, &layer.output)
    }
}

/// A product with the transposed weights.
fn by(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    x.matmul(&weight.t()?)
}

/// Cosines and sines of each position and pair of elements, `(positions, width / 2)`.
fn rotations(width: usize, base: f32) -> Result<(Tensor, Tensor)> {
    let frequency = |pair: usize| f64::from(base).powf(-2.0 * pair as f64 / width as f64);
    let angle = |position: usize| (0..width / 2).map(move |pair| position as f64 * frequency(pair));
    let angles: Vec<f64> = (0..POSITIONS).flat_map(angle).collect();
    let table = |of: fn(f64) -> f64| {
        let values: Vec<f32> = angles.iter().map(|&angle| of(angle) as f32).collect();
        Tensor::from_vec(values, (POSITIONS, width / 2), &Device::Cpu)
    };
    Ok((table(f64::cos)?, table(f64::sin)?))
}
