//! Any kernel of the language as an operator on tensors of candle.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use flashtile::kernel::KernelError;
use flashtile::{Elem, Form, Kernel, LaunchOptions};

use crate::autograd::{self, Gradients};
use crate::error::{Error, Result};
use crate::input::{Input, Named, Outputs, by_name, in_order};
use crate::launch::Launched;
use crate::launcher::Launcher;

/// A kernel as an operator on tensors of candle: on candle's CPU, and with the feature `cuda` on
/// its GPUs, in candle's memory and on candle's stream.
///
/// Element types, constants and the shapes of outputs follow from the inputs of each call. For each
/// device, type and constant the kernel is made ready once. Any strides will do, but the last
/// dimension must be contiguous: nothing is copied.
///
/// If inputs need gradients (`Var`s, and what is computed from them), outputs of floats are part of
/// candle's graph, and `backward` runs the kernels that `flashtile::Kernel::gradient` derives.
/// candle lets an operator have at most three such inputs. It also lets it have one output, so each
/// output is a node by itself: a loss of two of them, such as `o` and its LSE, runs the kernels of
/// two gradients, which candle adds up.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use flashtile_candle::Operator;
///
/// let softmax = Operator::builtin("row_softmax")?;
/// let x = Tensor::new(&[[0f32, 0.0], [1.0, 1.0]], &Device::Cpu)?;
/// let y = softmax.call(&[(&x).into()])?.into_first();
/// assert_eq!(y.to_vec2::<f32>()?, [[0.5, 0.5], [0.5, 0.5]]);
/// # Ok::<(), flashtile_candle::Error>(())
/// ```
pub struct Operator {
    launcher: Launcher,
    /// The form of the gradient, where the user has chosen one.
    form: Option<Form>,
    /// By the names of the inputs that need gradients.
    gradients: Mutex<BTreeMap<Vec<String>, Arc<Gradients>>>,
}

impl std::fmt::Debug for Operator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Operator({})", self.kernel().name())
    }
}

impl Operator {
    /// The operator of a kernel.
    pub fn new(kernel: Kernel) -> Self {
        Self { launcher: Launcher::new(kernel), form: None, gradients: Mutex::default() }
    }

    /// The operator of a built-in kernel.
    ///
    /// # Errors
    /// There is no such kernel.
    pub fn builtin(name: &str) -> Result<Self> {
        Ok(Self::new(Kernel::builtin(name)?))
    }

    /// The operator of the one kernel of a text in the kernel language.
    ///
    /// # Errors
    /// The text has errors, or no or several kernels.
    pub fn from_text(text: &str) -> Result<Self> {
        let source = flashtile::SourceText { name: "kernel text".to_owned(), text: text.into(), first_line: 1 };
        let kernels = Kernel::from_source(&source)?;
        match &kernels[..] {
            [kernel] => Ok(Self::new(kernel.clone())),
            [] => {
                let unknown = KernelError::Unknown { name: "any".to_owned(), place: source.name, known: "none".to_owned() };
                Err(flashtile::Error::from(unknown).into())
            }
            several => Err(Error::SeveralKernels { names: several.iter().map(|kernel| kernel.name().to_owned()).collect() }),
        }
    }

