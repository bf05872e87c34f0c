//! Kernels whose type parameters and constants are fixed.

use std::sync::Arc;

use flashtile_codegen::{Facts, Instance, as_generated};
use flashtile_dsl::ir::{self, Binding};

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

    /// Hash of the kernel's text, for keys of the cache; of its tile IR if there is no text.
    pub fn fingerprint(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        match self.ir.source.text.is_empty() {
            false => hasher.update(self.ir.source.text.as_bytes()),
            true => hasher.update(format!("{:?}", self.ir).as_bytes()),
        };
        hasher.update(self.ir.name.as_bytes());
        hasher.finalize().to_hex().to_string()
    }

    pub(crate) fn shared_ir(&self) -> &Arc<ir::Kernel> {
        &self.ir
    }

    /// The kernel under facts about its arguments, as the code generator takes it.
    pub fn instance(&self, facts: Facts) -> Instance {
        Instance { kernel: as_generated(&self.ir, &self.binding), binding: self.binding.clone(), facts }
    }
}
