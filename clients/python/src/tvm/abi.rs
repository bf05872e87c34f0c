//! Values and functions as tvm-ffi passes them: the part of `tvm/ffi/c_api.h` and
//! `extra/c_env_api.h` (version 0.1) that is used here. The library is in the process already,
//! since it calls us; it is neither linked nor opened anew.

use std::ffi::{CStr, CString, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use crate::dlpack::DlTensor;

/// `TVMFFIAny`: a value, whose type says what the eight bytes are.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Value {
    kind: i32,
    /// Bytes of a small string.
    short: u32,
    bits: u64,
}

/// Types of values (`TVMFFITypeIndex`).
const NONE: i32 = 0;
const INT: i32 = 1;
const BOOL: i32 = 2;
const FLOAT: i32 = 3;
const DL_TENSOR: i32 = 7;
const RAW_TEXT: i32 = 8;
const SMALL_TEXT: i32 = 11;
const TEXT: i32 = 65;
const FUNCTION: i32 = 68;
const TENSOR: i32 = 70;
/// Bytes of the header of an object (`TVMFFIObject`).
const OBJECT_HEADER: usize = 24;

/// What a value is, of what kernels take.
pub(super) enum Read<'a> {
    Tensor(&'a DlTensor),
    Int(i64),
    Float(f64),
    /// Anything else, by the number of its type.
    Other(i32),
}

impl Value {
    fn pointer(&self) -> *const u8 {
        std::ptr::with_exposed_provenance(self.bits as usize)
    }

    /// A tensor or a number.
    pub(super) fn read(&self) -> Read<'_> {
        match self.kind {
            // SAFETY: tvm-ffi says that a value of this type points to a `DLTensor`, which lives as
            // long as the call.
            DL_TENSOR => Read::Tensor(unsafe { &*self.pointer().cast() }),
            // SAFETY: tvm-ffi says that the object of a tensor is its header, then a `DLTensor`.
            TENSOR => Read::Tensor(unsafe { &*self.pointer().add(OBJECT_HEADER).cast() }),
            INT => Read::Int(self.bits as i64),
            FLOAT => Read::Float(f64::from_bits(self.bits)),
            other => Read::Other(other),
        }
    }

    /// No value.
    pub(super) fn none() -> Self {
        Self { kind: NONE, short: 0, bits: 0 }
    }

    /// Whether it is a text.
    pub(super) fn is_text(&self) -> bool {
        matches!(self.kind, RAW_TEXT | SMALL_TEXT | TEXT)
    }

    /// A text, or none.
    pub(super) fn text(&self) -> Result<Option<&str>, Failure> {
        let bytes: &[u8] = match self.kind {
            NONE => return Ok(None),
            // SAFETY: tvm-ffi says that a value of this type is a text that ends with a 0 and lives
            // as long as the call.
            RAW_TEXT => unsafe { CStr::from_ptr(self.pointer().cast()) }.to_bytes(),
            // SAFETY: the bytes of a small text are in the value, at most 7.
            SMALL_TEXT => unsafe {
                std::slice::from_raw_parts((&raw const self.bits).cast(), (self.short as usize).min(size_of::<u64>()))
            },
            TEXT => {
                // SAFETY: tvm-ffi says that the object of a text is its header, then an address and
                // a number of bytes.
                let (first, count) = unsafe { self.pointer().add(OBJECT_HEADER).cast::<(*const u8, usize)>().read() };
                // SAFETY: as above.
                unsafe { std::slice::from_raw_parts(first, count) }
            }
            BOOL | INT | FLOAT => return Err(Failure::of_type("expected a string, not a number")),
            other => return Err(Failure::of_type(format!("expected a string, not a value of tvm-ffi's type {other}"))),
        };
        std::str::from_utf8(bytes).map(Some).map_err(|_| Failure::of_type("expected a string in UTF-8"))
    }
}

/// Why a call failed: the name of Python's exception, and what is wrong.
pub(super) struct Failure {
    kind: &'static CStr,
    message: String,
}

impl Failure {
    /// A value of the wrong type.
    pub(super) fn of_type(message: impl Into<String>) -> Self {
        Self { kind: c"TypeError", message: message.into() }
    }

    /// A value that cannot be.
    pub(super) fn of_value(message: impl Into<String>) -> Self {
        Self { kind: c"ValueError", message: message.into() }
    }

    /// Too few or too many arguments.
    pub(super) fn count(of: &str, expected: usize, found: usize) -> Self {
        Self::of_type(format!("`{of}` takes {expected} arguments, {found} were given"))
    }
}

impl From<flashtile::Error> for Failure {
    fn from(error: flashtile::Error) -> Self {
        Self { kind: c"RuntimeError", message: error.to_string() }
    }
}

/// `TVMFFIByteArray`: bytes of a text.
#[repr(C)]
struct Bytes {
    first: *const u8,
    count: usize,
}

type Call = unsafe extern "C" fn(*mut c_void, *const Value, i32, *mut Value) -> i32;

/// What is called of tvm-ffi.
#[derive(Clone, Copy)]
pub(super) struct Api {
    create: unsafe extern "C" fn(*mut c_void, Call, Option<unsafe extern "C" fn(*mut c_void)>, *mut *mut c_void) -> i32,
    raise: unsafe extern "C" fn(*const c_char, *const c_char),
    stream: unsafe extern "C" fn(i32, i32) -> *mut c_void,
    text: Option<unsafe extern "C" fn(*const Bytes, *mut Value) -> i32>,
}

