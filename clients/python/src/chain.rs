//! Kernels that one call launches one after the other, such as those of a gradient.
//!
//! A step reads what the caller gives and what steps before it have made, by the names of its
//! parameters. What follows from element types, shapes and strides of what is given is worked out
//! once for the whole chain and kept. A call reads addresses, allocates what is returned and one
//! workspace for all else, and launches.

use std::collections::HashMap;
use std::sync::Arc;

use flashtile::client::{Kept, KeptEntry, Param};
use flashtile::{ArgumentValue, Elem, PreparedLaunch};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::form::{Place, Seen};
use crate::host::{Host, NewOutput};
use crate::kernel::{PyKernel, known_of};
use crate::launch::{Key, Known, PreparedEntry, Read, common_place, queue, read_tensor};
use crate::noted::Tuned;
use crate::tensor::Number;

/// Kernels that are launched one after the other.
#[pyclass(module = "flashtile._flashtile", frozen)]
#[derive(Debug)]
pub(crate) struct Chain {
    steps: Vec<Step>,
    /// What the caller gives, in order; `None` for what no step reads.
    given: Vec<Option<Param>>,
    /// How many values steps make.
    made: usize,
    /// Which of them are returned, in order.
    returned: Vec<usize>,
    ready: Kept<Key, Ready>,
    tuned: Tuned,
}

/// A kernel, and where its arguments come from.
#[derive(Debug)]
struct Step {
    kernel: Py<PyKernel>,
    /// In the order of the parameters that are read.
    inputs: Vec<Source>,
    /// Numbers of the values that it makes, or adds to, in the order of the parameters that are
    /// written.
    outputs: Vec<usize>,
    /// Names of what no input of it tells.
    types: Vec<String>,
    sizes: Vec<String>,
}

/// Where an argument comes from: its number among what is given, or among what steps make.
#[derive(Clone, Copy, Debug)]
enum Source {
    Given(usize),
    Made(usize),
}

/// A chain, ready but for addresses and numbers.
#[derive(Debug)]
struct Ready {
    steps: Vec<ReadyStep>,
    /// Where each value that is made lies.
    places: Vec<Home>,
    /// Bytes that all values take which are not returned.
    workspace: Option<NewOutput>,
}

/// A step, ready but for addresses and numbers.
#[derive(Debug)]
struct ReadyStep {
    entry: PreparedEntry,
    /// Where it writes to values that an earlier step has made in another form.
    other: Option<PreparedLaunch>,
}

impl ReadyStep {
    fn launch(&self) -> &PreparedLaunch {
        self.other.as_ref().unwrap_or(&self.entry.value.launch)
    }
}

/// Where a value lies that a step makes.
#[derive(Clone, Copy, Debug)]
enum Home {
    /// In a tensor that is returned: the step and the number of its output that it is allocated as.
    Returned { step: usize, output: usize },
    /// So many bytes from the start of the workspace.
    Workspace(usize),
}

/// What a workspace aligns values to.
const ALIGNMENT: usize = 256;

#[pymethods]
impl Chain {
    /// Of kernels, each with the names of the types and sizes that none of its inputs tells; the names of
    /// what the caller gives, and of what is returned.
    #[new]
    fn new(
        py: Python<'_>,
        steps: Vec<(Py<PyKernel>, Vec<String>, Vec<String>)>,
        given: Vec<String>,
        returned: Vec<String>,
    ) -> PyResult<Self> {
        let mut params: Vec<Option<Param>> = vec![None; given.len()];
        let mut made: HashMap<String, usize> = HashMap::new();
        let mut all = Vec::new();
        for (kernel, types, sizes) in steps {
            let launcher = &kernel.get().launcher;
            let mut inputs = Vec::new();
            for param in launcher.inputs() {
                inputs.push(match (made.get(&param.name), given.iter().position(|name| *name == param.name)) {
                    (Some(&number), _) => Source::Made(number),
                    (None, Some(at)) => {
                        params[at].get_or_insert_with(|| param.clone());
                        Source::Given(at)
                    }
                    (None, None) => {
                        let (kernel, name) = (launcher.kernel.name(), &param.name);
                        return Err(PyValueError::new_err(format!("nothing gives `{name}` of kernel `{kernel}`")));
                    }
                });
            }
            let outputs: Vec<usize> = launcher
                .outputs()
                .map(|param| {
                    let next = made.len();
                    *made.entry(param.name.clone()).or_insert(next)
                })
                .collect();
            all.push(Step { kernel: kernel.clone_ref(py), inputs, outputs, types, sizes });
        }
        let number = |name: &String| {
            let none = || PyValueError::new_err(format!("no kernel makes `{name}`"));
            made.get(name).copied().ok_or_else(none)
        };
        let returned = returned.iter().map(number).collect::<PyResult<_>>()?;
        Ok(Self { steps: all, given: params, made: made.len(), returned, ready: Kept::default(), tuned: Tuned::now() })
    }

