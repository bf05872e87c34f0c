//! The text of plans: what is printed reads back as the same plan and gives the same code, for
//! many kernels under drawn schedules. Wrong texts are refused with their line.

use flashtile_codegen::plan::{Plan, PlanFile, Stmt};
use flashtile_codegen::{ARCHS, Arch, Facts, Generated, Instance, Schedule, draw, generate, generate_from};
use flashtile_dsl::ir::{Binding, Elem, SourceText, Span};
use flashtile_tests::odd_names::ODD_NAMES;
use flashtile_tests::random::numbers;

/// Drawn schedules for each kernel and architecture.
const DRAWS: usize = 24;

const KERNELS: [(&str, Elem); 11] = [
    (include_str!("../../runtime/kernels/attention.rs"), Elem::F16),
    (include_str!("../../runtime/kernels/causal_attention.rs"), Elem::Bf16),
    (include_str!("../../runtime/kernels/causal_rope_attention.rs"), Elem::F16),
    (include_str!("../../runtime/kernels/matmul_gelu.rs"), Elem::F32),
    (include_str!("../../runtime/kernels/row_softmax.rs"), Elem::F16),
    (include_str!("../kernels/softcap.rs"), Elem::Bf16),
    (include_str!("../kernels/sinks.rs"), Elem::F16),
    (include_str!("../kernels/doc.rs"), Elem::Bf16),
    (include_str!("../kernels/nest0.rs"), Elem::F16),
    (ODD_NAMES, Elem::F16),
    (include_str!("../../runtime/kernels/attention.rs"), Elem::F32),
];

fn instance(text: &str, elem: Elem) -> Instance {
    let source = SourceText { name: "kernel.rs".into(), text: text.into(), first_line: 1 };
    let kernel = flashtile_dsl::syntax::parse(&source).unwrap_or_else(|errors| panic!("{errors}")).remove(0);
    let binding = Binding::new(&kernel, elem, text.contains("const D").then_some(("D", 72)));
    Instance { facts: Facts::best(&kernel), kernel, binding }
}

fn sm(name: &str) -> &'static Arch {
    Arch::named(name).expect("in the table")
}

/// The plan, with no statement from a place in a text.
fn placeless(plan: &Plan) -> Plan {
    fn clear(body: &mut [Stmt]) {
        for stmt in body {
            (stmt.span, stmt.line) = (Span::default(), 0);
            stmt.op.bodies_mut().into_iter().for_each(|body| clear(body));
        }
    }
    let mut plan = plan.clone();
    plan.roles.iter_mut().for_each(|role| clear(&mut role.body));
    plan
}

fn text(instance: &Instance, generated: &Generated, arch: &Arch) -> String {
    PlanFile::text(instance, &generated.schedule, arch, generated.launches.iter().map(|launch| &launch.plan))
}

#[test]
fn printed_plans_read_back_and_give_the_same_code() {
    let (mut plans, mut longest) = (0, 0);
    for (number, (text_of, elem)) in KERNELS.into_iter().enumerate() {
        let instance = instance(text_of, elem);
        for arch in ["sm_75", "sm_80", "sm_90a"].map(sm) {
            let mut next = numbers(number as u64);
            let drawn = (0..DRAWS).map(|_| draw(&instance, arch, &mut next));
            for schedule in drawn.collect::<Vec<_>>() {
                let Ok(generated) = generate(&instance, &schedule, arch) else { continue };
                let printed = text(&instance, &generated, arch);
                let read = PlanFile::read(&printed, Some(&instance.kernel.source));
                let file = read.unwrap_or_else(|error| panic!("{schedule}: {error}\n{printed}"));
                for (read, launch) in file.plans.iter().zip(&generated.launches) {
                    assert_eq!(placeless(read), placeless(&launch.plan), "{schedule}\n{printed}");
                    plans += 1;
                }
                assert_eq!((&file.binding, &file.facts), (&instance.binding, &instance.facts));
                assert_eq!((&file.schedule, file.arch.name), (&schedule, arch.name));
                longest = longest.max(printed.lines().count());
                let again = generate_from(file.plans, &instance, &file.schedule, file.arch).expect("the same plan");
                assert_eq!(again.source, generated.source, "{schedule}");
            }
        }
    }
    assert!(plans > 300 && longest > 150, "{plans} plans, of {longest} lines at most, are no test");
}

