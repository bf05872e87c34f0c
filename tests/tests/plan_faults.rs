//! Planted faults that do not depend on the order of copies and products: names, shapes, places in
//! shared memory, branches, and what one of the programs that meet does for all. The faults of
//! copies, rings and products are in `plan.rs` and `roles.rs`.

use flashtile_codegen::plan::{
    Builtin, Cast, Expr, Function, Guard, InputSource, Iteration, LoopInfo, OperandA, Operator, Plan, Slot, Stmt, StmtOp, verify,
};
use flashtile_codegen::{Arch, Facts, Instance, Schedule, plans};
use flashtile_dsl::ir::{Binding, Elem, SourceText};
use flashtile_tests::planted::{change_first, planted, remove, says};

const CAUSAL: &str = include_str!("../../runtime/kernels/causal_attention.rs");
const ROTARY: &str = include_str!("../../runtime/kernels/causal_rope_attention.rs");
const MATMUL: &str = include_str!("../../runtime/kernels/matmul_gelu.rs");
const PRODUCER: usize = 0;
const CONSUMERS: usize = 1;
const HOPPER: &str = "tensor_op=wgmma,copy=tma,block_m=128,block_n=64,warps=8";

fn plan_of(text: &str, elem: Elem, arch: &str, knobs: &str) -> Plan {
    plans_of(text, elem, arch, knobs).remove(0)
}

fn plans_of(text: &str, elem: Elem, arch: &str, knobs: &str) -> Vec<Plan> {
    let source = SourceText { name: String::new(), text: text.into(), first_line: 1 };
    let kernel = flashtile_dsl::syntax::parse(&source).expect("a built-in kernel parses").remove(0);
    let binding = Binding::new(
        &kernel,
        elem,
        ["D", "S"].into_iter().filter(|name| kernel.size_named(name).is_some()).map(|name| (name, 64)),
    );
    let facts = Facts::best(&kernel);
    let schedule: Schedule = knobs.parse().expect("a schedule");
    let arch = Arch::named(arch).expect("in the table");
    plans(&Instance { kernel, binding, facts }, &schedule, arch).unwrap_or_else(|e| panic!("{knobs}: {e}"))
}

/// Of a block where all warps copy and compute.
fn block(knobs: &str) -> Plan {
    plan_of(CAUSAL, Elem::F16, "sm_80", knobs)
}

/// Of a producer and consumers.
fn roles(knobs: &str) -> Plan {
    plan_of(CAUSAL, Elem::F16, "sm_90a", &format!("{HOPPER},{knobs}"))
}

/// Of the scalar path, which stages P in rows that are private to warps.
fn scalar() -> Plan {
    plan_of(CAUSAL, Elem::F32, "sm_80", "tensor_op=ffma,copy=cp_async,stages=2,block_m=32,block_n=32,warps=2")
}

fn when(guard: Guard, stmt: Stmt) -> Stmt {
    let span = stmt.span;
    Stmt::new(StmtOp::When { guard, body: vec![stmt], otherwise: Vec::new() }, span)
}

/// Of a producer and consumers that read a tile of a bias from a ring.
fn with_bias() -> Plan {
    let text = include_str!("../../runtime/kernels/bias_attention.rs");
    plan_of(text, Elem::F16, "sm_90a", &format!("{HOPPER},stages=2,overlap=on,tile_loads=tma"))
}

/// Else what is copied and what conditions are about would be two tiles.
#[test]
fn an_entry_of_another_place_of_a_list_is_caught() {
    let text = include_str!("../../runtime/kernels/block_attention.rs");
    let block = "block_m=32,block_n=32,warps=2,stages=2";
    for (arch, knobs) in [("sm_80", block), ("sm_90a", HOPPER)] {
        let walking = |walk: &str| {
            let knobs = format!("{knobs},summaries=listed,walk={walk}");
            let is_listed = |plan: &Plan| plan.loops.iter().any(|info| info.list.is_some());
            plans_of(text, Elem::F16, arch, &knobs).into_iter().find(is_listed).expect("walks a list")
        };
        let entry = |plan: &Plan| plan.loops.iter().find_map(LoopInfo::entry).expect("walks a list");
        for (walk, other) in [("ascending", "last_first"), ("descending", "last_first"), ("last_first", "ascending")] {
            let (plan, other) = (walking(walk), entry(&walking(other)));
            let (role, entry) = (plan.roles.len() - 1, entry(&plan));
            let faults = planted(plan, role, &mut |body, index| match &mut body[index].op {
                StmtOp::Let { value, .. } if *value == entry => {
                    *value = other.clone();
                    true
                }
                _ => false,
            });
            says(&faults, "is not the entry of the tile that the iteration in progress walks");
        }
    }
}

