//! Groups of warps that share the columns of tiles (`column_groups`), and programs that do
//! (`column_programs`): right on the emulator, in every form; and faults planted in their plans,
//! each found by the verifier. Needs NVRTC, no GPU.

use flashtile::conformance::{Case, cases};
use flashtile::toolchain::Toolchain;
use flashtile::tuner::judge;
use flashtile::{Arch, BoundKernel, Device, Elem, Facts, Form, Kernel, LaunchOptions, Schedule, verify};
use flashtile_codegen::plan::{
    Builtin, Exchange, Expr, Guard, OperandA, Plan, SharedTile, Slot, StmtOp, Voters, verify as faults_of,
};
use flashtile_codegen::{Error, plans};
use flashtile_tests::planted::{change_first, planted, remove, says, without_nth};

const LATENT: &str = "mla_decode/f16/B2_H70_N203_C128_R32/normal/scale=0.2";
const WIDE: &str = "attention/f16/B1_H1_G1_M128_N128_D128/normal";
const WGMMA: &str = "tensor_op=wgmma,copy=tma,block_m=64,warps=8,column_groups=2";

fn case(name: &str) -> Case {
    cases().into_iter().find(|case| case.name() == name).unwrap_or_else(|| panic!("{name} is not in the table"))
}

fn schedule(knobs: &str) -> Schedule {
    knobs.parse().unwrap_or_else(|e| panic!("{knobs}: {e}"))
}

fn planned(name: &str, arch: &str, knobs: &str) -> Result<Vec<Plan>, Error> {
    let case = case(name);
    let instance = case.prepare().expect("prepares").kernel.instance(case.facts().expect("binds"));
    plans(&instance, &schedule(knobs), Arch::named(arch).expect("in the table"))
}

fn plan(knobs: &str) -> Plan {
    planned(LATENT, "sm_90a", &format!("{WGMMA},block_n=64,{knobs}")).unwrap_or_else(|e| panic!("{knobs}: {e}")).remove(0)
}

/// The role that computes.
fn computing(plan: &Plan) -> usize {
    plan.roles.len() - 1
}

#[test]
fn columns_may_be_shared() {
    let wgmma = |knobs: &str| ("sm_90a", format!("{WGMMA},{knobs}"));
    let mma = |knobs: &str| ("sm_80", format!("copy=cp_async,{knobs}"));
    let schedules = [
        wgmma("block_n=64,stages=2"),
        wgmma("block_n=32,stages=1,running_max=max_first"),
        wgmma("block_n=64,stages=2,persistent=static,outer_stages=1,min_blocks=1,producer_registers=40"),
        wgmma("block_n=32,stages=3,persistent=dynamic,running_max=max_first,walk=descending"),
        wgmma("block_n=64,stages=2,split_k=2"),
        wgmma("block_n=64,stages=2,running_max=optimistic,persistent=dynamic"),
        wgmma("block_n=32,stages=1,running_max=optimistic,split_k=2"),
        wgmma("block_n=64,stages=2,running_max=optimistic,held_columns=64,persistent=static"),
        wgmma("block_n=64,stages=1,held_columns=128"),
        mma("block_m=32,warps=4,column_groups=2,block_n=32,stages=2"),
        mma("block_m=32,warps=4,column_groups=2,block_n=64,stages=1,swizzle=padded,running_max=max_first"),
        mma("block_m=64,warps=4,column_groups=2,block_n=32,stages=2,operand_a=registers,fragments=single"),
        mma("block_m=16,warps=2,column_groups=2,block_n=32,split_k=3,fixup=semaphore"),
        mma("block_m=16,warps=4,column_groups=4,block_n=64,stages=1,swizzle=off"),
        mma("block_m=16,warps=4,column_groups=4,block_n=64,stages=2,running_max=optimistic"),
        mma("block_m=16,warps=1,block_n=32,split_k=4,combine.warps=2,combine.column_groups=2,combine.column_programs=2"),
        mma(
            "block_m=16,warps=1,block_n=32,split_k=4,fixup=tree,combine.column_programs=4,combine.warps=1,combine.column_groups=1",
        ),
    ];
    // Shares of 48 and 32 columns, which a swizzle keeps together with those of others.
    let within_parts = [
        mma("block_m=32,warps=4,column_groups=2,block_n=32,stages=2"),
        mma("block_m=32,warps=8,column_groups=4,block_n=64,stages=1,fragments=double_buffer"),
        mma("block_m=32,warps=4,column_groups=2,block_n=64,stages=2,fragments=single"),
        mma("block_m=32,warps=4,column_groups=2,block_n=32,stages=2,fragments=preload,operand_a=registers"),
    ];
    let multiply_adds = [
        mma("tensor_op=ffma,block_m=32,warps=4,column_groups=2,block_n=32,stages=2"),
        mma("tensor_op=ffma,block_m=16,warps=4,column_groups=4,block_n=32,stages=1,running_max=max_first"),
        mma("tensor_op=ffma,block_m=16,warps=2,column_groups=2,block_n=32,stages=2,running_max=optimistic"),
        mma("tensor_op=ffma,block_m=64,warps=8,column_groups=4,block_n=64,stages=1,swizzle=off"),
        mma("tensor_op=ffma,block_m=32,warps=2,column_groups=2,block_n=32,stages=1,swizzle=padded,split_k=3,fixup=semaphore"),
    ];
    let sets = [
        (LATENT, &schedules[..]),
        (WIDE, &schedules[..]),
        ("attention/f16/B1_H2_G1_M77_N141_D96/normal", &within_parts[..]),
        ("causal_attention/bf16/B1_H2_G1_M77_N141_D64/normal", &within_parts[..]),
        ("attention/f32/B1_H2_G1_M77_N141_D256/normal", &multiply_adds[1..3]),
        ("attention/f32/B1_H2_G1_M77_N141_D80/normal", &multiply_adds[..]),
        ("causal_attention/f32/B1_H2_G1_M77_N141_D40/normal", &multiply_adds[..]),
    ];
    for (name, schedules) in sets {
        for (arch, knobs) in schedules {
            let case = case(name);
            let mut prepared = case.prepare().expect("prepares");
            let arch = Some(Arch::named(arch).expect("in the table"));
            let options = LaunchOptions {
                toolchain: Toolchain::shared(),
                arch,
                schedule: Some(schedule(knobs)),
                ..LaunchOptions::default()
            };
            let kernel = prepared.kernel.on_with(&Device::emulator(), options).unwrap_or_else(|e| panic!("{name} {knobs}: {e}"));
            verify::run(&kernel, &mut prepared.arguments).unwrap_or_else(|e| panic!("{name} {knobs}: {e}"));
        }
    }
}

