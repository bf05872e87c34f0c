//! The plan verifier: executes a plan symbolically, for several trip counts of every loop.
//!
//! Before that it checks, of every plan, that what statements name exists and has the shapes that
//! they take ([`structure`]), and that constants are used where they are declared ([`constants`]).
//!
//! Of a block where all warps copy and compute ([`block`]) it checks that
//! * a read of a slot finds the iteration it wants, landed and visible to all threads that read it;
//! * a slot is not filled while its last contents may still be read (no barrier since), or while a copy into it is in flight;
//! * a tile that is computed in place is computed once, before a product reads it; a tile that is computed is visible to all
//!   threads that read it, and is not computed while its last contents may still be read;
//! * a statement names only iterations that exist;
//! * copies, waits and barriers are not in branches that a warp takes by itself, or that a program
//!   may leave out;
//! * rows that are private to warps are written by the warp that reads them;
//! * every copy is waited for before the end;
//! * every variable is written before it is read, whichever branches are taken;
//! * a tile in global memory that is loaded and stored is never copied, and a barrier stands between the two: several lanes load
//!   what one of them stores.
//!
//! Of a block of several roles ([`roles`]) it checks that
//! * a product reads only slots that are acquired and hold the iteration it wants, from its issue until it is settled;
//! * no slot is handed back while a product may read it, every slot that is acquired is handed
//!   back, and every slot that is filled is acquired;
//! * accumulators and packed operands are not touched while a product uses them, and every product is settled;
//! * both roles agree on the parity of every phase, every wait ends, and turns are passed as often as taken.
//!
//! Of programs that meet where the parts of a loop are combined ([`parts`]) it checks that
//! * by a semaphore, a state is read and written in the part's turn only, the turn is passed on once and after the state was saved,
//!   and always;
//! * in a cluster, barriers are between what a block saves and what others read, and between that and its end;
//! * what is loaded has the shape of what is saved;
//! * one of the programs stores.
//!
//! Of values for rows it checks that a sum or a maximum of which each lane has a part is completed
//! once, before something takes it for the whole ([`lanes`]).
//!
//! Of waits it checks two things. What a wait names has landed or is done behind it, and nothing
//! else. And the number of groups that the wait leaves in flight ([`Completion`]) is small enough
//! for all that it names: the execution counts groups by itself, so that a fault in the derivation
//! of the numbers shows. A wait that stands for no number is a fault too ([`waits`]).
//!
//! Slots, groups, phases and turns depend on a loop's trip count only through `n mod slots`, its
//! parity and the guards at the ends, so the trip counts `0 ..= 2 * slots + 2` cover every case. Of
//! several loops, one in the other or side by side, every pair of counts is tried for any two of
//! them; of programs that follow each other every pair of counts that all their loops have.

mod block;
mod constants;
mod fault;
mod lanes;
mod parts;
mod roles;
mod structure;
mod waits;

use std::collections::BTreeMap;

use super::cases::{most_trips, outer_loops, parts as parts_of, trip_counts, votes};
use super::{Completion, Plan};
use fault::Faults;
pub(crate) use parts::state_bytes;

/// Trip counts of programs, without the brackets of a single loop.
fn text_of(programs: &[Vec<u32>]) -> String {
    match programs.iter().map(|trips| <&[u32; 1]>::try_from(trips.as_slice()).map(|[n]| *n)).collect::<Result<Vec<u32>, _>>() {
        Ok(single) => format!("{single:?}"),
        Err(_) => format!("{programs:?}"),
    }
}

/// All faults found, without repetition; empty for a right plan.
pub fn verify(plan: &Plan) -> Vec<String> {
    let structure = structure::faults(plan);
    if !structure.is_empty() {
        return structure.sentences().collect();
    }
    verify_with(plan, &Completion::of(plan))
}

