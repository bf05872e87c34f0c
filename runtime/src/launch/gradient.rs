//! The kernels of a gradient, launched as one.

use std::collections::BTreeMap;

use flashtile_dsl::ir::{Elem, Param, ParamKind, SizeExpr};

use super::{Argument, ArgumentError, LoadedKernel};
use crate::device::{Device, Stream};
use crate::error::Result;
use crate::kernel::solve;
use crate::tensor::AnyTensor;

/// The backward kernels of a [`crate::Gradient`], made ready for a device and launched as one, one
/// after the other. Parameters of the same name are the same tensor.
///
/// ```
/// use flashtile::{Device, Elem, Kernel, LoadedGradient, Tensor, Workspace};
/// let device = Device::cpu();
/// let made = Kernel::builtin("attention")?.gradient(&["v"], &["o"])?;
/// let loaded = made.backward.iter().map(|kernel| kernel.bind(Elem::F32, [("D", 4)])?.on(&device));
/// let loaded = loaded.collect::<flashtile::Result<Vec<_>>>()?;
/// let gradient = LoadedGradient::new(loaded, &["q", "k", "v", "scale", "o", "lse", "grad_o", "grad_v"])?;
/// let [q, k, v, o, grad_o] = [[1, 1, 3, 4]; 5].map(|shape| Tensor::<f32>::zeros(&device, &shape));
/// let (lse, mut grad_v) = (Tensor::<f32>::zeros(&device, &[1, 1, 3])?, Tensor::<f32>::zeros(&device, &[1, 1, 3, 4])?);
/// let (q, k, v, o, grad_o) = (q?, k?, v?, o?, grad_o?);
/// gradient.launch(
///     &mut Workspace::default(),
///     &[(&q).into(), (&k).into(), (&v).into(), 0.5.into(), (&o).into(), (&lse).into(), (&grad_o).into(), (&mut grad_v).into()],
/// )?;
/// # Ok::<(), flashtile::Error>(())
/// ```
#[derive(Debug)]
pub struct LoadedGradient {
    steps: Vec<Step>,
    /// Number of arguments.
    arguments: usize,
    /// What a kernel stores and no argument is: its kernel, and its parameter.
    between: Vec<(usize, usize)>,
}

/// A kernel, and what its parameters are.
#[derive(Debug)]
struct Step {
    kernel: LoadedKernel,
    slots: Vec<Slot>,
}

/// What a parameter is, by number.
#[derive(Clone, Copy, Debug)]
enum Slot {
    Argument(usize),
    Between(usize),
}

/// Memory for what one kernel of a gradient leaves to a later one, such as a number for each row.
/// It is allocated by the first launch, and again by one that needs more; other launches allocate
/// nothing.
///
/// Launches that may overlap, on several streams or in several graphs, need one each. One that a
/// graph has captured must not be used for anything else while the graph is. A capture allocates
/// nothing: launch once before it.
#[derive(Debug, Default)]
pub struct Workspace {
    /// Flat tensors.
    memory: Vec<AnyTensor>,
}

impl Workspace {
    /// Memory for nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Packed tensors of these types and shapes. What they hold is left from before.
    fn tensors(&mut self, device: &Device, forms: &[(Elem, Vec<usize>)]) -> Result<Vec<AnyTensor>> {
        let tensor = |(at, (elem, shape)): (usize, &(Elem, Vec<usize>))| {
            let elements = shape.iter().try_fold(1usize, |all, &extent| all.checked_mul(extent)).unwrap_or(usize::MAX);
            let fits = |held: &AnyTensor| held.elem() == *elem && held.device() == device && held.len() >= elements;
            if !self.memory.get(at).is_some_and(fits) {
                let flat = AnyTensor::zeros(device, *elem, &[elements])?;
                self.memory.truncate(at);
                self.memory.push(flat);
            }
            let strides = (0..shape.len()).map(|d| shape[d + 1..].iter().product()).collect::<Vec<_>>();
            self.memory[at].view(shape, &strides, 0)
        };
        forms.iter().enumerate().map(tensor).collect()
    }
}

impl LoadedGradient {
    /// The backward kernels of a gradient, in order, all made ready for one device; and the names
    /// of their parameters that are arguments of a launch, in the order in which it takes them.
    /// What a kernel stores and no argument is, later ones read from a [`Workspace`].
    ///
    /// # Errors
    /// [`ArgumentError::NotNamed`] for an input that is neither named nor stored before.
    pub fn new(kernels: impl IntoIterator<Item = LoadedKernel>, names: &[&str]) -> Result<Self> {
        let mut made = Self { steps: Vec::new(), arguments: names.len(), between: Vec::new() };
        let mut stored: Vec<String> = Vec::new();
        for kernel in kernels {
            let ir = kernel.kernel().ir();
            let mut slots = Vec::new();
            for (at, param) in ir.params.values().enumerate() {
                let name = || param.name.clone();
                slots.push(match (names.iter().position(|name| *name == param.name), param.kind.is_written()) {
                    (Some(argument), _) => Slot::Argument(argument),
                    (None, true) => {
                        made.between.push((made.steps.len(), at));
                        stored.push(name());
                        Slot::Between(stored.len() - 1)
                    }
                    // Of several of one name the last is read.
                    (None, false) => match stored.iter().rposition(|stored| *stored == param.name) {
                        Some(place) => Slot::Between(place),
                        None => return Err(ArgumentError::NotNamed { kernel: ir.name.clone(), name: name() }.into()),
                    },
                });
            }
            made.steps.push(Step { kernel, slots });
        }
        Ok(made)
    }

