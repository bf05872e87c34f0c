//! # The front end
//!
//! Kernel text (the syntax of Rust, read by `syn`) to tile IR. One checker serves the macro and files.
//!
//! | module | subject |
//! | --- | --- |
//! | `diagnostic`, `render` | errors, collected and spanned; their rendering |
//! | `position` | token spans to byte ranges, and back |
//! | `limit` | bounds on nesting |
//! | `file` | the functions of a file or macro |
//! | `kernel` | one function: header, body, final checks |
//! | `signature` | parameters and sizes |
//! | `gradient` | `#[grad(..)]` before a kernel |
//! | `dimension` | dimensions of tensors: names, numbers, sums of sizes |
//! | `scope` | variables, and which a loop carries |
//! | `operand` | what an expression evaluates to before it is an IR value |
//! | `statement`, `loops`, `expression` | the body |
//! | `builtin` | the functions of the language |
//! | `helper`, `inline` | functions of the user's own: their headers, their calls |
//! | `elementwise`, `matrix`, `memory` | type rules of arithmetic, of dot and reductions, of loads and stores |
//! | `suggest` | did you mean |
//! | `elsewhere` | words of other languages |
//! | `unused` | warnings about what is named and not needed |
//!
//! The language: `let`, `let mut`, assignment, `for j in tiles(N)`, `for t in 0..N`, the functions
//! listed in `builtin`, `.t()`, `.to::<T>()`, `INF`, and the operators `+ - * / %`, comparisons,
//! `&&`, `||`, `!`. Literals adapt to what they meet. Integers that are the same in the whole
//! program (program ids, sizes) stay indices until they meet a tile; an i32 that meets an f32 is
//! converted.

mod attributes;
mod builtin;
mod diagnostic;
mod dimension;
mod elementwise;
mod elsewhere;
mod expression;
mod file;
mod fragment;
mod gradient;
mod helper;
mod inline;
mod kernel;
mod limit;
mod loops;
mod matrix;
mod memory;
mod operand;
mod position;
mod render;
mod scope;
mod signature;
mod statement;
mod suggest;
mod unused;

pub(crate) use builtin::functions;
pub use builtin::words;
pub use diagnostic::{Call, Diagnostic, Diagnostics, Severity};
pub use file::{Function, Parsed, parse, parse_macro, parse_with_warnings};
pub use fragment::without_fragments;
pub use gradient::Gradients;
pub(crate) use memory::moved_within;
pub use position::Embedded;
pub use render::{Style, render};
