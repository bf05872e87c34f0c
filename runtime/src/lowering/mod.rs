//! From a bound kernel and a schedule to compiled code: the code generator, then NVRTC, with the cache between.

mod compile;
mod contract;
mod generate;
mod lines;
mod registers;

pub use compile::{Code, compile, compile_generated};
pub use contract::CallingContract;
pub use flashtile_codegen::{LaunchTerms, StepTerms, TimeTerms};
pub use generate::{
    Generated, GeneratedLaunch, Machine, Ranking, check, default_schedule, generate, generate_from, generate_with, most_work,
    peak, rank, rank_with, ranking, roofline, terms,
};
pub(crate) use lines::pin_lines;
pub(crate) use registers::first_in_registers;
