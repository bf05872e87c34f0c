//! `flash_kernel!`: kernels of the tile language in the middle of a Rust file.
//!
//! A thin shell: [`flashtile_dsl::syntax`] reads and checks the kernels, here their errors become compile errors and the
//! sound ones typed handles. Depend on `flashtile`, which re-exports the macro; its expansion names that crate.

mod expand;
mod gradient;
mod types;

/// Declares attention kernels, and other kernels on tiles.
///
/// Each function becomes a type of the same name, generic over the same element types and sizes,
/// with
///
/// * `source()`: the text of the kernel and its place;
/// * `on(&device)`: makes it ready for a device, compiling it or finding it in the cache;
/// * `on_with(&device, options)`: the same, with options such as a fixed schedule;
/// * `launch(...)`, `launch_on(&stream, ...)`: one argument for each parameter. Element types and
///   `&mut` are checked by the compiler, shapes and sizes that share a name at the call;
/// * `handle()`: the kernel made ready, with no static types.
///
/// # Gradients
///
/// `#[grad(q, k, v)]` before the `fn` derives the gradients of these inputs, when the macro
/// expands: what has no gradient is an error at its token. The gradients of outputs of a type
/// parameter are given; `#[grad(x, w, from(loss))]` names others, and `#[grad(q, k, v,
/// form(fused))]` asks for kernels that make the scores once, `form(shares)` or `form(fused,
/// shares)` for a program for each head, where heads share keys, and `form(stored)` for kernels that
/// store the gradient of each score, where rows are wide. The type then has as well
///
/// * `forward(...)`, `forward_on(&stream, ...)`: as `launch`, with outputs more where `backward`
///   reads what the kernel does not store;
/// * `backward(&mut workspace, ...)`, `backward_on(&stream, &mut workspace, ...)`: launches the
///   kernels of the gradient one after the other. Arguments are what they read of the parameters of
///   `forward`, outputs among them, in their order; then the gradients of outputs, `grad_o`; then,
///   to be written, those of inputs in the order of the attribute, `grad_q`;
/// * `gradient()`: these kernels made ready, with no static types; `forward_handle()`: that of
///   `forward`.
///
/// What one kernel of the gradient leaves to a later one lies in the `flashtile::Workspace`, which
/// may be used again.
///
/// Every error in a kernel is reported at its token. Names without use, and what a kernel loses
/// (tiles that a mask hides and that are walked, loops that cannot be split), are warnings at their
/// place: stable Rust lets a macro warn by the use of a deprecated item only, whose note is the
/// message. `#[allow(deprecated)]` before the `fn` silences them for that kernel.
///
/// The generated code names the crate `::flashtile`. A crate that depends on it by another name,
/// `ft = { package = "flashtile", .. }`, says `extern crate ft as flashtile;` in its root.
///
/// The language, with known variants of attention as examples, is in the module
/// `flashtile::language`.
///
/// ```ignore
/// use flashtile::{Device, Tensor, flash_kernel};
///
/// flash_kernel! {
///     /// Doubles every element.
///     pub fn double<T: Element>(x: &Tensor<T, (N)>, y: &mut Tensor<T, (N)>) {
///         let i = program(tiles(N));
///         store(y, [i], 2.0 * load(x, [i]));
///     }
/// }
///
/// let device = Device::best();
/// let x = Tensor::<f32>::from_slice(&device, &[3], &[1.0, 2.0, 3.0])?;
/// let mut y = Tensor::<f32>::zeros(&device, &[3])?;
/// double::<f32>::on(&device)?.launch(&x, &mut y)?;
/// ```
#[proc_macro]
pub fn flash_kernel(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    expand::expand(input.into()).into()
}
