//! Findings while a block runs, without their lines.

use std::collections::HashMap;

use crate::finding::{Finding, FindingKind, Party};
use crate::program::{Kernel, Program};
use crate::syntax::Space;

/// An instruction that a warp executed, and the lane ([`MANY`] for several).
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
    other: Option<At>,
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
        let key = (kind, at.step, other.map(|o| o.step));
        if let Some(&index) = self.known.get(&key) {
            self.all[index].count += 1;
        } else if self.all.len() < Self::LIMIT {
            self.known.insert(key, self.all.len());
            self.all.push(Raw { kind, at, other, address, detail: detail(), count: 1 });
        }
    }

    /// With lines. The warps are those of these blocks, so many of each.
    pub fn finish(self, program: &Program, kernel: &Kernel, blocks: &[[u32; 3]], warps: u32) -> Vec<Finding> {
        let rank = |at: At| u32::from(at.warp) / warps;
        let party = |at: At| {
            let step = &kernel.steps[at.step as usize];
            Party {
                instruction: kernel.opcodes[at.step as usize].to_string(),
                ptx_line: step.line,
                lines: program.lines.chain(step.location).to_vec(),
                rank: (blocks.len() > 1).then(|| rank(at)),
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
                block: blocks[rank(raw.at) as usize],
                party: party(raw.at),
                other: raw.other.map(party),
                address: raw.address.map(|(space, address)| (name(space), address)),
                detail: raw.detail,
                count: raw.count,
            })
            .collect()
    }
}
