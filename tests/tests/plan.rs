//! The plan verifier: every plan of the sampled space passes, and planted faults of each kind are caught.

use flashtile_codegen::plan::{Event, Guard, InputSource, Iteration, Plan, Slot, Stmt, StmtOp, verify};
use flashtile_codegen::{Arch, Facts, Instance, Schedule, Summary, generate, space};
use flashtile_dsl::ir::{Binding, Elem, Kernel, SourceText};
use flashtile_tests::turns::Turn;

const CAUSAL: &str = include_str!("../../runtime/kernels/causal_attention.rs");
const ROTARY: &str = include_str!("../../runtime/kernels/causal_rope_attention.rs");
const MATMUL: &str = include_str!("../../runtime/kernels/matmul_gelu.rs");

/// A tile that is copied before two loops over positions, and first read in a loop within them.
const NESTED: &str = "pub fn nested<T: Element, const D: usize>(
    q: &Tensor<T, (H, M, D)>, k: &Tensor<T, (N, D)>, w: &Tensor<f32, (B)>, o: &mut Tensor<T, (N, D)>,
) {
    let j = program(tiles(N));
    let k_j = load(k, [j, ..]);
    let mut sum = zeros((j, D));
    for b in 0..B {
        for h in 0..H {
            for i in tiles(M) {
                let q_i = load(q, [h, i, ..]);
                sum += dot((dot(k_j, q_i.t()) * load(w, [b])).to::<T>(), q_i);
            }
        }
    }
    store(o, [j, ..], sum);
}";

fn kernel(text: &str) -> Kernel {
    let source = SourceText { name: String::new(), text: text.into(), first_line: 1 };
    flashtile_dsl::syntax::parse(&source).expect("a built-in kernel parses").remove(0)
}

fn instance(text: &str) -> Instance {
    let kernel = kernel(text);
    let binding = Binding::new(&kernel, Elem::F16, [("D", 64)]);
    let facts = Facts::best(&kernel);
    Instance { kernel, binding, facts }
}

fn plan(schedule: &str) -> Plan {
    plan_of(CAUSAL, schedule)
}