#[test]
fn values_that_are_columns_of_the_keys_are_not_loaded_again() {
    let plan = plan("stages=2");
    let rings = plan.tiles.iter().filter(|t| t.barriers.is_some()).count();
    assert_eq!(rings, 2, "queries, and keys that are values too: {plan}");
    let block = planned(LATENT, "sm_80", "block_m=16,warps=1,block_n=32").expect("is legal").remove(0);
    assert_eq!(block.tiles.iter().filter(|t| t.slots > 1).count(), 1, "{block}");
}

/// Exponentials are taken against an old reference, staged, and made again where a group is wrong.
#[test]
fn groups_choose_together_whether_a_step_is_made_again() {
    let plan = || plan("stages=2,running_max=optimistic,persistent=dynamic");
    let text = plan().to_string();
    let (_, step) = text.rsplit_once("loop j from 0 by 1").expect("a loop of the consumers");
    let (step, _) = step.split_once("release kv_tile").expect("what is behind it");
    let (often, rarely) = step.split_once("when any of 1 together").expect("a vote");
    assert!(!often.contains("barrier") && !often.contains("rowmax"), "the vote is the one barrier of most steps: {step}");
    assert!(rarely.contains("rowmax") && rarely.contains("barrier"), "{step}");
    let order = ["s = dot", "reserve operand_tile", "wait s", "stage operand_tile", "when any", "acc += dot", "wait acc", "free"];
    let mut rest = step;
    for part in order {
        let at = rest.find(part).unwrap_or_else(|| panic!("{part} stands behind what is before it in\n{step}"));
        rest = &rest[at..];
    }
    let role = computing(&plan());
    let barriers = rarely.split("acc += dot").next().map_or(0, |branch| branch.matches("barrier").count());
    assert_eq!(barriers, 2, "between maxima, and behind what is staged again: {rarely}");
    for wanted in [Exchange::Reserve, Exchange::Free] {
        let faults = planted(plan(), role, &mut remove(|op| matches!(op, StmtOp::Exchange { step, .. } if *step == wanted)));
        says(&faults, if wanted == Exchange::Reserve { "written while other warps may read it" } else { "was not reserved" });
    }
    let faults = planted(plan(), role, &mut |body, index| match &mut body[index].op {
        StmtOp::When { guard: Guard::Vote { of, .. }, .. } => {
            *of = Voters::Warp;
            true
        }
        _ => false,
    });
    says(&faults, "in a branch that a warp takes by itself");
    says(&faults, "t30 is read where each lane of a row has a part of it");
    for number in 0..barriers {
        let faults = planted(plan(), role, &mut |body, index| {
            let StmtOp::When { body: branch, .. } = &mut body[index].op else { return false };
            let at = branch.iter().enumerate().filter(|(_, stmt)| stmt.op == StmtOp::Barrier).nth(number);
            let Some(at) = at.map(|(at, _)| at) else { return false };
            branch.remove(at);
            true
        });
        says(&faults, "is read with no barrier since warps wrote it");
    }
}

