//! The files of a bundle, written with their hashes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::contract::{FORMAT, FileEntry, KernelContract, MANIFEST, Manifest};
use crate::error::BundleError;
use crate::files;

/// Prefix of the folder within the directory that new files are written to at first.
const STAGING: &str = ".flashtile-bundle-";
/// A folder of new files that is so old was left by a process that was killed.
const FORGOTTEN: Duration = Duration::from_secs(3600);

/// Writes all files: whole, into a folder of their own, and only then in place of the bundle that is
/// there, which a full disk or an end half-way leaves as it was.
pub(super) fn write(
    directory: &Path,
    kernels: &[KernelContract],
    mut all: BTreeMap<String, Vec<u8>>,
) -> Result<Manifest, BundleError> {
    let old = prepare(directory)?;
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
    let io = |action| failed(action, directory);
    let staging = tempfile::Builder::new().prefix(STAGING).tempdir_in(directory).map_err(io("write to"))?;
    let contents = pretty(&manifest);
    let files = || std::iter::once((MANIFEST, &contents)).chain(all.iter().map(|(name, bytes)| (name.as_str(), bytes)));
    files().try_for_each(|(name, bytes)| put(&staging.path().join(name), bytes))?;
    // The manifest is first, so that what is left half-way is a bundle, whose hashes tell what is not
    // there yet, and which the next command replaces.
    let unlisted = old.into_iter().filter(|name| !manifest.files.contains_key(name));
    unlisted.map(|name| directory.join(name)).try_for_each(remove).map_err(io("remove files of"))?;
    files().try_for_each(|(name, _)| fs::rename(staging.path().join(name), directory.join(name))).map_err(io("write to"))?;
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

/// Makes the directory. Gives the files of the bundle that is there; a directory that holds anything
/// else is an error.
fn prepare(directory: &Path) -> Result<Vec<String>, BundleError> {
    let io = |action| failed(action, directory);
    fs::create_dir_all(directory).map_err(io("make the directory"))?;
    let mut others = false;
    for entry in fs::read_dir(directory).map_err(io("read"))? {
        let entry = entry.map_err(io("read"))?;
        let is_staging = entry.file_name().to_str().is_some_and(|name| name.starts_with(STAGING));
        others |= !is_staging;
        let age = entry.metadata().and_then(|data| data.modified()).ok().and_then(|at| at.elapsed().ok());
        if is_staging && age.is_some_and(|age| age > FORGOTTEN) {
            let _ = fs::remove_dir_all(entry.path()); // what stays is in nobody's way
        }
    }
    let there = fs::read(directory.join(MANIFEST)).ok();
    match there.and_then(|bytes| serde_json::from_slice::<Manifest>(&bytes).ok()) {
        Some(old) => Ok(old.files.into_keys().filter(|name| is_inside(name)).collect()),
        None if others => Err(BundleError::NotEmpty { path: directory.display().to_string() }),
        None => Ok(Vec::new()),
    }
}

/// Removes a file, if it is there.
fn remove(path: PathBuf) -> std::io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

fn put(path: &Path, bytes: &[u8]) -> Result<(), BundleError> {
    files::write(path, bytes).map(drop).map_err(failed("write", path))
}

/// The error of an action on a file or a directory.
fn failed(action: &'static str, path: &Path) -> impl Fn(std::io::Error) -> BundleError {
    move |e| BundleError::Io { action, path: path.display().to_string(), reason: e.to_string() }
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
    fn a_bundle_that_cannot_be_written_leaves_the_old_one() {
        let root = tempfile::tempdir().expect("a directory");
        let directory = root.path().join("b");
        let of = |names: &[&str]| names.iter().map(|name| ((*name).to_owned(), name.as_bytes().to_vec())).collect();
        let names = || {
            let entries = fs::read_dir(&directory).expect("is there").flatten();
            let mut names: Vec<String> = entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
            names.sort();
            names
        };
        write(&directory, &[], of(&["a.h", "b.cubin"])).expect("writes");
        assert_eq!(names(), ["a.h", "b.cubin", MANIFEST]);
        // No file can have this name.
        write(&directory, &[], of(&["a.h", "no/where"])).expect_err("a folder is missing");
        assert_eq!(names(), ["a.h", "b.cubin", MANIFEST], "and nothing beside it");
        // What a process that was killed has left is no bundle, and in nobody's way.
        let left = format!("{STAGING}x");
        fs::create_dir(directory.join(&left)).expect("makes");
        write(&directory, &[], of(&["a.h", "c.cubin"])).expect("writes");
        assert_eq!(names(), [left.as_str(), "a.h", "c.cubin", MANIFEST]);
        let other = root.path().join("other");
        fs::create_dir(&other).expect("makes");
        fs::write(other.join("mine"), "").expect("writes");
        assert!(matches!(write(&other, &[], of(&["a.h"])), Err(BundleError::NotEmpty { .. })));
    }

    #[test]
    fn names_stay_in_the_directory() {
        assert!(is_inside("attention.sm_80.0.cubin"));
        assert!(["", "..", "../x", "/etc/passwd", "a/b", "c:x", ".hidden"].iter().all(|name| !is_inside(name)));
    }
}
