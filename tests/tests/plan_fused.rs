//! The plan of the kernel that adds to the gradient of queries, its products waited for late: faults
//! planted in what warps stage for each other, in two slots or one, and in the rows that they add.

use flashtile::{Arch, Facts, Form, Kernel, Schedule};
use flashtile_codegen::plan::{Barriers, Event, Exchange, Iteration, OperandA, Plan, Slot, Stmt, StmtOp, verify};
use flashtile_codegen::{Instance, Machine, generate, plans, rank};
use flashtile_dsl::ir::Elem;
use flashtile_tests::planted::{change_first, planted, remove, says, without_nth};

/// The plan of columns of causal attention, with its product across the warps a step later.
fn plan() -> Plan {
    plan_with("block_n=64", 128)
}

/// The same with that product in the step of its operand.
fn in_step() -> Plan {
    plan_with("block_n=128,sum_lag=0,terms=product", 64)
}

/// Columns of the gradient of a built-in kernel in a form.
fn columns(kernel: &str, form: Form, head_dim: i64) -> Instance {
    let forward = Kernel::builtin(kernel).expect("a built-in");
    let gradient = forward.gradient_in(form, &["q", "k", "v"], &["o"]).expect("has one");
    let kernel = gradient.backward[1].bind(Elem::Bf16, [("D", head_dim)]).expect("binds");
    kernel.instance(Facts::best(kernel.ir()))
}

fn late(knobs: &str) -> Schedule {
    let late = "block_m=128,warps=8,tensor_op=wgmma,copy=tma,min_blocks=1,producer_registers=24,stages=2,overlap=late";
    format!("{late},{knobs}").parse().expect("a schedule")
}

fn hopper() -> &'static Arch {
    Arch::named("sm_90a").expect("in the table")
}

/// The plan of 192 columns, which two warpgroups share.
fn plan_of_groups(knobs: &str) -> Plan {
    planned(&format!("{SHARED},terms=product,{knobs}").parse().expect("a schedule"), 192)
}

const SHARED: &str = "tensor_op=wgmma,copy=tma,block_m=64,block_n=64,warps=8,column_groups=2,min_blocks=1,producer_registers=24,\
                      overlap=late";

fn plan_with(knobs: &str, head_dim: i64) -> Plan {
    planned(&late(knobs), head_dim)
}

fn planned(schedule: &Schedule, head_dim: i64) -> Plan {
    let instance = columns("causal_attention", Form::Fused, head_dim);
    let all = plans(&instance, schedule, hopper()).expect("is legal");
    all.into_iter().find(|plan| plan.to_string().contains("put_rows")).expect("a launch adds rows")
}

const CONSUMERS: usize = 1;

/// What the verifier says without any of the statements that are wanted: of which one stands in the
/// loop, and one behind it.
fn without_all(wanted: impl Fn(&StmtOp) -> bool + Copy) -> Vec<String> {
    let mut plan = plan();
    let mut removed = 0;
    while change_first(&mut plan.roles[CONSUMERS].body, &mut remove(wanted)) {
        removed += 1;
    }
    assert_eq!(removed, 2, "there are two");
    verify(&plan)
}

/// Whether an operation is this step of an exchange.
fn exchanges(wanted: Exchange) -> impl Fn(&StmtOp) -> bool {
    move |op| matches!(op, StmtOp::Exchange { step, .. } if *step == wanted)
}

/// The step of the consumers in the text of a plan, up to what it adds.
fn step_of(text: &str) -> &str {
    let (_, step) = text.rsplit_once("loop i from 1 by 1").expect("a loop of the consumers");
    let end = step.find("add_rows").expect("the step ends so") + "add_rows".len();
    &step[..end]
}

fn stand_in_order(step: &str, order: &[&str]) {
    let places: Vec<_> = order.iter().map(|what| step.find(what).unwrap_or_else(|| panic!("{what} in {step}"))).collect();
    assert!(places.is_sorted(), "{places:?} in {step}");
}