/// The last columns of the queries are in registers for the whole loop.
#[test]
fn columns_of_queries_are_held() {
    let knobs = "stages=2,running_max=optimistic,held_columns=64,persistent=static";
    let (plan, role) = (|| plan(knobs), computing(&plan(knobs)));
    let text = plan().to_string();
    let order = [
        "each program",
        "acquire q_i_tile",
        "q_i_held = fragments q_i_tile from 96",
        "loop j from 0",
        "s = dot(tile q_i_tile, kv_tile[j].t) depth 96, wgmma",
        "s += dot(packed q_i_held, kv_tile[j].t from 96) depth 64, wgmma",
        "wait s",
        "release q_i_tile",
    ];
    let mut rest = text.split_once("role consumers").expect("a role").1;
    for part in order {
        let at = rest.find(part).unwrap_or_else(|| panic!("{part} stands behind what is before it in\n{text}"));
        rest = &rest[at..];
    }
    let faults = planted(plan(), role, &mut remove(|op| matches!(op, StmtOp::LoadFragments { .. })));
    says(&faults, "q_i_held is read before it is written");
    let from = |to: u32| {
        planted(plan(), role, &mut |body, index| match &mut body[index].op {
            StmtOp::LoadFragments { column, .. } => {
                *column = to;
                true
            }
            _ => false,
        })
    };
    says(&from(40), "q_i_tile is read from a column on at which no slab begins");
    assert!(!from(128).is_empty(), "beyond the last column");
    let early = planted(plan(), role, &mut |body, index| {
        let reads = matches!(body[index].op, StmtOp::LoadFragments { .. });
        if reads {
            body.swap(index - 1, index);
        }
        reads
    });
    says(&early, "q_i_tile is read but not acquired");
    for (knobs, why) in
        [("held_columns=40", "held_columns=40"), ("held_columns=64,overlap=on", "held_columns=64 takes overlap=off")]
    {
        let refused = planned(LATENT, "sm_90a", &format!("{WGMMA},block_n=64,{knobs}")).expect_err(knobs).to_string();
        assert!(refused.contains(why), "{refused}");
    }
}

#[test]
fn exchanges_without_their_barriers_are_caught() {
    for knobs in ["stages=2", "stages=1,running_max=max_first", "stages=2,persistent=static"] {
        let plan = || plan(knobs);
        let role = computing(&plan());
        let count = plan().to_string().matches("\n").count();
        // Every barrier, by its number.
        let mut barriers = 0;
        for number in 0..count {
            let Some(faults) = without_nth(plan(), role, |op| *op == StmtOp::Barrier, number) else { break };
            barriers += 1;
            let known = faults.iter().any(|f| {
                f.contains("is read with no barrier since warps wrote it")
                    || f.contains("is written while other warps may read it")
            });
            // The last one lies between programs, of which a block has one.
            assert!(known, "{knobs}: barrier {number} of {}: {faults:#?}", plan());
        }
        assert!(barriers >= 3, "{knobs}: {barriers} barriers");
        let publishes = |op: &StmtOp| matches!(op, StmtOp::Publish { .. });
        says(&planted(plan(), role, &mut remove(publishes)), "is a ring with mbarriers if and only if");
        let stages = |op: &StmtOp| matches!(op, StmtOp::Stage { .. });
        says(&planted(plan(), role, &mut remove(stages)), "is a ring with mbarriers if and only if");
    }
}