impl Api {
    /// The functions, found once; `None` if the process has no tvm-ffi, so that nobody could have
    /// called us.
    fn get() -> Option<&'static Self> {
        static API: OnceLock<Option<Api>> = OnceLock::new();
        API.get_or_init(Self::find).as_ref()
    }

    fn find() -> Option<Self> {
        use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};
        // RTLD_NOLOAD of Linux: what is not there already is not opened.
        const NO_LOAD: i32 = 4;
        // SAFETY: nothing is loaded, so that no code runs.
        let own = unsafe { Library::open(Some("libtvm_ffi.so"), RTLD_LAZY | RTLD_LOCAL | NO_LOAD) };
        let library = own.unwrap_or_else(|_| Library::this());
        // SAFETY: the types are those of the headers, which are the same in all versions 0.1.
        let api = unsafe {
            Self {
                create: *library.get(b"TVMFFIFunctionCreate").ok()?,
                raise: *library.get(b"TVMFFIErrorSetRaisedFromCStr").ok()?,
                stream: *library.get(b"TVMFFIEnvGetStream").ok()?,
                text: library.get(b"TVMFFIStringFromByteArray").ok().map(|found| *found),
            }
        };
        // The functions are used as long as the process lives.
        std::mem::forget(library);
        Some(api)
    }

    /// The handle of the caller's stream of a GPU.
    pub(super) fn stream(&self, gpu: usize) -> usize {
        let gpu = i32::try_from(gpu).unwrap_or(0);
        // SAFETY: the function reads a variable of the thread.
        unsafe { (self.stream)(crate::dlpack::CUDA, gpu) }.expose_provenance()
    }

    /// A text of tvm-ffi, which the caller owns.
    pub(super) fn text(&self, text: &str) -> Result<Value, Failure> {
        let failure = |message: &str| Failure { kind: c"RuntimeError", message: message.into() };
        let make = self.text.ok_or_else(|| failure("this version of tvm-ffi makes no strings: take 0.1.15 or a later one"))?;
        let (bytes, mut value) = (Bytes { first: text.as_ptr(), count: text.len() }, Value::none());
        // SAFETY: the function copies the bytes, and writes a value if it returns 0.
        match unsafe { make(&bytes, &mut value) } {
            0 => Ok(value),
            _ => Err(failure("tvm-ffi did not make a string")),
        }
    }

    /// A function of tvm-ffi that calls what is given, and frees it when nobody holds the function.
    pub(super) fn function(&self, called: impl Called) -> Result<Value, Failure> {
        let own = Box::into_raw(Box::new(called));
        let mut handle = std::ptr::null_mut();
        // SAFETY: the functions below are those of what `own` is.
        let status = unsafe { (self.create)(own.cast(), call_of(own), Some(free_of(own)), &mut handle) };
        if status != 0 {
            // SAFETY: tvm-ffi did not take it.
            drop(unsafe { Box::from_raw(own) });
            return Err(Failure { kind: c"RuntimeError", message: "tvm-ffi did not make a function".into() });
        }
        Ok(Value { kind: FUNCTION, short: 0, bits: handle.expose_provenance() as u64 })
    }
}

/// What a function of tvm-ffi does.
pub(super) trait Called: Send + Sync + 'static {
    fn call(&self, api: &Api, arguments: &[Value]) -> Result<Value, Failure>;
}

fn call_of<C: Called>(_: *const C) -> Call {
    unsafe extern "C" fn call<C: Called>(own: *mut c_void, arguments: *const Value, count: i32, result: *mut Value) -> i32 {
        // SAFETY: tvm-ffi gives back what it was given, and promises the rest.
        unsafe {
            let called = &*own.cast::<C>();
            answer(arguments, count, result, |api, arguments| called.call(api, arguments))
        }
    }
    call::<C>
}

fn free_of<C: Called>(_: *const C) -> unsafe extern "C" fn(*mut c_void) {
    unsafe extern "C" fn free<C: Called>(own: *mut c_void) {
        // SAFETY: tvm-ffi gives back what it was given, once.
        drop(unsafe { Box::from_raw(own.cast::<C>()) });
    }
    free::<C>
}

/// Answers a call of tvm-ffi: 0 and a result, or -1 and an error that is raised.
///
/// # Safety
/// `arguments` points to `count` values, or to nothing if there are none; `result` points to a
/// value that holds no object.
pub(super) unsafe fn answer(
    arguments: *const Value,
    count: i32,
    result: *mut Value,
    of: impl FnOnce(&Api, &[Value]) -> Result<Value, Failure>,
) -> i32 {
    let Some(api) = Api::get() else { return -1 };
    let arguments = match usize::try_from(count) {
        // SAFETY: the caller's promise.
        Ok(count) if count > 0 => unsafe { std::slice::from_raw_parts(arguments, count) },
        _ => &[],
    };
    let answer = catch_unwind(AssertUnwindSafe(|| of(api, arguments)));
    let answer = answer.unwrap_or_else(|_| {
        let message = "flashtile panicked; standard error says where. This is a defect of flashtile".into();
        Err(Failure { kind: c"RuntimeError", message })
    });
    match answer {
        Ok(value) => {
            // SAFETY: the caller's promise.
            unsafe { result.write(value) };
            0
        }
        Err(failure) => {
            let message = CString::new(failure.message.replace('\0', " ")).unwrap_or_default();
            // SAFETY: both texts end with a 0, and tvm-ffi copies them.
            unsafe { (api.raise)(failure.kind.as_ptr(), message.as_ptr()) };
            -1
        }
    }
}
