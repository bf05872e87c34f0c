//! The fitted numbers of the model.
//!
//! All of them are in cycles of a multiprocessor unless they say otherwise. They are data, so that
//! `tests/examples/model.rs` can vary them: it fits them to one half of the measured cells and reports the error on
//! the other half (docs/performance.md, "What decides at head dims and lengths of one's own").

/// Numbers of the model that were fitted to measurements.
#[derive(Clone, PartialEq, Debug)]
pub struct Constants {
    /// How far units overlap: the exponent of the norm that joins their times. Infinity is perfect overlap, 1 is none.
    pub overlap: f64,
    /// The same of three or more warpgroups on a multiprocessor, of which more often one can go on.
    pub overlap_of_three: f64,
    /// The same where a warpgroup waits for its products before it goes on.
    pub no_overlap: f64,
    /// Cycles that a barrier and the latencies around it cost a block in a step, before other warps hide them.
    pub barrier: f64,
    /// Cycles to start and end a block.
    pub block: f64,
    /// Cycles from one program of a persistent block to its next, if the first tiles are there already.
    pub program: f64,
    /// The same if they are not (`outer_stages=1`).
    pub program_unprepared: f64,
    /// Cycles more of such a program that asks for its number (`persistent=dynamic`).
    pub program_dynamic: f64,
    /// Cycles that a step of a warpgroup costs beyond its units, before other warpgroups hide them.
    pub group_step: f64,
    /// Cycles from one instruction of a warp to its next, where nothing else delays it.
    pub own_cycles: f64,
    /// The exponent that joins that with what the units take.
    pub own_chain: f64,
    /// Bytes of a cycle that a multiprocessor gets from the L2 cache, if all ask for them.
    pub l2_bytes: f64,
    /// Rows of a box of a cycle, likewise: narrow rows take as long as wide ones.
    pub l2_rows: f64,
    /// Factor of what arrives by TMA from rows that begin at odd multiples of 16 bytes.
    pub odd_rows: f64,
    /// Factor on the cycles of what only cut tiles do: nothing overlaps it.
    pub cut: f64,
    /// How far a launch's computation overlaps its traffic with memory: the exponent of the norm that joins them.
    pub memory_overlap: f64,
    /// Share of what the L2 cache does not keep that is read from memory again, where twice the cache is needed.
    pub read_again: f64,
    /// Factor of steps whose warpgroups issue their products in turns.
    pub turns: f64,
}

impl Constants {
    /// The fitted values.
    pub const FITTED: Self = Self {
        overlap: 1.82,
        overlap_of_three: 2.0,
        no_overlap: 1.25,
        barrier: 900.0,
        block: 3700.0,
        program: 1050.0,
        program_unprepared: 600.0,
        program_dynamic: 235.0,
        group_step: 21.0,
        own_cycles: 3.03,
        own_chain: 8.0,
        l2_bytes: 46.0,
        l2_rows: 0.385,
        odd_rows: 2.4,
        cut: 0.97,
        memory_overlap: 1.44,
        read_again: 0.4,
        turns: 0.954,
    };
}

impl Constants {
    /// How many there are.
    pub const COUNT: usize = 18;

    /// One of them, by number, for a fit.
    ///
    /// # Panics
    /// If there is no such number.
    pub fn value_mut(&mut self, number: usize) -> &mut f64 {
        let all: [&mut f64; Self::COUNT] = [
            &mut self.overlap,
            &mut self.overlap_of_three,
            &mut self.read_again,
            &mut self.odd_rows,
            &mut self.no_overlap,
            &mut self.barrier,
            &mut self.block,
            &mut self.program,
            &mut self.program_unprepared,
            &mut self.program_dynamic,
            &mut self.group_step,
            &mut self.own_cycles,
            &mut self.own_chain,
            &mut self.l2_bytes,
            &mut self.l2_rows,
            &mut self.turns,
            &mut self.cut,
            &mut self.memory_overlap,
        ];
        all.into_iter().nth(number).expect("a number below COUNT")
    }
}
