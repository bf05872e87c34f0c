//! What is known of the code that launches of a kernel run.

use flashtile_codegen::{Facts, Schedule};
use serde::{Deserialize, Serialize};

use crate::cache::Bucket;

/// Where a schedule comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// It was asked for.
    Given,
    /// Tuning found it for these sizes.
    Tuned,
    /// Tuning found it for sizes near these, and it is the best of that shape's candidates here too, by the cost model.
    TunedNearby,
    /// The cost model chose it: nothing was tuned for such sizes on this device.
    Model,
}

/// Code that launches run: made for facts about the arguments and a bucket of sizes.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct VariantInfo {
    /// Facts that it was generated under.
    pub facts: Facts,
    /// Sizes that it is used for.
    pub bucket: Bucket,
    /// Its schedule.
    pub schedule: Schedule,
    /// Architecture that it was generated for.
    pub arch: String,
    /// Where the schedule comes from.
    pub origin: Origin,
    /// Its resources; `None` on a device that has no registers.
    #[serde(flatten)]
    pub resources: Option<CodeResources>,
}

/// Resources of loaded code, as the driver reports them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct CodeResources {
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of local memory of a thread (spills and stack).
    pub local_bytes: u32,
    /// Blocks that are resident on a multiprocessor at once.
    pub blocks_per_sm: u32,
}