    /// Launches the kernels on what is given, in the order of its names, of which at least one is a
    /// tensor; returns the values that were asked for. `None` if a tensor is no plain memory: nothing
    /// has happened then. `types` and `sizes` are what no input tells.
    #[pyo3(signature = (given, types=None, sizes=None))]
    fn call<'py>(
        &self,
        given: &Bound<'py, PyTuple>,
        types: Option<Vec<(String, String)>>,
        sizes: Option<Vec<(String, i64)>>,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let py = given.py();
        let host = Host::get(py)?;
        let given: Vec<Bound<'py, PyAny>> = given.iter().collect();
        if given.len() != self.given.len() {
            let (found, wanted) = (given.len(), self.given.len());
            return Err(PyValueError::new_err(format!("a chain takes {wanted} values, and was given {found}")));
        }
        let Some(read) = self.read(host, &given)? else { return Ok(None) };
        let tensors = self.given.iter().zip(&read).zip(&given);
        let tensors = tensors.filter_map(|((param, read), object)| Some((param.as_ref()?, read.as_ref()?.seen()?, object)));
        let at = match common_place(tensors)? {
            Some(at) => at,
            None => anywhere(host, &given)?,
        };
        if self.tuned.has_changed() {
            self.ready.clear();
        }
        let entry = self.ready(py, host, at, &read, known_of(types, sizes)?)?;
        self.run(py, host, &entry, &read).map(Some)
    }
}

