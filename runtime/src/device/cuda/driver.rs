//! Looks for the driver library before anything else touches it: cudarc panics where the library, or a function of it,
//! is missing.

use cudarc::driver::result::DriverError;
use cudarc::driver::sys::CUresult;

use crate::device::DeviceError;

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
    "cuStreamIsCapturing",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuEventElapsedTime",
    "cuEventDestroy_v2",
    "cuModuleLoadDataEx",
    "cuModuleGetFunction",
    "cuModuleUnload",
    "cuFuncSetAttribute",
    "cuFuncGetAttribute",
    "cuOccupancyMaxActiveBlocksPerMultiprocessor",
    "cuLaunchKernelEx",
    "cuTensorMapEncodeTiled",
    "cuGetErrorName",
    "cuGetErrorString",
];

/// Whether the driver library can be loaded and has every function that is needed.
///
/// # Errors
/// [`DeviceError::NoDriver`] with the names tried, or [`DeviceError::OldDriver`] with the first function that is missing.
pub(crate) fn probe() -> Result<(), DeviceError> {
    let mut looked_for = Vec::new();
    for name in ["cuda", "nvcuda"].into_iter().flat_map(cudarc::get_lib_name_candidates) {
        // SAFETY: loading the driver runs its initialisers, which is what any CUDA program does; the library stays
        // loaded through cudarc.
        match unsafe { libloading::Library::new(&name) } {
            Ok(library) => {
                let missing = SYMBOLS.iter().find(|symbol| {
                    // SAFETY: the address is only tested for presence, never called or read through this type.
                    unsafe { library.get::<*const ()>(symbol.as_bytes()) }.is_err()
                });
                return match missing {
                    Some(symbol) => Err(DeviceError::OldDriver { symbol: (*symbol).to_owned() }),
                    None => Ok(()),
                };
            }
            Err(_) => looked_for.push(name),
        }
    }
    Err(DeviceError::NoDriver { looked_for })
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