#[test]
fn rows_of_a_ring_that_are_read_outside_of_their_wait_are_caught() {
    let plan = with_bias();
    assert_eq!(verify(&plan), [""; 0]);
    let ring = plan.tiles.iter().position(|tile| tile.name == "bias_tile").expect("a ring of the bias");
    let acquires = |op: &StmtOp| matches!(op, StmtOp::Acquire { tile, .. } if *tile == ring);
    says(&planted(plan.clone(), CONSUMERS, &mut remove(acquires)), "bias_tile is read but not acquired");
    let releases = |op: &StmtOp| matches!(op, StmtOp::Release(tile) if *tile == ring);
    says(&planted(plan.clone(), CONSUMERS, &mut remove(releases)), "bias_tile is acquired twice");
    let fills = |op: &StmtOp| matches!(op, StmtOp::Fill { tile, .. } if *tile == ring);
    says(&planted(plan.clone(), PRODUCER, &mut remove(fills)), "waits for a slot of bias_tile to be full");
    // The slot is handed back before it is read.
    let faults = planted(plan.clone(), CONSUMERS, &mut |body, index| {
        let hit = releases(&body[index].op);
        if hit {
            body.swap(index - 1, index);
        }
        hit
    });
    says(&faults, "bias_tile is read but not acquired");
    // The second statement is that of the loop, where the slot holds another tile than the first.
    let mut read = 0;
    let faults = planted(plan, CONSUMERS, &mut |body, index| {
        let StmtOp::ReadRows { slot: slot @ Slot::Of(Iteration::Ahead(..)), .. } = &mut body[index].op else { return false };
        let Slot::Of(Iteration::Ahead(id, _)) = *slot else { unreachable!("matched") };
        read += 1;
        if read == 2 {
            *slot = Slot::Of(Iteration::First(id, 0));
        }
        read == 2
    });
    says(&faults, "bias_tile is read with the contents of another iteration");
}

#[test]
fn rows_of_a_ring_of_another_shape_or_type_are_caught() {
    let shrunk = |change: &dyn Fn(&mut Plan, usize)| {
        let mut plan = with_bias();
        let ring = plan.tiles.iter().position(|tile| tile.name == "bias_tile").expect("a ring of the bias");
        change(&mut plan, ring);
        verify(&plan)
    };
    says(&shrunk(&|plan, ring| plan.tiles[ring].columns = 32), "128 x 64 are read or written");
    says(&shrunk(&|plan, ring| plan.tiles[ring].barriers = None), "bias_tile is no ring between roles");
    says(&shrunk(&|plan, ring| plan.tiles[ring].elem = Elem::F32), "bias_tile is no tile of 16-bit numbers");
}

#[test]
fn a_constant_that_is_not_declared_where_it_is_used_is_caught() {
    for (plan, role) in [(block("stages=2"), 0), (roles("stages=2"), PRODUCER), (roles("stages=2"), CONSUMERS)] {
        let is_let = |op: &StmtOp| matches!(op, StmtOp::Let { name, .. } if name.contains("tile") || name == "b");
        let faults = planted(plan.clone(), role, &mut remove(is_let));
        says(&faults, "is used where it is not declared");
        let faults = planted(plan, role, &mut |body, index| {
            let hit = is_let(&body[index].op);
            if hit {
                let again = body[index].clone();
                body.insert(index, again);
            }
            hit
        });
        says(&faults, "is declared twice");
    }
    // The coordinate of a loop is known in the loop.
    let faults = planted(block("stages=2"), 0, &mut |body, index| {
        let StmtOp::Loop { body: inner, .. } = &mut body[index].op else { return false };
        let at = inner.iter().position(|s| matches!(s.op, StmtOp::When { guard: Guard::Exists(_), .. })).expect("a copy ahead");
        let copy = inner.remove(at);
        body.insert(index, copy);
        true
    });
    says(&faults, "j is used where it is not declared");
}

