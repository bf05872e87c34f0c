//! A kernel that is called with tensors and numbers. Tensors come in the order of the parameters,
//! those that are read before those that are written; numbers in the order of the scalars. Numbers
//! may stand anywhere between tensors, so that both the order of the parameters and that of JAX
//! (tensors, results, attributes) are taken.

use std::sync::Arc;

use flashtile::client::{Kept, LoadedKernels, Param, TensorForm, stream};
use flashtile::kernel::Deduced;
use flashtile::toolchain::{Toolchain, ToolchainOptions};
use flashtile::{ArgumentForm, ArgumentValue, Elem, Kernel, LaunchOptions, LoadedKernel, PreparedLaunch};

use super::abi::{Api, Called, Failure, Read, Value};
use crate::dlpack::DlTensor;
use crate::form::{Place, Seen};

/// Called with one of these texts alone, a kernel returns the names of its scalars, or their types,
/// in order, between commas.
const SCALARS: &str = "scalars";
const TYPES: &str = "types of scalars";

/// A kernel as a function of tvm-ffi.
pub(super) struct Callable {
    kernel: Kernel,
    options: LaunchOptions,
    /// In the order of the text.
    params: Vec<Param>,
    loaded: LoadedKernels<Place>,
    prepared: Kept<Key, Prepared>,
}

/// What launches of one kind have in common: the device, and the tensors in the order of a call.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    place: Place,
    forms: Vec<TensorForm>,
}

struct Prepared {
    kernel: Arc<LoadedKernel>,
    launch: PreparedLaunch,
}

impl Callable {
    pub fn new(kernel: Kernel, nvrtc: Option<&str>) -> Self {
        let mut toolchain = ToolchainOptions::default();
        if toolchain.nvrtc.is_none() {
            toolchain.nvrtc = nvrtc.map(Into::into);
        }
        let options = LaunchOptions { toolchain: Toolchain::new(toolchain), ..LaunchOptions::default() };
        let params = Param::of(&kernel);
        Self { kernel, options, params, loaded: LoadedKernels::default(), prepared: Kept::default() }
    }

    /// Tensors, in the order of a call: those that are read, then those that are written.
    fn tensors(&self) -> impl Iterator<Item = &Param> {
        let of = |written: bool| self.params.iter().filter(move |param| param.is_tensor && param.is_written == written);
        of(false).chain(of(true))
    }

    fn scalars(&self) -> impl Iterator<Item = &Param> {
        self.params.iter().filter(|param| !param.is_tensor)
    }

    /// What is to be given, in words.
    fn wanted(&self) -> String {
        let names = |written: bool| {
            let of = self.params.iter().filter(|param| param.is_written == written).map(|param| &*param.name);
            of.collect::<Vec<_>>().join(", ")
        };
        format!("`{}` takes {} and then, to write to, {}", self.kernel.name(), names(false), names(true))
    }

    fn read(&self, arguments: &[Value]) -> Result<(Vec<Seen>, Vec<ArgumentValue>), Failure> {
        if arguments.len() != self.params.len() {
            return Err(Failure::of_type(format!("{}; {} arguments were given", self.wanted(), arguments.len())));
        }
        let (mut tensors, mut scalars) = (self.tensors(), self.scalars());
        let (mut seen, mut numbers) = (Vec::new(), Vec::new());
        for argument in arguments {
            match argument.read() {
                Read::Tensor(tensor) => {
                    let param = tensors
                        .next()
                        .ok_or_else(|| Failure::of_type(format!("{}; a tensor too many was given", self.wanted())))?;
                    seen.push(param.tensor(tensor)?);
                }
                Read::Int(x) => numbers.push(self.next_number(&mut scalars)?.whole(x)?),
                Read::Float(x) => numbers.push(self.next_number(&mut scalars)?.float(x)?),
                Read::Other(kind) => {
                    let message = format!("{}; a value of tvm-ffi's type {kind} is neither a tensor nor a number", self.wanted());
                    return Err(Failure::of_type(message));
                }
            }
        }
        Ok((seen, numbers))
    }

