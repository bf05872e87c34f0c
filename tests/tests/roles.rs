//! The plan verifier on specialised roles: plans with every combination of the knobs that matter to it are right, and planted
//! faults of each kind are caught.

use flashtile_codegen::plan::{Event, Guard, Iteration, OperandA, Plan, Slot, Stmt, StmtOp, verify};
use flashtile_codegen::{Arch, Facts, Instance, Schedule, generate};
use flashtile_dsl::ir::{Binding, Elem, SourceText};

const CAUSAL: &str = include_str!("../../runtime/kernels/causal_attention.rs");
/// A loop of products alone: those of two steps are in flight together.
const MATMUL: &str = include_str!("../../runtime/kernels/matmul_gelu.rs");
/// Two warpgroups, everything that makes roles interact.
const BUSY: &str = "overlap=on,running_max=optimistic,ping_pong=products,persistent=dynamic,outer_stages=2,producer_registers=40";
const PRODUCER: usize = 0;
const CONSUMERS: usize = 1;

fn plan(knobs: &str) -> Plan {
    plan_of(CAUSAL, knobs)
}

fn plan_of(text: &str, knobs: &str) -> Plan {
    let source = SourceText { name: String::new(), text: text.into(), first_line: 1 };
    let kernel = flashtile_dsl::syntax::parse(&source).expect("a built-in kernel parses").remove(0);
    let consts = kernel.size_named("D").map(|_| ("D", 64));
    let binding = Binding::new(&kernel, Elem::Bf16, consts);
    let facts = Facts::best(&kernel);
    let base: Schedule = "tensor_op=wgmma,copy=tma,block_m=128,block_n=64,warps=8".parse().expect("a schedule");
    let schedule = base.with(knobs).expect("knobs");
    let arch = Arch::named("sm_90a").expect("known");
    generate(&Instance { kernel, binding, facts }, &schedule, arch)
        .unwrap_or_else(|e| panic!("{knobs}: {e}"))
        .launches
        .remove(0)
        .plan
}

/// Changes the first statement that `change` accepts; whether there was one.
fn change_first(body: &mut Vec<Stmt>, change: &mut dyn FnMut(&mut Vec<Stmt>, usize) -> bool) -> bool {
    for index in 0..body.len() {
        if change(body, index) {
            return true;
        }
        let nested = body.get_mut(index).map(|s| s.op.bodies_mut()).unwrap_or_default();
        if nested.into_iter().any(|body| change_first(body, change)) {
            return true;
        }
    }
    false
}

/// Plants a fault in a role and returns what the verifier says.
fn planted(knobs: &str, role: usize, change: &mut dyn FnMut(&mut Vec<Stmt>, usize) -> bool) -> Vec<String> {
    planted_in(plan(knobs), role, change)
}

fn planted_in(mut plan: Plan, role: usize, change: &mut dyn FnMut(&mut Vec<Stmt>, usize) -> bool) -> Vec<String> {
    assert_eq!(verify(&plan), Vec::<String>::new(), "the plan is right before the fault is planted");
    assert!(change_first(&mut plan.roles[role].body, change), "the fault was planted");
    verify(&plan)
}

fn says(faults: &[String], wanted: &str) {
    assert!(faults.iter().any(|f| f.contains(wanted)), "wanted `{wanted}`, got {faults:#?}");
}

/// Removes the `n`-th statement that is wanted.
fn remove(n: usize, wanted: impl Fn(&StmtOp) -> bool) -> impl FnMut(&mut Vec<Stmt>, usize) -> bool {
    let mut left = n;
    move |body, index| {
        if !wanted(&body[index].op) {
            return false;
        }
        left -= 1;
        if left > 0 {
            return false;
        }
        body.remove(index);
        true
    }
}

fn position(body: &[Stmt], wanted: impl Fn(&StmtOp) -> bool) -> Option<usize> {
    body.iter().position(|s| wanted(&s.op))
}

#[test]
fn every_combination_of_the_knobs_has_a_right_plan() {
    for overlap in ["off", "on"] {
        for maximum in ["exact", "max_first", "optimistic"] {
            for turns in ["off", "products", "elementwise"] {
                for work in ["off", "static", "dynamic"] {
                    for stages in 1..=3 {
                        let outer = if work == "off" { 1 } else { 2 };
                        let knobs = format!(
                            "overlap={overlap},running_max={maximum},ping_pong={turns},persistent={work},stages={stages},outer_stages={outer}"
                        );
                        for walk in ["ascending", "descending"] {
                            let knobs = format!("{knobs},walk={walk}");
                            assert_eq!(verify(&plan(&knobs)), Vec::<String>::new(), "{knobs}");
                        }
                    }
                }
            }
        }
    }
}

