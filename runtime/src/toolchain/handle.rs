//! [`Toolchain`]: finds NVRTC when it is first needed, or installs it, and remembers.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use super::install::Place;
use super::nvrtc::SUPPORTED;
use super::options::ToolchainOptions;
use super::wheels::{self, Wheel};
use super::{Compiled, Nvrtc, ToolchainError, disassembler, locate};
use crate::location;

/// The compiler, found on first use. Clones are the same toolchain.
#[derive(Clone, Debug)]
pub struct Toolchain {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    options: ToolchainOptions,
    /// Held while NVRTC is looked for, so that it is looked for once. A failure is not kept.
    nvrtc: Mutex<Option<Arc<Nvrtc>>>,
}

impl Default for Toolchain {
    fn default() -> Self {
        Self::shared()
    }
}

impl Toolchain {
    /// The toolchain of the process, with default options.
    pub fn shared() -> Self {
        static SHARED: OnceLock<Toolchain> = OnceLock::new();
        SHARED.get_or_init(|| Self::new(ToolchainOptions::default())).clone()
    }

    /// A toolchain. Nothing is looked for yet.
    pub fn new(options: ToolchainOptions) -> Self {
        Self { inner: Arc::new(Inner { options, nvrtc: Mutex::new(None) }) }
    }

    /// NVRTC, found now if it was not before.
    ///
    /// # Errors
    /// [`ToolchainError::NotFound`] with every place; [`ToolchainError::Load`] or [`ToolchainError::Version`] for a
    /// library that was given explicitly.
    pub fn nvrtc(&self) -> Result<Arc<Nvrtc>, ToolchainError> {
        let mut slot = self.inner.nvrtc.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(nvrtc) = &*slot {
            return Ok(nvrtc.clone());
        }
        let found = Arc::new(find(&self.inner.options)?);
        *slot = Some(found.clone());
        Ok(found)
    }

    /// The version of NVRTC that compiled code must be of, major and minor. If the options name NVRTC, it is found now and its version
    /// counts, so that code which another version left in a cache is not taken for its own. Else it is that of the NVRTC that has been
    /// found, and code of any version will do before.
    ///
    /// # Errors
    /// As [`Toolchain::nvrtc`].
    pub fn required_version(&self) -> Result<Option<(u32, u32)>, ToolchainError> {
        match &self.inner.options.nvrtc {
            Some(_) => Ok(Some(self.nvrtc()?.version())),
            None => Ok(self.found().map(|nvrtc| nvrtc.version())),
        }
    }

    /// NVRTC if it has been found already.
    pub fn found(&self) -> Option<Arc<Nvrtc>> {
        self.inner.nvrtc.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }

    /// Compiles CUDA C for a real architecture (`sm_90a`) to machine code and PTX. May be called from several threads.
    ///
    /// # Errors
    /// As [`Toolchain::nvrtc`], and [`ToolchainError::Compile`] with the compiler's log.
    pub fn compile(&self, source: &str, name: &str, arch: &str) -> Result<Compiled, ToolchainError> {
        self.nvrtc()?.compile(source, name, arch)
    }

    /// Compiles CUDA C for a real architecture (`sm_90a`) to PTX with line numbers. May be called from several threads.
    ///
    /// # Errors
    /// As [`Toolchain::compile`].
    pub fn compile_ptx(&self, source: &str, name: &str, arch: &str) -> Result<String, ToolchainError> {
        self.nvrtc()?.compile_ptx(source, name, arch)
    }

    /// Disassembles machine code with nvdisasm or cuobjdump, installing nvdisasm if there is neither.
    ///
    /// # Errors
    /// [`ToolchainError::NoTool`] with every place, or [`ToolchainError::Tool`].
    pub fn disassemble(&self, cubin: &[u8]) -> Result<String, ToolchainError> {
        disassembler::disassemble(cubin, &self.inner.options)
    }

    /// Compiles CUDA C for a real architecture (`sm_90a`), and disassembles it with nvdisasm: in
    /// front of instructions stand the lines that they are of, as `//## File "NAME", line N`, and
    /// behind one of an inlined function where that was called.
    ///
    /// # Errors
    /// As [`Toolchain::compile`] and [`Toolchain::disassemble`]; cuobjdump tells no lines.
    pub fn disassemble_with_lines(&self, source: &str, name: &str, arch: &str) -> Result<String, ToolchainError> {
        let cubin = self.nvrtc()?.compile_with_lines(source, name, arch)?;
        disassembler::disassemble_with_lines(&cubin, &self.inner.options)
    }
}

impl ToolchainOptions {
    /// Where wheels are installed.
    pub(super) fn place(&self) -> Option<Place> {
        Some(Place { base: self.directory.clone()?, trust: location::trust() })
    }
}