#[test]
fn a_tile_of_another_shape_is_caught() {
    let faults =
        planted(plan_of(MATMUL, Elem::F16, "sm_80", "block_m=64,block_n=128,block_k=32"), 0, &mut |body, index| match &mut body
            [index]
            .op
        {
            StmtOp::Dot { a: OperandA::Tile(tile, _), b, .. } => {
                std::mem::swap(tile, b);
                true
            }
            _ => false,
        });
    says(&faults, "elements, where");
    // Through the tensor map of Q, whose boxes have more rows.
    let mut others = Vec::new();
    let mut plan = roles("stages=2");
    change_first(&mut plan.roles[PRODUCER].body, &mut |body, index| {
        others.extend(match &body[index].op {
            StmtOp::Fill { map, .. } => Some(*map),
            _ => None,
        });
        false
    });
    let faults = planted(plan, PRODUCER, &mut |body, index| match &mut body[index].op {
        StmtOp::Fill { map, .. } if *map != others[0] => {
            *map = others[0];
            true
        }
        _ => false,
    });
    says(&faults, "is filled through a tensor map with boxes of another shape");
}

#[test]
fn a_fragment_of_another_shape_is_caught() {
    let plan = block("stages=2");
    let of = |storage: &str| {
        plan.variables.iter().position(|v| format!("{:?}", v.storage).contains(storage)).expect("there is such a variable")
    };
    let (row, packed) = (of("Row"), of("Packed"));
    for other in [row, packed] {
        let faults = planted(plan.clone(), 0, &mut |body, index| match &mut body[index].op {
            StmtOp::Dot { acc, .. } => {
                *acc = other;
                true
            }
            _ => false,
        });
        says(&faults, "where Fragment(Accumulator) is wanted");
    }
    // A score for each row of a fragment that has one value for each row and column.
    let faults = planted(plan.clone(), 0, &mut |body, index| match &mut body[index].op {
        StmtOp::Reduce { to, from, .. } => {
            std::mem::swap(to, from);
            true
        }
        _ => false,
    });
    says(&faults, "where Fragment(Row) is wanted");
}

#[test]
fn what_is_not_there_is_caught() {
    let faults = planted(block("stages=2"), 0, &mut |body, index| match &mut body[index].op {
        StmtOp::Copy { tile, .. } => {
            *tile = 99;
            true
        }
        _ => false,
    });
    says(&faults, "names a tile, a variable or a loop that the plan does not have");
    let faults = planted(block("stages=2"), 0, &mut |body, index| {
        let guarded = matches!(body[index].op, StmtOp::Barrier);
        if guarded {
            let barrier = body.remove(index);
            body.insert(index, when(Guard::FirstPart, barrier));
        }
        guarded
    });
    says(&faults, "a condition asks for a part, but programs do not meet");
}

#[test]
fn rows_that_two_warps_would_have_are_caught() {
    let mut plan = block("block_m=128,warps=4,stages=2");
    assert_eq!((verify(&plan), plan.rows_per_warp), (Vec::<String>::new(), 32));
    plan.rows_per_warp = 16;
    says(&verify(&plan), "has 32 rows of a warp, which has 16: warps would share rows");
}

#[test]
fn tiles_in_the_same_memory_are_caught() {
    let mut plan = block("stages=2");
    plan.tiles[1].offset -= 16;
    says(&verify(&plan), "lie in the same shared memory");
    let mut plan = roles("stages=2");
    plan.tiles[0].barriers = plan.tiles[1].barriers;
    says(&verify(&plan), "lie in the same shared memory");
}

#[test]
fn a_copy_of_an_iteration_that_does_not_exist_is_caught() {
    for walk in ["ascending", "descending"] {
        // The copy ahead, whether there is one more or not.
        let faults = planted(block(&format!("stages=2,walk={walk}")), 0, &mut |body, index| match &mut body[index].op {
            StmtOp::When { guard: Guard::Exists(Iteration::Ahead(..)), body: inner, .. } => {
                let inner = std::mem::take(inner);
                body.splice(index..=index, inner);
                true
            }
            _ => false,
        });
        says(&faults, "is named for an iteration that does not exist");
    }
    let faults = planted(roles("stages=2"), CONSUMERS, &mut |body, index| match &mut body[index].op {
        StmtOp::Acquire { slot: Slot::Of(Iteration::Ahead(_, n)), .. } => {
            *n += 1;
            true
        }
        _ => false,
    });
    says(&faults, "is about an iteration of j that does not exist");
}

#[test]
fn a_loop_that_leaves_out_its_first_iteration_is_caught() {
    let faults = planted(block("stages=2"), 0, &mut |body, index| match &mut body[index].op {
        StmtOp::Loop { from, .. } => {
            *from += 1;
            true
        }
        _ => false,
    });
    assert!(!faults.is_empty());
}

