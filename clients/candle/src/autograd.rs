//! Gradients in candle's graph. Each output of a call that holds floats becomes a node, whose
//! backward pass runs the kernels that flashtile derives: what one leaves to a later one is a tensor
//! of candle too.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use candle_core::{
    CpuStorage, CudaStorage, CustomOp1, CustomOp2, CustomOp3, DeviceLocation, Layout, Result as CandleResult, Shape, Storage,
    Tensor, bail,
};
use flashtile::client::{Kept, fastest};
use flashtile::kernel::{Deduced, ParamKind};
use flashtile::{Elem, Form, Gradient, Kernel, LaunchOptions};

use crate::error::{Error, Result};
use crate::input::{Input, Named, input_names};
use crate::launcher::{Launcher, tensor};
use crate::output::{Output, Place};

/// Tensors that an operator of candle can have.
const MOST: usize = 3;

/// The gradients of some inputs, one for each output that may be given.
pub(crate) struct Gradients {
    /// In the order of the outputs: those of floats.
    each: Vec<Arc<Lazy>>,
}

/// The gradient of some inputs given that of one output, derived when it is asked for first.
struct Lazy {
    /// The kernel with the settings of its operator.
    launcher: Launcher,
    from: String,
    of: Vec<String>,
    form: Option<Form>,
    derived: OnceLock<Result<Backward, Arc<Error>>>,
}

/// The kernels of a gradient, ready to run.
struct Backward {
    /// The kernel, with outputs more where those of the gradient need them.
    forward: Launcher,
    /// In the order of their launches.
    kernels: Vec<Launcher>,
    /// Those of other forms, where the form is a choice, and they need nothing else of the forward
    /// kernel.
    others: Vec<(Form, Vec<Launcher>)>,
    /// The form that is taken, by the types and sizes of a call.
    chosen: Kept<(DeviceLocation, Deduced), Form>,
}

impl Gradients {
    /// Of these inputs of a kernel. Nothing is derived yet.
    pub fn new(launcher: &Launcher, form: Option<Form>, of: &[String]) -> Self {
        let lazy = |from: String| Lazy {
            launcher: launcher.with_kernel(launcher.kernel.clone(), launcher.options.clone()),
            from,
            of: of.to_vec(),
            form,
            derived: OnceLock::new(),
        };
        Self { each: differentiable(&launcher.kernel).into_iter().map(|from| Arc::new(lazy(from))).collect() }
    }

    /// The gradient that the forward pass prepares for: given the first output of a type parameter,
    /// else the first one. `None` if no output holds floats.
    fn first(&self) -> Option<&Arc<Lazy>> {
        let is_generic = |lazy: &&Arc<Lazy>| {
            let ir = lazy.launcher.kernel.ir();
            ir.param_named(&lazy.from).is_some_and(|param| matches!(ir.tensor(param).elem, Elem::Generic(_)))
        };
        self.each.iter().find(is_generic).or(self.each.first())
    }
}

impl Lazy {
    fn get(&self) -> Result<&Backward, Arc<Error>> {
        self.derived.get_or_init(|| Backward::derive(self).map_err(Arc::new)).as_ref().map_err(Arc::clone)
    }

    /// Whether the kernel itself has an output, which its gradient alone may have.
    fn has_output(&self, name: &str) -> bool {
        self.launcher.kernel.ir().param_named(name).is_some()
    }
}

impl Backward {
    fn derive(lazy: &Lazy) -> Result<Self> {
        let (launcher, kernel) = (&lazy.launcher, &lazy.launcher.kernel);
        if lazy.of.len() > MOST {
            return Err(Error::TooManyGradients { kernel: kernel.name().to_owned(), names: lazy.of.clone() });
        }
        let from = &*lazy.from;
        let names: Vec<&str> = lazy.of.iter().map(String::as_str).collect();
        let made = kernel.gradient_in(lazy.form.unwrap_or_default(), &names, &[from])?;
        let options = LaunchOptions { schedule: None, plans: None, ..launcher.options.clone() };
        let launchers = |kernels: Vec<Kernel>| -> Vec<Launcher> {
            kernels.into_iter().map(|kernel| launcher.with_kernel(kernel, options.clone())).collect()
        };
        let other = |form: Form| {
            let other = kernel.gradient_in(form, &names, &[from]).ok().filter(|other| reads_no_more(other, &made, from));
            other.map(|other| (form, launchers(other.backward)))
        };
        let choices = if lazy.form.is_none() { &Form::ALL[1..] } else { &[] };
        let others = choices.iter().filter_map(|&form| other(form)).collect();
        let forward = launcher.with_kernel(made.forward, launcher.options.clone());
        Ok(Self { forward, kernels: launchers(made.backward), others, chosen: Kept::default() })
    }

