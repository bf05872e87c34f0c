//! The meaning of the tile IR, in code: what the module text of [`crate::ir`] says, and nothing
//! else.
//!
//! An [`Interpreter`] executes one program (one point of the grid) at a time, on ragged tiles of
//! any block size, and returns the tiles that the program stores. How arithmetic rounds is a
//! parameter:
//!
//! | arithmetic | floats | rounding | use |
//! | --- | --- | --- | --- |
//! | [`Exact64`] | f64 | none | the oracle |
//! | [`Ir32`] | f32 | casts and stores | what the IR means; the CPU device |
//! | [`Plain16`] | f32 | every matrix, too | what a 16-bit library computes: the baseline of the tolerance |
//! | [`Scattered`] | f32 | as `Plain16`, at random | how far such computations lie apart |
//!
//! The kernel must be verified: an op whose operands have the wrong kind is a panic here. Data that
//! does not fit the kernel (a wrong element type, an index out of bounds) is an [`InterpretError`].

mod arithmetic;
mod call;
mod elementwise;
mod error;
mod execution;
mod hidden;
mod machine;
mod memory;
mod tensor;
mod tile;

pub use arithmetic::{Computed, Exact64, Ir32, Plain16, Real, Rounding, Scattered};
pub use call::Blocks;
pub use error::InterpretError;
pub use hidden::Hidden;
pub use machine::{Arithmetic, Interpreter};
pub use memory::{Argument, Stored, TensorView};
pub use tensor::HostTensor;
