//! Random numbers of the suites, the same in every run.

/// A generator of Knuth's MMIX, its upper bits.
pub struct Numbers(pub u64);

impl Numbers {
    /// A number below `bound`; 0 if that is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % bound.max(1) as u64) as usize
    }

    /// A number that is roughly normal.
    pub fn value(&mut self) -> f64 {
        (0..6).map(|_| self.below(1000) as f64 / 1000.0).sum::<f64>() - 3.0
    }
}

/// Such numbers, as [`flashtile_codegen::draw`] takes them.
pub fn numbers(seed: u64) -> impl FnMut(usize) -> usize {
    let mut numbers = Numbers(seed);
    move |bound| numbers.below(bound)
}