/// The faults of a plan of right structure, if its waits leave so many groups in flight.
fn verify_with(plan: &Plan, completion: &Completion) -> Vec<String> {
    let outer = outer_loops(plan);
    let most = most_trips(plan);
    let mut faults: BTreeMap<String, String> = BTreeMap::new();
    let mut note = |found: Faults, when: &dyn Fn() -> String| {
        for fault in found.sentences() {
            // One example per fault is enough to read.
            faults.entry(fault).or_insert_with(when);
        }
    };
    for part in parts_of(plan) {
        let of = |case: String| if plan.meeting.is_some() { format!("{case} in part {part}") } else { case };
        if plan.is_specialized() {
            let cases = roles::cases(plan, most);
            for &votes in votes(plan) {
                let roles = roles::Roles::new(plan, completion, &outer, part, votes, &cases);
                for programs in &cases {
                    note(roles.faults(programs), &|| of(format!("trip counts {}", text_of(programs))));
                }
            }
        } else {
            for trips in trip_counts(plan.loops.len(), most) {
                let first = trips.first().copied().unwrap_or(0);
                let same = trips.iter().all(|&n| n == first);
                let text = || of(if same { format!("trip count {first}") } else { format!("trip counts {trips:?}") });
                note(block::faults(plan, completion, &outer, &trips, part), &text);
            }
        }
        note(parts::faults(plan, part), &|| format!("part {part}"));
    }
    let mut faults: Vec<String> = faults.into_iter().map(|(fault, when)| format!("{fault} ({when})")).collect();
    faults.extend(constants::faults(plan).sentences());
    faults.extend(lanes::faults(plan).sentences());
    faults.extend(waits::faults(plan, completion).sentences());
    faults
}

#[cfg(test)]
mod tests {
    use flashtile_dsl::ir::{Binding, Elem, SourceText};

    use super::*;
    use crate::arch::Arch;
    use crate::instance::{Facts, Instance};
    use crate::planning::planned;

    fn plan(arch: &str, knobs: &str) -> Plan {
        let text = include_str!("../../../../runtime/kernels/causal_attention.rs");
        let source = SourceText { name: String::new(), text: text.into(), first_line: 1 };
        let kernel = flashtile_dsl::syntax::parse(&source).expect("a built-in kernel parses").remove(0);
        let (binding, facts) = (Binding::new(&kernel, Elem::F16, [("D", 64)]), Facts::best(&kernel));
        let schedule = knobs.parse().expect("a schedule");
        let arch = Arch::named(arch).expect("in the table");
        let instance = Instance { kernel, binding, facts };
        planned(&instance, &schedule, arch).expect("is legal").launches.remove(0).plan
    }

    /// The execution counts groups by itself: numbers that are too large by one are noticed at
    /// every wait, numbers that are too small wait for more.
    #[test]
    fn a_fault_in_the_derivation_of_numbers_is_noticed() {
        let wgmma = "tensor_op=wgmma,copy=tma,block_m=128,block_n=64,warps=8";
        let busy = "overlap=on,running_max=optimistic,ping_pong=products,persistent=dynamic,outer_stages=2";
        for (arch, knobs) in [
            ("sm_80", "stages=1".to_owned()),
            ("sm_80", "stages=3".to_owned()),
            ("sm_80", "stages=2,operand_a=registers,loop_order=interchanged".to_owned()),
            ("sm_90a", wgmma.to_owned()),
            ("sm_90a", format!("{wgmma},{busy}")),
        ] {
            let plan = plan(arch, &knobs);
            let right = Completion::of(&plan);
            assert_eq!(verify_with(&plan, &right), Vec::<String>::new(), "{knobs}");
            let changed = |by: i32, only: Option<usize>| {
                let mut number = 0;
                verify_with(
                    &plan,
                    &right.clone().planted(|wait| {
                        number += 1;
                        if only.is_none_or(|only| only == number - 1) {
                            wait.copies = wait.copies.map(|n| n.saturating_add_signed(by));
                            wait.products = wait.products.map(|n| n.saturating_add_signed(by));
                        }
                    }),
                )
            };
            for wait in 0..right.len() {
                let faults = changed(1, Some(wait));
                assert!(faults.iter().any(|fault| fault.contains("too many groups may")), "{knobs}, {wait}: {faults:?}");
            }
            assert_eq!(changed(-1, None), Vec::<String>::new(), "{knobs}: to wait for more is right");
        }
    }
}
