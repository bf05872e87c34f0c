//! The files of a bundle, written with their hashes. The manifest is written last: who sees it sees
//! the others.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::contract::{FORMAT, FileEntry, KernelContract, MANIFEST, Manifest};
use crate::error::BundleError;
use crate::files;

/// Writes all files.
pub(super) fn write(
    directory: &Path,
    kernels: &[KernelContract],
    mut all: BTreeMap<String, Vec<u8>>,
) -> Result<Manifest, BundleError> {
    clear(directory)?;
    for kernel in kernels {
        all.insert(format!("{}.json", kernel.name), pretty(kernel));
    }
    let versions = kernels.iter().flat_map(|k| &k.architectures).flat_map(|a| &a.code).map(|code| code.nvrtc);
    let versions: BTreeSet<(u32, u32)> = versions.collect();
    let entry = |bytes: &[u8]| FileEntry { sha256: sha256(bytes), bytes: bytes.len() as u64 };
    let manifest = Manifest {
        format: FORMAT,
        flashtile: env!("CARGO_PKG_VERSION").to_owned(),
        nvrtc: versions.into_iter().map(|(major, minor)| format!("{major}.{minor}")).collect(),
        kernels: kernels.iter().map(|kernel| kernel.name.clone()).collect(),
        files: all.iter().map(|(name, bytes)| (name.clone(), entry(bytes))).collect(),
    };
    all.into_iter().try_for_each(|(name, bytes)| put(&directory.join(name), &bytes))?;
    put(&directory.join(MANIFEST), &pretty(&manifest))?;
    Ok(manifest)
}

/// SHA-256 in hexadecimal digits.
pub(super) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A name that a manifest may have: of a file in the directory itself.
pub(super) fn is_inside(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\\', ':', '\0'])
}

/// Makes the directory, or removes the bundle that is there.
fn clear(directory: &Path) -> Result<(), BundleError> {
    let io = |action| {
        move |e: std::io::Error| BundleError::Io { action, path: directory.display().to_string(), reason: e.to_string() }
    };
    fs::create_dir_all(directory).map_err(io("make the directory"))?;
    let there = fs::read(directory.join(MANIFEST)).ok();
    let old: Option<Manifest> = there.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let Some(old) = old else {
        let is_empty = fs::read_dir(directory).map_err(io("read"))?.next().is_none();
        return if is_empty { Ok(()) } else { Err(BundleError::NotEmpty { path: directory.display().to_string() }) };
    };
    // The manifest goes first, so that what is left half-way is no bundle.
    let names = std::iter::once(MANIFEST).chain(old.files.keys().map(String::as_str).filter(|name| is_inside(name)));
    for name in names {
        match fs::remove_file(directory.join(name)) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(io("remove files of")(e)),
            _ => {}
        }
    }
    Ok(())
}

fn put(path: &Path, bytes: &[u8]) -> Result<(), BundleError> {
    let failed = |e: std::io::Error| BundleError::Io { action: "write", path: path.display().to_string(), reason: e.to_string() };
    files::write(path, bytes).map(|_| ()).map_err(failed)
}

fn pretty(value: &impl serde::Serialize) -> Vec<u8> {
    let mut text = serde_json::to_vec_pretty(value).expect("plain data has string keys");
    text.push(b'\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_the_standard() {
        // FIPS 180-2, B.1.
        assert_eq!(sha256(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn names_stay_in_the_directory() {
        assert!(is_inside("attention.sm_80.0.cubin"));
        assert!(["", "..", "../x", "/etc/passwd", "a/b", "c:x", ".hidden"].iter().all(|name| !is_inside(name)));
    }
}
