//! The kernels that a cell of an experiment runs: text, sizes, and how their schedule is found.

use flashtile::{Arch, Elem, Facts, Kernel, Schedule, SourceText};
use flashtile_codegen::{CopyOp, Fixup, TensorOp};
use flashtile_dsl::ir::SizeKind;

use crate::failure::Result;

/// Kernels that run one after the other.
#[derive(Clone)]
pub struct Sequence {
    /// The launches.
    pub launches: Vec<Launch>,
    /// A kernel that computes the same, whose float64 oracle judges the sequence; the only launch
    /// itself if `None`.
    pub oracle: Option<Launch>,
}

/// The value of a size by its name.
pub type NamedSize = (&'static str, i64);

/// One launch.
#[derive(Clone)]
pub struct Launch {
    /// The kernel.
    pub kernel: Text,
    /// Element type.
    pub elem: Elem,
    /// Constants and run-time sizes; those that the kernel does not have are for others of the
    /// sequence.
    pub sizes: Vec<NamedSize>,
    /// Tensors by parameter, for parameters whose tensor is not named as they are.
    pub tensors: Vec<(&'static str, &'static str)>,
    /// Its schedule.
    pub how: How,
}

/// A kernel's text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Text {
    /// A built-in kernel.
    Builtin(&'static str),
    /// A kernel of a text that an experiment brings along.
    Own {
        /// Name of the file.
        file: &'static str,
        /// The text of the file.
        text: &'static str,
        /// The kernel.
        name: &'static str,
    },
}

/// How a schedule is found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum How {
    /// These knobs, on top of the defaults for the architecture ([`defaults`]).
    Knobs(String),
    /// Tuned on the GPU; the cost model's choice where there is none.
    Tuned,
}

/// The schedule on top of which the knobs of an experiment are taken: the defaults, with what the
/// architecture has of tensor products through `mma.sync`, and of copies, where it lacks the usual
/// ones.
pub fn defaults(arch: &Arch) -> Schedule {
    let mut schedule = Schedule::default();
    let is_mma = |op: &&TensorOp| matches!(op, TensorOp::MmaM16n8k16 | TensorOp::MmaM16n8k8);
    if let Some(&best) = arch.tensor_ops.iter().find(is_mma) {
        schedule.main.tensor_op = best;
    }
    if !arch.copy_ops.contains(&schedule.main.copy) {
        (schedule.main.copy, schedule.main.stages) = (CopyOp::Sync, 1);
    }
    schedule
}

impl Text {
    /// The kernel.
    pub fn open(self) -> Result<Kernel> {
        match self {
            Text::Builtin(name) => Ok(Kernel::builtin(name)?),
            Text::Own { file, text, name } => {
                let source = SourceText { name: file.to_owned(), text: text.into(), first_line: 1 };
                let kernels = Kernel::from_source(&source)?;
                Ok(kernels.into_iter().find(|k| k.name() == name).expect("a test opens every text that comes along"))
            }
        }
    }

    /// The kernel's name.
    pub fn name(self) -> &'static str {
        match self {
            Text::Builtin(name) | Text::Own { name, .. } => name,
        }
    }
}

impl Launch {
    /// A launch whose tensors are named as the parameters are.
    pub fn new(kernel: Text, elem: Elem, sizes: &[NamedSize], how: How) -> Self {
        Self { kernel, elem, sizes: sizes.to_vec(), tensors: Vec::new(), how }
    }

    /// With other names for tensors.
    pub fn with(mut self, tensors: &[(&'static str, &'static str)]) -> Self {
        self.tensors = tensors.to_vec();
        self
    }

    /// What it asks for and the architecture does not have, in words.
    ///
    /// # Errors
    /// The kernel is not there, or the knobs are none.
    pub fn lacks(&self, arch: &'static Arch) -> Result<Option<String>> {
        if self.elem == Elem::Bf16 && !arch.bf16 {
            return Ok(Some("it has no bf16".to_owned()));
        }
        let How::Knobs(knobs) = &self.how else { return Ok(None) };
        let schedule = defaults(arch).with(knobs)?;
        let feature = match schedule {
            _ if !arch.copy_ops.contains(&schedule.main.copy) => match schedule.main.copy {
                CopyOp::Tma => "it has no tensor copies",
                _ => "it has no cp.async",
            },
            _ if !arch.tensor_ops.contains(&schedule.main.tensor_op) => "it has no such tensor product",
            _ if schedule.launches.fixup == Fixup::Cluster && !arch.clusters => "it has no clusters",
            _ => return self.lacks_shared_memory(&schedule, arch),
        };
        Ok(Some(feature.to_owned()))
    }

    /// Whether a block of the schedule needs more shared memory than the architecture gives it, in
    /// words.
    fn lacks_shared_memory(&self, schedule: &Schedule, arch: &'static Arch) -> Result<Option<String>> {
        let kernel = self.kernel.open()?;
        let bound = kernel.bind(self.elem, self.split(&kernel).0)?;
        let needed = flashtile_codegen::check(&bound.instance(Facts::best(bound.ir())), schedule, arch).predicted.shared_bytes;
        let (needed, has) = (needed as usize, arch.shared_per_block);
        Ok((needed > has).then(|| format!("it needs {} KiB of shared memory, a block has {}", needed >> 10, has >> 10)))
    }

    /// The value of a size, 1 if it has none.
    pub fn size(&self, name: &str) -> i64 {
        self.sizes.iter().find(|(n, _)| *n == name).map_or(1, |(_, size)| *size)
    }

    /// Constants of the kernel, and its run-time sizes.
    pub fn split(&self, kernel: &Kernel) -> (Vec<NamedSize>, Vec<NamedSize>) {
        let kind = |name: &str| kernel.ir().size_named(name).map(|id| kernel.ir().sizes[id].kind);
        let of = |wanted| self.sizes.iter().copied().filter(|(name, _)| kind(name) == Some(wanted)).collect();
        (of(SizeKind::Const), of(SizeKind::Runtime))
    }

    /// The same with so few programs and keys that an emulator executes it in moments.
    pub fn small(&self, longest: i64) -> Self {
        let mut small = self.shorter(longest);
        let groups = (self.size("H") / self.size("G").max(1)).max(1);
        for (name, size) in &mut small.sizes {
            match *name {
                "B" | "G" => *size = 1,
                "H" => *size = groups.min(2),
                _ => {}
            }
        }
        small
    }

    /// The same on axes that are no longer than this.
    pub fn shorter(&self, longest: i64) -> Self {
        let mut shorter = self.clone();
        for (_, size) in shorter.sizes.iter_mut().filter(|(name, _)| matches!(*name, "M" | "N")) {
            *size = (*size).min(longest.max(1));
        }
        shorter
    }
}

impl From<Launch> for Sequence {
    fn from(launch: Launch) -> Self {
        Self { launches: vec![launch], oracle: None }
    }
}

impl Sequence {
    /// The sequence with every launch replaced.
    pub fn map(&self, change: impl Fn(&Launch) -> Launch) -> Self {
        Self { launches: self.launches.iter().map(&change).collect(), oracle: self.oracle.as_ref().map(&change) }
    }

    /// What judges it.
    pub fn judge(&self) -> &Launch {
        self.oracle.as_ref().unwrap_or_else(|| self.launches.first().expect("a sequence has a launch"))
    }
}
