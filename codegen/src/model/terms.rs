//! What a predicted time is made of: data for readers, with no formula in it.

/// A predicted call, launch by launch. Times are in seconds from the start of the call.
#[derive(Clone, PartialEq, Debug)]
pub struct TimeTerms {
    /// The launches, in order.
    pub launches: Vec<LaunchTerms>,
    /// The one that the knobs of the schedule are about.
    pub main: usize,
    /// Seconds of the call: the end of the last launch.
    pub seconds: f64,
}

/// A launch of a predicted call.
#[derive(Clone, PartialEq, Debug)]
pub struct LaunchTerms {
    /// Name of its entry function.
    pub name: String,
    /// When it begins, in seconds from the start of the call.
    pub begin: f64,
    /// Seconds from there to its end. Its computation and its memory traffic overlap in part, and
    /// programs that walk parts of a loop meet after both.
    pub seconds: f64,
    /// Seconds that its computation takes by itself.
    pub compute: f64,
    /// Seconds that its traffic with global memory takes by itself.
    pub memory: f64,
    /// Seconds in which programs that walk parts of a loop meet.
    pub meeting: f64,
    /// Bytes between global memory and the L2 cache: each tensor once, and what is read again
    /// because the cache is too small.
    pub bytes: f64,
    /// Programs.
    pub programs: f64,
    /// Blocks that a multiprocessor has at once.
    pub resident: u32,
    /// Programs that run at once on the machine.
    pub slots: f64,
    /// Cycles in which the resident blocks of a multiprocessor get through a program each, in the
    /// mean over programs: what follows, one after the other.
    pub program_cycles: f64,
    /// Cycles of them that cut tiles take more than whole ones.
    pub cut_cycles: f64,
    /// What a program does outside of its loops.
    pub outside: StepTerms,
    /// One iteration of each loop.
    pub steps: Vec<StepTerms>,
}

/// What the programs of the resident blocks of a multiprocessor do together: once outside of loops,
/// or in one iteration of one. All but `trips` are cycles of the multiprocessor.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct StepTerms {
    /// How often it is done in a program, in the mean over programs: 1 outside of loops. Iterations
    /// that the plan makes outside of a loop count there.
    pub trips: f64,
    /// Cycles that it takes.
    pub cycles: f64,
    /// Cycles of the issue slots.
    pub issue: f64,
    /// Cycles of the units of matrix products.
    pub tensor: f64,
    /// Cycles of the units of special functions.
    pub special: f64,
    /// Cycles of shared memory.
    pub shared: f64,
    /// Cycles of copies from the L2 cache.
    pub copies: f64,
}
