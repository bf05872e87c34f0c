//! Blocks of a cluster: its barrier, and addresses in the shared memory of other blocks (PTX ISA,
//! "barrier.cluster", "mapa", "getctarank").

use super::state::{At, Block, Next, Status, Warp, lanes};
use crate::finding::FindingKind;
use crate::memory::{MANY, Trouble, windows};
use crate::program::Op;
use crate::syntax::Space;

impl Block<'_> {
    /// Place of an access to shared memory, which may be another block's while that one has not
    /// ended.
    pub(super) fn locate(&self, at: At, address: u64, bytes: u32) -> Result<u32, Trouble> {
        let offset = self.shared.locate(address, bytes)?;
        let (own, rank) = (self.rank(at.warp.into()), windows::rank_of(address) as u32);
        if own != rank && self.warps_of(rank).all(|w| self.status[w] == Status::Exited) {
            return Err(Trouble::Ended { rank });
        }
        Ok(offset)
    }

    pub(super) fn cluster_arrive(&mut self, warp: &Warp, release: bool, aligned: bool, mask: u32, pc: u32) {
        let w = warp.index as usize;
        let at = At { step: pc, warp: w as u16, lane: MANY };
        self.check_aligned(warp, aligned, mask, at);
        self.pace.events += 1;
        if self.cluster.arrived[w].is_some() {
            let detail = || "the warp arrives again before it has waited".to_owned();
            return self.record.add(FindingKind::PhaseMisuse, at, None, None, detail);
        }
        self.cluster.arrived[w] = Some(self.cluster.phase);
        if mask == warp.live {
            self.clocks.meet(w);
        }
        if release {
            self.clocks.release(w, &mut self.cluster.gathered);
        }
        self.complete_cluster_barrier();
    }

    pub(super) fn cluster_wait(&mut self, warp: &Warp, aligned: bool, mask: u32, pc: u32) -> Next {
        let w = warp.index as usize;
        let at = At { step: pc, warp: w as u16, lane: MANY };
        self.check_aligned(warp, aligned, mask, at);
        match self.cluster.arrived[w] {
            None => {
                let detail = || "the warp waits without having arrived".to_owned();
                self.record.add(FindingKind::PhaseMisuse, at, None, None, detail);
                Next::Continue
            }
            Some(phase) if phase < self.cluster.phase => {
                self.cluster.arrived[w] = None;
                self.clocks.acquire(w, &self.cluster.published);
                Next::Continue
            }
            Some(_) => {
                self.status[w] = Status::AtCluster { step: pc };
                Next::Yield
            }
        }
    }

    /// Ends the phase if all warps that have not exited have arrived in it.
    pub(super) fn complete_cluster_barrier(&mut self) {
        let Self { cluster, status, clocks, .. } = self;
        let mut running = (0..status.len()).filter(|&w| status[w] != Status::Exited).peekable();
        if running.peek().is_none() || !running.all(|w| cluster.arrived[w] == Some(cluster.phase)) {
            return;
        }
        cluster.phase += 1;
        let gathered = std::mem::take(&mut cluster.gathered);
        cluster.published.join(&gathered);
        for (w, status) in status.iter_mut().enumerate() {
            if matches!(status, Status::AtCluster { .. }) {
                *status = Status::Ready;
                cluster.arrived[w] = None;
                clocks.acquire(w, &cluster.published);
            }
        }
    }

    pub(super) fn map_address(&mut self, warp: &mut Warp, op: &Op, mask: u32, pc: u32) {
        let Op::MapAddress { d, a, rank, wide, generic } = *op else { return };
        for lane in lanes(mask) {
            let from = if wide { warp.doubles[a as usize][lane] } else { warp.words[a as usize][lane].into() };
            let rank = warp.words[rank as usize][lane];
            let at = At { step: pc, warp: warp.index as u16, lane: lane as u8 };
            if rank >= self.ranks {
                let ranks = self.ranks;
                self.record
                    .add(FindingKind::IllegalOperand, at, None, None, || format!("rank {rank} in a cluster of {ranks} blocks"));
                continue;
            }
            let (space, own) = if generic { windows::resolve(from) } else { (Space::Shared, from) };
            if space != Space::Shared {
                self.record
                    .add(FindingKind::IllegalOperand, at, None, Some((space, own)), || "no address of shared memory".to_owned());
                continue;
            }
            let to = u64::from(windows::of_rank(rank)) + windows::in_block(own) + if generic { windows::SHARED } else { 0 };
            if wide {
                warp.doubles[d as usize][lane] = to;
            } else {
                warp.words[d as usize][lane] = to as u32;
            }
        }
    }

    pub(super) fn rank_of_address(&mut self, warp: &mut Warp, op: &Op, mask: u32) {
        let Op::RankOf { d, a, wide } = *op else { return };
        for lane in lanes(mask) {
            let from =
                if wide { windows::resolve(warp.doubles[a as usize][lane]).1 } else { warp.words[a as usize][lane].into() };
            warp.words[d as usize][lane] = windows::rank_of(from) as u32;
        }
    }
}
