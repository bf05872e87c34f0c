//! CUDA C templates of flashtile and the typed contexts they are rendered from.
//!
//! Every line of CUDA and PTX that flashtile emits is in `cuda/*.cu.j2` of this crate. What stands
//! in them is rendered by the code generator: the text of expressions and of addresses.
//!
//! | folder | subject |
//! | --- | --- |
//! | `cuda/kernel.cu.j2` | the file |
//! | `cuda/ptx` | one wrapper per documented PTX instruction, named like it |
//! | `cuda/device` | device functions made of several instructions |
//! | `cuda/statement` | one partial per plan statement |

mod identifiers;
mod render;
mod statement;
mod wrapper;

pub use identifiers::{Identifiers, identifiers};
pub use render::{Error, Renderer, Template};
pub use statement::*;
pub use wrapper::{KernelEntry, KernelFile, LaunchNote, ParamField, TileNote, Wrapper, wgmma_name};