    /// The kernels that are predicted to be the faster ones for the types and sizes of a call.
    fn kernels(&self, place: DeviceLocation, deduced: &Deduced) -> Result<&[Launcher]> {
        if self.others.is_empty() {
            return Ok(&self.kernels);
        }
        let seconds = |kernels: &[Launcher]| -> Result<Option<f64>> {
            kernels.iter().map(|launcher| launcher.predicted(place, deduced)).sum()
        };
        let is_it = |key: &(DeviceLocation, Deduced)| key.0 == place && key.1 == *deduced;
        let chosen = self.chosen.get(
            is_it,
            || (place, deduced.clone()),
            |_| {
                let mut predicted = vec![(Form::Plain, seconds(&self.kernels)?)];
                for (form, kernels) in &self.others {
                    predicted.push((*form, seconds(kernels)?));
                }
                Ok::<_, Error>(fastest(predicted))
            },
        )?;
        let other = self.others.iter().find(|(form, _)| *form == chosen.value);
        Ok(other.map_or(&self.kernels, |(_, kernels)| kernels))
    }
}

/// Whether the kernels of a gradient read nothing but what the forward kernel of another one has,
/// the gradient that is given, and what they store themselves.
fn reads_no_more(gradient: &Gradient, other: &Gradient, from: &str) -> bool {
    let mut known: BTreeSet<String> = other.forward.ir().params.values().map(|param| param.name.clone()).collect();
    known.insert(format!("grad_{from}"));
    gradient.backward.iter().all(|kernel| {
        let reads_known = input_names(kernel).all(|name| known.contains(name));
        known.extend(kernel.ir().params.values().map(|param| param.name.clone()));
        reads_known
    })
}

/// Outputs that hold floats.
fn differentiable(kernel: &Kernel) -> Vec<String> {
    let is_float = |elem: Elem| matches!(elem, Elem::Generic(_) | Elem::F32 | Elem::F16 | Elem::Bf16);
    let written = kernel.ir().params.values().filter_map(|param| match &param.kind {
        ParamKind::Tensor(tensor) if tensor.direction.is_written() && is_float(tensor.elem) => Some(param.name.clone()),
        _ => None,
    });
    written.collect()
}

/// Names of the inputs that need gradients.
pub(crate) fn tracked(inputs: &Named<'_>) -> Vec<String> {
    let needs = |tensor: &Tensor| tensor.track_op() && tensor.dtype().is_float();
    inputs.iter().filter(|(_, input)| tensor(*input).is_some_and(needs)).map(|(name, _)| (*name).to_owned()).collect()
}

/// Runs a kernel some of whose inputs need gradients. Each output of floats is the result of a node
/// of its own. If one has no gradient, it is there all the same, and the backward pass gives the
/// error.
pub(crate) fn run(
    launcher: &Launcher,
    gradients: &Gradients,
    inputs: &Named<'_>,
    of: &[String],
) -> Result<Vec<(String, Tensor)>> {
    let Some(first) = gradients.first() else {
        return launcher.launch(inputs, &launcher.known)?.tensors();
    };
    let forward = first.get().map_or(launcher, |backward| &backward.forward);
    let made = forward.launch(inputs, &launcher.known)?;
    let is_argument = |name: &str| of.iter().any(|of| of == name);
    let saved = inputs.iter().filter(|(name, _)| !is_argument(name)).map(|(name, input)| ((*name).to_owned(), Saved::of(*input)));
    let call = Arc::new(Call {
        saved: saved.collect(),
        of: of.to_vec(),
        outputs: OnceLock::new(),
        prepared: first.from.clone(),
        deduced: made.deduced().clone(),
    });
    let arguments: Vec<&Tensor> = inputs.iter().filter(|(name, _)| is_argument(name)).filter_map(|(_, x)| tensor(*x)).collect();
    let mut results = Vec::new();
    for output in made.outputs {
        let Some(gradient) = gradients.each.iter().find(|lazy| lazy.from == output.name) else {
            results.push(output.tensor()?);
            continue;
        };
        let name = output.name.clone();
        let (storage, shape, place) = output.into_parts();
        let forward = Mutex::new(Some((storage, shape)));
        let node = Node { forward, place: place.clone(), gradient: gradient.clone(), call: call.clone() };
        let result = match arguments[..] {
            [a] => a.apply_op1(node)?,
            [a, b] => a.apply_op2(b, node)?,
            [a, b, c, ..] => a.apply_op3(b, c, node)?,
            [] => unreachable!("an input needs a gradient"),
        };
        results.push((name, place.seen(&result)?));
    }
    // The graph holds the call, which must not hold the graph.
    let outputs = results.iter().map(|(name, tensor)| (name.clone(), tensor.detach())).collect();
    call.outputs.get_or_init(|| outputs);
    // What the gradient alone needs is no output of the kernel.
    results.retain(|(name, _)| first.has_output(name));
    Ok(results)
}

