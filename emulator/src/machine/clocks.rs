//! Vector clocks: what each warp has seen of the others. Agents are the warps of the block and, after them, its mbarriers,
//! in whose name copies of the asynchronous proxy write.

use crate::memory::Accessor;

/// What passes from those who arrive at a barrier to those who wait.
#[derive(Clone, Debug, Default)]
pub(crate) struct Release {
    seen: Vec<u32>,
    /// What of it the asynchronous proxy may see.
    fenced: Vec<u32>,
}

impl Release {
    /// Adds what another knows.
    pub fn join(&mut self, other: &Release) {
        join(&mut self.seen, &other.seen);
        join(&mut self.fenced, &other.fenced);
    }

    /// Adds an event of an agent.
    pub fn note(&mut self, agent: u16, clock: u32) {
        let agent = usize::from(agent);
        if self.seen.len() <= agent {
            self.seen.resize(agent + 1, 0);
        }
        self.seen[agent] = self.seen[agent].max(clock);
    }
}

/// The clocks of a block.
#[derive(Debug)]
pub(crate) struct Clocks {
    warps: Vec<Release>,
    /// Each warp's own clock when it last met as a whole.
    synced: Vec<u32>,
}

impl Clocks {
    pub fn new(warps: usize) -> Self {
        let own = |w: usize| {
            let mut release = Release { seen: vec![0; warps], fenced: vec![0; warps] };
            release.seen[w] = 1;
            release
        };
        Self { warps: (0..warps).map(own).collect(), synced: vec![0; warps] }
    }

    #[inline(always)]
    pub fn accessor(&self, warp: usize, lane: u8, step: u32) -> Accessor<'_> {
        let seen = &self.warps[warp].seen;
        Accessor { warp: warp as u16, lane, step, clock: seen[warp], synced: self.synced[warp], seen }
    }

    /// What the asynchronous proxy may see on behalf of a warp.
    pub fn fenced(&self, warp: usize) -> &[u32] {
        &self.warps[warp].fenced
    }

    /// The warp's own clock.
    pub fn now(&self, warp: usize) -> u32 {
        self.warps[warp].seen[warp]
    }

    fn tick(&mut self, warp: usize) {
        self.warps[warp].seen[warp] += 1;
    }

    /// Gives what a warp knows to a barrier.
    pub fn release(&mut self, warp: usize, into: &mut Release) {
        into.join(&self.warps[warp]);
        self.tick(warp);
    }

    /// Takes what a barrier gathered.
    pub fn acquire(&mut self, warp: usize, from: &Release) {
        self.warps[warp].join(from);
    }

    /// The lanes of a warp have met.
    pub fn meet(&mut self, warp: usize) {
        self.synced[warp] = self.now(warp);
        self.tick(warp);
    }

    /// All that a warp knows of becomes visible to the asynchronous proxy.
    pub fn fence(&mut self, warp: usize) {
        let Release { seen, fenced } = &mut self.warps[warp];
        join(fenced, seen);
        self.tick(warp);
    }
}

fn join(into: &mut Vec<u32>, from: &[u32]) {
    if into.len() < from.len() {
        into.resize(from.len(), 0);
    }
    for (a, b) in into.iter_mut().zip(from) {
        *a = (*a).max(*b);
    }
}
