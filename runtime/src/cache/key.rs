//! Keys: all that a tuning result or compiled code depends on.

use std::collections::BTreeMap;

use flashtile_codegen::{Facts, SPACE_VERSION};
use flashtile_dsl::ir::Binding;
use serde::{Deserialize, Serialize};

/// Run-time sizes, each rounded up to a power of two (0 stays 0). What was tuned for one shape serves all of its bucket:
/// within a factor of two of every size the same schedule wins, but for ties.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Bucket(pub BTreeMap<String, u64>);

impl Bucket {
    /// The bucket of these sizes.
    pub fn of<'a>(sizes: impl IntoIterator<Item = (&'a str, i64)>) -> Self {
        Self(sizes.into_iter().map(|(name, size)| (name.to_owned(), Self::round(size))).collect())
    }

    /// The upper end of the bucket that a size is in.
    pub fn round(size: i64) -> u64 {
        match u64::try_from(size) {
            Ok(0) | Err(_) => 0,
            Ok(size) => size.checked_next_power_of_two().unwrap_or(u64::MAX),
        }
    }
}

/// What identifies a kind of device.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct DeviceKey {
    /// Name of the product; `model of sm_90a` where there was no GPU.
    pub name: String,
    /// Compute capability.
    pub capability: (u32, u32),
    /// Multiprocessors.
    pub sms: u32,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// CUDA version of the driver; 0.0 where there was no GPU.
    pub driver: (u32, u32),
}

/// What a tuning result depends on. The version of NVRTC is in the record: a launch takes what is there without loading
/// NVRTC to ask for its version, tuning with another version starts afresh.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct TuningKey {
    /// Name of the kernel.
    pub kernel: String,
    /// Hash of its text.
    pub kernel_hash: String,
    /// Element types and constants.
    pub binding: Binding,
    /// Facts about the arguments.
    pub facts: Facts,
    /// Sizes.
    pub bucket: Bucket,
    /// Architecture that code is generated for.
    pub arch: String,
    /// Device that it runs on.
    pub device: DeviceKey,
    /// Version of the schedule space.
    pub space_version: u32,
    /// Version of this crate, whose code generator made the code.
    pub flashtile: String,
}

impl TuningKey {
    /// A key with the versions of this build.
    pub fn new(kernel: (&str, &str), binding: Binding, facts: Facts, bucket: Bucket, arch: &str, device: DeviceKey) -> Self {
        Self {
            kernel: kernel.0.to_owned(),
            kernel_hash: kernel.1.to_owned(),
            binding,
            facts,
            bucket,
            arch: arch.to_owned(),
            device,
            space_version: SPACE_VERSION,
            flashtile: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// Whether the other key differs in its sizes at most.
    pub(super) fn is_family_of(&self, other: &Self) -> bool {
        Self { bucket: other.bucket.clone(), ..self.clone() } == *other
    }

    /// What the names of the files of all sizes begin with.
    pub(super) fn family_stem(&self) -> String {
        let mut family = hash(&Self { bucket: Bucket::default(), ..self.clone() });
        family.truncate(FAMILY_DIGITS);
        family
    }

    /// Name of its file.
    pub(super) fn file_stem(&self) -> String {
        format!("{}-{}", self.family_stem(), hash(self))
    }
}

/// Digits of a family in the name of a file.
const FAMILY_DIGITS: usize = 16;

/// What compiled code depends on: its source. The version of NVRTC is in the record.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct ModuleKey {
    /// Hash of the CUDA C.
    pub source_hash: String,
    /// Architecture that it was compiled for.
    pub arch: String,
}

impl ModuleKey {
    /// The key of a source.
    pub fn new(source: &str, arch: &str) -> Self {
        Self { source_hash: blake3::hash(source.as_bytes()).to_hex().to_string(), arch: arch.to_owned() }
    }

    /// Hash of what CUDA C computes, which is the same wherever the file of the kernel lies: without
    /// the `#line` directives, which name it.
    pub fn hash_of_code(source: &str) -> String {
        let mut hasher = blake3::Hasher::new();
        for line in source.lines().filter(|line| !line.starts_with("#line ")) {
            hasher.update(line.as_bytes()).update(b"\n");
        }
        hasher.finalize().to_hex().to_string()
    }

    /// Name of its file.
    pub(super) fn file_stem(&self) -> String {
        hash(self)
    }
}

fn hash(key: &impl Serialize) -> String {
    let text = serde_json::to_vec(key).expect("keys have string keys and finite numbers");
    blake3::hash(&text).to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_up_to_powers_of_two() {
        let rounded = [0, 1, 2, 3, 4, 1000, 1024, 1025].map(Bucket::round);
        assert_eq!(rounded, [0, 1, 2, 4, 4, 1024, 1024, 2048]);
        assert_eq!(Bucket::of([("M", 1000), ("N", 7)]), Bucket::of([("N", 8), ("M", 1024)]));
    }

    #[test]
    fn code_is_the_same_wherever_its_text_lies() {
        let [a, b, c] = ["k.rs", "/tmp/k.rs", "k.rs"].map(|name| format!("int x;\n#line 2 \"{name}\"\nint y;\n"));
        assert_eq!(ModuleKey::hash_of_code(&a), ModuleKey::hash_of_code(&b));
        assert_ne!(ModuleKey::hash_of_code(&a), ModuleKey::hash_of_code(&c.replace('y', "z")));
    }

    #[test]
    fn any_difference_makes_another_file() {
        let device = DeviceKey { name: "a".into(), capability: (9, 0), sms: 132, memory_bytes: 1, driver: (13, 0) };
        let facts = Facts::none();
        let key = TuningKey::new(("k", "h"), Binding::default(), facts, Bucket::default(), "sm_90a", device);
        let variants = [
            TuningKey { kernel_hash: "i".into(), ..key.clone() },
            TuningKey { facts: Facts { alignment: 16, ..Facts::none() }, ..key.clone() },
            TuningKey { bucket: Bucket::of([("N", 1)]), ..key.clone() },
            TuningKey { arch: "sm_80".into(), ..key.clone() },
            TuningKey { device: DeviceKey { sms: 114, ..key.device.clone() }, ..key.clone() },
            TuningKey { device: DeviceKey { driver: (13, 1), ..key.device.clone() }, ..key.clone() },
            TuningKey { space_version: 0, ..key.clone() },
        ];
        for other in variants {
            assert_ne!(key.file_stem(), other.file_stem(), "{other:?}");
        }
        assert_eq!(key.file_stem(), key.clone().file_stem());
    }
}