    /// Changes a setting. What was made ready by the ones before counts no more.
    fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        let Launcher { kernel, options, .. } = &self.launcher;
        Self {
            launcher: self.launcher.with_kernel(kernel.clone(), options.clone()),
            form: self.form,
            gradients: Mutex::default(),
        }
    }

    /// Fixes a constant or a size by name, such as a constant that no input determines.
    #[must_use]
    pub fn with_size(self, name: impl Into<String>, value: i64) -> Self {
        self.with(|operator| {
            operator.launcher.known.sizes.insert(name.into(), value);
        })
    }

    /// Fixes a type parameter by name, such as one that no input determines.
    #[must_use]
    pub fn with_type(self, name: impl Into<String>, elem: Elem) -> Self {
        self.with(|operator| {
            operator.launcher.known.types.insert(name.into(), elem);
        })
    }

    /// The form of the gradient. Without it the fused form is taken on a GPU where the cost model
    /// predicts it to be faster, and gives other last bits in each launch; the plain form does not,
    /// but for gradients of what is gathered.
    #[must_use]
    pub fn with_gradient_form(self, form: Form) -> Self {
        self.with(|operator| operator.form = Some(form))
    }

    /// The order in which the dimensions of an output lie in memory, outermost first. Without it
    /// they lie in the order of the kernel. The last dimension stays the last.
    ///
    /// With `with_layout("o", [0, 2, 1, 3])` the output `(B, H, M, D)` of attention is a view of
    /// memory `(B, M, H, D)`, so that the next projection takes it without a copy.
    #[must_use]
    pub fn with_layout(self, output: impl Into<String>, order: impl Into<Vec<usize>>) -> Self {
        self.with(|operator| {
            operator.launcher.layouts.insert(output.into(), order.into());
        })
    }

    /// How the kernel is compiled and with which schedule it runs. Backward kernels take the
    /// compiler and the cache of it, and schedules of their own.
    #[must_use]
    pub fn with_options(self, options: LaunchOptions) -> Self {
        self.with(|operator| operator.launcher.options = options)
    }

    /// Calls a function before each launch with what the launch uses, for tests and logs.
    #[must_use]
    pub fn with_observer(self, observer: impl Fn(&Launched<'_>) + Send + Sync + 'static) -> Self {
        self.with(|operator| operator.launcher.observer = Some(Arc::new(observer)))
    }

    /// The kernel.
    pub fn kernel(&self) -> &Kernel {
        &self.launcher.kernel
    }

    /// Runs the kernel on inputs in the order of its parameters, outputs left out.
    ///
    /// # Errors
    /// [`enum@crate::Error`]: the inputs do not fit the kernel, or the compiler or the device
    /// failed.
    pub fn call(&self, inputs: &[Input<'_>]) -> Result<Outputs> {
        self.run(&in_order(self.kernel(), inputs)?)
    }

    /// Runs the kernel on inputs by name, in any order.
    ///
    /// # Errors
    /// As [`Operator::call`].
    pub fn call_named(&self, inputs: &[(&str, Input<'_>)]) -> Result<Outputs> {
        self.run(&by_name(self.kernel(), inputs)?)
    }

    fn run(&self, inputs: &Named<'_>) -> Result<Outputs> {
        self.refuse_unknown()?;
        let tracked = autograd::tracked(inputs);
        let named = if tracked.is_empty() {
            self.launcher.launch(inputs, &self.launcher.known)?.tensors()?
        } else {
            autograd::run(&self.launcher, &self.gradients(&tracked), inputs, &tracked)?
        };
        Ok(Outputs { kernel: self.kernel().name().to_owned(), named })
    }

    /// Refuses settings that name what the kernel does not have.
    fn refuse_unknown(&self) -> Result<()> {
        let (ir, launcher) = (self.kernel().ir(), &self.launcher);
        let refuse = |what: &'static str, name: &String, known: Vec<String>| {
            Err(Error::Unknown { kernel: self.kernel().name().to_owned(), what, name: name.clone(), known })
        };
        if let Some(name) = launcher.known.sizes.keys().find(|name| ir.size_named(name).is_none()) {
            return refuse("size", name, ir.sizes.values().map(|size| size.name.clone()).collect());
        }
        if let Some(name) = launcher.known.types.keys().find(|name| !ir.type_params.contains(name)) {
            return refuse("type parameter", name, ir.type_params.clone());
        }
        let outputs = || ir.params.values().filter(|param| param.kind.is_written()).map(|param| param.name.clone());
        match launcher.layouts.keys().find(|name| outputs().all(|output| output != **name)) {
            Some(name) => refuse("output", name, outputs().collect()),
            None => Ok(()),
        }
    }

    /// The gradients of inputs, each derived once.
    fn gradients(&self, of: &[String]) -> Arc<Gradients> {
        let mut known = self.gradients.lock().unwrap_or_else(PoisonError::into_inner);
        known.entry(of.to_vec()).or_insert_with(|| Arc::new(Gradients::new(&self.launcher, self.form, of))).clone()
    }
}
