//! Vector clocks: what each warp has seen of the others. Agents are the warps of the block and,
//! after them, its mbarriers, in whose name copies of the asynchronous proxy write.
//!
//! What is known of other blocks travels along with it (see [`Public`]). A lane that acquires from
//! global memory knows more than its warp, until the warp meets at a barrier or the lane itself
//! arrives at one.

use crate::memory::{Accessor, BlockClocks, Epoch, Known, Public, Scope, Strength, Visitor};

/// What passes from those who arrive at a barrier to those who wait.
#[derive(Clone, Debug, Default)]
pub(crate) struct Release {
    seen: Vec<u32>,
    /// What of it the asynchronous proxy may see.
    fenced: Vec<u32>,
    /// What is known of other blocks, and of single lanes of this one.
    others: Public,
}

impl Release {
    /// Adds what another knows.
    pub fn join(&mut self, other: &Release) {
        join(&mut self.seen, &other.seen);
        join(&mut self.fenced, &other.fenced);
        self.others.join(&other.others);
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

/// What a single lane knows besides what its warp knows.
#[derive(Clone, Debug, Default)]
struct Lane {
    lane: u8,
    known: Public,
    /// What its latest fence released, and the fence's scope: a strong write after it publishes
    /// that.
    fenced: Option<(Scope, Public)>,
    /// What its relaxed reads have found since its latest fence: the next fence acquires that.
    found: Public,
}

/// The clocks of a block.
#[derive(Debug)]
pub(crate) struct Clocks {
    /// Number of the block (or cluster) in the grid.
    block: u32,
    warps: Vec<Release>,
    /// Each warp's own clock when it last met as a whole.
    synced: Vec<u32>,
    /// Of each warp the lanes that know something of their own.
    lanes: Vec<Vec<Lane>>,
}

impl Clocks {
    /// Of a block with so many warps.
    pub fn new(block: u32, warps: usize) -> Self {
        let own = |w: usize| {
            let mut release = Release { seen: vec![0; warps], fenced: vec![0; warps], others: Public::default() };
            release.seen[w] = 1;
            release
        };
        Self { block, warps: (0..warps).map(own).collect(), synced: vec![0; warps], lanes: vec![vec![]; warps] }
    }

    #[inline(always)]
    pub fn accessor(&self, warp: usize, lane: u8, step: u32) -> Accessor<'_> {
        let seen = &self.warps[warp].seen;
        Accessor { warp: warp as u16, lane, step, clock: seen[warp], synced: self.synced[warp], seen }
    }

    /// A lane's access to global memory.
    #[inline(always)]
    pub fn visitor(&self, warp: usize, lane: u8, step: u32, strength: Strength) -> Visitor<'_> {
        let Release { seen, others, .. } = &self.warps[warp];
        let access = Epoch { block: self.block, clock: seen[warp], step, warp: warp as u16, lane, strength };
        Visitor { access, synced: self.synced[warp], seen, known: others, own: self.lane(warp, lane).map(|l| &l.known) }
    }

    fn lane(&self, warp: usize, lane: u8) -> Option<&Lane> {
        self.lanes[warp].iter().find(|l| l.lane == lane)
    }

    fn lane_mut(&mut self, warp: usize, lane: u8) -> &mut Lane {
        let all = &mut self.lanes[warp];
        let at = all.iter().position(|l| l.lane == lane).unwrap_or_else(|| {
            all.push(Lane { lane, ..Lane::default() });
            all.len() - 1
        });
        &mut all[at]
    }

    /// What the asynchronous proxy may see on behalf of a warp.
    pub fn fenced(&self, warp: usize) -> &[u32] {
        &self.warps[warp].fenced
    }

    /// The warp's own clock.
    pub fn now(&self, warp: usize) -> u32 {
        self.warps[warp].seen[warp]
    }

    /// What a warp has seen of another.
    pub fn seen(&self, warp: usize, other: usize) -> u32 {
        self.warps[warp].seen[other]
    }

    /// Later accesses of a warp are not among those that were released until now.
    pub fn tick(&mut self, warp: usize) {
        self.warps[warp].seen[warp] += 1;
    }