#[test]
fn the_product_across_the_warps_is_made_a_step_later() {
    let text = plan().to_string();
    assert!(text.contains("operand_tile: bf16 128 x 64, 2 slots"), "{text}");
    let step = step_of(&text);
    assert!(!step.contains("  barrier\n"), "{step}");
    let order = [
        "= dot(tile t2_tile",
        "= dot(tile t1_tile",
        "reserve operand_tile[i]",
        "stage operand_tile[i]",
        "supply operand_tile[i]",
        "step i-1",
        "await operand_tile[i]",
        "= dot(tile operand_tile[i].t",
        "dk += dot(packed operand_packed",
        "wait dv, dq_i",
        "free operand_tile[i]",
        "put_rows",
        "add_rows",
    ];
    stand_in_order(step, &order);
}

/// What the step computes itself stays in registers for the product of its own warps, and one slot
/// is enough for the others.
#[test]
fn the_product_across_the_warps_may_end_its_own_step() {
    let text = in_step().to_string();
    assert!(text.contains("operand_tile: bf16 128 x 128, 1 slots"), "{text}");
    let step = step_of(&text);
    assert!(!step.contains("barrier") && !step.contains("step i"), "{step}");
    let order = [
        "= dot(tile t2_tile",
        "= dot(tile t1_tile",
        "reserve operand_tile[i]",
        "stage_turned operand_tile[i]",
        "supply operand_tile[i]",
        "dk += dot(packed ",
        "await operand_tile[i]",
        "dq_i = dot(tile operand_tile[i], ",
        "wait dv, dk, dq_i",
        "free operand_tile[i]",
        "put_rows",
        "add_rows",
    ];
    stand_in_order(step, &order);
}

/// Warpgroups that share columns make it behind the scores of the next step, and wait for it no
/// sooner than they stage what the one after that reads.
#[test]
fn column_groups_make_the_product_across_them_behind_the_next_scores() {
    let text = plan_of_groups("sum_lag=1").to_string();
    assert!(text.contains("operand_tile: bf16 64 x 64, 2 slots"), "{text}");
    assert!(text.contains("var dq_i: accumulator 1 x 12 across 4 warps"), "{text}");
    let step = step_of(&text);
    assert!(!step.contains("  barrier\n"), "{step}");
    let order = [
        "= dot(tile t2_tile",
        "= dot(tile t1_tile",
        "step i-1",
        "dq_i = dot(tile operand_tile[i].t",
        "wait dk, t",
        "dv += dot(",
        "wait dq_i",
        "reserve operand_tile[i]",
        "supply operand_tile[i]",
        "await operand_tile[i]",
        "dk += dot(tile operand_tile[i]",
        "free operand_tile[i]",
        "put_rows",
        "add_rows",
    ];
    stand_in_order(step, &order);
    let own = plan_of_groups("sum_lag=0").to_string();
    let order = ["supply operand_tile[i]", "await operand_tile[i]", "dq_i = dot(", "dk += dot(", "wait dv, dq_i", "put_rows"];
    stand_in_order(step_of(&own), &order);
}

/// Each step of the exchange between column groups, wherever it stands; the one slot of an operand
/// that two steps need; and the slot of another step.
#[test]
fn faults_in_what_column_groups_exchange_for_sums_are_caught() {
    for knobs in ["sum_lag=1", "sum_lag=0"] {
        for wanted in [Exchange::Reserve, Exchange::Supply, Exchange::Await, Exchange::Free] {
            let mut places = 0;
            while let Some(faults) = without_nth(plan_of_groups(knobs), CONSUMERS, exchanges(wanted), places) {
                assert!(!faults.is_empty(), "{knobs}: {wanted:?}, {places}");
                places += 1;
            }
            assert!(places >= 4, "of two tiles, in the first step and the others: {places} of {wanted:?}");
        }
    }
    let mut one = plan_of_groups("sum_lag=1");
    let tile = one.tiles.iter().position(|t| t.name == "operand_tile").expect("is staged");
    one.tiles[tile].slots = 1;
    says(&verify(&one), "deadlock: a warpgroup waits for a slot of operand_tile to be free");
    let early = planted(plan_of_groups("sum_lag=1"), CONSUMERS, &mut |body, index| match &mut body[index].op {
        StmtOp::Step { at: at @ Iteration::Behind(..), body: of }
            if of.iter().any(|stmt| matches!(stmt.op, StmtOp::Dot { .. })) =>
        {
            let Iteration::Behind(id, _) = *at else { unreachable!("it is behind") };
            *at = Iteration::Ahead(id, 0);
            true
        }
        _ => false,
    });
    assert!(!early.is_empty(), "a slot that nothing is staged in is read");
}

