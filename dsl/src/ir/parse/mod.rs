//! Reads the text form of a kernel; its syntax is told in [`super::print`], which writes it.
//!
//! The reader checks what it needs to build the kernel: names are known, values are defined once and before their use,
//! every line has its form. Whether the kernel is sound is for [`super::verify`] to say.

mod lex;
mod ops;
mod reader;

use super::kernel::Kernel;
pub use reader::TextError;

/// Reads one kernel. Empty lines and lines that begin with `//` are skipped.
///
/// # Errors
/// At the first line that cannot be read.
///
/// ```
/// use flashtile_dsl::ir::parse_text;
///
/// let text = "\
/// kernel double {
///   size N runtime
///   param x: &tensor<f32, (N)>
///   param y: &mut tensor<f32, (N)>
///   axis i: program over N
///
///   %0: coord<i> = program tiles(i)  ; i
///   %1: tile<f32, (i)> = load_tile x[tile %0]
///   %2: tile<f32, (i)> = add %1, %1
///   store_tile y[tile %0], %2
/// }
/// ";
/// let kernel = parse_text(text).expect("well-formed");
/// assert_eq!(kernel.to_string(), text);
/// ```
pub fn parse_text(text: &str) -> Result<Kernel, TextError> {
    reader::Reader::new(text).kernel()
}
