//! NVRTC, the run-time compiler, through its C interface (NVRTC documentation, "User Interface").
//!
//! The library is loaded once and never unloaded: it registers handlers that outlive a program.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::ptr;
use std::time::Instant;

use libloading::Library;

use super::install::Installed;
use super::ptxas;
use super::{Compiled, ToolchainError};

type Program = *mut c_void;
type Status = c_int;

/// Functions of the library, looked up once.
struct Functions {
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> Status,
    error_string: unsafe extern "C" fn(Status) -> *const c_char,
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> Status,
    destroy: unsafe extern "C" fn(*mut Program) -> Status,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> Status,
    log_size: unsafe extern "C" fn(Program, *mut usize) -> Status,
    log: unsafe extern "C" fn(Program, *mut c_char) -> Status,
    ptx_size: unsafe extern "C" fn(Program, *mut usize) -> Status,
    ptx: unsafe extern "C" fn(Program, *mut c_char) -> Status,
    cubin_size: unsafe extern "C" fn(Program, *mut usize) -> Status,
    cubin: unsafe extern "C" fn(Program, *mut c_char) -> Status,
}

/// NVRTC, loaded and of a supported version. May be used from several threads at once.
pub struct Nvrtc {
    functions: Functions,
    path: PathBuf,
    version: (u32, u32),
}

/// First and last supported version: 12.8 is the first that knows every architecture of the table.
pub(super) const SUPPORTED: [(u32, u32); 2] = [(12, 8), (13, u32::MAX)];

impl std::fmt::Debug for Nvrtc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Nvrtc {}.{} at {}", self.version.0, self.version.1, self.path.display())
    }
}

impl Nvrtc {
    /// Loads the library at `path`, or of that name if it has no directory.
    ///
    /// # Errors
    /// [`ToolchainError::Load`], or [`ToolchainError::Version`].
    pub(super) fn load(path: &Path) -> Result<Self, ToolchainError> {
        // A wheel's library looks for its builtins by name, and the dynamic loader does not look beside it: so they
        // must be there before it.
        Self::load_all(path, builtins_beside(path).into_iter().chain([path.to_owned()]))
    }

    /// Loads what was installed: the very files that were checked, however their names may have changed since.
    ///
    /// # Errors
    /// As [`Nvrtc::load`].
    pub(super) fn load_installed(installed: &Installed) -> Result<Self, ToolchainError> {
        let (path, _) = installed.files.last().expect("a wheel has files");
        Self::load_all(path, installed.files.iter().map(|(path, file)| by_descriptor(path, file)))
    }

    /// Loads libraries in this order, of which the last one is NVRTC, at `path`.
    fn load_all(path: &Path, libraries: impl Iterator<Item = PathBuf>) -> Result<Self, ToolchainError> {
        let failed = |reason: String| ToolchainError::Load { path: path.display().to_string(), reason };
        let mut library = None;
        for file in libraries {
            library = Some(open(&file).map_err(&failed)?);
        }
        let library = library.expect("there is one at least");
        let functions = Functions::find(library).map_err(&failed)?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both pointers are valid for a write.
        let status = unsafe { (functions.version)(&mut major, &mut minor) };
        if status != 0 {
            return Err(failed(format!("nvrtcVersion failed with status {status}")));
        }
        let version = (major.unsigned_abs(), minor.unsigned_abs());
        if !(SUPPORTED[0]..=SUPPORTED[1]).contains(&version) {
            let supported = format!("{}.{} to {}.x", SUPPORTED[0].0, SUPPORTED[0].1, SUPPORTED[1].0);
            return Err(ToolchainError::Version { path: path.display().to_string(), found: version, supported });
        }
        Ok(Self { functions, path: path.to_owned(), version })
    }

    /// The library's path, or its name if the dynamic loader found it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its version, major and minor.
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// Compiles CUDA C for a real architecture (`sm_90a`) to machine code and PTX.
    ///
    /// # Errors
    /// [`ToolchainError::Compile`] with the compiler's log.
    pub fn compile(&self, source: &str, name: &str, arch: &str) -> Result<Compiled, ToolchainError> {
        let start = Instant::now();
        // What NVRTC's own cache answers has no report of ptxas; flashtile keeps compiled code itself.
        let options = [format!("--gpu-architecture={arch}"), "--ptxas-options=-v".to_owned(), "--no-cache".to_owned()];
        let (program, log) = self.program(source, name, arch, &options)?;
        let report =
            ptxas::parse(&log).ok_or_else(|| refused(name, arch, "no report", format!("ptxas reports no resources:\n{log}")))?;
        let cubin = self.bytes("nvrtcGetCUBIN", &program, self.functions.cubin_size, self.functions.cubin)?;
        let ptx = self.text("nvrtcGetPTX", &program, self.functions.ptx_size, self.functions.ptx)?;
        Ok(Compiled { cubin, ptx, report, log, nvrtc: self.version, seconds: start.elapsed().as_secs_f64() })
    }

