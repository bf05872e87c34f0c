//! Calls of `flex` of known kinds. Python traces the functions of a call into a kernel once; a later
//! call of the same kind is found by what its functions hold and by the shapes of queries and keys,
//! and is launched here.

use flashtile::client::{Kept, TensorForm};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::blocks::{Blocks, KeptBlocks, Shapes};
use crate::form::Seen;
use crate::held::{HeldKey, HeldTensor, Holdings, Types};
use crate::host::Host;
use crate::kernel::{PyKernel, one_or_all};
use crate::launch::{Attended, records_gradient};
use crate::tensor::{Number, Scale};

/// What `score_mod` is called with: a score, and where it is; and `mask_mod`: a place.
const SCORE_ARGUMENTS: usize = 5;
const MASK_ARGUMENTS: usize = 4;

/// Calls whose kernels are known.
#[pyclass(module = "flashtile._flashtile", frozen)]
#[derive(Debug)]
pub(crate) struct FlexCalls {
    holdings: Holdings,
    /// A function of Python that makes of a tensor that functions hold what a kernel takes.
    read: Py<PyAny>,
    /// What was kept of each `BlockMask`, by its identity as Python has it.
    kept: Py<PyDict>,
    known: Kept<Kind, Call>,
}

/// What a call needs to be of a kind.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Kind {
    held: HeldKey,
    blocks: Option<Blocks>,
    how: How,
}

/// What else a call needs to be of a kind.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct How {
    shapes: Shapes,
    enable_gqa: bool,
    return_lse: bool,
}

/// How calls of a kind are launched.
#[derive(Debug)]
struct Call {
    kernel: Py<PyKernel>,
    /// Which tables of a `BlockMask` the kernel reads.
    tables: Vec<usize>,
    reads: Vec<Capture>,
    /// Its last arguments.
    numbers: Vec<Number>,
}

/// How a kernel reads a tensor that functions hold.
#[derive(Debug)]
struct Capture {
    /// Its number among what the functions hold.
    number: usize,
    /// Dimensions, and how many positions of them are read.
    cuts: Vec<(usize, usize)>,
    /// Whether its numbers are converted first.
    is_converted: bool,
    /// Whether it has no dimensions, for which a kernel takes one.
    is_number: bool,
    /// Whether no gradient of it is asked for.
    is_detached: bool,
    /// The same, as Python has it.
    read: Py<PyAny>,
}

impl FromPyObject<'_, '_> for Capture {
    type Error = PyErr;

    fn extract(read: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        let (number, cuts, dtype, is_number, is_detached): (_, _, Option<Py<PyAny>>, _, _) = read.extract()?;
        Ok(Self { number, cuts, is_converted: dtype.is_some(), is_number, is_detached, read: read.to_owned().unbind() })
    }
}

impl Capture {
    /// What a kernel takes; `None` if a gradient of it is left to the caller. What lies in memory as
    /// the kernel takes it is read where it lies; else `made` gets what Python makes of it, for it to live.
    fn seen<'py>(
        &self,
        host: &Host,
        (tensor, seen): &HeldTensor<'py>,
        make: impl FnOnce() -> PyResult<Bound<'py, PyAny>>,
        made: &mut Vec<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Seen>> {
        if !self.is_detached && records_gradient(host, tensor)? {
            return Ok(None);
        }
        let at_once = seen.filter(|_| !self.is_converted).and_then(|seen| Some(Seen { form: self.form(&seen.form)?, ..seen }));
        if at_once.is_some() {
            return Ok(at_once);
        }
        let tensor = make()?;
        let seen = Seen::read(host, "a tensor that a function reads", &tensor)?;
        made.push(tensor);
        Ok(seen)
    }

    /// The form of what is read of a tensor; `None` if its rows have gaps.
    fn form(&self, form: &TensorForm) -> Option<TensorForm> {
        if self.is_number {
            return TensorForm::new(form.elem, [(1, 1)].into_iter());
        }
        let read = |at: usize| self.cuts.iter().find(|(cut, _)| *cut == at).map(|(_, extent)| *extent);
        let dimensions = form.shape().iter().zip(form.strides()).enumerate();
        let form = TensorForm::new(form.elem, dimensions.map(|(at, (extent, stride))| (read(at).unwrap_or(*extent), *stride)))?;
        match (form.shape().last(), form.strides().last()) {
            (Some(extent), Some(stride)) if *stride != 1 && *extent > 1 => None,
            _ => Some(form),
        }
    }
}

#[pymethods]
impl FlexCalls {
    /// `look` says what is known of code, of the code and its globals; `read` makes of a tensor that
    /// functions hold what a kernel takes, of how it reads the tensor and of all tensors; `kept` has
    /// the tables of each `BlockMask`.
    #[new]
    #[pyo3(signature = (*, look, read, kept, function, builtin, module, partial, enumeration, tensor, values, libraries, state))]
    #[expect(clippy::too_many_arguments, reason = "all are named where it is made")]
    fn new(
        look: Py<PyAny>,
        read: Py<PyAny>,
        kept: Py<PyDict>,
        function: Py<PyAny>,
        builtin: Py<PyAny>,
        module: Py<PyAny>,
        partial: Py<PyAny>,
        enumeration: Py<PyAny>,
        tensor: Py<PyAny>,
        values: Py<PyTuple>,
        libraries: Vec<String>,
        state: Vec<Py<PyAny>>,
    ) -> Self {
        let types = Types { function, builtin, module, partial, enumeration, tensor, values, libraries, state };
        Self { holdings: Holdings::new(types, look), read, kept, known: Kept::default() }
    }

