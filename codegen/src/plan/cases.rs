//! The cases in which a plan is walked: the trip counts of its loops and the part of its program;
//! and the place of a walk in a case, which says what iterations and guards are there.

use std::collections::BTreeSet;

use super::{Guard, Iteration, LoopId, Plan, Stmt, StmtOp, any};

/// Most trips of a loop that are tried. What depends on a trip count depends on it through
/// `n mod slots`, its parity and the guards at the ends.
pub(super) fn most_trips(plan: &Plan) -> u32 {
    plan.loops.iter().map(|l| l.slots).max().unwrap_or(0) * 2 + 2
}

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

/// The parts that differ in what they do. One that stands for no part where programs do not meet.
pub(super) fn parts(plan: &Plan) -> BTreeSet<u32> {
    match &plan.meeting {
        None => [0].into(),
        Some(meeting) => [0, 1, meeting.parts - 1].into(),
    }
}

/// Whether a guard of parts holds in a part; `None` for other guards.
pub(super) fn holds_in_part(plan: &Plan, guard: &Guard, part: u32) -> Option<bool> {
    match guard {
        Guard::FirstPart => Some(part == 0),
        Guard::LastPart => Some(plan.meeting.as_ref().is_some_and(|m| part + 1 == m.parts)),
        _ => None,
    }
}

/// The loop that each loop stands in, if it stands in one.
pub(super) fn outer_loops(plan: &Plan) -> Vec<Option<LoopId>> {
    fn find(body: &[Stmt], outer: Option<LoopId>, found: &mut [Option<LoopId>]) {
        for stmt in body {
            let here = match &stmt.op {
                StmtOp::Loop { id, .. } => Some(*id),
                StmtOp::Step { at, .. } => Some(at.of_loop()),
                _ => None,
            };
            if let (Some(id), Some(_)) = (here, outer)
                && outer != here
            {
                found[id] = outer;
            }
            stmt.op.bodies().into_iter().for_each(|body| find(body, here.or(outer), found));
        }
    }
    let mut found = vec![None; plan.loops.len()];
    plan.roles.iter().for_each(|role| find(&role.body, None, &mut found));
    found
}

/// Where a walk is.
#[derive(Clone, Debug)]
pub(super) struct Place<'a> {
    pub plan: &'a Plan,
    /// Trips of each loop.
    pub trips: &'a [u32],
    /// The part of the program.
    pub part: u32,
    /// Whether the program is made again.
    pub again: bool,
    /// The iteration of each loop that is in progress.
    pub at: Vec<u32>,
    /// What votes of all warps of a role come to, in turn.
    votes: Votes,
    /// How many of them were taken.
    voted: usize,
}

/// What votes of all warps of a role ([`super::Voters::Role`]) come to: the first, the second, and
/// so on in turn.
pub(super) type Votes = [bool; 2];

/// The courses of votes that are tried: none is for its branch, all are, and every other one.
pub(super) fn votes(plan: &Plan) -> &'static [Votes] {
    match plan.roles.iter().any(|role| any(&role.body, &StmtOp::is_vote_of_role)) {
        true => &[[false, false], [true, true], [true, false], [false, true]],
        false => &[[false, false]],
    }
}

impl<'a> Place<'a> {
    /// Before the first statement.
    pub fn new(plan: &'a Plan, trips: &'a [u32], part: u32, again: bool) -> Self {
        Self { plan, trips, part, again, at: vec![0; plan.loops.len()], votes: [false, false], voted: 0 }
    }

    /// The same, where votes of a role take this course.
    pub fn with_votes(self, votes: Votes) -> Self {
        Self { votes, ..self }
    }

    /// Whether the next vote of a role is for its branch.
    pub fn vote(&mut self) -> bool {
        self.voted += 1;
        self.votes[(self.voted - 1) % 2]
    }

    /// The number of an iteration, if it exists.
    pub fn number(&self, iteration: Iteration) -> Option<u32> {
        let number = match iteration {
            Iteration::First(_, number) => Some(number),
            Iteration::Ahead(id, ahead) => Some(self.at[id].saturating_add(ahead)),
            Iteration::Behind(id, behind) => self.at[id].checked_sub(behind),
            Iteration::Last(id) => self.trips[id].checked_sub(1),
        };
        number.filter(|&n| n < self.trips[iteration.of_loop()])
    }

    /// Whether a guard holds; `None` for a choice that the case leaves open, which each warp makes
    /// by itself or a mask makes.
    pub fn holds(&self, guard: &Guard) -> Option<bool> {
        match guard {
            Guard::Exists(iteration) => Some(self.number(*iteration).is_some()),
            Guard::Again => Some(self.again),
            // Two at a time after the first.
            Guard::OneLeft(id) => Some(self.trips[*id].is_multiple_of(2)),
            Guard::FirstPart | Guard::LastPart => holds_in_part(self.plan, guard, self.part),
            Guard::Cut(_) | Guard::Holds(_) | Guard::Vote { .. } | Guard::Flag(_) | Guard::OwnWarps => None,
        }
    }

    /// The first of the iterations that a loop makes at a time, for each time that it does.
    pub fn rounds(&self, id: LoopId, from: u32, unroll: u32) -> impl Iterator<Item = u32> + use<> {
        let trips = self.trips[id];
        (from..).step_by(unroll as usize).take_while(move |next| next.checked_add(unroll).is_some_and(|end| end <= trips))
    }
}