/// Programs that take the first maximum for all their tiles, and those that are made again.
const FIRST: &str = "overlap=on,running_max=first,ping_pong=products,persistent=static,outer_stages=2,producer_registers=40";

#[test]
fn plans_whose_programs_may_be_made_again_are_right() {
    for overlap in ["on", "late"] {
        for turns in ["off", "products", "elementwise"] {
            for work in ["static", "dynamic"] {
                for (stages, walk) in [(1, "ascending"), (2, "descending"), (3, "ascending")] {
                    if overlap == "late" && (turns != "off" || stages == 1) {
                        continue;
                    }
                    let knobs = format!(
                        "overlap={overlap},running_max=first,ping_pong={turns},persistent={work},stages={stages},walk={walk}"
                    );
                    assert_eq!(verify(&plan(&knobs)), Vec::<String>::new(), "{knobs}");
                }
            }
        }
    }
}

/// The statements that only programs do that are made again are checked as those of the others are.
#[test]
fn faults_of_programs_that_are_made_again_are_caught() {
    let in_again = |change: &mut dyn FnMut(&mut Vec<Stmt>)| {
        planted(FIRST, CONSUMERS, &mut |body, index| match &mut body[index].op {
            StmtOp::When { guard: Guard::Again, body, .. } => {
                change(body);
                true
            }
            _ => false,
        })
    };
    says(&in_again(&mut |body| drop(body.pop())), "handed back");
    let without =
        |wanted: fn(&StmtOp) -> bool| in_again(&mut |body| assert!(change_first(body, &mut remove(1, wanted)), "there is one"));
    says(&without(|op| matches!(op, StmtOp::Acquire { .. })), "is read but not acquired");
    assert!(!without(|op| matches!(op, StmtOp::Wait(_))).is_empty());
    // Nobody says which programs these are, or there is no list for them.
    let faults = planted(FIRST, CONSUMERS, &mut remove(1, |op| matches!(op, StmtOp::MakeAgain { .. })));
    says(&faults, "whether the program is made again, which none is");
    let mut alone = plan(FIRST);
    alone.work_ring = None;
    says(&verify(&alone), "programs are handed over by a ring");
}

#[test]
fn a_dropped_acquire_is_caught() {
    for n in 1..=6 {
        let faults = planted(BUSY, CONSUMERS, &mut remove(n, |op| matches!(op, StmtOp::Acquire { .. })));
        says(&faults, "is read but not acquired");
    }
}

#[test]
fn a_dropped_release_is_caught() {
    for n in 1..=6 {
        let faults = planted(BUSY, CONSUMERS, &mut remove(n, |op| matches!(op, StmtOp::Release(_))));
        assert!(!faults.is_empty(), "release {n}");
    }
}

#[test]
fn a_release_before_the_product_is_settled_is_caught() {
    for knobs in [BUSY, "overlap=off", "overlap=on,running_max=exact"] {
        let faults = planted(knobs, CONSUMERS, &mut |body, index| {
            let swap = matches!(body[index].op, StmtOp::Wait(_))
                && matches!(body.get(index + 1).map(|s| &s.op), Some(StmtOp::Release(_)));
            if swap {
                body.swap(index, index + 1);
            }
            swap
        });
        says(&faults, "is handed back while a product may read it");
    }
}

#[test]
fn products_of_two_steps_are_in_flight_together() {
    for turns in ["off", "products"] {
        for work in ["off", "static", "dynamic"] {
            for stages in 2..=4 {
                let knobs = format!("overlap=on,ping_pong={turns},persistent={work},stages={stages}");
                assert_eq!(verify(&plan_of(MATMUL, &knobs)), Vec::<String>::new(), "{knobs}");
            }
        }
    }
    let lagged = || plan_of(MATMUL, "overlap=on,stages=2,persistent=static");
    let faults = planted_in(lagged(), CONSUMERS, &mut remove(1, |op| matches!(op, StmtOp::Advance(_))));
    says(&faults, "is acquired twice");
    let faults = planted_in(lagged(), CONSUMERS, &mut remove(1, |op| matches!(op, StmtOp::ReleaseBefore(_))));
    says(&faults, "keeps a slot that it does not have, or a second one");
    let faults = planted_in(lagged(), CONSUMERS, &mut remove(1, |op| matches!(op, StmtOp::Release(_))));
    says(&faults, "is acquired but never released");
    // The products of the step before the last one are waited for: those of the last one may still
    // run, and the slots that they read are filled again.
    let faults = planted_in(lagged(), CONSUMERS, &mut |body, index| match &mut body[index].op {
        StmtOp::Wait(events) if matches!(events[0], Event::Read(..)) => {
            for event in events {
                if let Event::Read(_, Slot::Of(Iteration::Behind(_, n))) = event {
                    *n = 2;
                }
            }
            true
        }
        _ => false,
    });
    says(&faults, "is handed back while a product may read it");
    // The slot in use in place of the one before.
    let faults = planted_in(lagged(), CONSUMERS, &mut |body, index| match body[index].op {
        StmtOp::ReleaseBefore(tile) => {
            body[index].op = StmtOp::Release(tile);
            true
        }
        _ => false,
    });
    says(&faults, "is handed back while a product may read it");
}

