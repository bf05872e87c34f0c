//! Loads a bundle: neither NVRTC nor the cache is asked for anything.

use std::collections::BTreeMap;
use std::path::Path;

use flashtile_codegen::Arch;
use flashtile_dsl::ir::SourceText;

use super::contract::{ArchContract, CodeContract, FORMAT, KernelContract, MANIFEST, Manifest};
use super::write::{is_inside, sha256};
use crate::cache::{Cache, ModuleKey, ModuleRecord};
use crate::device::{Carried, CarriedCode, Device, DeviceKind, LaunchOptions, runs_native, runs_ptx};
use crate::error::{BundleError, Result};
use crate::kernel::{BoundKernel, Kernel};
use crate::launch::LoadedKernel;

/// Code that was compiled ahead of time, with everything that a launch needs.
///
/// ```no_run
/// use flashtile::{Bundle, Device, Tensor, bf16}; let device = Device::cuda(0)?; let bundle =
/// Bundle::load("attention.bundle")?; let attention =
/// bundle.kernel("attention_bf16_d128")?.on(&device)?; let q = Tensor::<bf16>::zeros(&device, &[1,
/// 16, 4096, 128])?; let (k, v) = (q.clone(), q.clone()); let mut o =
/// Tensor::<bf16>::zeros(&device, &[1, 16, 4096, 128])?; let mut lse =
/// Tensor::<f32>::zeros(&device, &[1, 16, 4096])?; attention.launch(&[(&q).into(), (&k).into(),
/// (&v).into(), 0.088.into(), (&mut o).into(), (&mut lse).into()])?;
/// # Ok::<(), flashtile::Error>(())
/// ```
#[derive(Debug)]
pub struct Bundle {
    manifest: Manifest,
    kernels: Vec<BundledKernel>,
}

/// A kernel of a bundle. Clones are cheap.
#[derive(Clone, Debug)]
pub struct BundledKernel {
    name: String,
    bound: BoundKernel,
    architectures: Vec<(&'static Arch, Carried)>,
}

impl Bundle {
    /// Loads the bundle of a directory. Every file is read, and its hash compared with the
    /// manifest.
    ///
    /// # Errors
    /// [`BundleError`]: a file is missing, damaged or changed; the bundle is of another version.
    pub fn load(directory: impl AsRef<Path>) -> Result<Self> {
        let directory = directory.as_ref();
        let manifest: Manifest = parse(MANIFEST, &read(directory, MANIFEST)?)?;
        let expected = env!("CARGO_PKG_VERSION");
        if manifest.format != FORMAT || manifest.flashtile != expected {
            let (found, format) = (manifest.flashtile, manifest.format);
            return Err(BundleError::Version { found, format, expected: expected.to_owned(), known: FORMAT }.into());
        }
        let mut files = BTreeMap::new();
        for (name, entry) in &manifest.files {
            if !is_inside(name) {
                return Err(BundleError::Outside { path: name.clone() }.into());
            }
            let bytes = read(directory, name)?;
            let found = sha256(&bytes);
            if found != entry.sha256 {
                let path = directory.join(name).display().to_string();
                return Err(BundleError::Hash { path, expected: entry.sha256.clone(), found }.into());
            }
            files.insert(name.clone(), bytes);
        }
        if let Some(twice) = (1..manifest.kernels.len()).find(|&at| manifest.kernels[..at].contains(&manifest.kernels[at])) {
            return Err(malformed(MANIFEST, format!("it names `{}` twice", manifest.kernels[twice])).into());
        }
        let kernels = manifest.kernels.iter().map(|name| BundledKernel::read(name, &files)).collect::<Result<_, _>>()?;
        Ok(Self { manifest, kernels })
    }

    /// What the bundle consists of.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// A kernel by its name in the bundle: `attention_bf16_d128`.
    ///
    /// # Errors
    /// [`BundleError::NoKernel`] with the names that there are.
    pub fn kernel(&self, name: &str) -> Result<&BundledKernel> {
        let found = self.kernels.iter().find(|kernel| kernel.name == name);
        let known = || self.manifest.kernels.join(", ");
        Ok(found.ok_or_else(|| BundleError::NoKernel { name: name.to_owned(), known: known() })?)
    }
}

impl BundledKernel {
    fn read(name: &str, files: &BTreeMap<String, Vec<u8>>) -> Result<Self, BundleError> {
        let file = format!("{name}.json");
        let contract: KernelContract = parse(&file, find(files, &file)?)?;
        let bound = bound(&contract).map_err(|error| malformed(&file, error.to_string()))?;
        let own = KernelContract::of(&bound);
        if contract.name != name || own.name != name || own.parameters != contract.parameters {
            return Err(malformed(&file, "its name or parameters are not those of its text and binding".to_owned()));
        }
        let KernelContract { name, kernel, architectures, .. } = contract;
        let architectures = architectures.into_iter().map(|arch| of_arch(&file, &kernel, arch, files));
        let architectures = architectures.collect::<Result<Vec<_>, BundleError>>()?;
        let twice = (1..architectures.len()).any(|at| architectures[..at].iter().any(|(arch, _)| *arch == architectures[at].0));
        if architectures.is_empty() || twice {
            return Err(malformed(&file, "it has no architectures, or one of them twice".to_owned()));
        }
        Ok(Self { name, bound, architectures })
    }

