//! PyTorch's tensors and streams through DLPack's exchange functions (`__dlpack_c_exchange_api__`,
//! DLPack 1.3), which read a tensor in a call of C. Older versions of PyTorch do not have them.

use std::ffi::c_void;

use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyCapsuleMethods};

use crate::dlpack::{CUDA, DlTensor};
use crate::form::Seen;

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
        self.view(object)?.seen()
    }

    /// The handle of the current stream of a GPU.
    pub fn stream(&self, gpu: usize) -> Option<usize> {
        let mut stream = std::ptr::null_mut();
        // SAFETY: the function writes a handle if it returns 0.
        let status = unsafe { (self.stream)(CUDA, i32::try_from(gpu).ok()?, &mut stream) };
        (status == 0).then(|| stream.expose_provenance())
    }
}
