//! A plan of three roles, made by hand of one with two: keys and values have a producer each. The
//! verifier accepts it and finds faults planted in it. The code compiles, and is right on the
//! emulator. Needs NVRTC, no GPU.

use flashtile::conformance::{Case, cases};
use flashtile::device::GivenPlans;
use flashtile::toolchain::Toolchain;
use flashtile::{Arch, Device, LaunchOptions, Schedule, verify};
use flashtile_codegen::plan::{Plan, PlanFile, RoleKind, StmtOp, verify as faults_of};
use flashtile_codegen::{Instance, generate_from, plans};
use flashtile_tests::planted::{planted, remove, says};

/// What makes roles meet in different ways: one program or several, and how blocks get them.
const SCHEDULES: [&str; 4] = [
    "overlap=off",
    "overlap=on,stages=2",
    "overlap=on,stages=2,persistent=static,outer_stages=2,block_m=128,warps=8,ping_pong=products",
    "overlap=on,stages=2,persistent=dynamic,outer_stages=2,block_m=128,warps=8,producer_registers=40",
];

const KEYS: usize = 0;
const VALUES: usize = 1;
const CONSUMERS: usize = 2;

fn case() -> Case {
    let name = "causal_attention/f16/B1_H2_G1_M113_N113_D64/normal";
    cases().into_iter().find(|case| case.name() == name).expect("in the table")
}

fn arch() -> &'static Arch {
    Arch::named("sm_90a").expect("in the table")
}

fn schedule(knobs: &str) -> Schedule {
    format!("tensor_op=wgmma,copy=tma,block_n=32,{knobs}").parse().expect("a schedule")
}

fn instance() -> Instance {
    let case = case();
    case.prepare().expect("prepares").kernel.instance(case.facts().expect("binds"))
}

/// The text of a plan in which a second producer fills the ring of values.
fn with_two_producers(text: &str) -> String {
    let (head, rest) = text.split_once("role producer:").expect("a producer");
    let (producer, consumers) = rest.split_once("role consumers:").expect("consumers");
    let is_of_values = |line: &str| line.trim_start().starts_with("fill v_tile");
    let without = |drop: &dyn Fn(&str) -> bool| -> String {
        producer.lines().filter(|line| !drop(line)).map(|line| line.to_owned() + "\n").collect()
    };
    let keys = without(&is_of_values);
    let values = without(&|line| line.trim_start().starts_with("fill") && !is_of_values(line));
    // Two warpgroups that wait leave fewer registers to those that compute.
    let consumers = consumers.replacen(" 232 registers", " 208 registers", 1);
    format!("{head}role producer:{keys}role producer values:{values}role consumers:{consumers}")
}

/// The plan of three roles under a schedule, read from its text.
fn three_roles(knobs: &str) -> Plan {
    let (instance, schedule) = (instance(), schedule(knobs));
    let own = plans(&instance, &schedule, arch()).expect("is legal");
    let text = with_two_producers(&PlanFile::text(&instance, &schedule, arch(), &own));
    let mut file = PlanFile::read(&text, Some(&instance.kernel.source)).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let plan = file.plans.remove(0);
    let names: Vec<(RoleKind, &str)> = plan.roles.iter().map(|role| (role.kind, role.name.as_str())).collect();
    let producer = RoleKind::Producer;
    assert_eq!(names, [(producer, "producer"), (producer, "values"), (RoleKind::Consumers, "consumers")]);
    plan
}

#[test]
fn keys_and_values_may_have_a_producer_each() {
    for knobs in SCHEDULES {
        let (plan, instance, schedule) = (three_roles(knobs), instance(), schedule(knobs));
        assert_eq!(faults_of(&plan), Vec::<String>::new(), "{knobs}");
        let printed = PlanFile::text(&instance, &schedule, arch(), [&plan]);
        let again = PlanFile::read(&printed, Some(&instance.kernel.source)).expect("reads back");
        assert_eq!(again.plans[0].to_string(), plan.to_string(), "{knobs}");
        let code = generate_from(vec![plan.clone()], &instance, &schedule, arch()).expect("is right").source;
        assert_eq!(code.matches("elect();").count(), 2, "{knobs}: two warps start copies\n{code}");
        let mut prepared = case().prepare().expect("prepares");
        let facts = case().facts().expect("binds");
        let plans = Some(GivenPlans { schedule, facts, plans: [plan].into() });
        let options = LaunchOptions { toolchain: Toolchain::shared(), arch: Some(arch()), plans, ..LaunchOptions::default() };
        let kernel = prepared.kernel.on_with(&Device::emulator(), options).unwrap_or_else(|e| panic!("{knobs}: {e}"));
        verify::run(&kernel, &mut prepared.arguments).unwrap_or_else(|e| panic!("{knobs}: {e}"));
    }
}

#[test]
fn faults_between_three_roles_are_caught() {
    for knobs in SCHEDULES {
        let plan = || three_roles(knobs);
        let is_fill = |op: &StmtOp| matches!(op, StmtOp::Fill { .. });
        for producer in [KEYS, VALUES] {
            says(&planted(plan(), producer, &mut remove(is_fill)), "deadlock: a warpgroup waits for a slot");
        }
        // A copy more than anyone waits for.
        let faults = planted(plan(), VALUES, &mut |body, index| {
            let hit = is_fill(&body[index].op);
            if hit {
                let again = body[index].clone();
                body.insert(index, again);
            }
            hit
        });
        assert!(!faults.is_empty(), "{knobs}");
        // Both producers fill one ring.
        let mut both = plan();
        let keys = both.roles[KEYS].body.clone();
        both.roles[VALUES].body.extend(keys);
        says(&faults_of(&both), "is filled by two roles");
        let released = planted(plan(), CONSUMERS, &mut remove(|op: &StmtOp| matches!(op, StmtOp::Release(_))));
        assert!(!released.is_empty(), "{knobs}");
    }
    // The consumers get the number of the next program, and the second producer does not.
    let mut plan = three_roles(SCHEDULES[3]);
    let StmtOp::Work(body) = plan.roles[VALUES].body.remove(0).op else { panic!("a role takes programs") };
    plan.roles[VALUES].body = body;
    assert!(!faults_of(&plan).is_empty());
}

#[test]
fn roles_that_make_no_block_are_caught() {
    let changed = |change: &dyn Fn(&mut Plan)| {
        let mut plan = three_roles(SCHEDULES[0]);
        change(&mut plan);
        faults_of(&plan)
    };
    let wrong = "a plan has a role of all warps, or producers and then consumers";
    says(&changed(&|plan| plan.roles.swap(VALUES, CONSUMERS)), wrong);
    says(&changed(&|plan| plan.roles[CONSUMERS].kind = RoleKind::All), wrong);
    says(&changed(&|plan| plan.roles[VALUES].kind = RoleKind::Consumers), "the roles before the consumers are producers");
    says(&changed(&|plan| plan.roles[VALUES].name = "producer".into()), "two roles are called producer");
    says(&changed(&|plan| plan.roles[VALUES].warps = 8), "the role values is a producer, which has 4 warps");
    says(&changed(&|plan| plan.roles[CONSUMERS].warps = 6), "are no whole warpgroups");
    says(&changed(&|plan| plan.roles[CONSUMERS].warps = 28), "more than 1024 threads");
    says(&changed(&|plan| plan.roles[VALUES].registers = Some(40)), "some roles ask for registers and some do not");
    // A role that computes in the place of one that copies.
    says(
        &changed(&|plan| plan.roles[VALUES].body = plan.roles[CONSUMERS].body.clone()),
        "the producer does more than fill rings",
    );
}
