//! What a launch rewrite makes of a kernel: kernels that are launched one after the other, and the
//! tensors between them.
//!
//! A rewrite says nothing about schedules: `stages.rs` does.

use flashtile_dsl::ir::{Kernel, verify};

use super::folded::Folded;
use crate::instance::Instance;

/// The kernels that a rewrite makes of one kernel. All of them are verified.
#[derive(Clone, Debug)]
pub struct Staged {
    /// The kernels that are launched before `main`, in order.
    pub ahead: Vec<Kernel>,
    /// The kernel that takes the place of the original. The knobs of the schedule are about it, and
    /// the next rewrite starts from it.
    pub main: Kernel,
    /// The kernels that are launched after `main`, in order.
    pub behind: Vec<Kernel>,
    /// Names of the tensors that one of the kernels writes and a later one reads, in the order in
    /// which they are first declared.
    pub between: Vec<String>,
    /// Those of `between` whose numbers are finite, whatever a call gives.
    pub finite: Vec<String>,
    /// How `main` sees the tensors of a call, if not as the original does.
    pub folded: Option<Folded>,
    /// Whether programs of `main` read each other's values (`of_part`). Lowering then asks the
    /// knobs of the stage how the programs meet.
    pub meets: bool,
    /// Keeps [`Staged::new`] the only way to make one.
    _verified: Verified,
}

/// Kernels went through the verifier.
#[derive(Clone, Copy, Debug)]
struct Verified;

impl Staged {
    /// Verifies the kernels that a rewrite has made.
    ///
    /// # Errors
    /// [`NotStaged::WrongKernel`].
    pub(super) fn new(ahead: Vec<Kernel>, main: Kernel, behind: Vec<Kernel>, between: Vec<String>) -> Result<Self, NotStaged> {
        let made = Self { ahead, main, behind, between, finite: Vec::new(), folded: None, meets: false, _verified: Verified };
        let faults: Vec<String> =
            made.kernels().filter_map(|kernel| verify(kernel).err()).flatten().map(|e| e.to_string()).collect();
        if faults.is_empty() { Ok(made) } else { Err(NotStaged::WrongKernel(faults)) }
    }

    /// What is left of the instance that the kernels were made of: its main kernel.
    #[must_use]
    pub(crate) fn main_of(self, instance: &Instance) -> Instance {
        instance.of_launch(self.main, &self.between, &self.finite)
    }

    /// All kernels, in the order of their launches.
    pub fn kernels(&self) -> impl Iterator<Item = &Kernel> {
        self.ahead.iter().chain([&self.main]).chain(&self.behind)
    }
}

/// Why a rewrite gives no launches.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NotStaged {
    /// The rewrite does not apply to the kernel: why.
    #[error("{0}")]
    Refused(String),
    /// The IR verifier refused a kernel that the rewrite has made: a bug in the compiler.
    #[error("the compiler made a wrong kernel (please report it): {}", .0.join("; "))]
    WrongKernel(Vec<String>),
}

impl From<String> for NotStaged {
    fn from(why: String) -> Self {
        Self::Refused(why)
    }
}

#[cfg(test)]
mod tests {
    use flashtile_dsl::ir::{Op, SourceText};

    use super::*;

    #[test]
    fn a_wrong_kernel_is_not_staged() {
        let text = include_str!("../../../runtime/kernels/attention.rs");
        let source = SourceText { name: "kernel.rs".into(), text: text.into(), first_line: 1 };
        let kernel = flashtile_dsl::syntax::parse(&source).expect("is well formed").remove(0);
        let mut wrong = kernel.clone();
        wrong.blocks[wrong.body].ops.retain(|&op| !matches!(kernel.ops[op].op, Op::Store { .. }));
        let [right, wrong] = [vec![kernel.clone()], vec![wrong]];
        assert!(Staged::new(right.clone(), kernel.clone(), right.clone(), Vec::new()).is_ok());
        for (ahead, behind) in [(wrong.clone(), right.clone()), (right, wrong)] {
            let error = Staged::new(ahead, kernel.clone(), behind, Vec::new()).expect_err("nothing is stored");
            assert!(matches!(&error, NotStaged::WrongKernel(faults) if !faults.is_empty()), "{error}");
        }
    }
}
