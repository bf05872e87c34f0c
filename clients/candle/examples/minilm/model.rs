//! all-MiniLM-L6-v2: BERT with 6 layers, 12 heads of width 32.

use candle_core::{D, DType, Device, Result, Tensor};
use candle_nn::ops::softmax;
use candle_nn::{Embedding, LayerNorm, Linear, Module, VarBuilder, embedding, layer_norm, linear};
use flashtile_candle::Operator;

const LAYERS: usize = 6;
const HEADS: usize = 12;
const WIDTH: usize = 384;
const HIDDEN: usize = 1536;
const POSITIONS: usize = 512;
const VOCABULARY: usize = 30522;
const EPS: f64 = 1e-12;

/// Token numbers `(B, N)`, padded at the end, and how many of each row are tokens `(B)`.
pub struct Batch {
    pub ids: Tensor,
    pub lens: Tensor,
}

impl Batch {
    pub fn new(rows: &[Vec<u32>]) -> Result<Self> {
        let longest = rows.iter().map(Vec::len).max().unwrap_or(0);
        let padded = rows.iter().flat_map(|row| row.iter().copied().chain(std::iter::repeat_n(0, longest - row.len())));
        let lens = rows.iter().map(|row| row.len() as i32).collect::<Vec<_>>();
        let ids = Tensor::from_vec(padded.collect::<Vec<_>>(), (rows.len(), longest), &Device::Cpu)?;
        Ok(Self { ids, lens: Tensor::from_vec(lens, rows.len(), &Device::Cpu)? })
    }

    /// `(B, N)`: 1 for tokens, 0 for padding.
    fn tokens(&self) -> Result<Tensor> {
        let (rows, longest) = self.ids.dims2()?;
        let position = Tensor::arange(0, longest as i32, &Device::Cpu)?.broadcast_as((rows, longest))?;
        position.lt(&self.lens.unsqueeze(1)?.broadcast_as((rows, longest))?)?.to_dtype(DType::F32)
    }
}

/// Which attention the model runs. Queries, keys and values are `(B, H, N, D)`.
pub enum Attention {
    /// By candle's operators: padding is hidden by what is added to the scores.
    Candle,
    /// By a kernel that takes the lengths.
    Flashtile(Box<Operator>),
}

impl Attention {
    fn run(&self, [q, k, v]: [&Tensor; 3], batch: &Batch) -> Result<Tensor> {
        let scale = 1.0 / (q.dim(D::Minus1)? as f64).sqrt();
        match self {
            Attention::Candle => {
                let hidden = ((batch.tokens()? - 1.0)? * 1e9)?.unsqueeze(1)?.unsqueeze(1)?;
                let scores = (q.contiguous()?.matmul(&k.t()?.contiguous()?)? * scale)?.broadcast_add(&hidden)?;
                softmax(&scores, D::Minus1)?.matmul(&v.contiguous()?)
            }
            Attention::Flashtile(operator) => {
                let inputs = [q.into(), k.into(), v.into(), (&batch.lens).into(), (scale as f32).into()];
                Ok(operator.call(&inputs)?.into_first())
            }
        }
    }
}

struct Layer {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    attention_norm: LayerNorm,
    up: Linear,
    down: Linear,
    norm: LayerNorm,
}

impl Layer {
    fn new(weights: &VarBuilder) -> Result<Self> {
        let attention = weights.pp("attention");
        let (heads, output) = (attention.pp("self"), attention.pp("output"));
        Ok(Self {
            query: linear(WIDTH, WIDTH, heads.pp("query"))?,
            key: linear(WIDTH, WIDTH, heads.pp("key"))?,
            value: linear(WIDTH, WIDTH, heads.pp("value"))?,
            output: linear(WIDTH, WIDTH, output.pp("dense"))?,
            attention_norm: layer_norm(WIDTH, EPS, output.pp("LayerNorm"))?,
            up: linear(WIDTH, HIDDEN, weights.pp("intermediate.dense"))?,
            down: linear(HIDDEN, WIDTH, weights.pp("output.dense"))?,
            norm: layer_norm(WIDTH, EPS, weights.pp("output.LayerNorm"))?,
        })
    }

    fn forward(&self, x: &Tensor, batch: &Batch, attention: &Attention) -> Result<Tensor> {
        let (rows, longest, _) = x.dims3()?;
        let heads = |projection: &Linear| projection.forward(x)?.reshape((rows, longest, HEADS, WIDTH / HEADS))?.transpose(1, 2);
        let (q, k, v) = (heads(&self.query)?, heads(&self.key)?, heads(&self.value)?);
        let o = attention.run([&q, &k, &v], batch)?.transpose(1, 2)?.reshape((rows, longest, WIDTH))?;
        let x = self.attention_norm.forward(&(x + self.output.forward(&o)?)?)?;
        let hidden = self.up.forward(&x)?.gelu_erf()?;
        self.norm.forward(&(&x + self.down.forward(&hidden)?)?)
    }
}

pub struct Model {
    words: Embedding,
    positions: Embedding,
    segments: Embedding,
    norm: LayerNorm,
    layers: Vec<Layer>,
}

impl Model {
    pub fn new(weights: &VarBuilder) -> Result<Self> {
        let embeddings = weights.pp("embeddings");
        Ok(Self {
            words: embedding(VOCABULARY, WIDTH, embeddings.pp("word_embeddings"))?,
            positions: embedding(POSITIONS, WIDTH, embeddings.pp("position_embeddings"))?,
            segments: embedding(2, WIDTH, embeddings.pp("token_type_embeddings"))?,
            norm: layer_norm(WIDTH, EPS, embeddings.pp("LayerNorm"))?,
            layers: (0..LAYERS).map(|at| Layer::new(&weights.pp(format!("encoder.layer.{at}")))).collect::<Result<_>>()?,
        })
    }

    /// Embeddings of length 1, `(B, 384)`: means over the tokens of each row.
    pub fn embed(&self, batch: &Batch, attention: &Attention) -> Result<Tensor> {
        let positions = Tensor::arange(0, batch.ids.dim(1)? as u32, &Device::Cpu)?;
        let words = self.words.forward(&batch.ids)?.broadcast_add(&self.positions.forward(&positions)?)?;
        let segment = self.segments.forward(&Tensor::zeros(1, DType::U32, &Device::Cpu)?)?;
        let mut x = self.norm.forward(&words.broadcast_add(&segment)?)?;
        for layer in &self.layers {
            x = layer.forward(&x, batch, attention)?;
        }
        let tokens = batch.tokens()?.unsqueeze(2)?;
        let mean = x.broadcast_mul(&tokens)?.sum(1)?.broadcast_div(&tokens.sum(1)?)?;
        mean.broadcast_div(&mean.sqr()?.sum_keepdim(1)?.sqrt()?)
    }
}