fn find(options: &ToolchainOptions) -> Result<Nvrtc, ToolchainError> {
    if let Some(given) = &options.nvrtc {
        return match given.to_str().filter(|_| !given.exists()).and_then(wheels::nvrtc_of_version) {
            Some(wheel) => {
                let mut looked_in = Vec::new();
                own(wheel, options, &mut looked_in).map_err(|install| not_found(wheel, looked_in, install))
            }
            None => explicit(given),
        };
    }
    let mut looked_in = Vec::new();
    let mut search = |place: String, files: Vec<PathBuf>| -> Option<Nvrtc> {
        let mut faults = Vec::new();
        for file in &files {
            match Nvrtc::load(file) {
                Ok(nvrtc) => return Some(nvrtc),
                Err(ToolchainError::Version { found, .. }) => {
                    faults.push(format!("version {}.{} is not supported", found.0, found.1))
                }
                Err(ToolchainError::Load { reason, .. }) if file.is_absolute() => faults.push(reason),
                Err(_) => {}
            }
        }
        let fault = if faults.is_empty() { "not there".to_owned() } else { faults.join("; ") };
        looked_in.push(format!("{place}: {fault}"));
        None
    };
    let names = locate::by_name();
    let listed: Vec<_> = names.iter().map(|n| n.display().to_string()).collect();
    if let Some(nvrtc) = search(format!("the dynamic loader's path ({})", listed.join(", ")), names) {
        return Ok(nvrtc);
    }
    for folder in locate::toolkit_libraries() {
        if let Some(nvrtc) = search(folder.display().to_string(), locate::in_folder(&folder)) {
            return Ok(nvrtc);
        }
    }
    match locate::python_packages() {
        Ok(packages) => {
            for folder in packages {
                let files = in_wheels(&folder);
                if let Some(nvrtc) = search(format!("{} (nvidia wheels)", folder.display()), files) {
                    return Ok(nvrtc);
                }
            }
        }
        Err(reason) => looked_in_python(&mut search, &reason),
    }
    let wheel = wheels::default_nvrtc();
    own(wheel, options, &mut looked_in).map_err(|install| not_found(wheel, looked_in, install))
}

fn not_found(wheel: &Wheel, looked_in: Vec<String>, install: String) -> ToolchainError {
    ToolchainError::NotFound { looked_in, install, wheel: wheel.requirement() }
}

/// NVRTC of a wheel in the project's own directory, installed there if need be. An error says what came of installing it.
fn own(wheel: &Wheel, options: &ToolchainOptions, looked_in: &mut Vec<String>) -> Result<Nvrtc, String> {
    let place = options.place().ok_or("cannot install it: neither FLASHTILE_CACHE nor HOME says where to")?;
    let faulty = match wheel.installed(&place) {
        Ok(installed) => match Nvrtc::load_installed(&installed) {
            Ok(nvrtc) => return Ok(nvrtc),
            Err(error) => error.to_string(),
        },
        Err(fault) if fault.is_missing() => "not there".to_owned(),
        Err(fault) => fault.to_string(),
    };
    looked_in.push(format!("{}: {faulty}", wheel.directory(&place).display()));
    if !options.install {
        return Err("installing it is turned off".to_owned());
    }
    let installed = wheel.install(&place, &*options.progress)?;
    Nvrtc::load_installed(&installed).map_err(|error| format!("it is installed, but {error}"))
}

fn looked_in_python(search: &mut impl FnMut(String, Vec<PathBuf>) -> Option<Nvrtc>, reason: &str) {
    // No files: this only notes the place.
    let _ = search(format!("Python's packages ({reason})"), Vec::new());
}

fn in_wheels(packages: &Path) -> Vec<PathBuf> {
    locate::WHEEL_LIBRARIES.iter().flat_map(|inside| locate::in_folder(&packages.join(inside))).collect()
}

/// Whether a text is a version rather than a path.
fn is_version(text: &Path) -> bool {
    text.to_str().is_some_and(|text| {
        text.starts_with(|c: char| c.is_ascii_digit()) && text.chars().all(|c| c.is_ascii_digit() || c == '.')
    })
}

