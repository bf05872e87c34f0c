//! The flags of `flashtile verify`.

use clap::Args;
use flashtile::tuner::InputData;
use flashtile::{Arch, Device};

use crate::failure::{Failure, Result};
use crate::gradient::GradientFlags;
use crate::settings::{Numbers, Sizes};
use crate::subject::DType;
use crate::target::{DEFAULT_ARCH, EmulationFlags, PlanFlags, arch_named};

/// Flags of `flashtile verify`.
#[derive(Args, Clone, Debug)]
pub struct Flags {
    /// A built-in's name, FILE, or FILE:NAME; one that the suite has runs its cases
    #[arg(required_unless_present = "all")]
    pub(super) kernel: Option<String>,
    /// Run the cases of this kernel of the suite, and its oracle, on KERNEL, which must have the same parameters: whether one
    /// computes what the other does
    #[arg(long = "as", value_name = "NAME", conflicts_with_all = ["all", "shape", "schedules", "list", "grad"])]
    pub(super) role: Option<String>,
    /// Run the whole conformance suite
    #[arg(long, conflicts_with_all = ["kernel", "grad"])]
    pub(super) all: bool,
    /// Device: cpu, cuda:N or emulator; by default the best one there is that is not the emulator
    #[arg(long)]
    pub(super) device: Option<String>,
    /// Only cases whose name contains this, such as bf16 or D256; may be repeated, all must hold; a
    /// whole name is that case alone. With --shape, --grad or a kernel of one's own: only lines
    /// that contain this before the colon, such as N=1
    #[arg(long, value_name = "TEXT")]
    pub(super) filter: Vec<String>,
    /// Only the cases that are quick even on slow devices; on the emulator all others must be asked for with --filter
    #[arg(long, conflicts_with = "grad")]
    pub(super) small: bool,
    /// List the cases instead of running them, or the checks of shapes and gradients
    #[arg(long)]
    pub(super) list: bool,
    /// Run so many cases of the suite, drawn at random, each with a legal schedule of which every knob is drawn. With
    /// --shape, --data, --grad or a kernel of one's own: so many schedules, on its shapes in turns
    #[arg(long, value_name = "N", conflicts_with = "schedule")]
    pub(super) schedules: Option<usize>,
    /// Check these shapes instead of the suite, such as B=1,H=2,G=1,M=113,N=203,D=64; may be repeated
    #[arg(long, alias = "shapes", value_name = "NAME=SIZE,..", conflicts_with = "all")]
    pub(super) shape: Vec<Sizes>,
    /// With --shape, --data or a kernel of one's own: constants and scalars by name; may be repeated
    #[arg(long, value_name = "NAME=VALUE,..", allow_hyphen_values = true)]
    pub(super) set: Vec<Numbers>,
    /// With --shape or a kernel of one's own: element type, bf16 by default
    #[arg(long, value_enum)]
    pub(super) dtype: Option<DType>,
    /// With --shape or a kernel of one's own: seed of the random inputs; a case of the suite has its own. With --schedules:
    /// seed of the draw
    #[arg(long, default_value_t = 0)]
    pub(super) seed: u64,
    /// With --shape or a kernel of one's own, and else in place of the suite: what an input holds where the kernel's text should not say it; may be repeated.
    /// Settings, apart by commas: scale=S, growth=G (rows grow from a tenth to G), normal, range=A..B, constant=C, ids=N,
    /// sorted-ids=N, even-ids=N, lengths[=N], bits=SHARE, permutation
    #[arg(long, value_name = "NAME:SETTING,..", conflicts_with_all = ["all", "role"])]
    pub(super) data: Vec<InputData>,
    /// Generate code for this architecture, which may be older than the GPU's
    #[arg(long, value_name = "ARCH")]
    pub(super) arch: Option<String>,
    /// Run with this schedule: knobs on top of the defaults
    #[arg(long, value_name = "KNOB=VALUE,..")]
    pub(super) schedule: Option<String>,
    #[command(flatten)]
    pub gradient: GradientFlags,
    #[command(flatten)]
    pub(super) plan: PlanFlags,
    /// With --schedules: run every sample on this device too, with the same source, and compare the outputs bit by bit
    #[arg(long, value_name = "DEVICE", requires = "schedules")]
    pub(super) against: Option<String>,
    #[command(flatten)]
    pub(super) emulation: EmulationFlags,
}

/// The architecture that schedules are drawn for. A list of what would run needs no GPU.
pub(super) fn arch_drawn_for(flags: &Flags, device: &Device) -> Result<&'static Arch> {
    match (flags.arch.as_deref().map(arch_named).transpose()?, &device.info().gpu) {
        (Some(arch), _) if flags.list || device.compiles() => Ok(arch),
        (None, Some(gpu)) => Ok(Arch::for_capability(gpu.capability.0, gpu.capability.1).expect("a device has an architecture")),
        (None, None) if device.compiles() => arch_named(DEFAULT_ARCH),
        _ => {
            let instead = "give --device cuda:N or emulator, or --list and --arch ARCH to see what is drawn";
            Err(Failure::Usage(format!("{device} compiles nothing, so schedules do not matter there; {instead}")))
        }
    }
}