    /// Compiles CUDA C for a real architecture (`sm_90a`) to machine code with line numbers.
    ///
    /// # Errors
    /// [`ToolchainError::Compile`] with the compiler's log.
    pub fn compile_with_lines(&self, source: &str, name: &str, arch: &str) -> Result<Vec<u8>, ToolchainError> {
        let options = [format!("--gpu-architecture={arch}"), "--generate-line-info".to_owned()];
        let (program, _) = self.program(source, name, arch, &options)?;
        self.bytes("nvrtcGetCUBIN", &program, self.functions.cubin_size, self.functions.cubin)
    }

    /// Compiles CUDA C for a real architecture (`sm_90a`) to PTX with line numbers, and no further.
    ///
    /// # Errors
    /// [`ToolchainError::Compile`] with the compiler's log.
    pub fn compile_ptx(&self, source: &str, name: &str, arch: &str) -> Result<String, ToolchainError> {
        let options = [format!("--gpu-architecture={}", arch.replacen("sm_", "compute_", 1)), "--generate-line-info".to_owned()];
        let (program, _) = self.program(source, name, arch, &options)?;
        let ptx = self.text("nvrtcGetPTX", &program, self.functions.ptx_size, self.functions.ptx)?;
        Ok(with_names_as_given(&ptx))
    }

    /// A compiled program and the compiler's log.
    fn program(
        &self,
        source: &str,
        name: &str,
        arch: &str,
        options: &[String],
    ) -> Result<(OwnedProgram<'_>, String), ToolchainError> {
        let no_nul = |text: &str, what: &str| {
            CString::new(text).map_err(|_| refused(name, arch, "NUL", format!("a NUL byte in the {what}")))
        };
        let (source, file) = (no_nul(source, "source")?, no_nul(name, "name")?);
        let all = ["--std=c++17"].into_iter().chain(options.iter().map(String::as_str));
        let strings = all.map(|o| no_nul(o, "options")).collect::<Result<Vec<_>, _>>()?;
        let options: Vec<*const c_char> = strings.iter().map(|o| o.as_ptr()).collect();

        let mut program: Program = ptr::null_mut();
        // SAFETY: strings end with NUL and live until the call returns; no headers are given.
        let status =
            unsafe { (self.functions.create)(&mut program, source.as_ptr(), file.as_ptr(), 0, ptr::null(), ptr::null()) };
        self.check("nvrtcCreateProgram", status)?;
        let program = OwnedProgram { functions: &self.functions, program };
        // SAFETY: the program was just created, and `options` holds pointers to strings that live beyond the call.
        let status = unsafe { (self.functions.compile)(program.program, options.len() as c_int, options.as_ptr()) };
        let log = self.text("nvrtcGetProgramLog", &program, self.functions.log_size, self.functions.log)?;
        match status {
            0 => Ok((program, log)),
            _ => Err(refused(name, arch, &self.error_text(status), log)),
        }
    }

    fn check(&self, call: &'static str, status: Status) -> Result<(), ToolchainError> {
        match status {
            0 => Ok(()),
            _ => Err(ToolchainError::Call { call, code: self.error_text(status) }),
        }
    }

