//! `flash_kernel!`: kernels of the tile language in the middle of a Rust file.
//!
//! A thin shell: [`flashtile_dsl::syntax`] reads and checks the kernels, here their errors become compile errors and the
//! sound ones typed handles. Depend on `flashtile`, which re-exports the macro; its expansion names that crate.

mod expand;

/// Declares attention kernels, and other kernels on tiles.
///
/// Each function becomes a type of the same name, generic over the same element types and sizes, with
///
/// * `source()`: the text of the kernel and its place;
/// * `on(&device)`: makes it ready for a device, compiling it or finding it in the cache;
/// * `on_with(&device, options)`: the same, with options such as a fixed schedule;
/// * `launch(...)`, `launch_on(&stream, ...)`: one argument for each parameter. Element types and `&mut` are checked by the
///   compiler, shapes and sizes that share a name at the call;
/// * `handle()`: the kernel made ready, with no static types.
///
/// Every error in a kernel is reported at its token. Names without use, and what a kernel loses (tiles that a mask hides and that are
/// walked, loops that cannot be split), are warnings at their place: stable Rust lets a macro warn by the use of a deprecated item
/// only, whose note is the message. `#[allow(deprecated)]` before the `fn` silences them for that kernel.
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