fn explicit(given: &Path) -> Result<Nvrtc, ToolchainError> {
    let path = &std::path::absolute(given).unwrap_or_else(|_| given.to_owned());
    if is_version(given) && !path.exists() {
        let reason = format!("there is no such file, and as a version it is none of {}", wheels::nvrtc_versions());
        return Err(ToolchainError::Load { path: given.display().to_string(), reason });
    }
    if !path.is_dir() {
        return Nvrtc::load(path);
    }
    let mut files = locate::in_folder(path);
    files.extend(in_wheels(path));
    match files.first() {
        Some(file) => Nvrtc::load(file),
        None => Err(ToolchainError::Load {
            path: path.display().to_string(),
            reason: format!(
                "the directory holds no libnvrtc.so.13 or .12 (versions {}.{} to {}.x are supported)",
                SUPPORTED[0].0, SUPPORTED[0].1, SUPPORTED[1].0
            ),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offline(nvrtc: Option<PathBuf>, directory: Option<PathBuf>) -> Toolchain {
        Toolchain::new(ToolchainOptions { nvrtc, install: false, directory, progress: Arc::new(|_| {}) })
    }

    #[test]
    fn an_explicit_path_is_the_only_place() {
        let error = offline(Some("/nonexistent/libnvrtc.so.13".into()), None).nvrtc().expect_err("is not there");
        assert!(matches!(&error, ToolchainError::Load { path, .. } if path == "/nonexistent/libnvrtc.so.13"), "{error}");
        let empty = tempfile::tempdir().expect("a directory");
        let error = offline(Some(empty.path().to_owned()), None).nvrtc().expect_err("is empty").to_string();
        assert!(error.contains("holds no libnvrtc.so.13 or .12 (versions 12.8 to 13.x are supported)"), "{error}");
    }

    #[test]
    fn a_version_that_cannot_be_installed_lists_those_that_can() {
        let error = offline(Some("13.9".into()), None).nvrtc().expect_err("is not pinned").to_string();
        assert_eq!(
            error,
            "failed to load 13.9: there is no such file, and as a version it is none of 13.0.88, 13.1.115, 13.5.37"
        );
        let directory = tempfile::tempdir().expect("a directory");
        let error =
            offline(Some("13.5".into()), Some(directory.path().to_owned())).nvrtc().expect_err("is not installed").to_string();
        assert!(error.contains("nvidia-cuda-nvrtc==13.5.37"), "{error}");
    }

    #[test]
    fn code_of_another_version_will_do_unless_nvrtc_is_named() {
        assert_eq!(offline(None, None).required_version().expect("nothing is looked for"), None);
        assert!(offline(Some("/nonexistent".into()), None).required_version().is_err(), "what is named must be there");
        let named = Toolchain::new(ToolchainOptions { nvrtc: Some("13.0".into()), ..ToolchainOptions::default() });
        assert_eq!(named.required_version().expect("is installed"), Some((13, 0)));
    }

    #[test]
    fn a_file_that_is_no_library_is_named() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let error = offline(Some(file.path().to_owned()), None).nvrtc().expect_err("is empty").to_string();
        assert!(error.starts_with(&format!("failed to load {}", file.path().display())), "{error}");
    }

    #[test]
    fn the_error_says_where_and_what_to_do() {
        let error = ToolchainError::NotFound {
            looked_in: vec!["/usr/lib64: not there".to_owned()],
            install: "installing it is turned off".to_owned(),
            wheel: wheels::default_nvrtc().requirement(),
        };
        assert_eq!(
            error.to_string(),
            "no NVRTC (the CUDA run-time compiler): looked for it in\n  /usr/lib64: not there\ninstalling it is turned off\n\
             provide it with `python3 -m pip install nvidia-cuda-nvrtc==13.0.88`, or set FLASHTILE_NVRTC to libnvrtc.so or its \
             directory"
        );
    }

    /// Needs NVRTC, like the rest of the tests that compile: found, or installed once.
    #[test]
    fn programs_compile_on_several_threads_with_resources_and_errors() {
        let toolchain = Toolchain::shared();
        let source = "extern \"C\" __global__ void fill(float* x, int n) {
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            if (i < n) x[i] = 1.0f;
        }";
        std::thread::scope(|scope| {
            for arch in ["sm_75", "sm_80", "sm_90a", "sm_120"] {
                let toolchain = &toolchain;
                scope.spawn(move || {
                    let compiled = toolchain.compile(source, "fill.cu", arch).expect("compiles");
                    assert!(compiled.cubin.starts_with(b"\x7fELF"), "{arch}");
                    assert!(compiled.ptx.contains(&format!(".target {arch}")), "{arch}");
                    assert!(compiled.report.registers > 0 && compiled.report.spill_stores == 0, "{:?}", compiled.report);
                });
            }
        });
        let error = toolchain.compile("extern \"C\" __global__ void f() { x = 1; }", "bad.cu", "sm_80").expect_err("no x");
        let text = error.to_string();
        assert!(text.contains("`bad.cu` for sm_80") && text.contains("identifier \"x\" is undefined"), "{text}");
        let error = toolchain.compile(source, "fill.cu", "sm_9999").expect_err("no such architecture");
        assert!(matches!(error, ToolchainError::Compile { .. }), "{error}");
    }
}