#[test]
fn a_dropped_wait_for_products_is_caught() {
    for n in 1..=5 {
        let faults = planted(BUSY, CONSUMERS, &mut remove(n, |op| matches!(op, StmtOp::Wait(_))));
        says(&faults, "while a product may read it");
    }
}

/// What is waited for is what the wait names. That the products before it are done too, because
/// they are issued in order, is no matter of the plan.
#[test]
fn a_wait_for_other_products_is_caught() {
    let all = accumulators(&mut plan(BUSY));
    for n in 1..=5 {
        let mut left = n;
        let faults = planted(BUSY, CONSUMERS, &mut |body, index| match &mut body[index].op {
            StmtOp::Wait(events) => {
                left -= 1;
                if left == 0 {
                    let Event::Product(v) = events[0] else { panic!("{events:?}") };
                    let other = all.iter().find(|&&other| other != v).expect("scores and the output");
                    events[0] = Event::Product(*other);
                }
                left == 0
            }
            _ => false,
        });
        says(&faults, "while a product may read it");
    }
}

/// Into which the products of a plan are issued.
fn accumulators(plan: &mut Plan) -> Vec<usize> {
    let mut found = Vec::new();
    change_first(&mut plan.roles[CONSUMERS].body, &mut |body, index| {
        if let StmtOp::Dot { acc, .. } = body[index].op {
            found.push(acc);
        }
        false
    });
    found
}

/// A wait that names what is no matter of it.
#[test]
fn waits_for_what_never_begins_are_caught() {
    let renamed = |to: fn(&Plan) -> Event| {
        let plan = plan(BUSY);
        let event = to(&plan);
        planted_in(plan, CONSUMERS, &mut |body, index| match &mut body[index].op {
            StmtOp::Wait(events) => {
                events.push(event);
                true
            }
            _ => false,
        })
    };
    says(&renamed(|_| Event::Copied(0, Slot::Only)), "is a ring between roles");
    fn maximum(plan: &Plan) -> usize {
        plan.variables.iter().position(|v| v.name == "m").expect("the running maximum")
    }
    says(&renamed(|plan| Event::Product(maximum(plan))), "a wait names products into m, but none is asynchronous");
    // Before the first product nothing is in flight.
    let mut once = plan("overlap=on");
    let first = once.roles[CONSUMERS].body[0].span;
    let acc = accumulators(&mut once)[0];
    once.roles[CONSUMERS].body.insert(0, Stmt::new(StmtOp::Wait(vec![Event::Product(acc)]), first));
    says(&verify(&once), "a wait names nothing that is in flight there in any case");
}

#[test]
fn elementwise_work_on_an_accumulator_in_flight_is_caught() {
    // The rescale moves before the settle that ends the product.
    let faults = planted(BUSY, CONSUMERS, &mut |body, index| {
        if !matches!(body[index].op, StmtOp::When { guard: Guard::Flag(_), .. }) {
            return false;
        }
        let rescale = body.remove(index);
        let settle = position(body, |op| matches!(op, StmtOp::Wait(_))).expect("the step settles the first product");
        body.insert(settle + 1, rescale);
        true
    });
    says(&faults, "while a product writes it");
}

#[test]
fn packing_an_operand_in_flight_is_caught() {
    // One set of registers instead of two.
    let mut plan = plan(BUSY);
    let packed = plan.variables.iter().position(|v| v.name.ends_with("packed")).expect("P is packed");
    fn set(body: &mut [Stmt], to: usize) {
        for stmt in body {
            if let StmtOp::Dot { a: OperandA::Packed(v), .. } | StmtOp::Pack { to: v, .. } = &mut stmt.op {
                *v = to;
            }
            for body in stmt.op.bodies_mut() {
                set(body, to);
            }
        }
    }
    set(&mut plan.roles[CONSUMERS].body, packed);
    says(&verify(&plan), "is written while a product uses it");
}

#[test]
fn the_wrong_iteration_is_caught() {
    let faults = planted(BUSY, CONSUMERS, &mut |body, index| match &mut body[index].op {
        StmtOp::Dot { b_slot: slot @ Slot::Of(Iteration::Behind(..)), .. } => {
            let Slot::Of(Iteration::Behind(id, _)) = *slot else { return false };
            *slot = Slot::Of(Iteration::Ahead(id, 0));
            true
        }
        _ => false,
    });
    says(&faults, "is read with the contents of another iteration");
}

