//! What arguments hold where the user gives none: in `verify`, `tune`, `bench` and the conformance suite.
//!
//! | file | subject |
//! | --- | --- |
//! | `data` | what a user says of inputs: `qid:ids=8 k:growth=300` |
//! | `plan` | what each parameter holds: what the user says, else what the kernel's text says |
//! | `integers`, `floats` | values |
//! | `error` | what can be wrong with what the user says |
//!
//! What the text says is found by [`crate::analysis::inputs`].

mod data;
mod error;
mod floats;
mod integers;
mod plan;

pub use data::{Distribution, InputData, Values};
pub use error::DataError;
pub use floats::{Floats, rotation_table, rotations};
pub use plan::Plan;

/// SplitMix64 (Steele, Lea, Flood 2014): small, and good enough for test data.
pub struct Random(pub u64);

impl Random {
    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A whole number below `end`; 0 if that is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.bits() % end.max(1)
    }

    /// One of these.
    pub fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// In (0, 1].
    pub fn unit(&mut self) -> f32 {
        ((self.bits() >> 40) as f32 + 1.0) / (1u64 << 24) as f32
    }

    /// Box and Muller.
    pub fn normal(&mut self) -> f32 {
        (-2.0 * self.unit().ln()).sqrt() * (std::f32::consts::TAU * self.unit()).cos()
    }
}
