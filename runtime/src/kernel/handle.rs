//! Kernels as read from text, not yet bound.

use std::sync::Arc;

use flashtile_dsl::ir::{self, Binding, Elem, SizeKind, SourceText};

use super::{BUILTINS, BoundKernel, KernelError};
use crate::error::Result;

/// A verified kernel. Clones are cheap.
///
/// ```no_run
/// use flashtile::{Device, Elem, Kernel};
/// let kernel = Kernel::builtin("row_softmax")?.bind(Elem::F32, [] as [(&str, i64); 0])?.on(&Device::best())?;
/// # Ok::<(), flashtile::Error>(())
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct Kernel {
    ir: Arc<ir::Kernel>,
}

impl Kernel {
    /// A kernel in tile IR, which the caller has verified.
    pub fn from_ir(ir: ir::Kernel) -> Self {
        Self { ir: Arc::new(ir) }
    }

    /// All kernels of a text.
    ///
    /// # Errors
    /// [`KernelError::Text`] with every error of the text.
    pub fn from_source(source: &SourceText) -> Result<Vec<Self>> {
        Err(KernelError::Text { source_name: source.name.clone(), count: 1, rendered: "no front end yet".to_owned() }.into())
    }

    /// The built-in kernel of this name.
    ///
    /// # Errors
    /// [`KernelError::Unknown`] with the names that there are.
    pub fn builtin(name: &str) -> Result<Self> {
        let builtin = BUILTINS.iter().find(|b| b.name == name).ok_or_else(|| KernelError::Unknown {
            name: name.to_owned(),
            place: "the built-in kernels".to_owned(),
            known: BUILTINS.iter().map(|b| b.name).collect::<Vec<_>>().join(", "),
        })?;
        let source = SourceText { name: builtin.file.to_owned(), text: builtin.text.into(), first_line: 1 };
        pick(Self::from_source(&source)?, Some(name), "the built-in kernels")
    }

    /// The kernel that a command names: a built-in's name, `FILE` or `FILE:NAME`.
    ///
    /// # Errors
    /// [`KernelError`]: no such file, kernel or built-in, or an error in the text.
    pub fn open(spec: &str) -> Result<Self> {
        if BUILTINS.iter().any(|b| b.name == spec) {
            return Self::builtin(spec);
        }
        let (path, name) = match spec.rsplit_once(':') {
            Some((path, name)) if !name.contains(['/', '\\']) && !name.is_empty() => (path, Some(name)),
            _ => (spec, None),
        };
        let looks_like_name = name.is_none() && !spec.contains(['/', '\\', '.']);
        if looks_like_name && !std::path::Path::new(spec).exists() {
            return Self::builtin(spec);
        }
        let text =
            std::fs::read_to_string(path).map_err(|e| KernelError::Read { path: path.to_owned(), reason: e.to_string() })?;
        let source = SourceText { name: path.to_owned(), text: text.into(), first_line: 1 };
        pick(Self::from_source(&source)?, name, path)
    }

    /// Name.
    pub fn name(&self) -> &str {
        &self.ir.name
    }

    /// Its tile IR.
    pub fn ir(&self) -> &ir::Kernel {
        &self.ir
    }

    /// Fixes every type parameter to `elem` and the constants by name.
    ///
    /// # Errors
    /// [`KernelError`]: something is not bound, unknown, or no possible value.
    pub fn bind(&self, elem: Elem, consts: impl IntoIterator<Item = (impl Into<String>, i64)>) -> Result<BoundKernel> {
        self.bind_to(Binding::new(&self.ir, elem, consts))
    }

    /// Fixes the generics.
    ///
    /// # Errors
    /// [`KernelError`]: something is not bound, unknown, or no possible value.
    pub fn bind_to(&self, binding: Binding) -> Result<BoundKernel> {
        let kernel = &self.ir.name;
        let missing = binding.check(&self.ir);
        if !missing.is_empty() {
            return Err(KernelError::Unbound { kernel: kernel.clone(), missing }.into());
        }
        let unknown = |what, name: &String, known: Vec<String>| {
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            KernelError::NoSuchGeneric { kernel: kernel.clone(), what, name: name.clone(), known }
        };
        for (name, elem) in &binding.types {
            if !self.ir.type_params.contains(name) {
                return Err(unknown("type parameter", name, self.ir.type_params.clone()).into());
            }
            if !matches!(elem, Elem::F32 | Elem::F16 | Elem::Bf16) {
                return Err(KernelError::TypeArgument { name: name.clone(), found: *elem }.into());
            }
        }
        let consts = || self.ir.sizes.values().filter(|s| s.kind == SizeKind::Const).map(|s| s.name.clone());
        for (name, &value) in &binding.consts {
            if !consts().any(|c| c == *name) {
                return Err(unknown("constant", name, consts().collect()).into());
            }
            if !(1..1 << 31).contains(&value) {
                return Err(KernelError::ConstArgument { name: name.clone(), value }.into());
            }
        }
        Ok(BoundKernel { ir: self.ir.clone(), binding })
    }
}

fn pick(kernels: Vec<Kernel>, name: Option<&str>, place: &str) -> Result<Kernel> {
    let known = kernels.iter().map(Kernel::name).collect::<Vec<_>>().join(", ");
    let place = place.to_owned();
    match name {
        Some(name) => match kernels.into_iter().find(|k| k.name() == name) {
            Some(kernel) => Ok(kernel),
            None => Err(KernelError::Unknown { name: name.to_owned(), place, known }.into()),
        },
        None if kernels.len() > 1 => Err(KernelError::Ambiguous { place, known }.into()),
        None => kernels
            .into_iter()
            .next()
            .ok_or_else(|| KernelError::Unknown { name: "any".to_owned(), place, known: "none".to_owned() }.into()),
    }
}
