//! What a page asks for.

use std::collections::BTreeMap;

use flashtile_dsl::ir::Elem;
use serde::Deserialize;

/// Element types that a page offers for the type parameters of a kernel.
pub const DTYPES: [(&str, Elem); 3] = [("bf16", Elem::Bf16), ("f16", Elem::F16), ("f32", Elem::F32)];

/// A request, told by its field `do`.
#[derive(Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Request {
    /// Architectures, element types and knobs.
    About,
    /// Diagnostics of a text.
    Check {
        /// The kernel text.
        text: String,
    },
    /// Every stage of a kernel.
    Compile(Asked),
    /// What a kernel computes from small random tensors.
    Run(Asked),
    /// The values of a knob.
    Knob {
        /// As for [`Request::Compile`].
        #[serde(flatten)]
        asked: Asked,
        /// The knob's name.
        knob: String,
    },
}

/// What is compiled, and how.
#[derive(Deserialize)]
pub struct Asked {
    /// The kernel text.
    pub text: String,
    /// The name of its file, which generated code and the command name.
    pub file: String,
    /// Which of its kernels; the first one if it is not said.
    #[serde(default)]
    pub kernel: Option<String>,
    /// Element type of the type parameters.
    pub dtype: String,
    /// Architecture, such as `sm_90a`.
    pub arch: String,
    /// Sizes by name, constants among them; typical values for those that are left out.
    #[serde(default)]
    pub sizes: BTreeMap<String, i64>,
    /// Knobs to change in the schedule that the cost model chooses, or behind `defaults,` in the
    /// defaults.
    #[serde(default)]
    pub schedule: String,
}