/// Multiply-adds of column groups: what each stages for the others, and where.
#[test]
fn faults_in_shared_operands_of_multiply_adds_are_caught() {
    let knobs = "tensor_op=ffma,copy=cp_async,block_m=32,warps=4,column_groups=2,block_n=32,stages=2";
    let plan = || planned("attention/f32/B1_H2_G1_M77_N141_D80/normal", "sm_80", knobs).expect("is legal").remove(0);
    let staged = |plan: &Plan| {
        let mut tile = None;
        change_first(&mut plan.clone().roles[0].body, &mut |body, index| {
            if let StmtOp::Stage { tile: found, .. } = body[index].op {
                tile = Some(found);
            }
            tile.is_some()
        });
        tile.expect("weights are staged")
    };
    let stages = |op: &StmtOp| matches!(op, StmtOp::Stage { .. });
    says(&planted(plan(), 0, &mut remove(stages)), "is read before it is filled");
    let without_barrier = planted(plan(), 0, &mut |body, index| {
        let hit = index > 0 && body[index].op == StmtOp::Barrier && stages(&body[index - 1].op);
        if hit {
            body.remove(index);
        }
        hit
    });
    says(&without_barrier, "is read with no barrier after it was computed");
    let changed = |change: &dyn Fn(&mut SharedTile)| {
        let mut plan = plan();
        let tile = staged(&plan);
        change(&mut plan.tiles[tile]);
        faults_of(&plan)
    };
    says(&changed(&|tile| tile.warp_private = true), "has the columns of one group");
    // Tensor cores of warps load 16 columns at once.
    let knobs = "copy=cp_async,block_m=32,warps=4,column_groups=2,block_n=32";
    let mut odd = planned("attention/f16/B1_H2_G1_M77_N141_D96/normal", "sm_80", knobs).expect("is legal").remove(0);
    let acc = odd.variables.iter().position(|v| v.n_tiles == 6).expect("half of the columns of values");
    odd.variables[acc].n_tiles = 5;
    says(&faults_of(&odd), "begins within a part of its columns");
    says(&changed(&|tile| tile.columns -= 16), "elements, where");
}

#[test]
fn a_tile_is_not_staged_before_products_have_read_it() {
    let plan = plan("stages=2");
    let role = computing(&plan);
    // The product is waited for only after its operand is staged again.
    let faults = planted(plan, role, &mut |body, index| {
        let StmtOp::Dot { a: OperandA::Tile(tile, Slot::Only), acc, zero: false, .. } = body[index].op else { return false };
        let stage = body.iter().position(|s| matches!(s.op, StmtOp::Stage { tile: staged, .. } if staged == tile));
        let stage = body[stage.expect("it is staged")].clone();
        let wait = (index..body.len()).find(|&at| matches!(&body[at].op, StmtOp::Wait(events) if events.len() == 1));
        let _ = acc;
        body.insert(wait.expect("it is waited for"), stage);
        true
    });
    says(&faults, "is written while other warps may read it");
}

#[test]
fn shapes_that_do_not_fit_column_groups_are_caught() {
    let changed = |change: &dyn Fn(&mut Plan)| {
        let mut plan = plan("stages=2");
        change(&mut plan);
        faults_of(&plan)
    };
    says(&changed(&|plan| plan.column_groups = 3), "divide into 1, 2 or 4 column groups");
    says(&changed(&|plan| plan.column_groups = 4), "column groups of consumers are whole warpgroups");
    // Without groups nothing is shared, and tiles would be read beyond their ends.
    assert!(!changed(&|plan| plan.column_groups = 1).is_empty());
    let dot = |change: &dyn Fn(&mut StmtOp)| {
        let plan = plan("stages=2");
        let role = computing(&plan);
        planted(plan, role, &mut |body, index| {
            let hit = matches!(body[index].op, StmtOp::Dot { zero: false, .. });
            if hit {
                change(&mut body[index].op);
            }
            hit
        })
    };
    let at = |column: u32| {
        move |op: &mut StmtOp| {
            if let StmtOp::Dot { b_column, .. } = op {
                *b_column = column
            }
        }
    };
    says(&dot(&at(16)), "begins within a part of its columns");
    says(&dot(&at(64)), "elements, where");
    let packed = |op: &mut StmtOp| {
        if let StmtOp::Dot { a, .. } = op {
            *a = OperandA::Packed(0);
        }
    };
    assert!(!dot(&packed).is_empty());
}