fn plan_of(text: &str, schedule: &str) -> Plan {
    let schedule: Schedule = schedule.parse().expect("a schedule");
    generate(&instance(text), &schedule, Arch::named("sm_80").expect("known")).expect("legal").launches.remove(0).plan
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

/// Plants a fault and returns what the verifier says.
fn planted(schedule: &str, change: &mut dyn FnMut(&mut Vec<Stmt>, usize) -> bool) -> Vec<String> {
    planted_in(plan(schedule), change)
}

fn planted_in(mut plan: Plan, change: &mut dyn FnMut(&mut Vec<Stmt>, usize) -> bool) -> Vec<String> {
    assert_eq!(verify(&plan), Vec::<String>::new(), "the plan is right before the fault is planted");
    assert!(change_first(&mut plan.roles[0].body, change), "the fault was planted");
    verify(&plan)
}

fn says(faults: &[String], wanted: &str) {
    assert!(faults.iter().any(|f| f.contains(wanted)), "wanted `{wanted}`, got {faults:#?}");
}

fn remove(wanted: fn(&StmtOp) -> bool) -> impl FnMut(&mut Vec<Stmt>, usize) -> bool {
    move |body, index| {
        let hit = wanted(&body[index].op);
        if hit {
            body.remove(index);
        }
        hit
    }
}

/// A third of them, another one in each run.
#[test]
fn every_schedule_of_the_space_has_a_right_plan() {
    let turn = Turn::of_run();
    for (text, arch) in [
        (CAUSAL, "sm_80"),
        (ROTARY, "sm_80"),
        (ROTARY, "sm_75"),
        (CAUSAL, "sm_75"),
        (MATMUL, "sm_80"),
        (CAUSAL, "sm_90a"),
        (MATMUL, "sm_90a"),
        (NESTED, "sm_75"),
        (NESTED, "sm_80"),
        (NESTED, "sm_90a"),
    ] {
        let (instance, arch) = (instance(text), Arch::named(arch).expect("known"));
        let schedules = space(&instance, arch);
        assert!(schedules.len() > 10, "{} schedules for {arch}", schedules.len());
        for (_, schedule) in schedules.into_iter().enumerate().filter(|(number, _)| turn.has(*number, 3)) {
            let generated = generate(&instance, &schedule, arch).expect("the space holds legal schedules");
            assert_eq!(verify(&generated.main().plan), Vec::<String>::new(), "{schedule}");
        }
    }
}

#[test]
fn loops_walked_in_other_orders_have_a_right_plan() {
    let window = include_str!("../filetests/generated/mask_window.ft").split("; run:").next().expect("a kernel").to_owned();
    for text in [CAUSAL, ROTARY, MATMUL, &window] {
        for knobs in ["stages=1", "stages=2", "stages=3,operand_a=registers", "stages=2,copy=sync", "edges=every,early_stop=off"]
        {
            let walks = ["descending", "last_first"].into_iter();
            for (maximum, walk) in walks.flat_map(|walk| ["exact", "max_first", "optimistic"].map(|maximum| (maximum, walk))) {
                for parts in ["split_k=1", "split_k=3", "split_k=2,fixup=semaphore"] {
                    let softmax = text != MATMUL;
                    if !softmax && (maximum != "exact" || parts != "split_k=1") {
                        continue;
                    }
                    let schedule = format!("{knobs},running_max={maximum},{parts},walk={walk}");
                    let plan = plan_of(text, &schedule);
                    assert_eq!(verify(&plan), Vec::<String>::new(), "{schedule}");
                    assert!(plan.to_string().contains(walk), "{schedule}\n{plan}");
                }
            }
        }
    }
}

/// What a step is about does not depend on the order: the same faults are found.
#[test]
fn faults_in_a_loop_walked_in_another_order_are_caught() {
    let ways = ["stages=1", "stages=2", "stages=3"].into_iter();
    for schedule in ways.flat_map(|s| ["descending", "last_first"].map(|walk| format!("{s},walk={walk}"))) {
        says(&planted(&schedule, &mut remove(|op| matches!(op, StmtOp::Wait(_)))), "is read while its copy is in flight");
        let faults = planted(&schedule, &mut |body, index| match &mut body[index].op {
            StmtOp::Dot { b_slot: Slot::Of(Iteration::Ahead(_, ahead)), .. } => {
                *ahead += 1;
                true
            }
            _ => false,
        });
        assert!(!faults.is_empty(), "{schedule}");
    }
}

#[test]
fn loops_that_cannot_be_walked_from_the_last_tile_say_why() {
    let why = |text: &str, knobs: &str| {
        let schedule: Schedule = format!("walk=descending,{knobs}").parse().expect("a schedule");
        let arch = Arch::named("sm_80").expect("known");
        let reasons = Summary::all(&flashtile_codegen::check(&instance(text), &schedule, arch).reasons).to_string();
        let about = "a walk that is not ascending takes the tiles of a loop in another order than the text: ";
        reasons.strip_prefix(about).unwrap_or(&reasons).to_owned()
    };
    assert_eq!(why(CAUSAL, "stages=2"), "");
    assert_eq!(why(include_str!("../../runtime/kernels/rotate.rs"), "stages=1"), "no loop walks tiles");
    assert_eq!(why(include_str!("../../runtime/kernels/row_softmax.rs"), "stages=1"), "the loop stores");
    assert_eq!(
        why(CAUSAL, "loop_order=interchanged"),
        "loop_order=interchanged stores the state after every tile, in the order of the text: walk=ascending"
    );
    // Without `visible_or_zero` the tile that is walked first must be one that every row sees something of.
    let plain = CAUSAL.replace("visible_or_zero(m_new)", "m_new");
    assert_eq!(why(&plain, "stages=2"), "a first tile with nothing visible makes NaN: pass the maximum through visible_or_zero");
    assert_eq!(
        why(&CAUSAL.replace("l * alpha + rowsum(p)", "l * alpha + l * rowsum(p)"), "stages=2"),
        "`l` is no streaming reduction: what is added does not scale with the maximum"
    );
    // The first tile that a row sees makes 0 of a sum that starts from 1 while the maximum is -inf. A row that sees nothing gives 0
    // over 0 or 0 over 1: the same by `div_or_zero`, another by a plain division.
    let started = CAUSAL.replace("let mut l = zeros(i)", "let mut l = full(i, 1.0)");
    assert_eq!(why(&started, "stages=2"), "");
    let divided = started.replace("div_or_zero(acc, l)", "acc / l");
    assert_eq!(why(&divided, "stages=2"), "`o` of a row that sees nothing depends on what `l` starts from");
}

/// What one knob makes of a kernel may be no kernel for another: the reason is told, not that.
#[test]
fn lists_of_tiles_do_not_go_with_loops_that_are_exchanged() {
    let kept = CAUSAL
        .replace("pos(i) + N - M >= pos(j)", "load(keep, [b, h, i, j])")
        .replace("scale: f32,", "keep: &Tensor<bool, (B, H, M, N)>, scale: f32,");
    let schedule: Schedule = "loop_order=interchanged,summaries=listed".parse().expect("a schedule");
    let reasons = flashtile_codegen::check(&instance(&kept), &schedule, Arch::named("sm_80").expect("known")).reasons;
    let told = Summary::all(&reasons).to_string();
    assert!(told.contains("walks all rows for a tile of the loop, whose list is that of some rows"), "{told}");
}

fn exchanged(schedule: &str) -> Plan {
    let schedule: Schedule = format!("loop_order=interchanged,{schedule}").parse().expect("a schedule");
    generate(&instance(CAUSAL), &schedule, Arch::named("sm_80").expect("known")).expect("legal").main().plan.clone()
}

/// In a loop in a loop, slots belong to the loop that fills them, and a barrier stands between loads and stores of the state.
#[test]
fn faults_in_a_nest_are_caught() {
    for schedule in ["stages=1", "stages=2", "stages=3", "stages=1,copy=sync"] {
        let inner = |loops: &mut u32, op: &StmtOp| {
            *loops += u32::from(matches!(op, StmtOp::Loop { .. }));
            *loops == 2
        };
        // What the outer loop streams is read with the number of the inner one.
        let faults = planted_in(exchanged(schedule), &mut |body, index| match &mut body[index].op {
            StmtOp::Dot { b_slot: Slot::Of(Iteration::Ahead(id, 0)), .. } if *id == 0 => {
                *id = 1;
                true
            }
            _ => false,
        });
        says(&faults, "is read with the contents of another iteration");
        let mut loops = 0;
        let faults = planted_in(exchanged(schedule), &mut |body, index| {
            let hit = inner(&mut loops, &body[index].op) && matches!(body[index].op, StmtOp::Barrier);
            if hit {
                body.remove(index);
            }
            hit
        });
        says(&faults, "is stored with no barrier after it was loaded");
    }
    // Every barrier between two iterations of the outer loop but one is enough.
    let mut plan = exchanged("stages=2");
    let mut barriers = 0;
    while change_first(&mut plan.roles[0].body, &mut remove(|op| matches!(op, StmtOp::Barrier))) {
        barriers += 1;
    }
    assert!(barriers >= 3, "{barriers} barriers");
    says(&verify(&plan), "is loaded with no barrier after it was stored");
}

#[test]
fn a_dropped_wait_is_caught() {
    for schedule in ["stages=1", "stages=2", "stages=3"] {
        let faults = planted(schedule, &mut remove(|op| matches!(op, StmtOp::Wait(_))));
        says(&faults, "is read while its copy is in flight");
    }
}

#[test]
fn a_wait_for_less_is_caught() {
    for schedule in ["stages=1", "stages=2", "stages=3"] {
        // The rows that were copied before the loop, then a tile that is streamed.
        for streamed in [false, true] {
            let faults = planted(schedule, &mut |body, index| match &mut body[index].op {
                StmtOp::Wait(events) => {
                    let name = |event: &Event| matches!(event, Event::Copied(_, slot) if (*slot != Slot::Only) == streamed);
                    let at = events.iter().position(name);
                    at.map(|at| events.remove(at)).is_some()
                }
                _ => false,
            });
            says(&faults, "is read while its copy is in flight");
        }
    }
}

#[test]
fn a_wait_for_another_iteration_is_caught() {
    for schedule in ["stages=2", "stages=3"] {
        let faults = planted(schedule, &mut |body, index| match &mut body[index].op {
            StmtOp::Wait(events) => events.iter_mut().any(|event| match event {
                Event::Copied(_, Slot::Of(Iteration::Ahead(_, n))) => {
                    *n += 1;
                    true
                }
                _ => false,
            }),
            _ => false,
        });
        says(&faults, "is read while its copy is in flight");
    }
}

#[test]
fn a_dropped_barrier_is_caught() {
    for schedule in ["stages=1", "stages=2", "stages=3", "stages=1,copy=sync", "stages=2,copy=sync"] {
        let faults = planted(schedule, &mut remove(|op| matches!(op, StmtOp::Barrier)));
        assert!(!faults.is_empty(), "{schedule}");
    }
}

#[test]
fn a_copy_into_the_slot_in_use_is_caught() {
    let faults = planted("stages=2", &mut |body, index| match &mut body[index].op {
        StmtOp::Copy { slot: slot @ Slot::Of(Iteration::Ahead(..)), .. } => {
            let Slot::Of(Iteration::Ahead(id, n)) = *slot else { return false };
            *slot = Slot::Of(Iteration::Ahead(id, n + 1));
            true
        }
        _ => false,
    });
    assert!(!faults.is_empty());
}

#[test]
fn a_copy_one_iteration_late_is_caught() {
    for schedule in ["stages=2", "stages=3"] {
        let faults = planted(schedule, &mut |body, index| match &mut body[index].op {
            StmtOp::Dot { b_slot: slot @ Slot::Of(_), .. } => {
                let Slot::Of(Iteration::Ahead(id, 0)) = *slot else { return false };
                *slot = Slot::Of(Iteration::Ahead(id, 1));
                true
            }
            _ => false,
        });
        assert!(!faults.is_empty(), "{schedule}");
    }
}

#[test]
fn a_dropped_copy_is_caught() {
    let faults = planted("stages=2", &mut remove(|op| matches!(op, StmtOp::Copy { slot: Slot::Of(Iteration::First(..)), .. })));
    says(&faults, "is read before it is filled");
}

#[test]
fn a_dropped_commit_in_the_loop_is_caught() {
    // The commits before the loop only end groups early; the one in the loop is what the wait of a later step counts on.
    let mut before = 3;
    let faults = planted("stages=3", &mut |body, index| {
        let hit = matches!(body[index].op, StmtOp::Commit);
        if hit && before > 0 {
            before -= 1;
            return false;
        }
        if hit {
            body.remove(index);
        }
        hit
    });
    says(&faults, "is waited for before its group of copies ends");
}

#[test]
fn a_barrier_before_the_wait_is_caught() {
    let faults = planted("stages=2", &mut |body, index| {
        let swap =
            matches!(body[index].op, StmtOp::Wait(_)) && matches!(body.get(index + 1).map(|s| &s.op), Some(StmtOp::Barrier));
        if swap {
            body.swap(index, index + 1);
        }
        swap
    });
    says(&faults, "with no barrier after its copy landed");
}

#[test]
fn a_variable_read_before_it_is_written_is_caught() {
    let faults = planted("stages=2", &mut remove(|op| matches!(op, StmtOp::Map { .. })));
    says(&faults, "is read before it is written");
}

/// Plants a fault at a `Compute` in the loop of the rotary kernel: one that reads a ring.
fn planted_at_compute(schedule: &str, change: &mut dyn FnMut(&mut Vec<Stmt>, usize)) -> Vec<String> {
    planted_in(plan_of(ROTARY, schedule), &mut |body, index| {
        let streamed = |op: &StmtOp| match op {
            StmtOp::Compute { inputs, .. } => inputs.iter().any(|i| matches!(i.from, InputSource::Tile(..))),
            _ => false,
        };
        let hit = streamed(&body[index].op);
        if hit {
            change(body, index);
        }
        hit
    })
}

#[test]
fn computed_tiles_without_a_barrier_are_caught() {
    for schedule in ["stages=1", "stages=2", "stages=3,operand_a=registers", "stages=2,copy=sync"] {
        let faults = planted_at_compute(schedule, &mut |body, index| {
            assert!(matches!(body[index + 1].op, StmtOp::Barrier));
            body.remove(index + 1);
        });
        says(&faults, "is read with no barrier after it was computed");
    }
}

#[test]
fn a_computation_before_its_tiles_have_landed_is_caught() {
    for schedule in ["stages=1", "stages=2"] {
        let mut plan = plan_of(ROTARY, schedule);
        let moved = change_first(&mut plan.roles[0].body, &mut |body, index| {
            let hit = matches!(&body[index].op, StmtOp::Compute { inputs, .. } if inputs.iter().any(|i| matches!(i.from, InputSource::Tile(..))));
            if hit {
                let wait = body[..index].iter().rposition(|s| matches!(s.op, StmtOp::Wait(_))).expect("a wait");
                let compute = body.remove(index);
                body.insert(wait, compute);
            }
            hit
        });
        assert!(moved);
        says(&verify(&plan), "in flight");
    }
}

#[test]
fn a_computation_that_the_last_iteration_leaves_out_is_caught() {
    for schedule in ["stages=1", "stages=2"] {
        let faults = planted_at_compute(schedule, &mut |body, index| {
            let guard = Guard::Exists(Iteration::Ahead(0, 1));
            let (compute, span) = (body[index].clone(), body[index].span);
            body[index] = Stmt::new(StmtOp::When { guard, body: vec![compute], otherwise: Vec::new() }, span);
        });
        says(&faults, "is read before it is computed");
    }
}

#[test]
fn a_computation_made_twice_is_caught() {
    let faults = planted_at_compute("stages=2", &mut |body, index| {
        let (again, barrier) = (body[index].clone(), body[index + 1].clone());
        body.splice(index + 2..index + 2, [again, barrier]);
    });
    says(&faults, "is computed twice");
}

#[test]
fn a_computation_of_tiles_that_are_still_read_is_caught() {
    // Keys that are computed after the product that reads them.
    let faults = planted_at_compute("stages=2", &mut |body, index| {
        let product = body.iter().position(|s| matches!(s.op, StmtOp::Dot { .. })).expect("a product");
        let compute = body.remove(index);
        body.insert(product, compute);
    });
    says(&faults, "is computed while it may still be read");
}

#[test]
fn a_computation_of_another_iteration_is_caught() {
    let faults = planted_at_compute("stages=3", &mut |body, index| {
        let StmtOp::Compute { to, inputs, .. } = &mut body[index].op else { unreachable!("a computation") };
        let next = |slot: &mut Slot| {
            if let Slot::Of(Iteration::Ahead(id, n)) = *slot {
                *slot = Slot::Of(Iteration::Ahead(id, n + 1));
            }
        };
        to.iter_mut().for_each(|t| next(&mut t.slot));
        for input in inputs {
            if let InputSource::Tile(_, slot) = &mut input.from {
                next(slot);
            }
        }
    });
    assert!(!faults.is_empty());
}

#[test]
fn a_computation_in_a_branch_of_a_warp_is_caught() {
    let mut moved = None;
    let mut plan = plan_of(ROTARY, "stages=2,running_max=max_first");
    change_first(&mut plan.roles[0].body, &mut |body, index| {
        let hit = matches!(&body[index].op, StmtOp::Compute { inputs, .. } if inputs.iter().any(|i| matches!(i.from, InputSource::Tile(..))));
        if hit {
            moved = Some(body.remove(index));
        }
        hit
    });
    let moved = moved.expect("a computation");
    assert!(change_first(&mut plan.roles[0].body, &mut |body, index| match &mut body[index].op {
        StmtOp::When { guard: Guard::Vote { .. }, body, .. } => {
            body.push(moved.clone());
            true
        }
        _ => false,
    }));
    says(&verify(&plan), "in a branch that each warp takes by itself");
}

const SEMAPHORE: &str = "block_m=64,block_n=64,split_k=4,fixup=semaphore";
const CLUSTER: &str = "block_m=64,block_n=64,split_k=4,fixup=cluster";

fn cluster_plan() -> Plan {
    let schedule: Schedule = CLUSTER.parse().expect("a schedule");
    generate(&instance(CAUSAL), &schedule, Arch::named("sm_90a").expect("known")).expect("legal").launches.remove(0).plan
}

/// Removes the statement that `is` accepts, the `n`th of them in a list of statements.
fn drop_where(n: usize, is: fn(&StmtOp) -> bool) -> impl FnMut(&mut Vec<Stmt>, usize) -> bool {
    let mut before = n;
    move |body, index| {
        if !is(&body[index].op) {
            return false;
        }
        if before > 0 {
            before -= 1;
            return false;
        }
        body.remove(index);
        true
    }
}

#[test]
fn turns_of_parts_are_taken_and_passed() {
    let without = |is: fn(&StmtOp) -> bool| planted(SEMAPHORE, &mut drop_where(0, is));
    let faults = without(|op| matches!(op, StmtOp::AwaitPart));
    says(&faults, "a state is read before the turn of the part (part 1)");
    says(&faults, "a turn is passed that was not waited for");
    says(&without(|op| matches!(op, StmtOp::PassPart)), "deadlock: the turn is never passed on");
    says(&without(|op| matches!(op, StmtOp::SaveState(_))), "the turn is passed before the state is saved (part 0)");
    says(&without(|op| matches!(op, StmtOp::LoadState { .. })), "is read before it is written (trip count 0 in part 1)");
    // The turn is passed first, the state saved after it.
    let faults = planted(SEMAPHORE, &mut |body, index| {
        let swaps = index > 0 && matches!(body[index].op, StmtOp::PassPart);
        if swaps {
            body.swap(index - 1, index);
        }
        swaps
    });
    says(&faults, "the state of a part is touched after its turn was passed");
    says(&faults, "the turn is passed before the state is saved");
    // Every part takes the state of the one before, the first too.
    let faults = planted(SEMAPHORE, &mut |body, index| match &mut body[index].op {
        StmtOp::When { guard: Guard::FirstPart, body, otherwise } => {
            body.clone_from(otherwise);
            true
        }
        _ => false,
    });
    says(&faults, "the first part reads a state that nobody has saved");
}

#[test]
fn barriers_of_a_cluster_are_between_what_is_saved_and_read() {
    let is_barrier: fn(&StmtOp) -> bool = |op| matches!(op, StmtOp::ClusterBarrier);
    let faults = planted_in(cluster_plan(), &mut drop_where(0, is_barrier));
    says(&faults, "the state of another block is read with no barrier of the cluster after it was saved");
    let faults = planted_in(cluster_plan(), &mut drop_where(1, is_barrier));
    says(&faults, "a block may end while others read its state");
    let faults = planted_in(cluster_plan(), &mut drop_where(0, |op| matches!(op, StmtOp::LoadState { .. })));
    says(&faults, "is read before it is written");
    // What is read is not what was saved.
    let faults = planted_in(cluster_plan(), &mut |body, index| match &mut body[index].op {
        StmtOp::LoadState { to, .. } => {
            to.reverse();
            true
        }
        _ => false,
    });
    says(&faults, "what is loaded is not what is saved");
    // A warp waits for the cluster by itself.
    let faults = planted_in(cluster_plan(), &mut |body, index| match &mut body[index].op {
        StmtOp::When { guard: Guard::OwnWarps, body, .. } => {
            let span = body[0].span;
            body.push(Stmt::new(StmtOp::ClusterBarrier, span));
            true
        }
        _ => false,
    });
    says(&faults, "in a branch that a warp takes by itself");
}

#[test]
fn what_cannot_be_combined_says_why() {
    let reasons = |arch: &str, knobs: &str| {
        let schedule: Schedule = format!("block_m=64,block_n=64,{knobs}").parse().expect("a schedule");
        let arch = Arch::named(arch).expect("known");
        Summary::all(&flashtile_codegen::check(&instance(CAUSAL), &schedule, arch).reasons).to_string()
    };
    assert_eq!(reasons("sm_80", "split_k=2,fixup=semaphore"), "");
    assert_eq!(reasons("sm_75", "split_k=2,fixup=semaphore,copy=sync,tensor_op=mma_m16n8k8"), "");
    assert_eq!(reasons("sm_90a", "split_k=8,fixup=cluster"), "");
    assert_eq!(reasons("sm_80", "fixup=semaphore"), "fixup=semaphore has no parts to combine: split_k=1");
    assert_eq!(reasons("sm_80", "split_k=2,fixup=cluster"), "sm_80 has no clusters of blocks: fixup=kernel, tree or semaphore");
    assert_eq!(
        reasons("sm_90a", "split_k=3,fixup=cluster"),
        "fixup=cluster takes 2, 4 or 8 parts, a block of a cluster for each: split_k=3"
    );
    assert_eq!(reasons("sm_90a", "split_k=12,fixup=tree"), "");
    assert_eq!(
        reasons("sm_90a", "split_k=13,fixup=tree"),
        "fixup=tree takes parts that divide into groups, 4 or more: split_k=13"
    );
    let wgmma = "tensor_op=wgmma,copy=tma,persistent=static,split_k=2,fixup=cluster";
    assert_eq!(
        reasons("sm_90a", wgmma),
        "fixup=cluster takes blocks of one program each, in the order of the programs: persistent=off"
    );
    let semaphore = wgmma.replace("cluster", "semaphore");
    assert!(reasons("sm_90a", &semaphore).starts_with("fixup=semaphore takes blocks of one program each"));
    assert_eq!(reasons("sm_90a", &semaphore.replace("persistent=static,", "")), "");
}
