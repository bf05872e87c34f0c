//! Code from plans that are given: the launches' own plans give the same code, an edited plan gives
//! the edited code, the verifier refuses a wrong one, and launches keep to what plans assume. Needs
//! NVRTC, no GPU.

use flashtile::conformance::{Case, cases};
use flashtile::device::GivenPlans;
use flashtile::kernel::KernelError;
use flashtile::toolchain::Toolchain;
use flashtile::{Arch, Device, Error, Facts, LaunchOptions, Schedule, verify};
use flashtile_codegen::plan::{Plan, StmtOp};
use flashtile_codegen::{Instance, generate, generate_from, plans};

/// A schedule of each path, with one launch and with several.
const SCHEDULES: [(&str, &str); 5] = [
    ("sm_80", "stages=2"),
    ("sm_80", "split_k=3"),
    ("sm_80", "split_k=2,fixup=semaphore"),
    ("sm_80", "loop_order=interchanged"),
    ("sm_90a", "tensor_op=wgmma,copy=tma,block_n=32,persistent=dynamic,outer_stages=2"),
];

fn case() -> Case {
    let name = "causal_attention/f16/B1_H2_G1_M113_N113_D64/normal";
    cases().into_iter().find(|case| case.name() == name).expect("in the table")
}

fn instance(facts: Facts) -> Instance {
    case().prepare().expect("prepares").kernel.instance(facts)
}

fn parsed(knobs: &str) -> Schedule {
    knobs.parse().expect("a schedule")
}

fn arch(name: &str) -> &'static Arch {
    Arch::named(name).expect("in the table")
}

/// Executes the case with these plans on the emulator.
fn run(plans: Vec<Plan>, schedule: &Schedule, arch: &'static Arch, facts: Facts) -> Result<(), Error> {
    let mut prepared = case().prepare().expect("prepares");
    let plans = Some(GivenPlans { schedule: schedule.clone(), facts, plans: plans.into() });
    let options = LaunchOptions { toolchain: Toolchain::shared(), arch: Some(arch), plans, ..LaunchOptions::default() };
    verify::run(&prepared.kernel.on_with(&Device::emulator(), options)?, &mut prepared.arguments)
}

/// Drops the first statement of the outermost list of the last role that is as wanted.
fn without(plan: &mut Plan, wanted: fn(&StmtOp) -> bool) {
    let body = &mut plan.roles.last_mut().expect("a role").body;
    let at = body.iter().position(|stmt| wanted(&stmt.op)).expect("a statement");
    body.remove(at);
}

#[test]
fn the_plans_of_a_schedule_give_its_code() {
    let facts = case().facts().expect("binds");
    let instance = instance(facts.clone());
    for (arch, schedule) in SCHEDULES.map(|(name, knobs)| (arch(name), parsed(knobs))) {
        let own = plans(&instance, &schedule, arch).expect("is legal");
        let generated = generate(&instance, &schedule, arch).expect("is legal");
        assert_eq!(generate_from(own.clone(), &instance, &schedule, arch), Ok(generated), "{schedule}");
        run(own, &schedule, arch, facts.clone()).unwrap_or_else(|error| panic!("{schedule}: {error}"));
    }
}

#[test]
fn an_edited_plan_gives_the_edited_code() {
    let facts = case().facts().expect("binds");
    let instance = instance(facts.clone());
    let (schedule, arch) = (parsed("stages=2"), arch("sm_80"));
    let mut edited = plans(&instance, &schedule, arch).expect("is legal");
    let body = &mut edited[0].roles[0].body;
    let at = body.iter().position(|stmt| matches!(stmt.op, StmtOp::Loop { .. })).expect("a loop");
    let span = body[at].span;
    body.insert(at, flashtile_codegen::plan::Stmt::new(StmtOp::Barrier, span));
    let barriers = |source: &str| source.matches("__syncthreads();").count();
    let own = generate(&instance, &schedule, arch).expect("is legal");
    let generated = generate_from(edited.clone(), &instance, &schedule, arch).expect("one barrier more harms nothing");
    assert_eq!(barriers(&generated.source), barriers(&own.source) + 1);
    run(edited, &schedule, arch, facts).expect("one barrier more harms nothing");
}

#[test]
fn wrong_plans_are_refused_with_what_the_verifier_says() {
    let facts = case().facts().expect("binds");
    let instance = instance(facts.clone());
    let (schedule, arch) = (parsed("stages=2"), arch("sm_80"));
    let mut wrong = plans(&instance, &schedule, arch).expect("is legal");
    without(&mut wrong[0], |op| matches!(op, StmtOp::Copy { .. }));
    let error = run(wrong, &schedule, arch, facts.clone()).expect_err("a copy is missing");
    let Error::Kernel(KernelError::RefusedPlan { faults, .. }) = &error else { panic!("{error}") };
    assert!(faults.iter().any(|fault| fault.contains("is read before it is filled")), "{error}");
    let mut wrong = plans(&instance, &schedule, arch).expect("is legal");
    without(&mut wrong[0], |op| matches!(op, StmtOp::Store { .. }));
    let error = run(wrong, &schedule, arch, facts.clone()).expect_err("an output is not stored").to_string();
    assert!(error.contains("o is never stored"), "{error}");
    let mut wrong = plans(&instance, &schedule, arch).expect("is legal");
    let body = &mut wrong[0].roles[0].body;
    let store = body.iter_mut().find_map(|stmt| if let StmtOp::Store { to, .. } = &mut stmt.op { Some(to) } else { None });
    store.expect("a store").tensor = "k".into();
    let error = run(wrong, &schedule, arch, facts.clone()).expect_err("an input is stored").to_string();
    assert!(error.contains("k is stored, which the kernel never does"), "{error}");
    let none = generate_from(Vec::new(), &instance, &schedule, arch).expect_err("a plan is missing").to_string();
    assert_eq!(none, "the schedule makes 1 launches, but 0 plans were given; give one plan for each launch, in order");
}

#[test]
fn plans_that_assume_more_than_holds_of_a_launch_are_refused() {
    let facts = Facts { positive: ["unknown".to_owned()].into(), ..case().facts().expect("binds") };
    let (schedule, arch) = (parsed("stages=2"), arch("sm_80"));
    let own = plans(&instance(facts.clone()), &schedule, arch).expect("is legal");
    let error = run(own, &schedule, arch, facts).expect_err("no such scalar").to_string();
    assert!(error.contains("assume that unknown > 0, which does not hold of this launch"), "{error}");
    // Fewer assumptions than hold are fine.
    let facts = Facts { alignment: 4, positive: [].into(), ..Facts::none() };
    let own = plans(&instance(facts.clone()), &schedule, arch).expect("is legal");
    run(own, &schedule, arch, facts).expect("is right");
}
