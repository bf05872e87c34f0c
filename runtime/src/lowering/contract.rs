//! The calling contract of generated code, as plain data: what a launcher must know, and nothing of
//! how the code was made.

use flashtile_codegen::{Abi, FoldedRows, Generated, Scratch};
use serde::{Deserialize, Serialize};

/// How generated code is called. `inspect --emit abi` and a bundle write it as JSON.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CallingContract {
    /// The launches, in order.
    pub launches: Vec<Abi>,
    /// Which of them the knobs of the schedule are about.
    pub main: usize,
    /// Tensors between the launches.
    pub scratch: Vec<Scratch>,
    /// How the launches see the tensors of a call, if not as the kernel text does.
    pub folded: Option<FoldedRows>,
    /// For each launch, the names of the tensors that it writes.
    pub writes: Vec<Vec<String>>,
}

impl CallingContract {
    /// That of generated code.
    pub fn of(generated: &Generated) -> Self {
        let launches = &generated.launches;
        Self {
            launches: launches.iter().map(|launch| launch.abi.clone()).collect(),
            main: generated.main,
            scratch: generated.scratch.clone(),
            folded: generated.folded.clone(),
            writes: launches.iter().map(|launch| launch.kernel.outputs().map(str::to_owned).collect()).collect(),
        }
    }
}
