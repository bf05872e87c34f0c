//! A kernel ready for execution: every instruction decoded, its registers resolved to rows, its branches to instructions
//! with the point where their paths meet again.
//!
//! Constants and special registers are rows of their own, filled when a warp starts, so that every operand of an
//! instruction is a row.

mod control;
mod decode;
mod kernel;
mod lines;
mod load;
mod memory_ops;
mod modifiers;
mod operands;
mod operation;
mod tensor_ops;
mod touched;

pub(crate) use control::END;
pub(crate) use kernel::{Kernel, Program, Row, Step};
pub(crate) use lines::Lines;
pub(crate) use operation::*;
pub(crate) use touched::WRITES;
