//! Looks for the driver library before anything else touches it: cudarc panics where the library, or a function of it,
//! is missing.
//!
//! Other crates of the program choose the CUDA version of cudarc's bindings and how they are linked. A few functions have
//! another name in some of those versions. [`Functions`] finds these by the name that every driver has since CUDA 12.0.

use std::ffi::c_void;
use std::sync::OnceLock;

use cudarc::driver::result::DriverError;
use cudarc::driver::sys::{CUevent, CUgraph, CUgraphNode, CUresult, CUstream, CUstreamCaptureStatus};
use libloading::Library;

use crate::device::DeviceError;

/// Names of the driver library: Linux, Windows.
#[cfg(not(windows))]
const LIBRARIES: &[&str] = &["libcuda.so.1", "libcuda.so"];
#[cfg(windows)]
const LIBRARIES: &[&str] = &["nvcuda.dll"];

/// Every driver function that is called here, directly or by cudarc's `result` functions.
const SYMBOLS: &[&str] = &[
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGet",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceGetAttribute",
    "cuDeviceTotalMem_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxSetCurrent",
    "cuCtxSynchronize",
    "cuMemGetInfo_v2",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemsetD8Async",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuEventCreate",
    "cuEventQuery",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuEventDestroy_v2",
    "cuModuleLoadDataEx",
    "cuModuleGetFunction",
    "cuModuleUnload",
    "cuFuncSetAttribute",
    "cuFuncGetAttribute",
    "cuOccupancyMaxActiveBlocksPerMultiprocessor",
    "cuLaunchKernelEx",
    "cuTensorMapEncodeTiled",
    "cuTensorMapReplaceAddress",
    "cuGetErrorName",
    "cuGetErrorString",
];

/// `cuStreamGetCaptureInfo_v2`. Bindings of CUDA 13 have only its third version.
type StreamGetCaptureInfo = unsafe extern "C" fn(
    CUstream,
    *mut CUstreamCaptureStatus,
    *mut u64,
    *mut CUgraph,
    *mut *const CUgraphNode,
    *mut usize,
) -> CUresult;
/// `cuEventElapsedTime`. Bindings of CUDA 13 have only its second version, which drivers before 12.8 lack.
type EventElapsedTime = unsafe extern "C" fn(*mut f32, CUevent, CUevent) -> CUresult;

/// Driver functions that are called by a name which the bindings may lack.
#[derive(Clone, Copy, Debug)]
pub(super) struct Functions {
    pub stream_get_capture_info: StreamGetCaptureInfo,
    pub event_elapsed_time: EventElapsedTime,
}

/// Finds the driver library, and every function of it that is needed. The search is made once in a process.
///
/// # Errors
/// [`DeviceError::NoDriver`] with the names tried, or [`DeviceError::OldDriver`] with the first function that is missing.
pub(super) fn functions() -> Result<Functions, DeviceError> {
    static FUNCTIONS: OnceLock<Result<Functions, DeviceError>> = OnceLock::new();
    FUNCTIONS.get_or_init(find).clone()
}

fn find() -> Result<Functions, DeviceError> {
    // SAFETY: loading the driver runs its initialisers, which is what any CUDA program does.
    let found = LIBRARIES.iter().find_map(|&name| unsafe { Library::new(name) }.ok());
    let no_driver = || DeviceError::NoDriver { looked_for: LIBRARIES.iter().map(|&name| name.to_owned()).collect() };
    let library = found.ok_or_else(no_driver)?;
    let missing = |symbol: &str| DeviceError::OldDriver { symbol: symbol.to_owned() };
    for symbol in SYMBOLS {
        // SAFETY: the address is only tested for presence, never called or read through this type.
        unsafe { library.get::<*const c_void>(symbol.as_bytes()) }.map_err(|_| missing(symbol))?;
    }
    // SAFETY: the types are those of the functions in the CUDA 12.0 driver API; a driver never changes a function that has a name.
    let functions = unsafe {
        let info = library.get::<StreamGetCaptureInfo>(b"cuStreamGetCaptureInfo_v2");
        let elapsed = library.get::<EventElapsedTime>(b"cuEventElapsedTime");
        Functions {
            stream_get_capture_info: *info.map_err(|_| missing("cuStreamGetCaptureInfo_v2"))?,
            event_elapsed_time: *elapsed.map_err(|_| missing("cuEventElapsedTime"))?,
        }
    };
    // The functions stay where they are for as long as the process runs.
    std::mem::forget(library);
    Ok(functions)
}

/// A driver call's result with the name of the device and of the function.
pub(super) fn check<T>(device: &str, call: &'static str, result: Result<T, DriverError>) -> Result<T, DeviceError> {
    result.map_err(|error| driver_error(device, call, error))
}

/// The same for a bare status.
pub(super) fn check_status(device: &str, call: &'static str, status: CUresult) -> Result<(), DeviceError> {
    check(device, call, status.result())
}

fn driver_error(device: &str, call: &'static str, error: DriverError) -> DeviceError {
    let text = |text: Result<&std::ffi::CStr, DriverError>| text.ok().map(|t| t.to_string_lossy().into_owned());
    DeviceError::Driver {
        device: device.to_owned(),
        call,
        code: text(error.error_name()).unwrap_or_else(|| format!("status {}", error.0 as u32)),
        message: text(error.error_string()).unwrap_or_else(|| "no description".to_owned()),
    }
}