/// What warps make has the rows of the product across them for columns: it is turned once, where it
/// is written or where it is read.
#[test]
fn an_operand_across_the_warps_is_turned_once() {
    let staged = planted(in_step(), CONSUMERS, &mut |body, index| match &mut body[index].op {
        StmtOp::Stage { turned, .. } => std::mem::replace(turned, false),
        _ => false,
    });
    says(&staged, "operand_tile is not turned once for the product dq_i");
    let turn = |from: bool| {
        move |body: &mut Vec<Stmt>, index: usize| match &mut body[index].op {
            StmtOp::Dot { a: OperandA::Tile(..), a_turned, zero: true, .. } if *a_turned == from => {
                *a_turned = !from;
                true
            }
            _ => false,
        }
    };
    says(&planted(plan(), CONSUMERS, &mut turn(true)), "operand_tile is not turned once for the product dq_i");
}

/// Each step of the exchange of a slot, in the first step, in the loop and behind it.
#[test]
fn no_step_of_the_exchange_may_be_left_out() {
    for (step, says_so) in [
        (Exchange::Reserve, "operand_tile is written, and was not reserved"),
        (Exchange::Supply, "operand_tile is awaited, and was not supplied since"),
        (Exchange::Await, "operand_tile is read with no barrier since warps wrote it"),
        (Exchange::Free, "operand_tile is awaited and never freed"),
    ] {
        for (plan, nth) in [plan, in_step].into_iter().flat_map(|plan| (0..3).map(move |nth| (plan, nth))) {
            let without = without_nth(plan(), CONSUMERS, exchanges(step), nth);
            assert_eq!(without.is_some(), nth < 2, "{step:?} stands in two places");
            let Some(faults) = without else { continue };
            assert!(!faults.is_empty(), "{step:?} {nth}");
            if nth == 0 {
                says(&faults, says_so);
            }
        }
    }
}

/// A step of the exchange that comes too early or too late.
#[test]
fn steps_of_the_exchange_have_their_places() {
    let stage: fn(&StmtOp) -> bool = |op| matches!(op, StmtOp::Stage { .. });
    let supply: fn(&StmtOp) -> bool = |op| matches!(op, StmtOp::Exchange { step: Exchange::Supply, .. });
    let put_behind = |is_it: fn(&StmtOp) -> bool, place: fn(&StmtOp) -> bool| {
        planted(plan(), CONSUMERS, &mut |body, index| {
            let further = is_it(&body[index].op).then(|| body[index..].iter().position(|stmt| place(&stmt.op))).flatten();
            if let Some(further) = further {
                body[index..=index + further].rotate_left(1);
            }
            further.is_some()
        })
    };
    let faults = put_behind(|op| matches!(op, StmtOp::Exchange { step: Exchange::Reserve, .. }), stage);
    says(&faults, "operand_tile is written, and was not reserved");
    let faults = put_behind(stage, supply);
    says(&faults, "operand_tile is supplied, and was not written since");
}

/// A slot is waited for where its operand begins to be computed, and no earlier: what comes before,
/// such as exponentials, must not wait for other warps.
#[test]
fn a_slot_is_reserved_before_its_operand_is_computed() {
    for mut plan in [plan(), in_step()] {
        let variables = plan.variables.clone();
        let mut steps = 0;
        change_first(&mut plan.roles[CONSUMERS].body, &mut |list, at| {
            if exchanges(Exchange::Reserve)(&list[at].op) {
                let before_it_is_staged = list[at + 1..].iter().take_while(|stmt| !matches!(stmt.op, StmtOp::Stage { .. }));
                let computed = before_it_is_staged.filter_map(|stmt| match &stmt.op {
                    StmtOp::Map { to, .. } | StmtOp::Pack { to, .. } => Some(variables[*to].name.as_str()),
                    _ => None,
                });
                assert_eq!(computed.collect::<Vec<_>>(), ["ds", "operand_packed"]);
                steps += 1;
            }
            false
        });
        assert_eq!(steps, 2, "the first step and the others");
    }
}

