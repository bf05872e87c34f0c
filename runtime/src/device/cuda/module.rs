//! Machine code loaded into a context, and its entry point.

use std::ffi::{CString, c_int, c_void};
use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::context::Context;
use super::driver::{check, check_status};
use super::image::Image;
use crate::device::DeviceError;

/// Loaded code, unloaded on drop.
#[derive(Debug)]
pub(super) struct Module {
    context: Arc<Context>,
    module: sys::CUmodule,
    /// One per entry point.
    functions: Vec<sys::CUfunction>,
}

// SAFETY: module and function handles may be used from any thread.
unsafe impl Send for Module {}
// SAFETY: as above; after loading they are only read.
unsafe impl Sync for Module {}

impl Module {
    /// Loads code, finds its entry points and lets each use so many bytes of dynamic shared memory.
    pub fn load(context: &Arc<Context>, image: &Image<'_>, entries: &[(&str, usize)]) -> Result<Self, DeviceError> {
        context.bind()?;
        let module = load_image(&context.id, image)?;
        let mut loaded = Self { context: context.clone(), module, functions: Vec::with_capacity(entries.len()) };
        for (entry, shared_bytes) in entries {
            let function = loaded.find(entry, *shared_bytes)?;
            loaded.functions.push(function);
        }
        Ok(loaded)
    }

    fn find(&self, entry: &str, shared_bytes: usize) -> Result<sys::CUfunction, DeviceError> {
        let id = &self.context.id;
        let name = CString::new(entry).map_err(|_| DeviceError::Driver {
            device: id.clone(),
            call: "cuModuleGetFunction",
            code: "NUL".to_owned(),
            message: format!("a NUL byte in the entry point's name {entry:?}"),
        })?;
        // SAFETY: the module is loaded.
        let function = check(id, "cuModuleGetFunction", unsafe { result::module::get_function(self.module, name) })?;
        if shared_bytes > 48 << 10 {
            let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let bytes = c_int::try_from(shared_bytes).unwrap_or(c_int::MAX);
            // SAFETY: the function is of a loaded module.
            let set = unsafe { result::function::set_function_attribute(function, attribute, bytes) };
            check(id, "cuFuncSetAttribute", set)?;
        }
        Ok(function)
    }

    /// An entry point, by its place among those that were asked for.
    pub fn function(&self, entry: usize) -> sys::CUfunction {
        self.functions[entry]
    }

    /// Registers of a thread, and bytes of local memory of a thread (spills and stack).
    pub fn resources(&self, entry: usize) -> Result<(u32, u32), DeviceError> {
        use sys::CUfunction_attribute as A;
        self.context.bind()?;
        let attribute = |attribute| {
            // SAFETY: the function is of a loaded module.
            let value = unsafe { result::function::get_function_attribute(self.functions[entry], attribute) };
            check(&self.context.id, "cuFuncGetAttribute", value).map(|v| u32::try_from(v).unwrap_or(0))
        };
        Ok((attribute(A::CU_FUNC_ATTRIBUTE_NUM_REGS)?, attribute(A::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?))
    }

    /// Blocks that are resident on a multiprocessor at once.
    pub fn occupancy(&self, entry: usize, threads: u32, shared_bytes: usize) -> Result<u32, DeviceError> {
        self.context.bind()?;
        let mut blocks: c_int = 0;
        let threads = c_int::try_from(threads).unwrap_or(c_int::MAX);
        // SAFETY: the function is of a loaded module, the pointer valid for a write.
        let status = unsafe {
            sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, self.functions[entry], threads, shared_bytes)
        };
        check_status(&self.context.id, "cuOccupancyMaxActiveBlocksPerMultiprocessor", status)?;
        Ok(u32::try_from(blocks).unwrap_or(0))
    }
}

/// Loads machine code or PTX; on failure the error holds the log of the driver's compiler.
fn load_image(id: &str, image: &Image<'_>) -> Result<sys::CUmodule, DeviceError> {
    use sys::CUjit_option as O;
    let text;
    let data: *const c_void = match image {
        Image::Cubin(bytes) => bytes.as_ptr().cast(),
        Image::Ptx(ptx) => {
            text = CString::new(*ptx).map_err(|_| DeviceError::Driver {
                device: id.to_owned(),
                call: "cuModuleLoadDataEx",
                code: "NUL".to_owned(),
                message: "a NUL byte in the PTX".to_owned(),
            })?;
            text.as_ptr().cast()
        }
    };
    let mut log = vec![0u8; 8192];
    let mut options = [O::CU_JIT_ERROR_LOG_BUFFER, O::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    let mut values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), std::ptr::without_provenance_mut(log.len())];
    let mut module: sys::CUmodule = std::ptr::null_mut();
    // SAFETY: `data` is a whole cubin or a text that ends with NUL; options and values are two of each, the buffer as
    // long as said, and all live beyond the call.
    let status = unsafe { sys::cuModuleLoadDataEx(&mut module, data, 2, options.as_mut_ptr(), values.as_mut_ptr()) };
    match check_status(id, "cuModuleLoadDataEx", status) {
        Ok(()) => Ok(module),
        Err(DeviceError::Driver { device, call, code, mut message }) => {
            let end = log.iter().position(|&b| b == 0).unwrap_or(log.len());
            let log = String::from_utf8_lossy(&log[..end]);
            if !log.trim().is_empty() {
                message = format!("{message}: {}", log.trim());
            }
            if code == "CUDA_ERROR_UNSUPPORTED_PTX_VERSION" || code == "CUDA_ERROR_NO_BINARY_FOR_GPU" {
                message.push_str("; update the driver, or set FLASHTILE_NVRTC to an older NVRTC");
            }
            Err(DeviceError::Driver { device, call, code, message })
        }
        Err(other) => Err(other),
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // Code that is still running must stay. A failure leaves nothing to be done, here and below.
            let _ = result::ctx::synchronize();
            // SAFETY: we loaded it and unload it once, and nothing of the context runs.
            let _ = unsafe { result::module::unload(self.module) };
        }
    }
}