    /// Gives what a warp knows to a barrier.
    pub fn release(&mut self, warp: usize, into: &mut Release) {
        self.gather_lanes(warp);
        into.join(&self.warps[warp]);
        self.tick(warp);
    }

    /// Takes what a barrier gathered.
    pub fn acquire(&mut self, warp: usize, from: &Release) {
        self.warps[warp].join(from);
    }

    /// The lanes of a warp have met.
    pub fn meet(&mut self, warp: usize) {
        self.gather_lanes(warp);
        self.synced[warp] = self.now(warp);
        self.tick(warp);
    }

    /// What single lanes know becomes known to their warp.
    fn gather_lanes(&mut self, warp: usize) {
        for lane in &mut self.lanes[warp] {
            self.warps[warp].others.join(&lane.known);
            lane.known = Public::default();
        }
        self.lanes[warp].retain(|lane| lane.fenced.is_some() || !lane.found.is_empty());
    }

    /// All that a warp knows of shared memory becomes visible to the asynchronous proxy.
    pub fn fence(&mut self, warp: usize) {
        let Release { seen, fenced, .. } = &mut self.warps[warp];
        join(fenced, seen);
        self.tick(warp);
    }

    /// The same of global memory.
    pub fn fence_global(&mut self, warp: usize) {
        let own = BlockClocks { warps: self.warps[warp].seen[..self.warps.len()].to_vec(), lanes: vec![] };
        let Public { seen, fenced } = &mut self.warps[warp].others;
        fenced.join(seen);
        fenced.join(&Known::of(self.block, own));
        for Lane { known: Public { seen, fenced }, .. } in &mut self.lanes[warp] {
            fenced.join(seen);
        }
        self.tick(warp);
    }

    /// What a lane releases to whoever acquires it from global memory: what it did and knows, and
    /// of its warp's other lanes what they did before the warp last met. The warp's clock must tick
    /// before its next access.
    pub fn public(&self, warp: usize, lane: u8) -> Public {
        let mut public = self.warps[warp].others.clone();
        if let Some(own) = self.lane(warp, lane) {
            public.join(&own.known);
        }
        let mut warps = self.warps[warp].seen[..self.warps.len()].to_vec();
        warps[warp] = self.synced[warp];
        let lanes = vec![(warp as u16, lane, self.now(warp))];
        public.seen.join(&Known::of(self.block, BlockClocks { warps, lanes }));
        public
    }

    /// A lane learns what others released.
    pub fn learn(&mut self, warp: usize, lane: u8, public: &Public) {
        // What it is told of its own block holds for shared memory, too, whose clocks are those of whole warps.
        for (known, fenced) in [(&public.seen, false), (&public.fenced, true)] {
            let Some(own) = known.block(self.block) else { continue };
            let clocks = &mut self.warps[warp];
            let clocks = if fenced { &mut clocks.fenced } else { &mut clocks.seen };
            let all = own.warps.iter().enumerate().map(|(w, &clock)| (w, clock));
            for (w, clock) in all.chain(own.lanes.iter().map(|&(w, _, clock)| (usize::from(w), clock))) {
                if w != warp {
                    clocks[w] = clocks[w].max(clock);
                }
            }
        }
        self.lane_mut(warp, lane).known.join(public);
    }

    /// A relaxed read of a lane found what others released: its next fence acquires that.
    pub fn find(&mut self, warp: usize, lane: u8, public: &Public) {
        self.lane_mut(warp, lane).found.join(public);
    }

    /// A lane's fence: it acquires what relaxed reads found before, and releases to relaxed writes
    /// after it.
    pub fn fence_lane(&mut self, warp: usize, lane: u8, scope: Scope) {
        let found = std::mem::take(&mut self.lane_mut(warp, lane).found);
        if !found.is_empty() {
            self.learn(warp, lane, &found);
        }
        let public = self.public(warp, lane);
        self.lane_mut(warp, lane).fenced = Some((scope, public));
    }

    /// What a strong write of a lane releases on behalf of the latest fence before it.
    pub fn fenced_public(&self, warp: usize, lane: u8) -> Option<&(Scope, Public)> {
        self.lane(warp, lane)?.fenced.as_ref()
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
