//! Plans of several roles, which fill rings and compute.
//!
//! A role becomes the list of its acts for given trip counts ([`trace`]). What a warpgroup does
//! wrong by itself shows there ([`hazards`]). Roles then run against each other ([`machine`]).
//! Copies land at once and products read until they are settled, which is when either does the most
//! harm. Every order of precedence among the warpgroups of all roles is tried.

mod hazards;
mod machine;
mod trace;

use std::collections::{BTreeMap, BTreeSet};

use super::fault::Faults;
use crate::arch::WARPGROUP;
use crate::plan::cases::{Place, Votes, trip_counts};
use crate::plan::{Completion, LoopId, Plan, RingRoles, RoleKind, Stmt, StmtOp};
use crate::schedule::Persistent;
use machine::{Machine, Part};
use trace::{Act, Setting, Tracer};

/// Trip counts of a program's loops.
type Trips = Vec<u32>;

/// The programs that a block runs one after the other, by their trip counts.
pub(super) fn cases(plan: &Plan, most: u32) -> Vec<Vec<Trips>> {
    let all = trip_counts(plan.loops.len(), most);
    if plan.work == Persistent::Off {
        return all.into_iter().map(|trips| vec![trips]).collect();
    }
    let even: Vec<Trips> = (0..=most).map(|n| vec![n; plan.loops.len()]).collect();
    let mut cases: Vec<Vec<Trips>> = vec![vec![]];
    cases.extend(all.into_iter().map(|trips| vec![trips; 3]));
    for first in &even {
        let others = even.iter().filter(|&second| second != first);
        cases.extend(others.map(|second| vec![first.clone(), second.clone(), first.clone()]));
    }
    cases
}

/// A role, the number of a program, and its trip counts; `None` is the end of the programs.
type ProgramKey = (usize, usize, Option<Trips>);

/// The roles of a plan, for one part. The acts of a program are made once for each trip count,
/// since cases share them.
pub(super) struct Roles<'a> {
    setting: Setting<'a>,
    part: u32,
    /// What votes of all warps of a role come to.
    votes: Votes,
    /// Who uses each ring: those of tiles, and that of program numbers.
    rings: Vec<RingRoles>,
    /// What each does in each.
    programs: BTreeMap<ProgramKey, Vec<(u32, Act)>>,
    /// Statements that have no place in a role.
    misplaced: Faults,
}

impl<'a> Roles<'a> {
    /// Of these cases.
    pub fn new(
        plan: &'a Plan,
        completion: &'a Completion,
        outer: &'a [Option<LoopId>],
        part: u32,
        votes: Votes,
        cases: &[Vec<Trips>],
    ) -> Self {
        let names = plan.variables.iter().enumerate().map(|(v, data)| (data.name.as_str(), v)).collect();
        let setting = Setting { plan, completion, outer, names };
        let mut rings: Vec<RingRoles> = (0..plan.tiles.len()).map(|ring| plan.ring_roles(ring)).collect();
        rings.extend(plan.work_ring.map(|_| plan.work_ring_roles()));
        let mut roles = Self { setting, part, votes, rings, programs: BTreeMap::new(), misplaced: Faults::default() };
        let programs = |case: &Vec<Trips>| -> Vec<(usize, Option<Trips>)> {
            (0..=case.len()).map(|program| (program, case.get(program).cloned())).collect()
        };
        let programs: BTreeSet<(usize, Option<Trips>)> = cases.iter().flat_map(programs).collect();
        for role in 0..plan.roles.len() {
            for (program, trips) in &programs {
                let acts = roles.acts(role, *program, trips.as_ref());
                roles.programs.insert((role, *program, trips.clone()), acts);
            }
        }
        roles
    }

    /// What a role does in one program.
    fn acts(&mut self, number: usize, program: usize, trips: Option<&Trips>) -> Vec<(u32, Act)> {
        let plan = self.setting.plan;
        let none = vec![0; plan.loops.len()];
        // The third program is made again, where programs may be.
        let again = program == 2 && plan.makes_again();
        let place = Place::new(plan, trips.unwrap_or(&none), self.part, again).with_votes(self.votes);
        let mut tracer = Tracer::new(&self.setting, place, program, &mut self.misplaced);
        match (&plan.roles[number].body[..], trips) {
            ([Stmt { op: StmtOp::Work(body), .. }], trips) => {
                // The first role takes programs for all.
                tracer.take_program(number == 0);
                if trips.is_some() {
                    tracer.run(body);
                }
            }
            (body, _) if program == 0 => tracer.run(body),
            _ => {}
        }
        tracer.done()
    }

    /// What a role does, act after act, each with the line of its statement, over programs that
    /// follow each other.
    fn trace(&self, role: usize, case: &[Trips]) -> Vec<(u32, &Act)> {
        let keys = (0..=case.len()).map(|program| (role, program, case.get(program).cloned()));
        keys.flat_map(|key| &self.programs[&key]).map(|(line, act)| (*line, act)).collect()
    }

    /// The faults that show when a block runs programs with these trip counts.
    pub fn faults(&self, case: &[Trips]) -> Faults {
        let plan = self.setting.plan;
        let mut faults = self.misplaced.clone();
        let mut parts = Vec::new();
        for (number, role) in plan.roles.iter().enumerate() {
            let mut acts = self.trace(number, case);
            let (name, groups) = if role.kind == RoleKind::Producer {
                (format!("the {}", role.name), 1)
            } else {
                hazards::hazards(plan, &acts, &mut faults);
                ("a warpgroup".to_owned(), (role.warps / WARPGROUP) as usize)
            };
            // Roles meet in rings, products, turns and barriers.
            acts.retain(|(_, act)| !act.is_of_role(plan));
            parts.push(Part { name, groups, acts });
        }
        let agents = parts.iter().map(|part| part.groups).sum();
        // What one program leaves to the next is the places in rings: for those, who comes first
        // and who last is enough.
        let orders = match case {
            [first, second, ..] if first != second => vec![(0..agents).collect(), (0..agents).rev().collect()],
            _ => permutations(agents),
        };
        for order in orders {
            Machine::new(plan, &self.rings, &parts).run(&order, &mut faults);
        }
        faults
    }
}

/// All orders of `0 .. n`.
fn permutations(n: usize) -> Vec<Vec<usize>> {
    if n == 0 {
        return vec![vec![]];
    }
    let mut all = Vec::new();
    for shorter in permutations(n - 1) {
        for at in 0..n {
            let mut order = shorter.clone();
            order.insert(at, n - 1);
            all.push(order);
        }
    }
    all
}
