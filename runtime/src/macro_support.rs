//! What the expansion of `flash_kernel!` uses. Not a stable interface.
//!
//! An expansion holds the text of its kernel as a [`KernelSource`] and a typed handle whose constructor calls
//! [`prepare`] and whose `launch` calls [`Handle::launch`].

use flashtile_dsl::ir::{Binding, SourceText};

pub use crate::device::Device;
pub use crate::element::Element;
pub use crate::error::{Error, Result};
pub use crate::launch::Argument;
pub use crate::tensor::Tensor;
pub use flashtile_dsl::ir::Elem;

use crate::device::{LaunchOptions, Stream};
use crate::kernel::{Kernel, KernelError};
use crate::launch::{LoadedGradient, LoadedKernel};

/// The text of a kernel and where it stands.
#[derive(Clone, Copy, Debug)]
pub struct KernelSource {
    /// Name of the kernel.
    pub name: &'static str,
    /// Text of the macro's input.
    pub text: &'static str,
    /// File.
    pub file: &'static str,
    /// Line of the file, from 1, on which the text begins.
    pub line: u32,
}

impl KernelSource {
    /// Reads the kernel.
    ///
    /// # Errors
    /// The text is not a kernel; the macro has checked it, so this means that versions of the macro and of this crate
    /// differ.
    pub fn kernel(&self) -> Result<Kernel> {
        let source = SourceText { name: self.file.to_owned(), text: self.text.into(), first_line: self.line };
        let kernels = Kernel::from_source(&source)?;
        let known = kernels.iter().map(Kernel::name).collect::<Vec<_>>().join(", ");
        kernels.into_iter().find(|k| k.name() == self.name).ok_or_else(|| {
            let (name, place) = (self.name.to_owned(), self.file.to_owned());
            KernelError::Unknown { name, place, known }.into()
        })
    }
}

/// Reads the kernel, binds its type parameters and constants by name, and makes it ready for a device.
///
/// # Errors
/// As [`crate::kernel::Kernel::bind_to`] and [`crate::BoundKernel::on`].
pub fn prepare(source: &KernelSource, types: &[(&str, Elem)], consts: &[(&str, i64)], device: &Device) -> Result<Handle> {
    prepare_with(source, types, consts, device, LaunchOptions::default())
}

/// As [`prepare`], with options.
///
/// # Errors
/// As [`prepare`].
pub fn prepare_with(
    source: &KernelSource,
    types: &[(&str, Elem)],
    consts: &[(&str, i64)],
    device: &Device,
    options: LaunchOptions,
) -> Result<Handle> {
    let binding = Binding {
        types: types.iter().map(|&(name, elem)| (name.to_owned(), elem)).collect(),
        consts: consts.iter().map(|&(name, value)| (name.to_owned(), value)).collect(),
    };
    Ok(Handle { loaded: source.kernel()?.bind_to(binding)?.on_with(device, options)? })
}

/// The options for kernels beside the one that is named: a schedule and plans are of that.
pub fn options_of_others(options: &LaunchOptions) -> LaunchOptions {
    LaunchOptions { schedule: None, plans: None, ..options.clone() }
}

/// The kernels of a gradient, launched as one with arguments of these names.
///
/// # Errors
/// As [`LoadedGradient::new`].
pub fn gradient(kernels: impl IntoIterator<Item = Handle>, names: &[&str]) -> Result<LoadedGradient> {
    LoadedGradient::new(kernels.into_iter().map(|handle| handle.loaded), names)
}

/// A kernel made ready for a device, behind the typed handle of an expansion.
#[derive(Debug)]
pub struct Handle {
    loaded: LoadedKernel,
}

impl Handle {
    /// Queues a launch on the device's own stream.
    ///
    /// # Errors
    /// As [`LoadedKernel::launch`].
    pub fn launch(&self, arguments: &[Argument<'_>]) -> Result<()> {
        self.loaded.launch(arguments)
    }

    /// Queues a launch on a stream.
    ///
    /// # Errors
    /// As [`LoadedKernel::launch_on`].
    pub fn launch_on(&self, stream: &Stream, arguments: &[Argument<'_>]) -> Result<()> {
        self.loaded.launch_on(stream, arguments)
    }

    /// The kernel made ready.
    pub fn loaded(&self) -> &LoadedKernel {
        &self.loaded
    }
}