    fn next_number<'a>(&self, scalars: &mut impl Iterator<Item = &'a Param>) -> Result<&'a Param, Failure> {
        scalars.next().ok_or_else(|| Failure::of_type(format!("{}; a number too many was given", self.wanted())))
    }

    /// The device of all tensors.
    fn place(&self, seen: &[Seen]) -> Result<Place, Failure> {
        let Some(first) = seen.first() else {
            return Err(Failure::of_type(format!("kernel `{}` has no tensor that says where it runs", self.kernel.name())));
        };
        match self.tensors().zip(seen).find(|(_, seen)| seen.place != first.place) {
            None => Ok(first.place),
            Some((param, seen)) => {
                Err(Failure::of_value(format!("`{}` is on {}, the tensors before on {}", param.name, seen.place, first.place)))
            }
        }
    }

    fn prepare(&self, key: &Key) -> Result<Prepared, Failure> {
        let names: Vec<&str> = self.tensors().map(|param| &*param.name).collect();
        let form = |name: &str| names.iter().position(|known| *known == name).map(|at| &key.forms[at]);
        let deduced = self.kernel.deduce(Deduced::default(), |name| form(name).map(|form| (form.elem, form.shape())))?;
        let bound = self.kernel.bind_deduced(&deduced)?;
        let load = || Ok::<_, Failure>(bound.on_with(&key.place.device()?, self.options.clone())?);
        let kernel = self.loaded.get(key.place, &bound, load)?;
        let forms = self.params.iter().map(|param| match (form(&param.name), param.elem) {
            (Some(form), _) => form.of_argument(),
            (None, Elem::I32) => ArgumentForm::I32,
            (None, _) => ArgumentForm::F32,
        });
        let launch = kernel.prepare(&forms.collect::<Vec<_>>())?;
        Ok(Prepared { kernel, launch })
    }

    fn launch(&self, api: &Api, arguments: &[Value]) -> Result<(), Failure> {
        let (seen, numbers) = self.read(arguments)?;
        let place = self.place(&seen)?;
        let is_it = |key: &Key| key.place == place && key.forms.iter().eq(seen.iter().map(|seen| &seen.form));
        let key = || Key { place, forms: seen.iter().map(|seen| seen.form).collect() };
        let prepared = &self.prepared.get(is_it, key, |key| self.prepare(key))?.value;
        let reads = self.params.iter().filter(|param| param.is_tensor && !param.is_written).count();
        let (mut read, mut written, mut number) = (seen[..reads].iter(), seen[reads..].iter(), numbers.into_iter());
        let address = |seen: &Seen| ArgumentValue::Address(seen.address as u64);
        let values = self.params.iter().filter_map(|param| match (param.is_tensor, param.is_written) {
            (true, false) => read.next().map(address),
            (true, true) => written.next().map(address),
            (false, _) => number.next(),
        });
        let values: Vec<ArgumentValue> = values.collect();
        let of = match place {
            Place::Cpu => None,
            Place::Gpu(gpu) => Some((gpu, api.stream(gpu))),
        };
        // SAFETY: the handle is that of the caller's current stream, of the primary context, and is
        // used for no longer. Libraries that call through tvm-ffi order all work on their memory by
        // it.
        let stream = unsafe { stream(prepared.kernel.device(), of) }?;
        // SAFETY: tvm-ffi's tensors live as long as the call, and their library frees memory in the
        // order of the stream that the launch is queued on; their shapes and strides stay within
        // their memory.
        Ok(unsafe { prepared.launch.launch_on(&stream, &values) }?)
    }
}

impl Called for Callable {
    fn call(&self, api: &Api, arguments: &[Value]) -> Result<Value, Failure> {
        if let [argument] = arguments
            && argument.is_text()
        {
            let each = |of: fn(&Param) -> &str| api.text(&self.scalars().map(of).collect::<Vec<_>>().join(","));
            match argument.text()? {
                Some(SCALARS) => return each(|param| &param.name),
                Some(TYPES) => return each(|param| param.elem.name()),
                _ => {}
            }
        }
        self.launch(api, arguments).map(|()| Value::none())
    }
}

/// Arguments of tvm-ffi, read for a parameter.
trait ReadFor {
    fn tensor(&self, tensor: &DlTensor) -> Result<Seen, Failure>;
    fn whole(&self, x: i64) -> Result<ArgumentValue, Failure>;
    fn float(&self, x: f64) -> Result<ArgumentValue, Failure>;
}

impl ReadFor for Param {
    fn tensor(&self, tensor: &DlTensor) -> Result<Seen, Failure> {
        let unread = || {
            Failure::of_value(format!(
                "`{}` lies elsewhere than on the CPU or a GPU of CUDA, or has an element type that kernels do not read",
                self.name
            ))
        };
        if tensor.has_negative_strides() {
            let name = &self.name;
            return Err(Failure::of_value(format!(
                "`{name}` has negative strides; give a copy, such as numpy.ascontiguousarray(..)"
            )));
        }
        let mut seen = tensor.seen().ok_or_else(unread)?;
        if self.elem == Elem::Bool && matches!(seen.form.elem, Elem::U8 | Elem::I8) {
            seen.form.elem = Elem::Bool; // bytes as truth values
        }
        Ok(seen)
    }

    fn whole(&self, x: i64) -> Result<ArgumentValue, Failure> {
        if self.elem != Elem::I32 {
            return Ok(ArgumentValue::F32(x as f32));
        }
        let beyond = |_| Failure::of_value(format!("`{}` is {x}, which is no integer of 32 bits", self.name));
        i32::try_from(x).map(ArgumentValue::I32).map_err(beyond)
    }

    fn float(&self, x: f64) -> Result<ArgumentValue, Failure> {
        let value = x as f32;
        if self.elem == Elem::I32 {
            return Err(Failure::of_type(format!("`{}` must be an integer, not {x}", self.name)));
        }
        if value.is_infinite() && x.is_finite() {
            return Err(Failure::of_value(format!("`{}` is {x:e}, which is beyond f32", self.name)));
        }
        Ok(ArgumentValue::F32(value))
    }
}