#[test]
fn wrong_texts_are_refused_with_their_line() {
    let instance = instance(KERNELS[1].0, KERNELS[1].1);
    let schedule: Schedule = "stages=2".parse().expect("a schedule");
    let arch = ARCHS.iter().find(|arch| arch.name == "sm_80").expect("in the table");
    let right = text(&instance, &generate(&instance, &schedule, arch).expect("legal"), arch);
    assert!(PlanFile::read(&right, None).is_ok());
    // What is replaced where it first stands, with what, and what the reader says.
    let table = [
        ("arch sm_80", "arch sm_81", "`sm_81` is no architecture that code is generated for"),
        ("schedule defaults", "schedule defaults,stages=two", "two"),
        ("copies cp_async", "copies slowly", "expected `sync` or `cp_async` or `tma`, found `slowly`"),
        ("    barrier\n", "    barier\n", "no statement begins with `barier`"),
        ("    barrier\n", "      barrier\n", "further in than the one before"),
        ("fma(", "fmaa(", "no function is called `fmaa`"),
        ("select(", "fma(1.0, ", "`fma` takes 3 operands, not 4"),
        ("dot(tile q_i_tile,", "dot(tile q_tile,", "the plan has no tile `q_tile`"),
        ("wait q_i_tile", "wait q_tile", "the plan has no tile or variable `q_tile`"),
        ("wait q_i_tile", "cp_async.wait 0 // q_i_tile", "`cp_async.wait N` counts groups; name what is waited for"),
        ("wait q_i_tile", "wgmma.wait 0 // q_i_tile", "`wgmma.wait N` counts groups; name what is waited for"),
        ("  var acc:", "  var q_i_tile:", "a second tile or variable is called `q_i_tile`"),
        ("acc = 0.0", "ac = 0.0", "the plan has no variable `ac`"),
        (" x 80,", " by 80,", "expected `x`, found `by`"),
        ("params.M", "params.M.size", "`size` is neither `address` nor `stride` with a number"),
        ("l = 0.0", "l = 0.0 1.0", "expected the end of the line, found `1`"),
        ("l = 0.0", "l = 0.0;", "`;` has no meaning here"),
        ("role all: 4 warps", "role all: 4", "expected `warps`, found the end of the line"),
    ];
    for (from, to, says) in table {
        let at = right.find(from).unwrap_or_else(|| panic!("`{from}` is not in\n{right}"));
        let line = right[..at].lines().count() as u32 + u32::from(right[..at].ends_with('\n'));
        let wrong = right.replacen(from, to, 1);
        let error = PlanFile::read(&wrong, None).expect_err(to);
        assert_eq!(error.line, line.max(1), "{to}: {error}");
        assert!(error.message.contains(says), "{to}: {error}");
    }
    assert_eq!(
        PlanFile::read("kernel k\n", None).expect_err("is no file").to_string(),
        "line 1: expected a line `arch NAME` before this"
    );
}

#[test]
fn wrong_plans_are_refused_with_the_line_of_their_text() {
    let instance = instance(KERNELS[1].0, KERNELS[1].1);
    // What is left out or changed where it last stands, and what the verifier says of which line.
    let table = [
        ("sm_80", "stages=2", "barrier\n", "\n", "is read with no barrier after its copy landed", "dot("),
        ("sm_80", "stages=2", "depth 80, m16n8k16", "depth 72, m16n8k16", "no instruction makes the product", "depth 72"),
        ("sm_90a", "tensor_op=wgmma,copy=tma", "wait acc\n", "\n", "is handed back while a product may read it", "release"),
        ("sm_90a", "tensor_op=wgmma,copy=tma", "acquire q_i_tile\n", "wait acc\n", "is read but not acquired", "dot("),
    ];
    for (arch, schedule, from, to, says, stands) in table {
        let arch = sm(arch);
        let schedule: Schedule = schedule.parse().expect("a schedule");
        let right = text(&instance, &generate(&instance, &schedule, arch).expect("legal"), arch);
        let at = right.rfind(from).unwrap_or_else(|| panic!("`{from}` is not in\n{right}"));
        let wrong = format!("{}{to}{}", &right[..at], &right[at + from.len()..]);
        let file = PlanFile::read(&wrong, None).expect("is a plan");
        let error = generate_from(file.plans, &instance, &schedule, arch).expect_err(says).to_string();
        let told = error.split("; ").filter(|fault| fault.contains(says));
        let lines: Vec<&str> = told
            .filter_map(|fault| fault.split("line ").nth(1)?.split(':').next()?.parse::<usize>().ok())
            .map(|line| wrong.lines().nth(line - 1).expect("a line of the text"))
            .collect();
        assert!(!lines.is_empty() && lines.iter().all(|line| line.contains(stands)), "{says}: {lines:?} of {error}\n{wrong}");
    }
}