    fn error_text(&self, status: Status) -> String {
        // SAFETY: any status is allowed; the result is null or a static string.
        let text = unsafe { (self.functions.error_string)(status) };
        if text.is_null() {
            return format!("status {status}");
        }
        // SAFETY: not null, and a static string that ends with NUL.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    /// A result of a program, sized by one function and copied by another.
    fn bytes(
        &self,
        call: &'static str,
        program: &OwnedProgram<'_>,
        size: unsafe extern "C" fn(Program, *mut usize) -> Status,
        copy: unsafe extern "C" fn(Program, *mut c_char) -> Status,
    ) -> Result<Vec<u8>, ToolchainError> {
        let mut len = 0;
        // SAFETY: the program is alive and `len` valid for a write.
        self.check(call, unsafe { size(program.program, &mut len) })?;
        let mut bytes = vec![0u8; len];
        // SAFETY: the program is alive and the buffer as large as it just said.
        self.check(call, unsafe { copy(program.program, bytes.as_mut_ptr().cast()) })?;
        Ok(bytes)
    }

    fn text(
        &self,
        call: &'static str,
        program: &OwnedProgram<'_>,
        size: unsafe extern "C" fn(Program, *mut usize) -> Status,
        copy: unsafe extern "C" fn(Program, *mut c_char) -> Status,
    ) -> Result<String, ToolchainError> {
        let bytes = self.bytes(call, program, size, copy)?;
        let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
        Ok(String::from_utf8_lossy(&bytes[..end]).into_owned())
    }
}

/// PTX whose files have the names that the source gave them: NVRTC puts the current directory before each.
fn with_names_as_given(ptx: &str) -> String {
    let Ok(directory) = std::env::current_dir() else { return ptx.to_owned() };
    let prefix = format!("\"{}/", directory.display());
    let line = |line: &str| match line.trim_start().starts_with(".file") {
        true => line.replacen(&prefix, "\"", 1),
        false => line.to_owned(),
    };
    ptx.lines().map(line).flat_map(|line| [line, "\n".to_owned()]).collect()
}

/// The error of a program that does not compile.
fn refused(name: &str, arch: &str, code: &str, log: String) -> ToolchainError {
    ToolchainError::Compile { name: name.to_owned(), target: arch.to_owned(), code: code.to_owned(), log }
}

/// A program, destroyed on drop.
struct OwnedProgram<'a> {
    functions: &'a Functions,
    program: Program,
}

impl Drop for OwnedProgram<'_> {
    fn drop(&mut self) {
        // SAFETY: the program was created by this library and is destroyed once. A failure leaves nothing to be done.
        unsafe { (self.functions.destroy)(&mut self.program) };
    }
}

impl Functions {
    fn find(library: &Library) -> Result<Self, String> {
        macro_rules! find {
            ($name:literal) => {
                // SAFETY: the type of the field is the signature that the NVRTC documentation gives for this function.
                *unsafe { library.get($name) }.map_err(|e| with_sources(&e))?
            };
        }
        Ok(Self {
            version: find!(b"nvrtcVersion"),
            error_string: find!(b"nvrtcGetErrorString"),
            create: find!(b"nvrtcCreateProgram"),
            destroy: find!(b"nvrtcDestroyProgram"),
            compile: find!(b"nvrtcCompileProgram"),
            log_size: find!(b"nvrtcGetProgramLogSize"),
            log: find!(b"nvrtcGetProgramLog"),
            ptx_size: find!(b"nvrtcGetPTXSize"),
            ptx: find!(b"nvrtcGetPTX"),
            cubin_size: find!(b"nvrtcGetCUBINSize"),
            cubin: find!(b"nvrtcGetCUBIN"),
        })
    }
}

/// Libraries of builtins in the directory of `path`; none if it has no directory.
fn builtins_beside(path: &Path) -> Vec<PathBuf> {
    let Some(directory) = path.parent().filter(|d| d.is_absolute()) else { return Vec::new() };
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let mut found: Vec<PathBuf> = entries
        .filter_map(|e| Some(e.ok()?.path()))
        .filter(|p| {
            let name = p.file_name().and_then(|n| n.to_str()).unwrap_or("");
            // A directory of the system may hold several versions; those are found by the loader.
            name.starts_with("libnvrtc-builtins.so.") || name.starts_with("nvrtc-builtins64_")
        })
        .collect();
    found.sort();
    if found.len() == 1 { found } else { Vec::new() }
}

/// A path that leads to an open file, where the system has one.
fn by_descriptor(path: &Path, file: &File) -> PathBuf {
    #[cfg(target_os = "linux")]
    {
        use std::os::fd::AsRawFd;
        let through = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        if through.exists() {
            return through;
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = file;
    // Nobody else can change what is at this path: all directories on the way were looked at.
    path.to_owned()
}

/// An error with what led to it: what the loader says of a file is the source of "dlopen failed".
fn with_sources(error: &dyn std::error::Error) -> String {
    std::iter::successors(Some(error), |error| error.source()).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Loads a library and keeps it loaded.
fn open(path: &Path) -> Result<&'static Library, String> {
    #[cfg(unix)]
    let library = {
        use libloading::os::unix;
        // Global, since NVRTC finds its builtins among the libraries already loaded.
        // SAFETY: NVRTC and its builtins have no initialisers with requirements on the process.
        unsafe { unix::Library::open(Some(path), unix::RTLD_NOW | unix::RTLD_GLOBAL) }.map(Library::from)
    };
    #[cfg(not(unix))]
    // SAFETY: as above.
    let library = unsafe { Library::new(path) };
    library.map(|l| &*Box::leak(Box::new(l))).map_err(|e| with_sources(&e))
}