#[test]
fn copies_and_waits_in_a_branch_of_a_warp_are_caught() {
    let in_vote = |wanted: fn(&StmtOp) -> bool| {
        let mut plan = block("stages=2,running_max=max_first");
        let mut moved = None;
        assert!(change_first(&mut plan.roles[0].body, &mut |body, index| {
            let in_loop = matches!(body[index].op, StmtOp::Loop { .. });
            let StmtOp::Loop { body: inner, .. } = &mut body[index].op else { return in_loop };
            change_first(inner, &mut |body, index| {
                let hit = wanted(&body[index].op);
                if hit {
                    moved = Some(body.remove(index));
                }
                hit
            })
        }));
        let moved = moved.expect("was found");
        assert!(change_first(&mut plan.roles[0].body, &mut |body, index| match &mut body[index].op {
            StmtOp::When { guard: Guard::Vote { .. }, body, .. } => {
                body.push(moved.clone());
                true
            }
            _ => false,
        }));
        verify(&plan)
    };
    let wanted: [fn(&StmtOp) -> bool; 4] = [
        |op| matches!(op, StmtOp::Copy { .. }),
        |op| matches!(op, StmtOp::Commit),
        |op| matches!(op, StmtOp::Wait(_)),
        |op| matches!(op, StmtOp::Barrier),
    ];
    for wanted in wanted {
        says(&in_vote(wanted), "in a branch that each warp takes by itself");
    }
}

#[test]
fn a_barrier_where_only_cut_tiles_are_is_caught() {
    let faults = planted(block("stages=2"), 0, &mut |body, index| {
        let hit = matches!(body[index].op, StmtOp::Barrier);
        if hit {
            let barrier = body.remove(index);
            body.insert(index, when(Guard::Cut(vec![0]), barrier));
        }
        hit
    });
    says(&faults, "in a branch that may not be taken");
}

/// What is written in a branch is not written where the branch is not taken, whichever role it is
/// of.
#[test]
fn a_variable_that_only_a_branch_writes_is_caught() {
    for (plan, role) in [(block("stages=2"), 0), (roles("stages=2"), CONSUMERS)] {
        let faults = planted(plan, role, &mut |body, index| {
            let hit = matches!(body[index].op, StmtOp::Map { .. });
            if hit {
                let map = body.remove(index);
                body.insert(index, when(Guard::Cut(vec![0]), map));
            }
            hit
        });
        says(&faults, "is read before it is written");
    }
    // Whose flag nobody has set.
    let optimistic = roles("running_max=optimistic,overlap=on");
    let faults = planted(optimistic, CONSUMERS, &mut |body, index| match &mut body[index].op {
        StmtOp::When { guard: Guard::Vote { flag: flag @ Some(_), .. }, .. } => {
            *flag = None;
            true
        }
        _ => false,
    });
    says(&faults, "is read before it is written");
}

#[test]
fn staged_rows_are_those_of_a_warp() {
    let is_stage = |op: &StmtOp| matches!(op, StmtOp::Stage { .. });
    says(&planted(scalar(), 0, &mut remove(is_stage)), "is read before it is filled");
    // Staged after the product that reads it: a tile with other contents is read.
    let faults = planted(scalar(), 0, &mut |body, index| {
        if !is_stage(&body[index].op) {
            return false;
        }
        let stage = body.remove(index);
        let product = body[index..].iter().position(|s| matches!(s.op, StmtOp::Dot { .. })).expect("a product reads it") + index;
        body.insert(product + 1, stage);
        true
    });
    says(&faults, "is read before it is filled");
    // In rows that all warps read, with no barrier between, or with all rows read by each warp.
    let mut plan = scalar();
    let staged = plan.tiles.iter().position(|t| t.warp_private).expect("P is staged");
    plan.tiles[staged].warp_private = false;
    says(&verify(&plan), "is read with no barrier after it was computed");
    let mut plan = scalar();
    let copied = plan.tiles.iter().position(|t| !t.warp_private).expect("Q is copied");
    plan.tiles[copied].warp_private = true;
    says(&verify(&plan), "is copied by all warps, but its rows are private to warps");
}

