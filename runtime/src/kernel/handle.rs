//! Kernels as read from text, not yet bound.

use std::sync::Arc;

use flashtile_dsl::analysis::live::without_output;
use flashtile_dsl::grad::{self, Form, NotDifferentiable, Request};
use flashtile_dsl::ir::{self, Binding, Elem, SizeKind, SourceText};
use flashtile_dsl::syntax::{self, Diagnostic, Diagnostics};
use flashtile_dsl::text;

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
    /// The outputs whose gradients are given.
    pub from: Vec<String>,
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
        pick(Self::from_source(&source_of_builtin(name)?)?, Some(name), BUILT_IN)
    }

    /// The kernel that a command names: a built-in's name, `FILE` or `FILE:NAME`.
    ///
    /// # Errors
    /// [`KernelError`]: no such file, kernel or built-in, or an error in the text.
    pub fn open(spec: &str) -> Result<Self> {
        let Some((path, name)) = Self::file_of(spec) else { return Self::builtin(spec) };
        let source = if name.is_some() { read(path)? } else { Self::text_of(path)? };
        pick(Self::from_source(&source)?, name, path)
    }

    /// The file that a command names as `FILE` or `FILE:NAME`, and the name; `None` of a built-in.
    /// A colon in the path of a file that exists is no separator.
    pub fn file_of(spec: &str) -> Option<(&str, Option<&str>)> {
        if is_builtin(spec) {
            return None;
        }
        let parts = spec.rsplit_once(':').filter(|(_, name)| !name.contains(['/', '\\']) && !name.is_empty());
        match parts {
            Some((path, name)) if !std::path::Path::new(spec).is_file() => Some((path, Some(name))),
            _ => Some((spec, None)),
        }
    }

    /// The text that holds the kernels of a file, or the built-in of this name.
    ///
    /// # Errors
    /// [`KernelError::Read`] if the file cannot be read, [`KernelError::Unknown`] if there is none
    /// and `path` looks like the name of a built-in.
    pub fn text_of(path: &str) -> Result<SourceText> {
        let looks_like_name = !path.contains(['/', '\\', '.']);
        if is_builtin(path) || (looks_like_name && !std::path::Path::new(path).exists()) {
            return source_of_builtin(path);
        }
        read(path)
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
        Ok(Gradient { forward: Self::from_ir(made.forward), backward, from: request.from })
    }

    /// The kernel without some of its outputs, and without what nothing else needs, inputs among
    /// it. It has the same name, and a text of its own.
    ///
    /// ```
    /// use flashtile::Kernel;
    /// let attention = Kernel::builtin("attention")?.without(&["lse"])?;
    /// assert!(!attention.text().contains("lse"));
    /// # Ok::<(), flashtile::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`KernelError::Output`]: it has no such output, none is left, or the output is read too.
    pub fn without(&self, outputs: &[&str]) -> Result<Self> {
        let mut made = (*self.ir).clone();
        for &name in outputs {
            let refuse = |reason: String| KernelError::Output { kernel: made.name.clone(), name: name.to_owned(), reason };
            let written = |made: &ir::Kernel| {
                let outputs = made.params.values().filter(|param| param.kind.is_written());
                outputs.map(|param| param.name.clone()).collect::<Vec<_>>()
            };
            let known = written(&made);
            let param = made.param_named(name).filter(|_| known.iter().any(|output| output == name));
            let param = param.ok_or_else(|| refuse(format!("its outputs are {}", known.join(", "))))?;
            if made.params[param].kind.is_read() {
                return Err(refuse("it is read before it is stored".to_owned()).into());
            }
            if known.len() == 1 {
                return Err(refuse("it has no other".to_owned()).into());
            }
            made = without_output(&made, param);
        }
        let text = text::write(&made).map_err(|error| KernelError::Output {
            kernel: made.name.clone(),
            name: outputs.join(", "),
            reason: error.to_string(),
        })?;
        let source = SourceText { name: self.ir.source.name.clone(), text: text.into(), first_line: 1 };
        pick(Self::from_source(&source)?, Some(self.name()), "what is left of it")
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
        let missing = binding.check(&self.ir);
        if !missing.is_empty() {
            return Err(KernelError::Unbound { kernel: kernel.clone(), missing }.into());
        }
        Ok(BoundKernel { ir: self.ir.clone(), binding })
    }
}

/// What messages call the place where built-in kernels are.
const BUILT_IN: &str = "the built-in kernels";