/// A vote within another of its flag says what is written where the flag is set; the outer one alone
/// does not.
#[test]
fn a_vote_within_another_narrows_its_flag() {
    let instance = instance(KERNELS[1].0, KERNELS[1].1);
    let arch = sm("sm_90a");
    let schedule: Schedule = "tensor_op=wgmma,copy=tma,overlap=on,running_max=max_first".parse().expect("a schedule");
    let own = text(&instance, &generate(&instance, &schedule, arch).expect("legal"), arch);
    // Without the factor of the first step, no other than that of a vote is there.
    let first = own.lines().find(|line| line.trim_start().starts_with("alpha = ")).expect("a factor");
    let sum = own.lines().find(|line| line.contains("l = fma(l, alpha, ")).expect("a sum");
    let added = sum.replace("fma(l, alpha, ", "").replace(')', "");
    let right = own.replacen(&format!("{first}\n"), "", 1).replacen(sum, &added, 1);
    let judge = |text: &str| {
        let file = PlanFile::read(text, Some(&instance.kernel.source)).expect("is a plan");
        generate_from(file.plans, &instance, &schedule, arch).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(judge(&right), Ok(()));
    let inner = "== -float.infinity) -> moved";
    assert!(right.contains(inner), "{right}");
    let wrong = right.replace(inner, "== -float.infinity)");
    let told = judge(&wrong).expect_err("the outer flag is set where no factor is written");
    assert!(told.contains("alpha is read before it is written"), "{told}");
}

/// The edit of docs/plan.md: `tanh` bounds the scores, so that exponentials need no reference.
fn without_running_maximum(text: &str) -> String {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let (mut edited, mut left_out) = (String::new(), None);
    for line in text.lines() {
        let statement = line.trim_start();
        if left_out.is_some_and(|outer| indent(line) > outer) {
            continue;
        }
        left_out = None;
        if statement.starts_with("when any of") || statement == "when flag moved" {
            left_out = Some(indent(line));
            continue;
        }
        let maximum = ["m = ", "m_new = ", "alpha = ", "t53 = ", "t60 = "].iter().any(|of| statement.starts_with(of));
        if maximum {
            continue;
        }
        let line = match statement.strip_prefix("p = ex2(fma(s, cap_log2e, -") {
            Some(_) => format!("{}p = ex2(s * cap_log2e)", &line[..indent(line)]),
            None => line.replace("l = fma(l, alpha, t39)", "l = l + t39"),
        };
        edited += &(line + "\n");
    }
    edited
}

#[test]
fn the_edit_of_the_page_is_a_right_plan() {
    let (source, elem) = KERNELS[5];
    let instance = instance(source, elem);
    let arch = sm("sm_90a");
    for knobs in ["block_m=128,block_n=128,warps=8", "block_m=192,block_n=64,warps=12"] {
        let schedule = format!(
            "{knobs},tensor_op=wgmma,copy=tma,stages=2,running_max=optimistic,overlap=on,ping_pong=products,min_blocks=1,producer_registers=32"
        );
        let schedule: Schedule = schedule.parse().expect("a schedule");
        let own = text(&instance, &generate(&instance, &schedule, arch).expect("legal"), arch);
        let edited = without_running_maximum(&own);
        assert!(own.contains("when any of") && !edited.contains("rowmax") && edited.lines().count() + 20 < own.lines().count());
        let file = PlanFile::read(&edited, Some(&instance.kernel.source)).expect("is a plan");
        let generated = generate_from(file.plans, &instance, &schedule, arch).expect("is right");
        assert!(!generated.source.contains("moved = "), "no vote is left");
    }
}