#[test]
fn fragments_are_loaded_from_tiles_that_have_landed() {
    let registers = || block("stages=2,operand_a=registers");
    let is_load = |op: &StmtOp| matches!(op, StmtOp::LoadFragments { .. });
    says(&planted(registers(), 0, &mut remove(is_load)), "is read before it is written");
    let before = |wanted: fn(&StmtOp) -> bool| {
        planted(registers(), 0, &mut |body, index| {
            if !is_load(&body[index].op) {
                return false;
            }
            let to = body[..index].iter().rposition(|s| wanted(&s.op)).expect("a wait and a barrier come before");
            let load = body.remove(index);
            body.insert(to, load);
            true
        })
    };
    says(&before(|op| matches!(op, StmtOp::Wait(_))), "is read while its copy is in flight");
    says(&before(|op| matches!(op, StmtOp::Barrier)), "is read with no barrier after its copy landed");
}

#[test]
fn a_producer_that_computes_is_caught() {
    let mut plan = roles("stages=2");
    let is_map = |stmt: &&Stmt| matches!(stmt.op, StmtOp::Map { .. });
    let map = plan.roles[CONSUMERS].body.iter().find(is_map).expect("a state is initialised").clone();
    plan.roles[PRODUCER].body.push(map);
    says(&verify(&plan), "the producer does more than fill rings");
}

#[test]
fn a_slot_that_nobody_waits_for_is_caught() {
    // The tile of rows once more, behind all others.
    let faults = planted(roles("stages=2"), PRODUCER, &mut |body, index| {
        let hit = matches!(body[index].op, StmtOp::Fill { slot: Slot::Only, .. });
        if hit {
            let again = body[index].clone();
            body.push(again);
        }
        hit
    });
    assert!(!faults.is_empty());
    let mut plan = roles("stages=2");
    let is_ring = |op: &StmtOp, tile| matches!(op, StmtOp::Acquire { tile: t, .. } if *t == tile) || *op == StmtOp::Release(tile);
    let mut ring = None;
    change_first(&mut plan.roles[PRODUCER].body, &mut |body, index| match body[index].op {
        StmtOp::Fill { tile, slot: Slot::Only, .. } => {
            ring = Some(tile);
            true
        }
        _ => false,
    });
    let ring = ring.expect("the rows are loaded once");
    fn without(body: &mut Vec<Stmt>, drop: &dyn Fn(&StmtOp) -> bool) {
        body.retain(|s| !drop(&s.op));
        body.iter_mut().flat_map(|s| s.op.bodies_mut()).for_each(|body| without(body, drop));
    }
    without(&mut plan.roles[CONSUMERS].body, &|op| {
        is_ring(op, ring) || matches!(op, StmtOp::Dot { a: OperandA::Tile(tile, _), .. } if *tile == ring)
    });
    says(&verify(&plan), "is filled, but never waited for and handed back");
}

#[test]
fn the_ring_of_programs_is_filled_and_waited_for() {
    let dynamic = || roles("persistent=dynamic,outer_stages=2");
    // One role takes one program, the other all of them.
    for (role, wanted) in [
        (PRODUCER, "deadlock: a warpgroup waits for a slot of the ring of programs to be full"),
        (CONSUMERS, "the ring of programs"),
    ] {
        let mut plan = dynamic();
        let body = &mut plan.roles[role].body;
        let StmtOp::Work(inner) = body.remove(0).op else { panic!("a role begins with its programs") };
        *body = inner;
        says(&verify(&plan), "an expression asks for the row, the column or the program where there is none");
        // It takes the first, whatever its number is.
        for stmt in &mut plan.roles[role].body {
            if let StmtOp::Let { value, .. } = &mut stmt.op {
                let mut asks = false;
                value.visit(&mut |e| asks |= *e == Expr::Builtin(Builtin::Program));
                if asks {
                    *value = Expr::Int(0);
                }
            }
        }
        says(&verify(&plan), wanted);
    }
    let mut plan = dynamic();
    plan.work_ring = None;
    says(&verify(&plan), "if and only if blocks take them dynamically");
    let mut plan = dynamic();
    plan.work_ring = plan.tiles[0].ring_at();
    says(&verify(&plan), "lie in the same shared memory");
}

#[test]
fn states_are_saved_as_they_are_loaded() {
    let semaphore = || block("block_m=64,block_n=64,split_k=4,fixup=semaphore");
    let reversed = |load: bool| {
        planted(semaphore(), 0, &mut |body, index| match &mut body[index].op {
            StmtOp::SaveState(variables) if !load => {
                variables.reverse();
                true
            }
            StmtOp::LoadState { to: variables, .. } if load => {
                variables.reverse();
                true
            }
            _ => false,
        })
    };
    says(&reversed(false), "what is loaded is not what is saved");
    says(&reversed(true), "what is loaded is not what is saved");
}

