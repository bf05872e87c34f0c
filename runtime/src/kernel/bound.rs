//! Kernels whose type parameters and constants are fixed.

use std::sync::Arc;

use flashtile_codegen::{Facts, Instance};
use flashtile_dsl::ir::{self, Binding};

use super::{LaunchOptions, LoadedKernel};
use crate::device::Device;
use crate::error::Result;

/// A kernel whose type parameters and constants are fixed. Clones are cheap.
#[derive(Clone, PartialEq, Debug)]
pub struct BoundKernel {
    pub(super) ir: Arc<ir::Kernel>,
    pub(super) binding: Binding,
}

impl BoundKernel {
    /// Its tile IR.
    pub fn ir(&self) -> &ir::Kernel {
        &self.ir
    }

    /// What its generics are bound to.
    pub fn binding(&self) -> &Binding {
        &self.binding
    }

    /// The kernel under facts about its arguments, as the code generator takes it.
    pub fn instance(&self, facts: Facts) -> Instance {
        Instance { kernel: (*self.ir).clone(), binding: self.binding.clone(), facts }
    }

    /// Makes it ready for a device, with the default cache and toolchain.
    ///
    /// # Errors
    /// The device cannot run it.
    pub fn on(&self, device: &Device) -> Result<LoadedKernel> {
        self.on_with(device, LaunchOptions::default())
    }

    /// Makes it ready for a device.
    ///
    /// # Errors
    /// The device cannot run it, or not with these options.
    pub fn on_with(&self, device: &Device, options: LaunchOptions) -> Result<LoadedKernel> {
        LoadedKernel::new(self, device, &options)
    }
}