/// What `tanh` gives is multiplied to the product in flight before the capped score takes its
/// registers, so that softcap has the blocks of causal attention.
#[test]
fn factors_of_softcap_are_multiplied_before_scores_are_capped() {
    let instance = columns("softcap_attention", Form::Fused, 128);
    let capped = || {
        let all = plans(&instance, &late("block_n=64,terms=product"), hopper()).expect("is legal");
        all.into_iter().find(|plan| plan.to_string().contains("put_rows")).expect("a launch adds rows")
    };
    let text = capped().to_string();
    let order = ["t5 = tanh_approx(", "wait dp", "dp = dp * fma(-t5, t5, 1.0)", "= t5 * ", "p = ex2(", "dv += ", "ds2 = dp * p"];
    stand_in_order(step_of(&text), &order);
    let dp = capped().variables.iter().position(|variable| variable.name == "dp").expect("a gradient of weights");
    let waits = |op: &StmtOp| matches!(op, StmtOp::Wait(events) if events.contains(&Event::Product(dp)));
    for nth in 0..2 {
        let faults = without_nth(capped(), CONSUMERS, waits, nth).expect("waits in the first step and the others");
        says(&faults, "dp is read while a product writes it");
    }
}

/// A slot that is handed back before the product that reads it is done.
#[test]
fn a_slot_is_freed_behind_its_product() {
    let faults = planted(plan(), CONSUMERS, &mut |body, index| {
        let StmtOp::Step { body: issued, .. } = &body[index].op else { return false };
        let [await_it, dot] = &issued[..] else { return false };
        let (StmtOp::Exchange { tile, slot, .. }, StmtOp::Dot { .. }) = (&await_it.op, &dot.op) else { return false };
        let free = StmtOp::Exchange { step: Exchange::Free, tile: *tile, slot: *slot };
        let free = Stmt::new(free, dot.span);
        let StmtOp::Step { body: issued, .. } = &mut body[index].op else { return false };
        issued.push(free);
        true
    });
    says(&faults, "operand_tile is freed while a product may read it");
    let faults = planted(in_step(), CONSUMERS, &mut |body, index| {
        let waited = matches!(body[index].op, StmtOp::Exchange { step: Exchange::Free, .. });
        let at = body[..index].iter().rposition(|stmt| matches!(stmt.op, StmtOp::Wait(_)));
        let Some(at) = at.filter(|_| waited) else { return false };
        body[at..=index].rotate_right(1);
        true
    });
    says(&faults, "operand_tile is freed while a product may read it");
}

#[test]
fn what_is_exchanged_has_mbarriers() {
    let mut none = plan();
    let tile = none.tiles.iter().position(|t| t.name == "operand_tile").expect("is staged");
    none.tiles[tile].exchange = None;
    says(&verify(&none), "operand_tile is exchanged, and has no mbarriers for that");
}

#[test]
fn a_slot_is_staged_again_when_all_have_read_it() {
    let mut one = plan();
    let tile = one.tiles.iter().position(|t| t.name == "operand_tile").expect("is staged");
    one.tiles[tile].slots = 1;
    says(&verify(&one), "deadlock: a warpgroup waits for a slot of operand_tile to be free");
    one.tiles[tile].exchange = None;
    says(&verify(&one), "a slot of operand_tile is staged that it does not have");
}

#[test]
fn a_slot_is_read_in_the_iteration_that_staged_it() {
    let faults = planted(plan(), CONSUMERS, &mut |body, index| {
        if let StmtOp::Dot { a: OperandA::Tile(_, slot), a_turned: true, .. } = &mut body[index].op
            && let Slot::Of(Iteration::Ahead(id, 0)) = *slot
        {
            *slot = Slot::Of(Iteration::Ahead(id, 1));
            return true;
        }
        false
    });
    assert!(!faults.is_empty(), "a slot that holds something else is read");
}

#[test]
fn rows_are_added_once() {
    let faults = planted(plan(), CONSUMERS, &mut remove(|op| matches!(op, StmtOp::PutRows { .. })));
    says(&faults, "is added, and holds nothing that was not added before");
    let faults = without_all(|op| matches!(op, StmtOp::AddRows { .. }));
    says(&faults, "holds rows that are never added");
}

