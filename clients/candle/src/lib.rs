//! Kernels of flashtile as operators on tensors of candle.
//!
//! | module | subject |
//! | --- | --- |
//! | `operator` | [`Operator`]: any kernel, on inputs in order or by name |
//! | `input` | [`Input`] and [`Outputs`] of a call |
//! | `output` | outputs of a launch, and how they lie in memory |
//! | [`attention`] | functions with the signatures of candle-flash-attn |
//! | `autograd` | nodes of candle's graph, and their backward kernels |
//! | `launcher` | kernels made ready for devices, types and constants, and launched |
//! | `launch` | a launch, but for where its tensors lie; [`Launched`] |
//! | `cpu`, `cuda` | launches on candle's storages |
//! | `element` | element types of both libraries |
//! | `error` | [`enum@Error`] |

pub mod attention;
mod autograd;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod element;
mod error;
mod input;
mod launch;
mod launcher;
mod operator;
mod output;

pub use error::{Error, Result};
pub use flashtile;
pub use input::{Input, Outputs};
pub use launch::Launched;
pub use operator::Operator;