impl Chain {
    /// What is given, read; `None` if a tensor is no plain memory.
    fn read(&self, host: &Host, given: &[Bound<'_, PyAny>]) -> PyResult<Option<Vec<Option<Read>>>> {
        let mut all = Vec::with_capacity(given.len());
        for (param, object) in self.given.iter().zip(given) {
            all.push(match param {
                None => None,
                Some(param) if param.is_tensor => match read_tensor(host, param, object, false)? {
                    Some(seen) => Some(Read::Tensor(seen)),
                    None => return Ok(None),
                },
                Some(param) => Some(Read::Number(Number::read(&param.name, param.elem, object)?)),
            });
        }
        Ok(Some(all))
    }

    fn ready(
        &self,
        py: Python<'_>,
        host: &Host,
        (place, like): (Place, &Bound<'_, PyAny>),
        read: &[Option<Read>],
        known: Option<Known>,
    ) -> PyResult<Arc<KeptEntry<Key, Ready>>> {
        let is_it = |key: &Key| key.is_of(&known, place, read.iter().flatten());
        let key = || Key::of(known.clone(), place, read.iter().flatten());
        self.ready.get(is_it, key, |key| self.make_ready(py, host, key, like, read))
    }

    fn make_ready(
        &self,
        py: Python<'_>,
        host: &Host,
        key: &Key,
        like: &Bound<'_, PyAny>,
        read: &[Option<Read>],
    ) -> PyResult<Ready> {
        let mut made: Vec<Option<Seen>> = vec![None; self.made];
        let mut homes: Vec<Option<Home>> = vec![None; self.made];
        let (mut steps, mut bytes) = (Vec::new(), 0);
        for (number, step) in self.steps.iter().enumerate() {
            let launcher = &step.kernel.get().launcher;
            let inputs: Vec<Read> = step.inputs.iter().map(|&source| self.argument(source, read, &made)).collect();
            let known = key.known.as_ref().and_then(|known| known.only(&step.types, &step.sizes));
            let entry = launcher.found(py, host, (key.place, like), &inputs, known)?;
            let outputs = &entry.value.outputs;
            for (output, (&value, new)) in step.outputs.iter().zip(outputs).enumerate() {
                if made[value].is_some() {
                    continue;
                }
                made[value] = Some(Seen { address: 0, place: key.place, form: new.form });
                homes[value] = Some(if self.returned.contains(&value) {
                    Home::Returned { step: number, output }
                } else {
                    let at = bytes;
                    bytes += new.bytes().next_multiple_of(ALIGNMENT);
                    Home::Workspace(at)
                });
            }
            let written: Vec<Seen> = step.outputs.iter().map(|&value| made[value].expect("made above")).collect();
            let other = match entry.value.writes_to(&written) {
                true => None,
                false => Some(launcher.prepared_for(&entry.value.kernel, &inputs, &written)?),
            };
            steps.push(ReadyStep { entry, other });
        }
        let places = homes.into_iter().map(|home| home.expect("each value has a step that makes it")).collect();
        let workspace = match bytes {
            0 => None,
            bytes => Some(NewOutput::new(py, host, "workspace", Elem::U8, &[bytes], &like.getattr("device")?)?),
        };
        Ok(Ready { steps, places, workspace })
    }

    /// An argument of a step.
    fn argument(&self, source: Source, read: &[Option<Read>], made: &[Option<Seen>]) -> Read {
        match source {
            Source::Given(at) => read[at].expect("what a step reads is read"),
            Source::Made(number) => Read::Tensor(made[number].expect("an earlier step has made it")),
        }
    }

    /// Allocates, and launches.
    fn run<'py>(
        &self,
        py: Python<'py>,
        host: &Host,
        entry: &KeptEntry<Key, Ready>,
        read: &[Option<Read>],
    ) -> PyResult<Bound<'py, PyTuple>> {
        let KeptEntry { key: Key { place, .. }, value: ready } = entry;
        let place = *place;
        let current = host.current(py)?;
        let mut returned: Vec<Option<Bound<'py, PyAny>>> = vec![None; self.made];
        // Held until the launches are queued; PyTorch frees memory in the order of its stream.
        let workspace = ready.workspace.as_ref().map(|bytes| host.empty(py, place, current, bytes)).transpose()?;
        let start = workspace.as_ref().map_or(Ok(0), |workspace| host.address(workspace))?;
        let mut addresses = Vec::with_capacity(self.made);
        for (value, home) in ready.places.iter().enumerate() {
            addresses.push(match *home {
                Home::Workspace(at) => start + at,
                Home::Returned { step, output } => {
                    let made = host.empty(py, place, current, &ready.steps[step].entry.value.outputs[output])?;
                    let address = host.address(&made)?;
                    returned[value] = Some(made);
                    address
                }
            });
        }
        let value = |source: &Source| match *source {
            Source::Given(at) => read[at].expect("what a step reads is read").value(),
            Source::Made(number) => ArgumentValue::Address(addresses[number] as u64),
        };
        let values = |step: &Step| -> Vec<ArgumentValue> {
            let to = step.outputs.iter().map(|&number| ArgumentValue::Address(addresses[number] as u64));
            Param::in_order(&step.kernel.get().launcher.params, step.inputs.iter().map(value), to).collect()
        };
        let values: Vec<Vec<ArgumentValue>> = self.steps.iter().map(values).collect();
        for (step, ready) in self.steps.iter().zip(&ready.steps) {
            step.kernel.get().launcher.note(&ready.entry);
        }
        if let Some(first) = ready.steps.first() {
            let launches: Vec<_> = ready.steps.iter().map(ReadyStep::launch).zip(values.iter().map(Vec::as_slice)).collect();
            // SAFETY: the caller holds what is given, and values that are made lie in the workspace and
            // in what is returned, in the forms that the launches are prepared for.
            unsafe { queue(py, host, place, current, first.entry.value.kernel.device(), &launches)? };
        }
        let value = |number: &usize| returned[*number].clone().expect("what is returned has a tensor of its own");
        PyTuple::new(py, self.returned.iter().map(value))
    }
}

/// The place of some tensor that is given, where no kernel reads any: gradients that are 0.
fn anywhere<'a, 'py>(host: &Host, given: &'a [Bound<'py, PyAny>]) -> PyResult<(Place, &'a Bound<'py, PyAny>)> {
    for object in given.iter().filter(|object| host.is_plain(object)) {
        if let Some(seen) = Seen::read(host, "like", object)? {
            return Ok((seen.place, object));
        }
    }
    Err(PyValueError::new_err("a chain was given no tensor"))
}
