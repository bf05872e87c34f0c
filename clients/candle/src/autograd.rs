//! Gradients in candle's graph. The result of a call becomes a node whose backward pass runs the
//! kernels that flashtile derives: what one leaves to a later one is a tensor of candle too.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

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

/// A gradient, or why there is none.
pub(crate) type Derived = Result<Arc<Backward>, Arc<Error>>;

/// The kernels of a gradient, ready to run.
pub(crate) struct Backward {
    /// The output whose gradient is given.
    from: String,
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

impl Backward {
    /// The gradient of some inputs, given that of an output that the user may have named.
    pub fn derive(launcher: &Launcher, from: Option<&str>, form: Option<Form>, of: &[String]) -> Result<Self> {
        let kernel = &launcher.kernel;
        if of.len() > MOST {
            return Err(Error::TooManyGradients { kernel: kernel.name().to_owned(), names: of.to_vec() });
        }
        let from = differentiated(kernel, from)?;
        let names: Vec<&str> = of.iter().map(String::as_str).collect();
        let made = kernel.gradient_in(form.unwrap_or_default(), &names, &[&from])?;
        let options = LaunchOptions { schedule: None, plans: None, ..launcher.options.clone() };
        let launchers = |kernels: Vec<Kernel>| -> Vec<Launcher> {
            kernels.into_iter().map(|kernel| launcher.with_kernel(kernel, options.clone())).collect()
        };
        let other = |form: Form| {
            let other = kernel.gradient_in(form, &names, &[&from]).ok().filter(|other| reads_no_more(other, &made, &from));
            other.map(|other| (form, launchers(other.backward)))
        };
        let choices = if form.is_none() { &Form::ALL[1..] } else { &[] };
        let others = choices.iter().filter_map(|&form| other(form)).collect();
        let forward = launcher.with_kernel(made.forward, launcher.options.clone());
        Ok(Self { from, forward, kernels: launchers(made.backward), others, chosen: Kept::default() })
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
                if predicted[0].1.is_some() {
                    for (form, kernels) in &self.others {
                        predicted.push((*form, seconds(kernels)?));
                    }
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

/// The output whose gradient is propagated: the one that was named, else the one of a type
/// parameter, else the one of f32.
fn differentiated(kernel: &Kernel, from: Option<&str>) -> Result<String> {
    let outputs = |wanted: fn(Elem) -> bool| -> Vec<String> {
        let written = kernel.ir().params.values().filter_map(|param| match &param.kind {
            ParamKind::Tensor(tensor) if tensor.direction.is_written() && wanted(tensor.elem) => Some(param.name.clone()),
            _ => None,
        });
        written.collect()
    };
    let unclear = |outputs| Error::Differentiated { kernel: kernel.name().to_owned(), outputs };
    if let Some(name) = from {
        let known = outputs(|_| true);
        let unknown =
            || Error::Unknown { kernel: kernel.name().to_owned(), what: "output", name: name.to_owned(), known: known.clone() };
        return known.iter().find(|known| *known == name).cloned().ok_or_else(unknown);
    }
    let generic = outputs(|elem| matches!(elem, Elem::Generic(_)));
    let mut candidates = if generic.is_empty() { outputs(|elem| elem == Elem::F32) } else { generic };
    match (candidates.pop(), candidates.is_empty()) {
        (Some(only), true) => Ok(only),
        (last, _) => Err(unclear(candidates.into_iter().chain(last).collect())),
    }
}

/// Names of the inputs that need gradients.
pub(crate) fn tracked(inputs: &Named<'_>) -> Vec<String> {
    let needs = |tensor: &Tensor| tensor.track_op() && tensor.dtype().is_float();
    inputs.iter().filter(|(_, input)| tensor(*input).is_some_and(needs)).map(|(name, _)| (*name).to_owned()).collect()
}

/// Runs a kernel some of whose inputs need gradients. If there is no gradient, the result is
/// there all the same, and the backward pass gives the error.
pub(crate) fn run(launcher: &Launcher, derived: Derived, inputs: &Named<'_>, of: &[String]) -> Result<Vec<(String, Tensor)>> {
    let forward = derived.as_ref().map_or(launcher, |backward| &backward.forward);
    let made = forward.launch(inputs, &launcher.known)?;
    let deduced = made.deduced().clone();
    let from = derived.as_ref().map_or_else(|_| first_output(&launcher.kernel), |backward| backward.from.clone());
    let mut outputs = made.outputs;
    let Some(at) = outputs.iter().position(|output| output.name == from) else {
        unreachable!("the forward kernel of a gradient has the outputs of the kernel")
    };
    let (storage, shape, place) = outputs.remove(at).into_parts();
    let others = outputs.into_iter().map(Output::tensor).collect::<CandleResult<Vec<_>>>()?;
    let mut saved: BTreeMap<String, Saved> =
        others.iter().map(|(name, tensor)| (name.clone(), Saved::Tensor(tensor.clone()))).collect();
    for (name, input) in inputs.iter().filter(|(name, _)| !of.iter().any(|of| of == name)) {
        saved.insert((*name).to_owned(), Saved::of(*input));
    }
    let node =
        Node { forward: Mutex::new(Some((storage, shape))), place: place.clone(), of: of.to_vec(), saved, derived, deduced };
    let arguments: Vec<&Tensor> =
        inputs.iter().filter(|(name, _)| of.iter().any(|of| of == name)).filter_map(|(_, x)| tensor(*x)).collect();
    let result = match arguments[..] {
        [a] => a.apply_op1(node)?,
        [a, b] => a.apply_op2(b, node)?,
        [a, b, c, ..] => a.apply_op3(b, c, node)?,
        [] => unreachable!("an input needs a gradient"),
    };
    // What the gradient alone needs is no output of the kernel.
    let has = |name: &str| launcher.kernel.ir().params.values().any(|param| param.name == name);
    let mut named: Vec<_> = others.into_iter().filter(|(name, _)| has(name)).collect();
    named.insert(at.min(named.len()), (from, place.seen(&result)?));
    Ok(named)
}

fn first_output(kernel: &Kernel) -> String {
    let written = kernel.ir().params.values().find(|param| param.kind.is_written());
    written.expect("a verified kernel stores something").name.clone()
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

/// A call in candle's graph. The kernel has run when the node is made: its forward pass hands over
/// what the kernel has stored.
struct Node {
    forward: Mutex<Option<(Storage, Shape)>>,
    /// How the kernel sees the result, whose dimensions are in the order of memory.
    place: Place,
    /// Names of the node's arguments, more than candle takes if there is an error.
    of: Vec<String>,
    saved: BTreeMap<String, Saved>,
    derived: Derived,
    /// Types and sizes of the call.
    deduced: Deduced,
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
        let backward = self.derived.as_ref().map_err(|error| candle_core::Error::wrap(Shared(error.clone())))?;
        let (result, gradient) = (self.place.seen(result)?, self.place.seen(gradient)?);
        let given = format!("grad_{}", backward.from);
        let mut found: BTreeMap<&str, Input<'_>> = self.saved.iter().map(|(name, saved)| (&**name, saved.input())).collect();
        found.extend(self.of.iter().zip(arguments).map(|(name, tensor)| (&**name, Input::Tensor(tensor))));
        found.insert(&backward.from, Input::Tensor(&result));
        found.insert(&given, Input::Tensor(&gradient));
        let mut deduced = self.deduced.clone();
        let mut stored: BTreeMap<String, Tensor> = BTreeMap::new();
        // What several kernels store parts of, until the last of them has.
        let mut begun: BTreeMap<String, Output> = BTreeMap::new();
        let device = gradient.device();
        let kernels = backward.kernels(device.location(), &self.deduced)?;
        for (number, launcher) in kernels.iter().enumerate() {
            let kernel = &launcher.kernel;
            let input = |name| {
                let input = stored.get::<str>(name).map(Input::Tensor).or_else(|| found.get::<str>(name).copied());
                let missing = || Error::Missing { kernel: kernel.name().to_owned(), name: name.to_owned() };
                Ok((name, input.ok_or_else(missing)?))
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
        Ok(self.of.iter().map(|name| stored.remove(&format!("grad_{name}"))).collect())
    }
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
