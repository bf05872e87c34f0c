//! Planted faults in sums and maxima of which each lane of a row has a part: parts that are taken
//! for the whole, and wholes that are added up once more.

use flashtile_codegen::plan::{Expr, Function, Operator, Plan, Reduction, Shape, Stmt, StmtOp, VarId, verify};
use flashtile_codegen::{Arch, Facts, Instance, Schedule, plans};
use flashtile_dsl::ir::{Binding, Elem, ReduceOp, SourceText};
use flashtile_tests::planted::{change_first, planted, remove, says};

const CAUSAL: &str = include_str!("../../runtime/kernels/causal_attention.rs");
const SINKS: &str = include_str!("../../runtime/kernels/sink_attention.rs");
const WARPS: &str = "block_m=32,block_n=32,warps=2,stages=2";
const GROUPS: &str = "block_m=32,block_n=32,warps=4,column_groups=2,stages=2";
const HOPPER: &str = "tensor_op=wgmma,copy=tma,block_m=128,block_n=64,warps=8";

/// With bf16 and heads of 64 columns.
fn plan(text: &str, arch: &str, knobs: &str) -> Plan {
    let source = SourceText { name: String::new(), text: text.into(), first_line: 1 };
    let kernel = flashtile_dsl::syntax::parse(&source).expect("parses").remove(0);
    let sizes = kernel.size_named("D").map(|_| ("D", 64));
    let (binding, facts) = (Binding::new(&kernel, Elem::Bf16, sizes), Facts::best(&kernel));
    let schedule: Schedule = knobs.parse().expect("a schedule");
    let arch = Arch::named(arch).expect("in the table");
    plans(&Instance { kernel, binding, facts }, &schedule, arch).unwrap_or_else(|e| panic!("{knobs}: {e}")).remove(0)
}

/// The role that computes is the last.
fn computing(plan: &Plan) -> usize {
    plan.roles.len() - 1
}

fn in_computing(plan: Plan, change: &mut dyn FnMut(&mut Vec<Stmt>, usize) -> bool) -> Vec<String> {
    let role = computing(&plan);
    planted(plan, role, change)
}

/// Changes what a statement is, if it is as wanted.
fn change(wanted: impl Fn(&mut StmtOp) -> bool) -> impl FnMut(&mut Vec<Stmt>, usize) -> bool {
    move |body, index| wanted(&mut body[index].op)
}

/// Writes the first statement that is wanted twice.
fn double(wanted: impl Fn(&StmtOp) -> bool) -> impl FnMut(&mut Vec<Stmt>, usize) -> bool {
    move |body, index| {
        let hit = wanted(&body[index].op);
        if hit {
            body.insert(index, body[index].clone());
        }
        hit
    }
}

fn is_sum(op: &StmtOp) -> bool {
    matches!(op, StmtOp::QuadSum(_))
}

/// The variable that is summed over lanes first.
fn summed(plan: &Plan) -> VarId {
    let mut found = None;
    change_first(&mut plan.clone().roles[computing(plan)].body, &mut |body, index| {
        if let StmtOp::QuadSum(v) = body[index].op {
            found = Some(v);
        }
        found.is_some()
    });
    found.expect("a sum is completed")
}

const PLANS: [(&str, &str); 5] = [
    ("sm_80", WARPS),
    ("sm_80", GROUPS),
    ("sm_80", "block_m=32,block_n=32,warps=2,tensor_op=mma_m16n8k16,running_max=optimistic"),
    ("sm_90a", HOPPER),
    ("sm_90a", "tensor_op=wgmma,copy=tma,block_m=128,block_n=64,warps=8,overlap=on,running_max=optimistic"),
];

#[test]
fn a_sum_that_is_not_completed_is_caught() {
    for (arch, knobs) in PLANS {
        let plan = || plan(CAUSAL, arch, knobs);
        let wanted =
            if plan().column_groups > 1 { "have published no parts of it" } else { "each lane of a row has a part of it" };
        says(&in_computing(plan(), &mut remove(is_sum)), wanted);
    }
}

#[test]
fn a_sum_that_is_completed_twice_is_caught() {
    for (arch, knobs) in PLANS {
        let plan = || plan(CAUSAL, arch, knobs);
        let wanted = if plan().column_groups > 1 { "which have no parts of it" } else { "which all have the same" };
        says(&in_computing(plan(), &mut double(is_sum)), wanted);
    }
}

/// It goes in each step to what is a sum already.
#[test]
fn a_sum_that_is_completed_in_each_step_is_caught() {
    for (arch, knobs) in PLANS {
        let complete = |op: &mut StmtOp| match op {
            StmtOp::Reduce { operation: Reduction::Sum, across_quad, .. } => !std::mem::replace(across_quad, true),
            _ => false,
        };
        let faults = in_computing(plan(CAUSAL, arch, knobs), &mut change(complete));
        assert!(faults.iter().any(|f| f.contains("added up over the lanes of a row")), "{knobs}: {faults:#?}");
    }
}