/// Shares of 48 columns would begin within a box: they have 64, and what is beyond the tensor is zero.
#[test]
fn shares_begin_with_boxes() {
    let plans =
        planned("attention/f16/B1_H2_G1_M77_N141_D96/normal", "sm_90a", &format!("{WGMMA},block_n=64")).expect("is legal");
    let plan = plans.iter().find(|plan| plan.column_groups == 2).expect("a plan with groups");
    let keys = plan.tiles.iter().find(|tile| tile.name.starts_with("k")).expect("keys");
    assert_eq!((keys.columns, keys.pitch, keys.slabs), (128, 64, 4), "{keys:?}");
}

#[test]
fn what_column_groups_cannot_share_is_refused_with_a_reason() {
    let refused = |name: &str, arch: &str, knobs: &str| match planned(name, arch, knobs) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("{knobs} is legal"),
    };
    let told = |knobs: &str| refused(LATENT, "sm_90a", &format!("{WGMMA},block_n=64,{knobs}"));
    assert!(told("overlap=on").contains("column_groups takes overlap=off or late"));
    assert!(told("ping_pong=products").contains("column_groups takes ping_pong=off"));
    let late = "running_max=optimistic takes overlap=off with column_groups";
    assert!(told("running_max=optimistic,overlap=late").contains(late));
    // Tensor cores take shares of 16 columns or more, multiply-adds of 8.
    let narrow = "copy=cp_async,block_m=16,warps=4,column_groups=4,block_n=32";
    let told = refused("causal_attention/f16/B1_H2_G1_M113_N113_D64/normal", "sm_80", narrow);
    assert!(told.contains("do not divide into 4 shares, of 16"), "{told}");
    let told =
        refused("attention/f32/B1_H2_G1_M77_N141_D40/normal", "sm_80", &format!("tensor_op=ffma,{narrow}").replace("32", "16"));
    assert!(told.contains("do not divide into 4 shares, of 8"), "{told}");
    let told = refused(LATENT, "sm_90a", &format!("{WGMMA},block_n=16"));
    assert!(told.contains("do not divide into 2 shares"), "{told}");
    let told = refused(LATENT, "sm_80", "column_groups=3");
    assert!(told.contains("1, 2 or 4"), "{told}");
    for warps in [1, 3] {
        let told = refused(LATENT, "sm_80", &format!("block_m=16,column_groups=2,warps={warps}"));
        assert!(told.contains(&format!("column_groups=2 does not divide warps={warps}")), "{told}");
    }
    let told = refused(LATENT, "sm_80", "column_programs=2");
    assert!(told.contains("the kernel has a product"), "{told}");
}

#[test]
fn programs_that_share_columns_store_rows_once() {
    let knobs = "block_m=16,warps=1,block_n=32,split_k=4,combine.warps=2,combine.column_groups=2,combine.column_programs=2";
    let combine = planned(LATENT, "sm_80", knobs).expect("is legal").remove(1);
    let text = combine.to_string();
    let rows = text.lines().find(|line| line.contains("store lse")).expect("it stores lse");
    assert!(rows.contains("column_program == 0"), "{rows}");
    let mut group = false;
    for stmt in &combine.roles[0].body {
        for e in stmt.op.expressions() {
            e.visit(&mut |e| group |= *e == Expr::Builtin(Builtin::ColumnGroup));
        }
    }
    assert!(group, "{text}");
}

/// Columns of a gradient whose products are waited for late; warpgroups share `dv` and `dk`.
const LATE: &str = "tensor_op=wgmma,copy=tma,block_m=64,warps=8,column_groups=2,block_n=64,stages=2,overlap=late";

/// Columns of keys and of values are loaded once, ahead of the first step, and products that take
/// them wait for none that does too.
#[test]
fn columns_are_held_where_products_are_waited_for_late() {
    let bound = gradient_columns(192);
    let instance = bound.instance(Facts::best(bound.ir()));
    let knobs = schedule(&format!("{LATE},terms=product,held_columns=64,min_blocks=1,producer_registers=24"));
    let made = || plans(&instance, &knobs, Arch::named("sm_90a").expect("in the table")).expect("is legal");
    let plan = || made().into_iter().find(|plan| plan.column_groups == 2).expect("a plan with groups");
    let text = plan().to_string();
    let text = text.split_once("role consumers").expect("a role").1;
    for held in ["t1_held", "t2_held"] {
        assert_eq!(text.matches(&format!("{held} = fragments")).count(), 1, "{text}");
        assert_eq!(text.matches(&format!("dot(packed {held}")).count(), 2, "in the first step and the others: {text}");
    }
    let (before, step) = text.rsplit_once("loop i from 1 by 1").expect("a loop of the consumers");
    assert!(before.contains("t2_held = fragments t2_tile from 128"), "{before}");
    let scores = step.find("dot(packed t2_held").expect("scores");
    let gradients = step.find("dot(packed t1_held").expect("their gradients");
    assert!(!step[scores..gradients].contains("wait"), "{step}");
    let faults = planted(plan(), computing(&plan()), &mut remove(|op| matches!(op, StmtOp::LoadFragments { .. })));
    says(&faults, "_held is read before it is written");
}