    /// What functions hold: a key, and the tensors, each once. There is no key if one of them holds
    /// what has none.
    fn held<'py>(
        &self,
        py: Python<'py>,
        score_mod: Bound<'py, PyAny>,
        mask_mod: Bound<'py, PyAny>,
    ) -> PyResult<(Option<HeldKey>, Vec<Bound<'py, PyAny>>)> {
        let mut held = self.holdings.of(py, &[(&score_mod, SCORE_ARGUMENTS), (&mask_mod, MASK_ARGUMENTS)])?;
        Ok((held.key(), held.tensors.into_iter().map(|(tensor, _)| tensor).collect()))
    }

    /// Launches a call of a known kind; returns its output, or a tuple of several. `None` if the kind
    /// is unknown, or something else is to be done or said.
    #[expect(clippy::too_many_arguments, reason = "as Python gives them")]
    fn launch<'py>(
        &self,
        score_mod: Bound<'py, PyAny>,
        block_mask: Bound<'py, PyAny>,
        mut mask_mod: Bound<'py, PyAny>,
        query: Bound<'py, PyAny>,
        key: Bound<'py, PyAny>,
        value: Bound<'py, PyAny>,
        scale: Scale,
        enable_gqa: bool,
        return_lse: bool,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (py, objects) = (query.py(), [query, key, value]);
        let host = Host::get(py)?;
        let Some(attended) = Attended::read(host, &objects, enable_gqa)? else { return Ok(None) };
        let Some(shapes) = shapes(&attended) else { return Ok(None) };
        let listed = match block_mask.is_none() {
            true => None,
            false => self.listed(&block_mask, &mask_mod, &shapes)?,
        };
        if listed.is_some() {
            mask_mod = block_mask.getattr(intern!(py, "mask_mod"))?;
        } else if !block_mask.is_none() {
            return Ok(None);
        }
        let listed = listed.as_ref().map(Bound::get);
        let mut held = self.holdings.of(py, &[(&score_mod, SCORE_ARGUMENTS), (&mask_mod, MASK_ARGUMENTS)])?;
        let blocks = listed.map(|kept| &kept.blocks);
        let how = How { shapes, enable_gqa, return_lse };
        let is_it = |kind: &Kind| kind.how == how && kind.blocks.as_ref() == blocks && held.has(&kind.held, py);
        let known = match self.known.recent(is_it) {
            Some(known) => known,
            None => {
                let Some(held) = held.key() else { return Ok(None) };
                let Some(known) = self.known.known(&Kind { held, blocks: blocks.cloned(), how }) else { return Ok(None) };
                known
            }
        };
        let tensors = &held.tensors;
        let call = &known.value;
        // What the launch reads, held until it is queued.
        let mut made = Vec::new();
        let tables = call.tables.iter().map(|number| Ok(listed.and_then(|kept| kept.table(*number))));
        let captures = call.reads.iter().map(|capture| {
            let make = || {
                let all: Vec<_> = tensors.iter().map(|(tensor, _)| tensor).collect();
                self.read.bind(py).call1((&capture.read, all))
            };
            capture.seen(host, &tensors[capture.number], make, &mut made)
        });
        let outputs = call.kernel.get().launcher.attend(py, &attended, scale, tables.chain(captures), &call.numbers)?;
        outputs.map(|outputs| one_or_all(py, outputs)).transpose()
    }

    /// Notes how calls of a kind are launched: with a kernel, the numbers of the tables that it reads,
    /// how it reads tensors that the functions hold, and numbers of theirs that are arguments.
    #[expect(clippy::too_many_arguments, reason = "as Python gives them")]
    fn keep(
        &self,
        held: Py<HeldKey>,
        blocks: Option<Blocks>,
        shapes: Shapes,
        enable_gqa: bool,
        return_lse: bool,
        kernel: Py<PyKernel>,
        tables: Vec<usize>,
        reads: Vec<Capture>,
        numbers: Vec<Number>,
    ) {
        let kind = Kind { held: held.get().clone(), blocks, how: How { shapes, enable_gqa, return_lse } };
        let call = Call { kernel, tables, reads, numbers };
        self.known.keep(kind, call);
    }
}

impl FlexCalls {
    /// What was kept of a `BlockMask`, if it is still so, and is the only one to say what is masked.
    fn listed<'py>(
        &self,
        block_mask: &Bound<'py, PyAny>,
        mask_mod: &Bound<'py, PyAny>,
        shapes: &Shapes,
    ) -> PyResult<Option<Bound<'py, KeptBlocks>>> {
        let py = block_mask.py();
        // As `id` does.
        let Some(kept) = self.kept.bind(py).get_item(block_mask.as_ptr().addr())? else { return Ok(None) };
        let kept: Bound<'py, KeptBlocks> = kept.cast_into().map_err(PyErr::from)?;
        let is_of = mask_mod.is_none() && kept.get().is_of(block_mask, shapes)?;
        Ok(is_of.then_some(kept))
    }
}

fn shapes(attended: &Attended<'_, '_>) -> Option<Shapes> {
    let [query, key, _] = attended.seen;
    Some([query.form.shape().try_into().ok()?, key.form.shape().try_into().ok()?])
}
