//! When the last of many programs ends, if they differ in length.
//!
//! Blocks take programs as they come free. With few programs for each block, the end of the grid decides, and a
//! formula misses it by up to a program: so the assignment is played through. With many it is nearly even.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Programs for each slot up to which the assignment is played through.
const PLAYED: f64 = 12.0;

/// In which order programs are taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Order {
    /// As numbered: the tiles of the last grid dimension fastest.
    Grid,
    /// Longest tiles first, the other dimensions fastest within so many of them.
    Lpt {
        /// Programs of the other dimensions that form a section.
        section: u64,
    },
}

/// The time until all programs are done: `work` of each of some tiles of the last grid dimension, evenly spread over the `last`
/// that there are; `outer` programs for each tile; `slots` blocks that run at once. `end` is the length of even programs in a last
/// wave that is not full, if it is another.
pub(super) fn makespan(work: &[f64], last: u64, outer: u64, slots: f64, order: Order, end: Option<f64>) -> f64 {
    let programs = (last * outer) as f64;
    if work.is_empty() || programs == 0.0 {
        return 0.0;
    }
    let mean = work.iter().sum::<f64>() / work.len() as f64;
    let longest = work.iter().copied().fold(0.0, f64::max);
    let even = work.iter().all(|&w| (w - mean).abs() <= 0.02 * mean);
    if even {
        let whole = (programs / slots).floor();
        let rest = if programs > whole * slots { end.unwrap_or(mean) } else { 0.0 };
        return mean * whole + rest;
    }
    if programs <= slots {
        return longest;
    }
    if programs > PLAYED * slots {
        // A long program may begin last: in the order of the grid half of one is left over, longest first a fraction.
        let left = if order == Order::Grid { 0.5 } else { 0.05 };
        return (mean * programs / slots + longest * left).max(longest);
    }
    played(work, last, outer, slots, order)
}

fn played(work: &[f64], last: u64, outer: u64, slots: f64, order: Order) -> f64 {
    let of_tile = |tile: u64| work[(tile * work.len() as u64 / last) as usize];
    let mut slots: BinaryHeap<Reverse<Ended>> = (0..slots.max(1.0) as usize).map(|_| Reverse(Ended(0.0))).collect();
    let mut take = |work: f64| {
        let mut first = slots.peek_mut().expect("at least one slot");
        first.0.0 += work;
    };
    match order {
        Order::Grid => (0..outer).for_each(|_| (0..last).for_each(|tile| take(of_tile(tile)))),
        Order::Lpt { section } => {
            let mut tiles: Vec<f64> = (0..last).map(of_tile).collect();
            tiles.sort_by(|a, b| b.total_cmp(a));
            let mut left = outer;
            while left > 0 {
                let here = section.clamp(1, left);
                tiles.iter().for_each(|&work| (0..here).for_each(|_| take(work)));
                left -= here;
            }
        }
    }
    slots.into_iter().map(|Reverse(Ended(t))| t).fold(0.0, f64::max)
}

/// A time, ordered.
struct Ended(f64);

impl Ord for Ended {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Ended {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Ended {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Ended {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_programs_take_whole_waves() {
        assert_eq!(makespan(&[2.0, 2.0], 8, 2, 5.0, Order::Grid, None), 8.0);
        assert_eq!(makespan(&[], 0, 2, 5.0, Order::Grid, None), 0.0);
    }

    #[test]
    fn longest_first_ends_sooner() {
        let work: Vec<f64> = (1..=8).map(f64::from).collect();
        let grid = makespan(&work, 8, 3, 4.0, Order::Grid, None);
        let first = makespan(&work, 8, 3, 4.0, Order::Lpt { section: 3 }, None);
        assert_eq!(first, 27.0, "3 * 36 / 4, with no remainder");
        assert!(grid > first, "{grid}");
        // Sections of one head each begin with a long program again.
        assert!(makespan(&work, 8, 3, 4.0, Order::Lpt { section: 1 }, None) >= first);
    }

    #[test]
    fn what_is_played_meets_the_formula_where_programs_are_many() {
        let work: Vec<f64> = (1..=32).map(f64::from).collect();
        for order in [Order::Grid, Order::Lpt { section: 32 }] {
            let (few, many) = (makespan(&work, 32, 95, 128.0, order, None), makespan(&work, 32, 97, 128.0, order, None));
            assert!((many / few - 97.0 / 95.0).abs() < 0.05, "{few} {many}");
        }
    }
}
