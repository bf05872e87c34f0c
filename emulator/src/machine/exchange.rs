//! Values between the lanes of a warp: shuffles, votes, reductions, election.

use super::state::{At, Block, FULL, Warp, lanes};
use crate::finding::FindingKind;
use crate::memory::MANY;
use crate::program::{Op, Reduction, Shuffle, Vote};

impl Block<'_> {
    pub(super) fn exchange(&mut self, warp: &mut Warp, op: &Op, mask: u32, pc: u32) {
        match *op {
            Op::Shuffle { mode, d, dp, a, b, c, members } => {
                self.check_members(warp, members, mask, pc);
                let (source, lane_operand, clamp) = (warp.words[a as usize], warp.words[b as usize], warp.words[c as usize]);
                let mut valid = 0;
                for lane in lanes(mask) {
                    let (from, within) = shuffle_source(mode, lane as u32, lane_operand[lane], clamp[lane]);
                    valid |= u32::from(within) << lane;
                    // The value of a lane that is not there is not defined.
                    let there = mask >> from & 1 != 0;
                    warp.words[d as usize][lane] = if there { source[from as usize] } else { FULL };
                }
                if let Some(p) = dp {
                    warp.set_predicate(mask, p, valid);
                }
            }
            Op::Vote { mode, d, p, negate, members } => {
                self.check_members(warp, members, mask, pc);
                let votes = (warp.predicates[p as usize] ^ if negate { FULL } else { 0 }) & mask;
                let holds = match mode {
                    Vote::All => votes == mask,
                    Vote::Any => votes != 0,
                    Vote::Uniform => votes == mask || votes == 0,
                    Vote::Ballot => {
                        for lane in lanes(mask) {
                            warp.words[d as usize][lane] = votes;
                        }
                        return;
                    }
                };
                warp.set_predicate(mask, d, if holds { FULL } else { 0 });
            }
            Op::Reduce { op, d, a, members } => {
                self.check_members(warp, members, mask, pc);
                let values = warp.words[a as usize];
                let value = lanes(mask).map(|l| values[l]).reduce(|x, y| reduce(op, x, y)).unwrap_or(0);
                for lane in lanes(mask) {
                    warp.words[d as usize][lane] = value;
                }
            }
            // Register a of lane l holds the elements 2 (l % 4) and the next one of row l / 4 of the matrix,
            // register d those of its transpose (PTX ISA, "movmatrix").
            Op::MoveMatrix { d, a } => {
                self.whole(warp, mask, pc);
                let held = warp.words[a as usize];
                let element = |row: usize, column: usize| held[4 * row + column / 2] >> (16 * (column % 2)) & 0xffff;
                for lane in lanes(mask) {
                    let (row, column) = (lane / 4, 2 * (lane % 4));
                    warp.words[d as usize][lane] = element(column, row) | element(column + 1, row) << 16;
                }
            }
            Op::Elect { d, dp, members } => {
                self.check_members(warp, members, mask, pc);
                let leader = mask.trailing_zeros();
                if let Some(d) = d {
                    for lane in lanes(mask) {
                        warp.words[d as usize][lane] = leader;
                    }
                }
                warp.set_predicate(mask, dp, 1 << leader);
            }
            _ => {}
        }
    }

    /// The lanes that a member mask names must be the ones that execute the instruction.
    pub(super) fn check_members(&mut self, warp: &Warp, members: u32, mask: u32, pc: u32) {
        let members = &warp.words[members as usize];
        let expected = members[mask.trailing_zeros() as usize] & warp.live;
        if expected != mask || lanes(mask).any(|l| members[l] & warp.live != expected) {
            let at = At { step: pc, warp: warp.index as u16, lane: MANY };
            self.record.add(FindingKind::BarrierDivergence, at, None, None, || {
                format!("its mask names the lanes {expected:#010x}; the lanes {mask:#010x} execute it")
            });
        }
    }

    /// All lanes that have not exited must execute an `.aligned` barrier together.
    pub(super) fn check_aligned(&mut self, warp: &Warp, aligned: bool, mask: u32, at: At) {
        if aligned && mask != warp.live {
            let live = warp.live;
            self.record.add(FindingKind::BarrierDivergence, at, None, None, || {
                format!("of the lanes {live:#010x} of the warp only {mask:#010x} reach it")
            });
        }
    }
}

/// Where a lane's value comes from, and whether that is inside its segment (PTX ISA, "shfl.sync").
fn shuffle_source(mode: Shuffle, lane: u32, b: u32, c: u32) -> (u32, bool) {
    let (b, clamp, segments) = (b & 31, c & 31, c >> 8 & 31);
    let last = lane & segments | clamp & !segments;
    let first = lane & segments;
    let (from, within) = match mode {
        Shuffle::Up => (lane.wrapping_sub(b), lane >= b && lane - b >= last),
        Shuffle::Down => (lane + b, lane + b <= last),
        Shuffle::Butterfly => (lane ^ b, lane ^ b <= last),
        Shuffle::Index => {
            let from = first | b & !segments;
            (from, from <= last)
        }
    };
    (if within { from } else { lane }, within)
}

fn reduce(op: Reduction, x: u32, y: u32) -> u32 {
    match op {
        Reduction::Add => x.wrapping_add(y),
        Reduction::MinUnsigned => x.min(y),
        Reduction::MaxUnsigned => x.max(y),
        Reduction::MinSigned => (x as i32).min(y as i32) as u32,
        Reduction::MaxSigned => (x as i32).max(y as i32) as u32,
        Reduction::And => x & y,
        Reduction::Or => x | y,
        Reduction::Xor => x ^ y,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shuffles_stay_in_their_segment() {
        // The whole warp: clamp 31 (0 for up), no segments.
        assert_eq!(shuffle_source(Shuffle::Butterfly, 5, 2, 0x1f), (7, true));
        assert_eq!(shuffle_source(Shuffle::Down, 30, 2, 0x1f), (30, false));
        assert_eq!(shuffle_source(Shuffle::Up, 1, 2, 0), (1, false));
        assert_eq!(shuffle_source(Shuffle::Up, 3, 2, 0), (1, true));
        assert_eq!(shuffle_source(Shuffle::Index, 9, 4, 0x1f), (4, true));
        // Segments of eight: mask 0x18.
        assert_eq!(shuffle_source(Shuffle::Down, 14, 2, 0x181f), (14, false));
        assert_eq!(shuffle_source(Shuffle::Down, 13, 2, 0x181f), (15, true));
        assert_eq!(shuffle_source(Shuffle::Index, 13, 1, 0x181f), (9, true));
        assert_eq!(shuffle_source(Shuffle::Up, 9, 2, 0x1800), (9, false));
    }
}
