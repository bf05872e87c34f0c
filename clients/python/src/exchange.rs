//! PyTorch's tensors and streams through DLPack's exchange functions (`__dlpack_c_exchange_api__`,
//! DLPack 1.3), which read a tensor in a call of C. Older versions of PyTorch do not have them.

use std::ffi::c_void;

use flashtile::Elem;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyCapsuleMethods};

use crate::form::{Form, Place, Seen};

/// `DLTensor` of DLPack 1.
#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    rank: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

type ReadTensor = unsafe extern "C" fn(object: *mut c_void, out: *mut DlTensor) -> i32;
type CurrentStream = unsafe extern "C" fn(device_type: i32, device_id: i32, out: *mut *mut c_void) -> i32;

/// `DLPackExchangeAPI`, of major version 1.
#[repr(C)]
struct Functions {
    major: u32,
    minor: u32,
    previous: *const Functions,
    allocate: *const c_void,
    take: *const c_void,
    give: *const c_void,
    read: Option<ReadTensor>,
    stream: Option<CurrentStream>,
}

/// The functions, found once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exchange {
    read: ReadTensor,
    stream: CurrentStream,
}

const CPU: i32 = 1;
const CUDA: i32 = 2;

impl Exchange {
    /// The functions of a capsule; `None` if they are of another major version or not all there.
    pub fn of(capsule: &Bound<'_, PyAny>) -> Option<Self> {
        let capsule = capsule.cast::<PyCapsule>().ok()?;
        let mut functions = capsule.pointer_checked(Some(c"dlpack_exchange_api")).ok()?.as_ptr().cast::<Functions>().cast_const();
        loop {
            // SAFETY: DLPack says that the capsule of this name points to the functions, which live
            // as long as the process; the header is the same in all versions.
            let found = unsafe { functions.as_ref() }?;
            if found.major == 1 {
                return Some(Self { read: found.read?, stream: found.stream? });
            }
            functions = found.previous;
        }
    }

    fn view(&self, object: &Bound<'_, PyAny>) -> Option<DlTensor> {
        let mut tensor = std::mem::MaybeUninit::<DlTensor>::uninit();
        // SAFETY: the object is a tensor of PyTorch, which the caller has checked; the function writes all fields if it returns 0.
        match unsafe { (self.read)(object.as_ptr().cast(), tensor.as_mut_ptr()) } {
            // SAFETY: as above.
            0 => Some(unsafe { tensor.assume_init() }),
            _ => {
                drop(PyErr::take(object.py()));
                None
            }
        }
    }

    /// The address of the first element of a tensor.
    pub fn address(&self, object: &Bound<'_, PyAny>) -> Option<usize> {
        self.view(object)?.address()
    }

    /// A tensor; `None` if it lies elsewhere than on the CPU or a GPU, or holds what kernels do not.
    pub fn read(&self, object: &Bound<'_, PyAny>) -> Option<Seen> {
        let tensor = self.view(object)?;
        let place = match (tensor.device_type, usize::try_from(tensor.device_id)) {
            (CPU, _) => Place::Cpu,
            (CUDA, Ok(gpu)) => Place::Gpu(gpu),
            _ => return None,
        };
        let elem = tensor.elem()?;
        let address = tensor.address()?;
        let dimensions = tensor.numbers(tensor.shape)?.iter().zip(tensor.numbers(tensor.strides)?);
        if dimensions.clone().any(|(extent, stride)| *extent < 0 || *stride < 0) {
            return None;
        }
        let form = Form::new(elem, dimensions.map(|(extent, stride)| (*extent as usize, *stride as usize)))?;
        Some(Seen { address, place, form })
    }

    /// The handle of the current stream of a GPU.
    pub fn stream(&self, gpu: usize) -> Option<usize> {
        let mut stream = std::ptr::null_mut();
        // SAFETY: the function writes a handle if it returns 0.
        let status = unsafe { (self.stream)(CUDA, i32::try_from(gpu).ok()?, &mut stream) };
        (status == 0).then(|| stream.expose_provenance())
    }
}

impl DlTensor {
    fn address(&self) -> Option<usize> {
        Some(self.data.expose_provenance() + usize::try_from(self.byte_offset).ok()?)
    }

    fn elem(&self) -> Option<Elem> {
        if self.lanes != 1 {
            return None;
        }
        Some(match (self.code, self.bits) {
            (0, 8) => Elem::I8,
            (0, 32) => Elem::I32,
            (1, 8) => Elem::U8,
            (2, 16) => Elem::F16,
            (2, 32) => Elem::F32,
            (4, 16) => Elem::Bf16,
            (6, 8) => Elem::Bool,
            (10, 8) => Elem::F8E4M3,
            (12, 8) => Elem::F8E5M2,
            _ => return None,
        })
    }

    /// Extents or strides.
    fn numbers(&self, first: *const i64) -> Option<&[i64]> {
        let rank = usize::try_from(self.rank).ok()?;
        if rank == 0 {
            return Some(&[]);
        }
        if first.is_null() {
            return None;
        }
        // SAFETY: there are as many numbers as dimensions, which live as long as the tensor: longer
        // than this view of it.
        Some(unsafe { std::slice::from_raw_parts(first, rank) })
    }
}