#[test]
fn rows_are_put_in_a_tile_of_each_warp() {
    let mut small = plan();
    let tile = small.tiles.iter().position(|t| t.name.ends_with("_rows")).expect("rows are added");
    small.tiles[tile].rows /= 2;
    says(&verify(&small), "rows of 64 numbers");
}

#[test]
fn rows_are_added_in_boxes_of_their_shape() {
    let map = |plan: &Plan| plan.maps.iter().position(|map| map.tensor == "grad_q_sum").expect("rows are added");
    let faults: [fn(&mut Vec<u32>, &mut u32); 3] =
        [|tile, _| tile[0] /= 2, |tile, _| tile[1] *= 2, |tile, bytes| (tile[0], *bytes) = (2 * tile[0], *bytes / 2)];
    for fault in faults {
        let mut other = plan();
        let map = map(&other);
        let map = &mut other.maps[map];
        fault(&mut map.tile, &mut map.element_bytes);
        says(&verify(&other), "is added through a tensor map with boxes of another shape");
    }
    // Rows of 64 numbers are two parts, which follow each other in a box.
    let mut apart = plan();
    let tile = apart.tiles.iter().position(|t| t.name.ends_with("_rows")).expect("rows are added");
    assert!(apart.tiles[tile].woven && apart.maps[map(&apart)].is_split());
    apart.tiles[tile].woven = false;
    says(&verify(&apart), "is added through a tensor map with boxes of another shape");
}

/// Rows of 128 numbers of a warp are four parts: with these behind each other half of the rows that
/// are written at once would be in the same banks.
#[test]
fn rows_in_four_parts_lie_apart() {
    let schedule = format!("{SHARED},stages=1").replace("overlap=late", "overlap=off").parse().expect("a schedule");
    let plan = planned(&schedule, 256);
    let rows = plan.tiles.iter().find(|t| t.name.ends_with("_rows")).expect("rows are added");
    assert_eq!((rows.columns, rows.slabs, rows.woven), (128, 4, false), "{plan}");
}

/// What is behind the eight columns of a narrow operand is times 0, in a step of 16 and no longer
/// one, if TMA has filled the left operand.
#[test]
fn a_narrow_operand_is_read_twice_beside_zeros() {
    let narrow =
        |plan: &Plan| plan.tiles.iter().position(|t| t.name == "lse_parts_tile").expect("a vector is a step of a product");
    assert!(in_step().tiles[narrow(&in_step())].is_narrow());
    let tile = narrow(&in_step());
    let of_narrow = |op: &StmtOp| matches!(op, StmtOp::Dot { b, .. } if *b == tile);
    let with = |fault: &mut dyn FnMut(&mut Vec<Stmt>, usize) -> bool| planted(in_step(), CONSUMERS, fault);
    let longer = with(&mut |body, index| match &mut body[index].op {
        op if !of_narrow(op) => false,
        StmtOp::Dot { depth, .. } => {
            *depth = 32;
            true
        }
        _ => false,
    });
    says(&longer, "lse_parts_tile has 128 x 8 elements, where 128 x 32 are read");
    let mut packed = None;
    let from_registers = with(&mut |body, index| {
        packed = packed.or(body.iter().find_map(|stmt| match stmt.op {
            StmtOp::Dot { a: OperandA::Packed(v), .. } => Some(v),
            _ => None,
        }));
        match &mut body[index].op {
            StmtOp::Dot { a, b, .. } if *b == tile && packed.is_some() => {
                *a = OperandA::Packed(packed.expect("was found"));
                true
            }
            _ => false,
        }
    });
    says(&from_registers, "lse_parts_tile has 128 x 8 elements, where 128 x 16 are read");
    says(&from_registers, "lse_parts_tile has rows of 16 bytes, which only a step of 16 takes for columns");
}