/// What the backward pass reads beside the arguments of the node.
enum Saved {
    Tensor(Tensor),
    F32(f32),
    I32(i32),
}

impl Saved {
    fn of(input: Input<'_>) -> Self {
        match input {
            Input::Tensor(tensor) => Saved::Tensor(tensor.clone()),
            Input::F32(x) => Saved::F32(x),
            Input::I32(x) => Saved::I32(x),
        }
    }

    fn input(&self) -> Input<'_> {
        match self {
            Saved::Tensor(tensor) => Input::Tensor(tensor),
            Saved::F32(x) => Input::F32(*x),
            Saved::I32(x) => Input::I32(*x),
        }
    }
}

/// A call of a kernel, which the nodes of its outputs have in common.
struct Call {
    /// Inputs that are no arguments of the nodes.
    saved: BTreeMap<String, Saved>,
    /// Names of the arguments, more than candle takes if there is an error.
    of: Vec<String>,
    /// What the forward kernel has stored, with no place in the graph.
    outputs: OnceLock<BTreeMap<String, Tensor>>,
    /// The output whose gradient this forward kernel was prepared for.
    prepared: String,
    /// Types and sizes.
    deduced: Deduced,
}

/// An output of a call in candle's graph. The kernel has run when the node is made: its forward
/// pass hands over what the kernel has stored.
struct Node {
    forward: Mutex<Option<(Storage, Shape)>>,
    /// How the kernel sees the result, whose dimensions are in the order of memory.
    place: Place,
    gradient: Arc<Lazy>,
    call: Arc<Call>,
}

/// Keeps an error behind an `Arc`, since each backward pass returns it.
struct Shared(Arc<Error>);

