//! How many trips the loops of a plan make in the cases that are tried.

/// The trip counts to try of so many loops, by loop: every pair of counts for any two loops, the
/// others at two.
pub(super) fn trip_counts(loops: usize, most: u32) -> Vec<Vec<u32>> {
    let counts = || 0..=most;
    let mut all: Vec<Vec<u32>> = counts().map(|n| vec![n; loops]).collect();
    for first in 0..loops {
        for second in 0..first {
            for (a, b) in counts().flat_map(|a| counts().map(move |b| (a, b))) {
                let mut trips = vec![2; loops];
                (trips[first], trips[second]) = (a, b);
                all.push(trips);
            }
        }
    }
    all.sort();
    all.dedup();
    all
}