/// Once a sum over pages of a page's own sum was 4 times too large.
#[test]
fn the_sum_of_an_inner_loop_is_complete_for_the_loop_around_it() {
    let text = "pub fn f(x: &Tensor<f32, (P, M, N)>, o: &mut Tensor<f32, (M)>) {
        let i = program(tiles(M));
        let mut all = zeros(i);
        for c in 0..P {
            let mut sum = zeros(i);
            for j in tiles(N) { sum += rowsum(load(x, [c, i, j])); }
            all += sum;
        }
        store(o, [i], all);
    }";
    for knobs in ["block_m=16,warps=1,block_n=32", "block_m=32,warps=4,column_groups=2,block_n=32"] {
        let plan = plan(text, "sm_80", knobs);
        let all = plan.variables.iter().position(|v| v.name == "all").expect("carried by the outer loop");
        let faults = in_computing(plan, &mut |body, index| {
            let is_stored = matches!(body[index].op, StmtOp::Store { .. });
            if is_stored {
                body.insert(index, Stmt::new(StmtOp::QuadSum(all), body[index].span));
            }
            is_stored
        });
        says(&faults, "all is added up over the lanes of a row, which all have the same");
    }
}

#[test]
fn lanes_that_start_from_another_part_are_caught() {
    for (arch, knobs) in PLANS {
        let plan = || plan(SINKS, arch, knobs);
        let is_share = |e: &Expr| matches!(e, Expr::Call(Function::Share, _));
        let shares = |change: &dyn Fn(&mut Expr)| {
            in_computing(plan(), &mut |body, index| match &mut body[index].op {
                StmtOp::Map { value, .. } if is_share(value) => {
                    change(value);
                    true
                }
                _ => false,
            })
        };
        let whole = shares(&|value| *value = Expr::Float(1.0));
        assert!(whole.iter().any(|f| f.contains("which have no parts of it")), "{knobs}: {whole:#?}");
        let another = shares(&|value| *value = Expr::call(Function::Share, [Expr::Float(1.0), Expr::Int(2)]));
        says(&another, "by another number than the");
    }
}

/// What is no sum of parts: products of two, and sums with a whole.
#[test]
fn what_is_computed_of_parts_and_is_no_part_is_caught() {
    let plan = || plan(CAUSAL, "sm_80", WARPS);
    let sum = summed(&plan());
    for operator in [Operator::Mul, Operator::Add] {
        let faults = in_computing(plan(), &mut |body, index| {
            let hit = body[index].op == StmtOp::QuadSum(sum);
            if hit {
                let name = plan().variables[sum].name.clone();
                let element = || Expr::Element(name.clone(), Shape::Row);
                let other = if operator == Operator::Mul { element() } else { Expr::Float(1.0) };
                let value = Expr::infix(operator, element(), other);
                let span = body[index].span;
                body.insert(index, Stmt::new(StmtOp::Map { to: sum, value }, span));
            }
            hit
        });
        says(&faults, "which have no parts of it");
    }
}

#[test]
fn a_maximum_that_is_not_completed_is_caught() {
    for (arch, knobs) in [("sm_80", WARPS), ("sm_80", "block_m=32,block_n=32,warps=2,running_max=max_first"), ("sm_90a", HOPPER)]
    {
        let own = |op: &mut StmtOp| match op {
            StmtOp::Reduce { operation: Reduction::Max, across_quad, .. } => std::mem::replace(across_quad, false),
            _ => false,
        };
        let plan = plan(CAUSAL, arch, knobs);
        let mut changed = plan.clone();
        let role = computing(&plan);
        let faults = match change_first(&mut changed.roles[role].body, &mut change(own)) {
            true => verify(&changed),
            // Each lane has its maximum until a step moves the reference.
            false => planted(plan, role, &mut remove(|op| matches!(op, StmtOp::QuadMax(_)))),
        };
        says(&faults, "each lane of a row has a part of it");
    }
}

#[test]
fn parts_of_column_groups_are_merged_as_what_they_are() {
    let plan = || plan(CAUSAL, "sm_80", GROUPS);
    let other = |op: &mut StmtOp| match op {
        StmtOp::Merge { operation, .. } => {
            *operation = if *operation == ReduceOp::Sum { ReduceOp::Max } else { ReduceOp::Sum };
            true
        }
        _ => false,
    };
    says(&in_computing(plan(), &mut change(other)), "which have published no parts of it");
    says(&in_computing(plan(), &mut remove(|op| matches!(op, StmtOp::Merge { .. }))), "each lane of a row has a part of it");
}

/// Warps of two groups that share rows would take different branches, with barriers in one of them.
#[test]
fn groups_vote_on_what_all_have() {
    let knobs = format!("{GROUPS},running_max=max_first");
    let plan = plan(CAUSAL, "sm_80", &knobs);
    let role = computing(&plan);
    let faults = planted(plan, role, &mut remove(|op| matches!(op, StmtOp::Merge { operation: ReduceOp::Max, .. })));
    says(&faults, "each lane of a row has a part of it");
}