impl std::fmt::Display for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl Node {
    fn take(&self) -> CandleResult<(Storage, Shape)> {
        match self.forward.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(made) => Ok(made),
            None => bail!("a node of flashtile was applied twice"),
        }
    }

    fn on_cpu(&self) -> CandleResult<(CpuStorage, Shape)> {
        match self.take()? {
            (Storage::Cpu(storage), shape) => Ok((storage, shape)),
            (other, _) => bail!("the result of flashtile is on {:?}, not on the CPU", other.device().location()),
        }
    }

    fn on_gpu(&self) -> CandleResult<(CudaStorage, Shape)> {
        match self.take()? {
            (Storage::Cuda(storage), shape) => Ok((storage, shape)),
            (other, _) => bail!("the result of flashtile is on {:?}, not on a GPU", other.device().location()),
        }
    }

    /// The gradients of the arguments, in their order.
    fn backward(&self, arguments: &[&Tensor], result: &Tensor, gradient: &Tensor) -> CandleResult<Vec<Option<Tensor>>> {
        let (call, from) = (&*self.call, &*self.gradient.from);
        let backward = self.gradient.get().map_err(|error| candle_core::Error::wrap(Shared(error)))?;
        let (result, gradient) = (self.place.seen(result)?, self.place.seen(gradient)?);
        let given = format!("grad_{from}");
        let mut found: BTreeMap<&str, Input<'_>> = call.saved.iter().map(|(name, saved)| (&**name, saved.input())).collect();
        found.extend(call.of.iter().zip(arguments).map(|(name, tensor)| (&**name, Input::Tensor(tensor))));
        let further = if from == call.prepared { Vec::new() } else { self.prepare_again(backward, &found)? };
        let outputs = call.outputs.get().into_iter().flatten();
        found.extend(outputs.map(|(name, tensor)| (&**name, Input::Tensor(tensor))));
        found.extend(further.iter().map(|(name, tensor)| (&**name, Input::Tensor(tensor))));
        found.insert(from, Input::Tensor(&result));
        found.insert(&given, Input::Tensor(&gradient));
        let mut deduced = call.deduced.clone();
        let mut stored: BTreeMap<String, Tensor> = BTreeMap::new();
        // What several kernels store parts of, until the last of them has.
        let mut begun: BTreeMap<String, Output> = BTreeMap::new();
        let device = gradient.device();
        let kernels = backward.kernels(device.location(), &call.deduced)?;
        for (number, launcher) in kernels.iter().enumerate() {
            let kernel = &launcher.kernel;
            let input = |name| {
                let input = stored.get::<str>(name).map(Input::Tensor).or_else(|| found.get::<str>(name).copied());
                Ok((name, input.ok_or_else(|| missing(kernel, name))?))
            };
            let inputs = input_names(kernel).map(input).collect::<Result<Named<'_>>>()?;
            let made = launcher.launch_on(device, &inputs, &deduced, &mut begun)?;
            deduced = made.deduced().clone();
            for output in made.outputs {
                let stores_it = |later: &Launcher| {
                    later
                        .kernel
                        .ir()
                        .param_named(&output.name)
                        .is_some_and(|param| later.kernel.ir().params[param].kind.is_written())
                };
                if kernels[number + 1..].iter().any(stores_it) {
                    begun.insert(output.name.clone(), output);
                } else {
                    let (name, tensor) = output.tensor()?;
                    stored.insert(name, tensor);
                }
            }
        }
        Ok(call.of.iter().map(|name| stored.remove(&format!("grad_{name}"))).collect())
    }

    /// What this gradient alone needs of the forward kernel, which was prepared for that of another
    /// output. The forward kernel runs again where there is something.
    fn prepare_again(&self, backward: &Backward, inputs: &BTreeMap<&str, Input<'_>>) -> Result<Vec<(String, Tensor)>> {
        let kernel = &backward.forward.kernel;
        if kernel.ir().outputs().all(|name| self.gradient.has_output(name)) {
            return Ok(Vec::new());
        }
        let named = |name| Ok((name, *inputs.get(name).ok_or_else(|| missing(kernel, name))?));
        let inputs = input_names(kernel).map(named).collect::<Result<Named<'_>>>()?;
        let made = backward.forward.launch(&inputs, &backward.forward.known)?.tensors()?;
        Ok(made.into_iter().filter(|(name, _)| !self.gradient.has_output(name)).collect())
    }
}

fn missing(kernel: &Kernel, name: &str) -> Error {
    Error::Missing { kernel: kernel.name().to_owned(), name: name.to_owned() }
}

const NAME: &str = "flashtile";

impl CustomOp1 for Node {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> CandleResult<(CpuStorage, Shape)> {
        self.on_cpu()
    }

    fn cuda_fwd(&self, _: &CudaStorage, _: &Layout) -> CandleResult<(CudaStorage, Shape)> {
        self.on_gpu()
    }

    fn bwd(&self, a: &Tensor, result: &Tensor, gradient: &Tensor) -> CandleResult<Option<Tensor>> {
        Ok(self.backward(&[a], result, gradient)?.remove(0))
    }
}

impl CustomOp2 for Node {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout) -> CandleResult<(CpuStorage, Shape)> {
        self.on_cpu()
    }

    fn cuda_fwd(&self, _: &CudaStorage, _: &Layout, _: &CudaStorage, _: &Layout) -> CandleResult<(CudaStorage, Shape)> {
        self.on_gpu()
    }

    fn bwd(&self, a: &Tensor, b: &Tensor, result: &Tensor, gradient: &Tensor) -> CandleResult<(Option<Tensor>, Option<Tensor>)> {
        let mut gradients = self.backward(&[a, b], result, gradient)?;
        Ok((gradients.remove(0), gradients.remove(0)))
    }
}

impl CustomOp3 for Node {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> CandleResult<(CpuStorage, Shape)> {
        self.on_cpu()
    }

    fn cuda_fwd(
        &self,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
    ) -> CandleResult<(CudaStorage, Shape)> {
        self.on_gpu()
    }

    fn bwd(
        &self,
        a: &Tensor,
        b: &Tensor,
        c: &Tensor,
        result: &Tensor,
        gradient: &Tensor,
    ) -> CandleResult<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let mut gradients = self.backward(&[a, b, c], result, gradient)?;
        Ok((gradients.remove(0), gradients.remove(0), gradients.remove(0)))
    }
}