#[test]
fn what_every_part_stores_is_caught() {
    let semaphore = block("block_m=64,block_n=64,split_k=4,fixup=semaphore");
    let cluster = plan_of(CAUSAL, Elem::F16, "sm_90a", "block_m=64,block_n=64,split_k=4,fixup=cluster");
    for plan in [semaphore, cluster] {
        let faults = planted(plan, 0, &mut |body, index| {
            let StmtOp::When { guard: Guard::LastPart | Guard::OwnWarps, body: inner, .. } = &mut body[index].op else {
                return false;
            };
            let Some(at) = inner.iter().position(|s| matches!(s.op, StmtOp::Store { .. })) else { return false };
            let store = inner.remove(at);
            body.insert(index + 1, store);
            true
        });
        says(&faults, "every part stores what one of them should");
    }
}

#[test]
fn a_store_that_may_be_left_out_is_caught() {
    for guard in [Guard::Exists(Iteration::First(0, 0)), Guard::Cut(vec![0]), Guard::OneLeft(0)] {
        for (plan, role) in [(block("stages=2"), 0), (roles("stages=2"), CONSUMERS)] {
            let faults = planted(plan, role, &mut |body, index| {
                let hit = matches!(body[index].op, StmtOp::Store { .. });
                if hit {
                    let store = body.remove(index);
                    body.insert(index, when(guard.clone(), store));
                }
                hit
            });
            says(&faults, "a store in a branch that may not be taken");
        }
    }
}

#[test]
fn a_computation_from_what_is_stored_is_caught() {
    let mut plan = plan_of(ROTARY, Elem::F16, "sm_80", "stages=2");
    let mut output = None;
    change_first(&mut plan.roles[0].body, &mut |body, index| {
        if let StmtOp::Store { to, .. } = &body[index].op {
            output = Some(to.tensor.clone());
        }
        false
    });
    let output = output.expect("the kernel stores");
    let faults = planted(plan, 0, &mut |body, index| match &mut body[index].op {
        StmtOp::Compute { inputs, .. } => inputs.iter_mut().any(|input| match &mut input.from {
            InputSource::Matrix(from) | InputSource::Row(from) | InputSource::Column(from) => {
                from.tensor = output.clone();
                true
            }
            InputSource::Tile(..) => false,
        }),
        _ => false,
    });
    says(&faults, "is read by a computation and stored to");
}

/// Bits of positions whose first one has bits that the elements of a thread have too.
#[test]
fn positions_that_begin_between_sixteens_have_no_bits_apart() {
    let text = include_str!("../../runtime/kernels/dropout_attention.rs");
    let plan = || plan_of(text, Elem::F16, "sm_90a", &format!("{HOPPER},stages=2,overlap=on"));
    let shown = plan().to_string();
    assert!(shown.contains("bits(row(i_row)) >> 4") && shown.contains("bits(column(j_column)) >> 4"), "{shown}");
    for first in ["i_row", "j_column"] {
        let faults = planted(plan(), CONSUMERS, &mut |body, index| {
            let StmtOp::Let { name, value: Expr::Infix(_, tile, _), .. } = &mut body[index].op else { return false };
            let here = name == first;
            if here {
                **tile = Expr::infix(Operator::Mul, Expr::name("tile"), Expr::Int(40));
            }
            here
        });
        says(&faults, &format!("{first} has the bits of its elements"));
    }
    // The first position of columns in place of that of rows, and a position that nothing defines.
    let of_columns = planted(plan(), CONSUMERS, &mut |body, index| {
        let StmtOp::Let { name, value: Expr::Infix(_, _, first), .. } = &mut body[index].op else { return false };
        let here = name == "i_row";
        if here {
            **first = Expr::Builtin(Builtin::FirstColumn);
        }
        here
    });
    says(&of_columns, "i_row has the bits of its elements");
    for (of, fault) in [
        (Expr::RowPosition("nothing".into()), "nothing has the bits of its elements"),
        (Expr::Int(3), "something else than a position has the bits of one"),
    ] {
        let faults = planted(plan(), CONSUMERS, &mut |body, index| {
            let StmtOp::Map { value, .. } = &mut body[index].op else { return false };
            *value = Expr::call(Function::Bits, [of.clone()]).cast(Cast::Float);
            true
        });
        says(&faults, fault);
    }
}
