//! Which registers of wgmmas an instruction touches besides: what hazards with products in flight are found by.

use super::kernel::Step;
use super::operation::{Comparable, LeftFactor, Op};

/// Set in an entry of [`Step::touched`] for a row that is written.
pub(crate) const WRITES: u32 = 1 << 31;

/// The rows of an instruction that are among those that wgmmas use, with [`WRITES`] for those it writes. A wgmma's own
/// registers are not among them.
pub(crate) fn touched(op: &Op, tensor_rows: &[bool]) -> Box<[u32]> {
    let mut all = vec![];
    let mut add = |row: u32, writes: bool| {
        if tensor_rows.get(row as usize).copied().unwrap_or(false) {
            all.push(if writes { row | WRITES } else { row });
        }
    };
    match op {
        Op::FloatOfDouble { d, .. } => add(*d, true),
        Op::Move { d, a }
        | Op::Unary { d, a, .. }
        | Op::Convert { d, a, .. }
        | Op::WidenPair { d, a, .. }
        | Op::RoundTf32 { d, a } => {
            add(*a, false);
            add(*d, true);
        }
        Op::Binary { d, a, b, .. } | Op::Pack { d, a, b, .. } | Op::JoinHalves { d, a, b } | Op::Select { d, a, b, .. } => {
            add(*a, false);
            add(*b, false);
            add(*d, true);
        }
        Op::Ternary { d, a, b, c, .. }
        | Op::Insert { d, a, b, c, .. }
        | Op::Logic3 { d, a, b, c, .. }
        | Op::PairArithmetic { d, a, b, c, .. } => {
            add(*a, false);
            add(*b, false);
            add(*c, false);
            add(*d, true);
        }
        Op::SetP { of, a, b, .. } if !matches!(of, Comparable::SignedWide | Comparable::UnsignedWide) => {
            add(*a, false);
            add(*b, false);
        }
        Op::Shuffle { d, a, .. } | Op::Reduce { d, a, .. } | Op::MoveMatrix { d, a } => {
            add(*a, false);
            add(*d, true);
        }
        Op::SplitHalves { d, a } => {
            add(*a, false);
            d.iter().for_each(|&d| add(d, true));
        }
        Op::Load(access) if !access.wide => access.rows.iter().for_each(|&r| add(r, true)),
        Op::Store(access) if !access.wide => access.rows.iter().for_each(|&r| add(r, false)),
        Op::LoadMatrix { d, .. } => d.iter().for_each(|&r| add(r, true)),
        Op::StoreMatrix { a, .. } => a.iter().for_each(|&r| add(r, false)),
        Op::Mma(mma) => {
            mma.a.iter().chain(&mma.b).chain(&mma.c).for_each(|&r| add(r, false));
            mma.d.iter().for_each(|&r| add(r, true));
        }
        _ => {}
    }
    all.into()
}

/// The rows that wgmmas use.
pub(crate) fn tensor_rows(steps: &[Step], rows: u32) -> Vec<bool> {
    let mut used = vec![false; rows as usize];
    for step in steps {
        if let Op::Wgmma(wgmma) = &step.op {
            let fragment: &[u32] = if let LeftFactor::Registers(rows) = &wgmma.a { rows } else { &[] };
            for &row in wgmma.d.iter().chain(fragment) {
                if let Some(used) = used.get_mut(row as usize) {
                    *used = true;
                }
            }
        }
    }
    used
}