/// Columns of the gradient of causal attention, a program for each tile of them.
pub(crate) fn gradient_columns(head_dim: i64) -> BoundKernel {
    let forward = Kernel::builtin("causal_attention").expect("built in");
    let gradient = forward.gradient_in(Form::Plain, &["q", "k", "v"], &["o"]).expect("has one");
    gradient.backward[1].bind(Elem::Bf16, [("D", head_dim)]).expect("binds")
}

fn late_plan() -> Plan {
    let bound = gradient_columns(256);
    let instance = bound.instance(Facts::best(bound.ir()));
    let knobs = schedule(&format!("{LATE},terms=product,min_blocks=1,producer_registers=40"));
    let all = plans(&instance, &knobs, Arch::named("sm_90a").expect("in the table")).expect("is legal");
    all.into_iter().find(|plan| plan.column_groups == 2).expect("a plan with groups")
}

#[test]
fn what_groups_stage_is_exchanged_where_products_are_waited_for_late() {
    let plan = late_plan();
    let text = plan.to_string();
    let (_, step) = text.rsplit_once("loop i from 1 by 1").expect("a loop of the consumers");
    let (step, _) = step.split_once("release t2_tile").expect("what is behind it");
    assert!(!step.contains("barrier"), "{step}");
    // Keys' gradients are made while the next scores are, and `dO` is free before that.
    let order = ["dp = dot", "wait dk, t", "free operand", "reserve operand_tile", "supply operand_tile", "dv += dot", "wait dp"];
    let order =
        [&order[..], &["reserve operand_packed_2_tile", "dk += dot", "wait dv", "free operand_tile", "release t"]].concat();
    let mut rest = step;
    for part in order {
        let at = rest.find(part).unwrap_or_else(|| panic!("{part} stands behind what is before it in\n{step}"));
        rest = &rest[at..];
    }
    for wanted in [Exchange::Reserve, Exchange::Supply, Exchange::Await, Exchange::Free] {
        let mut places = 0;
        while let Some(faults) = without_nth(
            late_plan(),
            computing(&late_plan()),
            |op| matches!(op, StmtOp::Exchange { step, .. } if *step == wanted),
            places,
        ) {
            assert!(!faults.is_empty(), "{wanted:?}, {places}");
            places += 1;
        }
        assert!(places >= 4, "of two tiles, in the first step and the others: {places} of {wanted:?}");
    }
}

#[test]
fn gradients_of_wide_heads_are_right_waited_for_late() {
    let cases = [(256, "product", 0), (192, "product", 64), (144, "added", 64), (200, "product", 0), (256, "product", 64)];
    for (head_dim, terms, held) in cases {
        let registers = if held == 0 { 40 } else { 24 };
        let knobs = format!("{LATE},terms={terms},held_columns={held},min_blocks=1,producer_registers={registers}");
        let knobs = schedule(&knobs);
        let arch = Arch::named("sm_90a");
        let options = LaunchOptions { toolchain: Toolchain::shared(), arch, schedule: Some(knobs), ..LaunchOptions::default() };
        let kernel =
            gradient_columns(head_dim).on_with(&Device::emulator(), options).unwrap_or_else(|e| panic!("{head_dim}: {e}"));
        for (m, n) in [(130, 77), (1, 3), (64, 200)] {
            let shape = [("B", 1), ("H", 2), ("G", 1), ("M", m), ("N", n)];
            let sizes = shape.map(|(name, size)| (name.to_owned(), size)).into_iter().collect();
            for verdict in judge(&kernel, &sizes, 5).unwrap_or_else(|e| panic!("{head_dim}: {e}")) {
                assert!(verdict.passed(), "{head_dim}, {m}, {n}: {verdict}");
            }
        }
    }
}
