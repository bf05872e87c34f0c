//! Kernels as read from text, not yet bound.

use std::sync::Arc;

use flashtile_dsl::grad::{self, Form, NotDifferentiable, Request};
use flashtile_dsl::ir::{self, Binding, Elem, SizeKind, SourceText};
use flashtile_dsl::syntax::{self, Diagnostic, Diagnostics};

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

/// The kernels of a gradient: [`Kernel::gradient`].
#[derive(Clone, PartialEq, Debug)]
pub struct Gradient {
    /// The forward kernel, with outputs more where the others need what it does not store.
    pub forward: Kernel,
    /// The kernels that compute the gradients, in the order of their launches: one may read what
    /// those before it have written.
    pub backward: Vec<Kernel>,
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
        let kernels = syntax::parse(source).map_err(KernelError::from)?;
        Ok(kernels.into_iter().map(Self::from_ir).collect())
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

    /// Its text: as it was read, or as a rewrite has written it.
    pub fn text(&self) -> &str {
        &self.ir.source.text
    }

    /// The kernels of the gradients of inputs, given those of outputs. The gradient of a tensor `x`
    /// is called `grad_x`. The page [`crate::language`] says what is differentiated, and how the
    /// kernels are launched.
    ///
    /// ```
    /// use flashtile::Kernel;
    /// let gradient = Kernel::builtin("causal_attention")?.gradient(&["q", "k", "v"], &["o"])?;
    /// let names: Vec<&str> = gradient.backward.iter().map(Kernel::name).collect();
    /// assert_eq!(names, ["causal_attention_grad_rows", "causal_attention_grad_columns"]);
    /// # Ok::<(), flashtile::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`KernelError::Text`]: what stands against it, at its place in the text.
    pub fn gradient(&self, of: &[&str], from: &[&str]) -> Result<Gradient> {
        self.gradient_in(Form::Plain, of, from)
    }

    /// The same in a form: [`Form::Fused`] has fewer products, and sums that differ in their last
    /// bits from launch to launch.
    ///
    /// # Errors
    /// As [`Kernel::gradient`]; the form is not built for the kernel.
    pub fn gradient_in(&self, form: Form, of: &[&str], from: &[&str]) -> Result<Gradient> {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        let request = Request { of: names(of), from: names(from), form };
        let made = grad::gradient(&self.ir, &request).map_err(|NotDifferentiable { what, span, instead }| {
            let list = vec![Diagnostic::new(span, what).help(instead)];
            KernelError::from(Diagnostics { list, source: self.ir.source.clone() })
        })?;
        let backward = made.backward.into_iter().map(Self::from_ir).collect();
        Ok(Gradient { forward: Self::from_ir(made.forward), backward })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_builtin_is_a_kernel_and_is_found_by_name() {
        for builtin in BUILTINS {
            let kernel = Kernel::open(builtin.name).expect(builtin.name);
            assert_eq!(kernel.name(), builtin.name);
        }
        let error = Kernel::open("atention").expect_err("a typo").to_string();
        assert!(error.starts_with("no kernel `atention` in the built-in kernels; there is attention, "), "{error}");
    }

    #[test]
    fn kernels_of_a_file_by_name() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("two.rs");
        let text = |name: &str| BUILTINS.iter().find(|b| b.name == name).expect("a built-in").text;
        let text = text("attention").to_owned() + text("row_softmax");
        std::fs::write(&path, text).expect("writes");
        let path = path.display();
        assert_eq!(Kernel::open(&format!("{path}:row_softmax")).expect("is there").name(), "row_softmax");
        let error = |spec: String| Kernel::open(&spec).expect_err(&spec).to_string();
        assert_eq!(
            error(path.to_string()),
            format!("{path} holds several kernels (attention, row_softmax); name one as FILE:NAME")
        );
        assert!(error(format!("{path}:other")).starts_with("no kernel `other`"));
        assert!(error("missing.rs".to_owned()).starts_with("failed to read kernel file missing.rs"));
    }

    #[test]
    fn bindings_are_checked() {
        let kernel = Kernel::builtin("attention").expect("a built-in");
        let error = |elem, consts: &[(&str, i64)]| kernel.bind(elem, consts.iter().copied()).expect_err("is wrong").to_string();
        assert_eq!(error(Elem::F16, &[]), "kernel `attention` needs D; bind them");
        assert_eq!(error(Elem::I32, &[("D", 64)]), "type parameter `T` cannot be i32; expected f32, f16 or bf16");
        assert_eq!(error(Elem::F16, &[("D", 0)]), "constant `D` cannot be 0; expected a positive number");
        assert_eq!(error(Elem::F16, &[("D", 64), ("E", 1)]), "kernel `attention` has no constant `E`; it has D");
        let (one, other) = (kernel.bind(Elem::F16, [("D", 64)]), kernel.bind(Elem::F16, [("D", 64)]));
        assert_eq!(one.expect("binds").fingerprint(), other.expect("binds").fingerprint());
    }
}