/// A branch for cut tiles does not part the exponentials of all other steps from their conversion,
/// nor that from what stages the rows, where warps exchange tiles; elsewhere they are written once.
#[test]
fn elementwise_statements_are_one_piece_in_steps_without_cuts() {
    let source =
        |form, knobs: &str| generate(&columns("causal_attention", form, 64), &late(knobs), hopper()).expect("is legal").source;
    let packs_of = |source: &str| {
        let step = source.rsplit_once("#pragma unroll 1").expect("a loop").1;
        step.lines().filter(|line| line.contains("= pack_bf16(p[")).count()
    };
    let fused = source(Form::Fused, "block_n=128,sum_lag=0,terms=product");
    assert_eq!(packs_of(&fused), 2, "{fused}");
    let straight = fused.rsplit_once("else {").expect("steps without cuts").1;
    let parts = ["ds[mt][nt][e] = dp", "= pack_bf16(ds[", "stmatrix_x4_turned(", "mbarrier_arrive("];
    let [computed, converted, staged, supplied] = parts.map(|what| straight.find(what).expect(what));
    assert!(computed < converted && converted < staged && staged < supplied, "{straight}");
    assert!(!straight[computed..staged].contains("if (") && !straight[computed..staged].contains("wait("), "{straight}");
    let step = fused.rsplit_once("#pragma unroll 1").expect("a loop").1;
    assert_eq!(step.matches("stmatrix_x4_turned(").count(), 2, "rows of cut tiles are staged in their own branch");
    assert_eq!(packs_of(&source(Form::Plain, "block_n=64,terms=product")), 1);
}

/// Blocks of 64 by 64 add twice as much to memory for each pair as those of 128 by 128.
#[test]
fn the_model_counts_what_is_added() {
    let instance = columns("causal_attention", Form::Fused, 64);
    let sizes = [("B", 2), ("H", 32), ("G", 32), ("M", 8192), ("N", 8192)].map(|(name, size)| (name.to_owned(), size)).into();
    let ranked = rank(&instance, hopper(), &sizes, &Machine::typical(hopper())).expect("has schedules");
    let best = |large: bool| {
        let is_of = |s: &Schedule| (s.main.block_m >= 128) == large;
        ranked.iter().find(|(s, _)| is_of(s)).map(|(_, seconds)| *seconds).expect("is tried")
    };
    assert!(best(true) < 0.95 * best(false), "{} and {}", best(true), best(false));
}

/// Of a product across the warps each warpgroup has 64 columns, also where the last of them has
/// fewer: its right operand has columns more, which TMA fills with zeros.
#[test]
fn columns_beyond_the_tensor_are_zeros_of_the_operand() {
    for (head_dim, slabs) in [(72, 2), (96, 4), (112, 2)] {
        let mut plan = plan_with("block_n=64,terms=product", head_dim);
        assert_eq!(verify(&plan), Vec::<String>::new());
        let keys = plan.tiles.iter().position(|t| t.name == "t2_tile").expect("keys");
        let tile = &mut plan.tiles[keys];
        assert_eq!((tile.columns, tile.slabs), (128, slabs), "{tile:?}");
        tile.columns = 16 * u32::try_from(head_dim).expect("positive").div_ceil(16);
        says(&verify(&plan), "t2_tile has 128 x ");
    }
    // Of 64 columns the second warpgroup would have none.
    let refused = plans(&columns("causal_attention", Form::Fused, 64), &late("block_n=64"), hopper()).expect_err("no columns");
    assert!(refused.to_string().contains("64 rows and 64 columns by 8 warps"), "{refused}");
}