    /// The kernels, in the order of their launches.
    pub fn kernels(&self) -> impl Iterator<Item = &LoadedKernel> {
        self.steps.iter().map(|step| &step.kernel)
    }

    /// Queues the launches on the device's own stream, with the arguments in the order of their
    /// names.
    ///
    /// # Errors
    /// [`ArgumentError`] naming the argument that does not fit a kernel, those before which are
    /// queued; or the compiler or the device failed.
    pub fn launch(&self, workspace: &mut Workspace, arguments: &[Argument<'_>]) -> Result<()> {
        self.run(workspace, arguments, |kernel, arguments| kernel.launch(arguments))
    }

    /// Queues the launches on a stream.
    ///
    /// # Errors
    /// As [`LoadedGradient::launch`].
    pub fn launch_on(&self, stream: &Stream, workspace: &mut Workspace, arguments: &[Argument<'_>]) -> Result<()> {
        self.run(workspace, arguments, |kernel, arguments| kernel.launch_on(stream, arguments))
    }

    fn run(
        &self,
        workspace: &mut Workspace,
        arguments: &[Argument<'_>],
        launch: impl Fn(&LoadedKernel, &[Argument<'_>]) -> Result<()>,
    ) -> Result<()> {
        let Some(first) = self.steps.first() else { return Ok(()) };
        if arguments.len() != self.arguments {
            return Err(self.count_error(arguments.len()).into());
        }
        let between = workspace.tensors(first.kernel.device(), &self.forms(arguments)?)?;
        for Step { kernel, slots } in &self.steps {
            let argument = |(param, slot): (&Param, &Slot)| match (*slot, param.kind.is_written()) {
                (Slot::Argument(at), true) => arguments[at],
                // What one has written another may read.
                (Slot::Argument(at), false) => match arguments[at] {
                    Argument::Output(tensor) => Argument::Input(tensor),
                    read => read,
                },
                (Slot::Between(at), true) => Argument::Output(&between[at]),
                (Slot::Between(at), false) => Argument::Input(&between[at]),
            };
            let given: Vec<Argument<'_>> = kernel.kernel().ir().params.values().zip(slots).map(argument).collect();
            launch(kernel, &given)?;
        }
        Ok(())
    }

    fn count_error(&self, found: usize) -> ArgumentError {
        let mut names = vec![""; self.arguments];
        for Step { kernel, slots } in &self.steps {
            for (param, slot) in kernel.kernel().ir().params.values().zip(slots) {
                if let Slot::Argument(at) = *slot {
                    names[at] = &param.name;
                }
            }
        }
        let kernels: Vec<&str> = self.kernels().map(|kernel| &*kernel.kernel().ir().name).collect();
        ArgumentError::Count { kernel: kernels.join("`, `"), expected: self.arguments, names: names.join(", "), found }
    }

    /// Element types and shapes of what lies between the kernels.
    fn forms(&self, arguments: &[Argument<'_>]) -> Result<Vec<(Elem, Vec<usize>)>> {
        let sizes = if self.between.is_empty() { BTreeMap::new() } else { self.sizes(arguments) };
        let form = |&(step, param): &(usize, usize)| {
            let bound = self.steps[step].kernel.kernel();
            let (ir, binding) = (bound.ir(), bound.binding());
            let ParamKind::Tensor(tensor) = &ir.params.values().nth(param).expect("a parameter of it").kind else {
                unreachable!("a tensor is stored")
            };
            let extent = |extent: &SizeExpr| {
                let value = extent.eval(|size| sizes.get(ir.size_name(size)).copied());
                value.and_then(|value| usize::try_from(value).ok()).ok_or_else(|| {
                    crate::Error::from(ArgumentError::Undetermined { kernel: ir.name.clone(), size: ir.size_text(extent) })
                })
            };
            Ok((binding.elem(ir, tensor.elem), tensor.shape.iter().map(extent).collect::<Result<_>>()?))
        };
        self.between.iter().map(form).collect()
    }

    /// Sizes by name, as far as shapes of arguments determine them. That they agree is checked when
    /// each kernel is launched.
    fn sizes(&self, arguments: &[Argument<'_>]) -> BTreeMap<&str, i64> {
        let mut sizes = BTreeMap::new();
        for kernel in self.kernels() {
            sizes.extend(kernel.kernel().binding().consts.iter().map(|(name, &value)| (name.as_str(), value)));
        }
        let mut dimensions = Vec::new();
        for Step { kernel, slots } in &self.steps {
            let ir = kernel.kernel().ir();
            for (param, slot) in ir.params.values().zip(slots) {
                let (ParamKind::Tensor(declared), Slot::Argument(at)) = (&param.kind, slot) else { continue };
                let shape = arguments[*at].tensor().map_or(&[][..], |tensor| tensor.shape());
                dimensions.extend(declared.shape.iter().zip(shape).map(|(extent, &found)| (ir, extent, found)));
            }
        }
        solve(&mut sizes, &dimensions);
        sizes
    }
}
