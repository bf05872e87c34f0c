//! The lists of a `BlockMask`, and the tables that are filled from them, kept for as long as the
//! lists stay as they are.

use pyo3::exceptions::PyRuntimeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::form::Seen;
use crate::host::Host;

/// Shapes of queries and of keys.
pub(crate) type Shapes = [[usize; 4]; 2];

/// What a kernel knows of a `BlockMask`: those of "BH" that its tables have, and the queries and
/// keys of a block.
pub(crate) type Blocks = (String, (usize, usize));

/// What the tables of a `BlockMask` depend on.
#[pyclass(module = "flashtile._flashtile", frozen)]
#[derive(Debug)]
pub(crate) struct BlockState {
    shapes: Shapes,
    /// Held, so that their identities are of no others; `None` for a list that there is not.
    lists: [Option<Py<PyAny>>; 4],
    /// How often each was written to.
    versions: [i64; 4],
    seq_lengths: Py<PyAny>,
    block_size: Py<PyAny>,
    /// The stream that wrote the tables, on a GPU.
    stream: Option<Stream>,
}

/// A stream of a GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Stream {
    gpu: usize,
    handle: usize,
}

impl Stream {
    /// The current one of a GPU; `None` in a capture. The default stream cannot be captured (CUDA
    /// driver API, `cuStreamBeginCapture`), so that it is not asked.
    fn current(py: Python<'_>, gpu: usize) -> PyResult<Option<Self>> {
        let host = Host::get(py)?;
        let handle = host.stream(py, gpu)?;
        Ok((handle == DEFAULT || !host.is_capturing(py)?).then_some(Self { gpu, handle }))
    }
}

/// The handle of the default stream that waits for others.
const DEFAULT: usize = 0;

/// The tables of a `BlockMask`.
#[pyclass(module = "flashtile._flashtile", frozen)]
#[derive(Debug)]
pub(crate) struct KeptBlocks {
    /// A weak reference, with what forgets the tables when the `BlockMask` is gone.
    _of: Py<PyAny>,
    state: Py<BlockState>,
    pub blocks: Blocks,
    tables: Vec<(Py<PyAny>, Option<Seen>)>,
}

/// The names of the lists.
fn names(py: Python<'_>) -> [&Bound<'_, PyString>; 4] {
    [intern!(py, "kv_num_blocks"), intern!(py, "kv_indices"), intern!(py, "full_kv_num_blocks"), intern!(py, "full_kv_indices")]
}

/// How often a tensor was written to; `None` if it does not say so, as tensors of inference mode.
fn version(list: &Bound<'_, PyAny>) -> PyResult<Option<i64>> {
    match list.getattr(intern!(list.py(), "_version")) {
        Ok(version) => version.extract().map(Some),
        Err(error) if error.is_instance_of::<PyRuntimeError>(list.py()) => Ok(None),
        Err(error) => Err(error),
    }
}

#[pymethods]
impl BlockState {
    /// That of a `BlockMask` in a call with queries and keys of these shapes; `None` where nothing is
    /// kept: in a capture, whose replays read the lists, and of lists that do not say whether they
    /// have changed.
    #[staticmethod]
    fn of(block_mask: &Bound<'_, PyAny>, queries: [usize; 4], keys: [usize; 4]) -> PyResult<Option<Self>> {
        let py = block_mask.py();
        let (mut lists, mut versions) = ([const { None }; 4], [0; 4]);
        for (at, name) in names(py).into_iter().enumerate() {
            let list = block_mask.getattr(name)?;
            if list.is_none() {
                continue;
            }
            let Some(found) = version(&list)? else { return Ok(None) };
            (lists[at], versions[at]) = (Some(list.unbind()), found);
        }
        let Some(first) = lists.iter().flatten().next() else { return Ok(None) };
        let first = first.bind(py);
        let mut stream = None;
        if first.getattr(intern!(py, "is_cuda"))?.is_truthy()? {
            let gpu = first.call_method0(intern!(py, "get_device"))?.extract()?;
            let Some(current) = Stream::current(py, gpu)? else { return Ok(None) };
            stream = Some(current);
        }
        let seq_lengths = block_mask.getattr(intern!(py, "seq_lengths"))?.unbind();
        let block_size = block_mask.getattr(intern!(py, "BLOCK_SIZE"))?.unbind();
        Ok(Some(Self { shapes: [queries, keys], lists, versions, seq_lengths, block_size, stream }))
    }
}

impl BlockState {
    /// Whether a `BlockMask` is still as it was.
    fn is_now(&self, block_mask: &Bound<'_, PyAny>) -> PyResult<bool> {
        let py = block_mask.py();
        for ((name, known), number) in names(py).into_iter().zip(&self.lists).zip(self.versions) {
            let list = block_mask.getattr(name)?;
            let is_same = match known {
                Some(known) => list.is(known) && version(&list)? == Some(number),
                None => list.is_none(),
            };
            if !is_same {
                return Ok(false);
            }
        }
        let is_on_stream = match self.stream {
            Some(stream) => Stream::current(py, stream.gpu)? == Some(stream),
            None => true,
        };
        Ok(is_on_stream
            && block_mask.getattr(intern!(py, "seq_lengths"))?.eq(&self.seq_lengths)?
            && block_mask.getattr(intern!(py, "BLOCK_SIZE"))?.eq(&self.block_size)?)
    }
}

#[pymethods]
impl KeptBlocks {
    /// Tables that were made of lists in this state, of what a weak reference is to.
    #[new]
    fn new(
        py: Python<'_>,
        of: Py<PyAny>,
        state: Py<BlockState>,
        blocks: Blocks,
        tables: Vec<Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let host = Host::get(py)?;
        let read = |table: Bound<'_, PyAny>| Ok((table.clone().unbind(), Seen::read(host, "block_mask", &table)?));
        Ok(Self { _of: of, state, blocks, tables: tables.into_iter().map(read).collect::<PyResult<_>>()? })
    }

    /// The tables, if a `BlockMask` is still as it was, for a call with queries and keys of these
    /// shapes.
    fn tables_now(
        &self,
        block_mask: &Bound<'_, PyAny>,
        queries: [usize; 4],
        keys: [usize; 4],
    ) -> PyResult<Option<(Blocks, Vec<Py<PyAny>>)>> {
        if !self.is_of(block_mask, &[queries, keys])? {
            return Ok(None);
        }
        let py = block_mask.py();
        Ok(Some((self.blocks.clone(), self.tables.iter().map(|(table, _)| table.clone_ref(py)).collect())))
    }
}

impl KeptBlocks {
    /// Whether a `BlockMask` is still as it was, for a call with queries and keys of these shapes.
    pub fn is_of(&self, block_mask: &Bound<'_, PyAny>, shapes: &Shapes) -> PyResult<bool> {
        let state = self.state.get();
        Ok(state.shapes == *shapes && state.is_now(block_mask)?)
    }

    /// A table, by its number.
    pub fn table(&self, number: usize) -> Option<Seen> {
        self.tables.get(number)?.1
    }
}
