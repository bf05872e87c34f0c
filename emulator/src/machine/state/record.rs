//! Findings while a block runs, without their lines.

use std::collections::HashMap;

use crate::finding::{Finding, FindingKind, Party};
use crate::program::{Kernel, Program};
use crate::syntax::Space;

/// An instruction that a warp executed, and the lane ([`crate::memory::MANY`] for several).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct At {
    pub step: u32,
    pub warp: u16,
    pub lane: u8,
}

#[derive(Clone, Debug)]
struct Raw {
    kind: FindingKind,
    at: At,
    /// The other party, and the number of its block (or cluster) if it is of another one.
    other: Option<(Option<u32>, At)>,
    address: Option<(Space, u64)>,
    detail: String,
    count: u64,
}

/// The findings of a block.
#[derive(Debug, Default)]
pub(crate) struct Record {
    known: HashMap<(FindingKind, u32, Option<u32>), usize>,
    all: Vec<Raw>,
}

impl Record {
    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Most findings kept of a block.
    const LIMIT: usize = 64;

    /// Notes a finding; equal ones are counted.
    pub fn add(
        &mut self,
        kind: FindingKind,
        at: At,
        other: Option<At>,
        address: Option<(Space, u64)>,
        detail: impl FnOnce() -> String,
    ) {
        self.note(kind, at, other.map(|other| (None, other)), address, detail);
    }

    /// The same of a party in the block of a number.
    pub fn add_between(
        &mut self,
        kind: FindingKind,
        at: At,
        (block, other): (u32, At),
        address: Option<(Space, u64)>,
        detail: impl FnOnce() -> String,
    ) {
        self.note(kind, at, Some((Some(block), other)), address, detail);
    }

    fn note(
        &mut self,
        kind: FindingKind,
        at: At,
        other: Option<(Option<u32>, At)>,
        address: Option<(Space, u64)>,
        detail: impl FnOnce() -> String,
    ) {
        let key = (kind, at.step, other.map(|o| o.1.step));
        if let Some(&index) = self.known.get(&key) {
            self.all[index].count += 1;
        } else if self.all.len() < Self::LIMIT {
            self.known.insert(key, self.all.len());
            self.all.push(Raw { kind, at, other, address, detail: detail(), count: 1 });
        }
    }

    /// With lines. The record is that of the block (or cluster) of a number; `blocks` gives the
    /// indices of the blocks of every number, which have so many warps each.
    pub fn finish(
        self,
        program: &Program,
        kernel: &Kernel,
        number: u32,
        blocks: impl Fn(u32) -> Vec<[u32; 3]>,
        warps: u32,
    ) -> Vec<Finding> {
        let own = blocks(number);
        let rank = |at: At| u32::from(at.warp) / warps;
        let party = |at: At, block: Option<[u32; 3]>| {
            let step = &kernel.steps[at.step as usize];
            Party {
                instruction: kernel.opcodes[at.step as usize].to_string(),
                ptx_line: step.line,
                lines: program.lines.chain(step.location).to_vec(),
                rank: (own.len() > 1).then(|| rank(at)),
                block,
                warp: u32::from(at.warp) % warps,
                lane: (at.lane < 32).then_some(at.lane.into()),
            }
        };
        let name = |space: Space| match space {
            Space::Generic => "generic",
            Space::Global => "global",
            Space::Shared => "shared",
            Space::Local => "local",
            Space::Param => "parameter",
            Space::Const => "constant",
        };
        self.all
            .into_iter()
            .map(|raw| Finding {
                kind: raw.kind,
                block: own[rank(raw.at) as usize],
                party: party(raw.at, None),
                other: raw.other.map(|(block, at)| {
                    let elsewhere = block.filter(|block| *block != number);
                    party(at, elsewhere.map(|block| blocks(block)[rank(at) as usize]))
                }),
                address: raw.address.map(|(space, address)| (name(space), address)),
                detail: raw.detail,
                count: raw.count,
            })
            .collect()
    }
}