fn is_builtin(name: &str) -> bool {
    BUILTINS.iter().any(|builtin| builtin.name == name)
}

fn source_of_builtin(name: &str) -> Result<SourceText> {
    let builtin = BUILTINS.iter().find(|builtin| builtin.name == name).ok_or_else(|| KernelError::Unknown {
        name: name.to_owned(),
        place: BUILT_IN.to_owned(),
        known: BUILTINS.iter().map(|builtin| builtin.name).collect::<Vec<_>>().join(", "),
    })?;
    Ok(SourceText { name: builtin.file.to_owned(), text: builtin.text.into(), first_line: 1 })
}

fn read(path: &str) -> Result<SourceText> {
    let text = std::fs::read_to_string(path).map_err(|e| KernelError::Read { path: path.to_owned(), reason: e.to_string() })?;
    Ok(SourceText { name: path.to_owned(), text: text.into(), first_line: 1 })
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
    fn a_file_is_told_from_a_name_in_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("a:b.rs").display().to_string();
        let header = "pub fn f(x: &Tensor<f32, (N)>, y: &mut Tensor<f32, (N)>)";
        let text = format!("{header} {{ let i = program(tiles(N)); store(y, [i], load(x, [i])); }}");
        std::fs::write(&path, text).expect("writes");
        let named = format!("{path}:f");
        assert_eq!(Kernel::file_of(&path), Some((&*path, None)));
        assert_eq!(Kernel::file_of(&named), Some((&*path, Some("f"))));
        assert_eq!(Kernel::file_of("attention"), None);
        assert_eq!(Kernel::file_of("c:/none.rs"), Some(("c:/none.rs", None)));
        for spec in [&path, &named] {
            assert_eq!(Kernel::open(spec).expect("opens").name(), "f");
        }
        let missing = dir.path().join("a").display().to_string();
        assert!(Kernel::open(&format!("{missing}:f")).is_err());
    }

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
    fn a_kernel_without_an_output_stores_the_others_and_computes_no_more() {
        let mut seen = 0;
        for builtin in BUILTINS {
            let kernel = Kernel::builtin(builtin.name).expect("is there");
            let names = |kernel: &Kernel| kernel.ir().params.values().map(|param| param.name.clone()).collect::<Vec<_>>();
            let outputs = kernel.ir().params.values().filter(|param| param.kind.is_written() && !param.kind.is_read());
            let outputs: Vec<&str> = outputs.map(|param| &*param.name).collect();
            for &output in outputs.iter().filter(|_| outputs.len() > 1) {
                let less = kernel.without(&[output]).expect(builtin.name);
                let others: Vec<_> = names(&kernel).into_iter().filter(|name| name != output).collect();
                assert!(names(&less).iter().all(|name| others.contains(name)), "{}", less.text());
                assert!(!less.text().contains(&format!("store({output},")), "{}", less.text());
                seen += 1;
            }
            let error = kernel.without(&outputs).expect_err("one is left").to_string();
            assert!(error.ends_with("it has no other"), "{error}");
        }
        assert!(seen > 20);
        let error = Kernel::builtin("attention").and_then(|kernel| kernel.without(&["q"])).expect_err("an input").to_string();
        assert_eq!(error, "kernel `attention` cannot do without the output `q`: its outputs are o, lse");
        // What only the output needs is gone: without `o` there are no values.
        let without = |output: &str| Kernel::builtin("attention").and_then(|kernel| kernel.without(&[output])).expect(output);
        let names = |kernel: Kernel| kernel.ir().params.values().map(|param| param.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(without("o")), ["q", "k", "scale", "lse"]);
        assert_eq!(names(without("lse")), ["q", "k", "v", "scale", "o"]);
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
        let expected = "kernel `attention` has no value for D; `Kernel::bind` gives type parameters and constants theirs";
        assert_eq!(error(Elem::F16, &[]), expected);
        assert_eq!(error(Elem::I32, &[("D", 64)]), "type parameter `T` cannot be i32; expected f32, f16 or bf16");
        assert_eq!(error(Elem::F16, &[("D", 0)]), "constant `D` cannot be 0; expected a positive number");
        assert_eq!(error(Elem::F16, &[("D", 64), ("E", 1)]), "kernel `attention` has no constant `E`; it has D");
        let (one, other) = (kernel.bind(Elem::F16, [("D", 64)]), kernel.bind(Elem::F16, [("D", 64)]));
        assert_eq!(one.expect("binds").fingerprint(), other.expect("binds").fingerprint());
    }
}