    /// The kernel, bound.
    pub fn kernel(&self) -> &BoundKernel {
        &self.bound
    }

    /// Makes it ready for a device. Launches are those of any [`LoadedKernel`].
    ///
    /// # Errors
    /// [`BundleError::NoArchitecture`], [`BundleError::NotCompiled`].
    pub fn on(&self, device: &Device) -> Result<LoadedKernel> {
        let (arch, carried) = self.of_device(device)?;
        let options = LaunchOptions {
            arch: Some(arch),
            carried: Some(carried.clone()),
            cache: Cache::disabled(),
            ..LaunchOptions::default()
        };
        self.bound.on_with(device, options)
    }

    /// The code that runs on a device: its own machine code, else PTX of an older architecture. The
    /// emulator runs all.
    pub(super) fn of_device(&self, device: &Device) -> Result<(&'static Arch, &Carried), BundleError> {
        let info = device.info();
        let all = self.architectures.iter().map(|(arch, carried)| (*arch, carried));
        let newest = |found: &mut dyn Iterator<Item = (&'static Arch, &'_ Carried)>| {
            found.map(|(arch, _)| arch).max_by_key(|arch| arch.capability).map(|arch| arch.name)
        };
        let capability = match (info.kind, &info.gpu) {
            (DeviceKind::Cpu, _) => return Err(BundleError::NotCompiled { device: device.to_string() }),
            (_, Some(gpu)) => Some(gpu.capability),
            (_, None) => None,
        };
        let name = match capability {
            None => newest(&mut all.clone()),
            Some(capability) => newest(&mut all.clone().filter(|(arch, _)| runs_native(arch, capability)))
                .or_else(|| newest(&mut all.clone().filter(|(arch, _)| runs_ptx(arch, capability)))),
        };
        let found = name.and_then(|name| all.clone().find(|(arch, _)| arch.name == name));
        found.ok_or_else(|| {
            let wanted = capability.and_then(|(major, minor)| Arch::for_capability(major, minor));
            BundleError::NoArchitecture {
                kernel: self.name.clone(),
                known: all.map(|(arch, _)| arch.name).collect::<Vec<_>>().join(", "),
                device: format!("{} ({})", info.id, info.name),
                wanted: wanted.map_or("of the device", |arch| arch.name).to_owned(),
            }
        })
    }
}

/// The kernel of a contract, bound.
fn bound(contract: &KernelContract) -> Result<BoundKernel> {
    let KernelContract { kernel, file, text, first_line, binding, .. } = contract;
    let source = SourceText { name: file.clone(), text: text.as_str().into(), first_line: *first_line };
    let kernels = Kernel::from_source(&source)?;
    let missing = || malformed(file, format!("the text has no kernel `{kernel}`"));
    kernels.into_iter().find(|k| k.name() == *kernel).ok_or_else(missing)?.bind_to(binding.clone())
}

fn of_arch(
    file: &str,
    kernel: &str,
    contract: ArchContract,
    files: &BTreeMap<String, Vec<u8>>,
) -> Result<(&'static Arch, Carried), BundleError> {
    let ArchContract { arch: name, code, variants } = contract;
    let arch = Arch::named(&name).ok_or_else(|| malformed(file, format!("`{name}` is not an architecture")))?;
    let carried = |code: CodeContract| {
        let ptx = String::from_utf8(find(files, &code.ptx)?.clone()).map_err(|e| malformed(&code.ptx, e.to_string()))?;
        let key = ModuleKey { source_hash: code.source_hash, arch: name.clone() };
        let cubin = find(files, &code.cubin)?.clone();
        let module = ModuleRecord { key, nvrtc: code.nvrtc, report: code.report, cubin, ptx };
        Ok(CarriedCode { schedule: code.knobs, contract: code.contract, module })
    };
    let code = code.into_iter().map(carried).collect::<Result<Vec<_>, BundleError>>()?;
    if variants.is_empty() || variants.iter().any(|v| v.code >= code.len()) {
        return Err(malformed(file, format!("its variants for {name} name code that it does not have")));
    }
    Ok((arch, Carried::new(kernel, code, variants)))
}

fn find<'a>(files: &'a BTreeMap<String, Vec<u8>>, name: &str) -> Result<&'a Vec<u8>, BundleError> {
    files.get(name).ok_or_else(|| malformed(MANIFEST, format!("it does not list {name}")))
}

fn read(directory: &Path, name: &str) -> Result<Vec<u8>, BundleError> {
    let path = directory.join(name);
    std::fs::read(&path).map_err(|e| BundleError::Io { action: "read", path: path.display().to_string(), reason: e.to_string() })
}

fn parse<T: serde::de::DeserializeOwned>(name: &str, bytes: &[u8]) -> Result<T, BundleError> {
    serde_json::from_slice(bytes).map_err(|e| malformed(name, e.to_string()))
}

fn malformed(path: &str, reason: String) -> BundleError {
    BundleError::Malformed { path: path.to_owned(), reason }
}