/// The terms of a step come in the slots of the queries and of the gradients that they go with.
#[test]
fn terms_come_with_the_tiles_of_their_products() {
    let plan = || plan_with("block_n=64,terms=product", 128);
    let text = plan().to_string();
    for wanted in ["lse_parts_tile: bf16 64 x 8, 2 slots", "comes with q_i_tile", "comes with t4_tile"] {
        assert!(text.contains(wanted), "{text}");
    }
    let both = |line: &str| line.contains("fill q_i_tile[i] <- q_map(") && line.contains(", lse_parts_tile <- lse_parts_map(");
    assert!(text.lines().any(both), "{text}");
    for absent in ["acquire lse_parts_tile", "release lse_parts_tile", "acquire grad_l_parts_tile"] {
        assert!(!text.contains(absent), "{text}");
    }
    assert_eq!(verify(&plan()), Vec::<String>::new());

    let small = plan().tiles.iter().position(|t| t.name == "lse_parts_tile").expect("terms");
    let alone = planted(plan(), 0, &mut |body, index| match &mut body[index].op {
        StmtOp::Fill { with, .. } if with.iter().any(|companion| companion.tile == small) => {
            with.clear();
            true
        }
        _ => false,
    });
    says(&alone, "q_i_tile is filled without a tile that comes with it");
    let twice = planted(plan(), 0, &mut |body, index| match &mut body[index].op {
        StmtOp::Fill { with, .. } if !with.is_empty() => {
            with.push(with[0].clone());
            true
        }
        _ => false,
    });
    says(&twice, "is filled without a tile that comes with it, or with another");
    let mut slots = plan();
    slots.tiles[small].slots = 3;
    says(&verify(&slots), "lse_parts_tile comes with what is no ring of as many slots");
    let mut chain = plan();
    chain.tiles[small].barriers = Some(Barriers::Of(small));
    says(&verify(&chain), "lse_parts_tile comes with what is no ring of as many slots");
    let waited = planted(plan(), CONSUMERS, &mut |body, index| {
        let hit = matches!(body[index].op, StmtOp::Acquire { tile, slot: Slot::Of(_) } if plan().companions(tile) == [small]);
        if hit {
            body[index].op = StmtOp::Acquire { tile: small, slot: Slot::Of(Iteration::Ahead(0, 0)) };
        }
        hit
    });
    says(&waited, "lse_parts_tile is no ring between roles");
    // Where the terms are read, their slot was handed back.
    let early = planted(plan(), CONSUMERS, &mut |body, index| {
        let reads = matches!(body[index].op, StmtOp::Dot { b, .. } if b == small);
        if reads {
            let ring = plan().ring_of(small);
            body.insert(index, Stmt::new(StmtOp::Release(ring), body[index].span));
        }
        reads
    });
    says(&early, "q_i_tile is handed back while a product may read it");
}

/// A product that enters the loop in flight would keep the registers of its operand from those of
/// the loop.
#[test]
fn the_first_step_leaves_no_operand_in_registers() {
    let text = plan().to_string();
    let (first, _) = text.rsplit_once("loop i from 1 by 1").expect("a loop of the consumers");
    assert!(first.trim_end().ends_with("wait dk"), "{first}");
    assert!(step_of(&text).contains("dk += dot(packed operand_packed, q_i_tile[i])"), "{text}");
}

/// Heads that read the same keys are walked one after the other, no others are, and the code of a
/// step is written once.
#[test]
fn heads_of_a_group_are_walked() {
    let text = plan().to_string();
    let of_heads = text.lines().filter(|line| line.trim_start().starts_with("let h_begin") && line.contains("params.G"));
    assert_eq!(of_heads.count(), 2, "both roles know where the heads of a group begin: {text}");
    assert!(!text.contains("h * params.G"), "nothing is left of the condition: {text}");
    let source =
        generate(&columns("causal_attention", Form::Fused, 128), &late("block_n=64"), hopper()).expect("is legal").source;
    let heads: Vec<&str> =
        source.lines().zip(source.lines().skip(1)).filter(|(_, l)| l.contains("for (int h =")).map(|(l, _)| l).collect();
    assert_eq!(heads.iter().map(|line| line.trim()).collect::<Vec<_>>(), ["#pragma unroll 1"; 2], "{source}");
}

/// As many heads with keys of their own and heads that share keys walk the same tiles: a prediction
/// for the one is near that for the other where programs are many.
#[test]
fn the_model_counts_the_heads_of_a_group() {
    let instance = columns("causal_attention", Form::Fused, 128);
    let seconds = |groups: i64| {
        let sizes =
            [("B", 8), ("H", 32), ("G", groups), ("M", 4096), ("N", 4096)].map(|(name, size)| (name.to_owned(), size)).into();
        rank(&instance, hopper(), &sizes, &Machine::typical(hopper())).expect("has schedules")[0].1
    };
    let (own, shared) = (seconds(32), seconds(8));
    assert!((0.9..1.1).contains(&(shared / own)), "{own} and {shared}");
}