#[test]
fn a_dropped_fill_is_a_deadlock() {
    for n in 1..=4 {
        let faults = planted(BUSY, PRODUCER, &mut remove(n, |op| matches!(op, StmtOp::Fill { .. })));
        assert!(!faults.is_empty(), "fill {n}");
    }
    let faults = planted("overlap=on", PRODUCER, &mut remove(1, |op| matches!(op, StmtOp::Fill { slot: Slot::Of(_), .. })));
    says(&faults, "deadlock: a warpgroup waits for a slot");
}

#[test]
fn fills_in_another_order_than_they_are_waited_for_are_caught() {
    // With one slot a ring, V of the next step is waited for before the K that frees it.
    let faults = planted("overlap=on,stages=1", PRODUCER, &mut |body, index| {
        let both = matches!(body[index].op, StmtOp::Fill { slot: Slot::Of(Iteration::Ahead(..)), .. })
            && matches!(body.get(index + 1).map(|s| &s.op), Some(StmtOp::Fill { .. }));
        if both {
            let again = body[index + 1].clone();
            body.insert(index, again);
        }
        both
    });
    assert!(!faults.is_empty());
}

#[test]
fn a_loop_of_the_producer_that_is_one_short_is_a_deadlock() {
    let faults = planted("overlap=on", PRODUCER, &mut |body, index| match &mut body[index].op {
        StmtOp::Loop { from, .. } => {
            *from += 1;
            true
        }
        _ => false,
    });
    says(&faults, "deadlock");
}

#[test]
fn a_wrong_branch_on_what_is_left_over_is_caught() {
    for role in [PRODUCER, CONSUMERS] {
        let faults = planted(BUSY, role, &mut |body, index| match &mut body[index].op {
            StmtOp::When { guard: Guard::OneLeft(_), body, otherwise } => {
                std::mem::swap(body, otherwise);
                true
            }
            _ => false,
        });
        assert!(!faults.is_empty(), "role {role}");
    }
}

#[test]
fn unbalanced_turns_are_caught() {
    for n in 1..=3 {
        let faults = planted(BUSY, CONSUMERS, &mut remove(n, |op| matches!(op, StmtOp::TakeTurn)));
        assert!(faults.iter().any(|f| f.contains("turn")), "take {n}: {faults:#?}");
        let faults = planted(BUSY, CONSUMERS, &mut remove(n, |op| matches!(op, StmtOp::PassTurn)));
        says(&faults, "deadlock: a warpgroup waits for its turn");
    }
}

#[test]
fn a_ring_in_a_branch_of_a_warp_is_caught() {
    let faults = planted(BUSY, CONSUMERS, &mut |body, index| {
        if !matches!(body[index].op, StmtOp::When { guard: Guard::Vote { .. }, .. }) {
            return false;
        }
        let at = position(body, |op| matches!(op, StmtOp::Release(_))).expect("the step releases K");
        let release = body.remove(at);
        let vote = position(body, |op| matches!(op, StmtOp::When { guard: Guard::Vote { .. }, .. })).expect("still there");
        let StmtOp::When { body: inner, .. } = &mut body[vote].op else { return false };
        inner.push(release);
        true
    });
    says(&faults, "in a branch that a warp takes by itself");
}

#[test]
fn a_variable_read_before_it_is_written_is_caught() {
    let faults = planted(BUSY, CONSUMERS, &mut remove(1, |op| matches!(op, StmtOp::Map { .. })));
    says(&faults, "is read before it is written");
}

/// A loop in a loop: each has a trip count of its own, and a slot holds an iteration of both.
#[test]
fn loops_in_loops_are_told_apart() {
    let text = include_str!("../kernels/nest0.rs");
    let text = text.trim().strip_prefix("flash_kernel! {").and_then(|t| t.strip_suffix('}')).expect("a kernel in the macro");
    let nested = || plan_of(text, "overlap=off,running_max=exact,persistent=static,block_m=64,warps=4,stages=2");
    let inner = |plan: &Plan| plan.loops.iter().position(|l| l.coordinate == "j").expect("the inner loop");
    let (j, c) = (inner(&nested()), 1 - inner(&nested()));
    let walks_the_outer_loop = planted_in(nested(), PRODUCER, &mut |body, index| match &mut body[index].op {
        StmtOp::Loop { id, .. } if *id == j => {
            *id = c;
            true
        }
        _ => false,
    });
    says(&walks_the_outer_loop, "deadlock");
    let reads_by_the_outer_loop = planted_in(nested(), CONSUMERS, &mut |body, index| match &mut body[index].op {
        StmtOp::Dot { b_slot, .. } if *b_slot == Slot::Of(Iteration::Ahead(j, 0)) => {
            *b_slot = Slot::Of(Iteration::Ahead(c, 0));
            true
        }
        _ => false,
    });
    says(&reads_by_the_outer_loop, "another iteration");
}
