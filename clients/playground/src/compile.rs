//! Every stage from kernel text to CUDA C.

use flashtile_codegen::plan::PlanFile;
use flashtile_codegen::{Generated, KNOBS, Launch, Schedule, generate, hints, layout, predict};
use flashtile_dsl::analysis::cost::Workload;
use flashtile_dsl::analysis::dependence::{Dependences, Edge};
use flashtile_dsl::analysis::hints::Hint;
use flashtile_dsl::analysis::nest::Kind;
use flashtile_dsl::ir::Kernel;
use serde_json::{Value, json};

use crate::request::Asked;
use crate::subject::{Fault, Subject};
use crate::{masks, place};

/// Compiles a kernel, and shows what every stage says.
pub fn compile(asked: &Asked) -> Result<Value, Fault> {
    let subject = Subject::of(asked)?;
    let schedule = subject.schedule(&asked.schedule)?;
    let generated = generate(&subject.generated, &schedule, subject.arch)?;
    let kernel = &subject.instance.kernel;
    let loops = masks::of_loops(&subject, &schedule);
    let dependences = Dependences::of(kernel);
    let each = |text: fn(&Launch) -> String| generated.launches.iter().map(text).collect::<Vec<_>>().join("\n");
    let plans = generated.launches.iter().map(|launch| &launch.plan);
    let stages = [
        ("ir", kernel.to_string()),
        ("normal", each(|launch| launch.normal.to_string())),
        ("dependences", dependences.text(kernel)),
        ("masks", masks::text(&subject, &loops)),
        ("cost", cost(&subject, &generated)),
        ("plan", PlanFile::text(&subject.generated, &schedule, subject.arch, plans)),
        ("cuda", generated.source.clone()),
    ];
    let tiles = generated.launches.iter().flat_map(|launch| &launch.plan.tiles);
    let seconds = predict(&subject.generated, &schedule, subject.arch, &subject.sizes, &subject.machine).ok();
    let knobs: serde_json::Map<String, Value> =
        KNOBS.iter().map(|knob| (knob.name.to_owned(), (knob.get)(&schedule).into())).collect();
    Ok(json!({
        "schedule": schedule.to_string(),
        "command": command(asked, &subject, &schedule),
        "hints": hints(&subject.instance, subject.arch).iter().map(|h| hint(kernel, h)).collect::<Vec<_>>(),
        "stages": stages.map(|(name, text)| json!({ "name": name, "text": text })),
        "graph": graph(&dependences),
        "layouts": tiles.map(|t| json!({ "name": t.name, "svg": layout::svg(t) })).collect::<Vec<_>>(),
        "pictures": loops.iter().map(|(op, m)| masks::drawn(&subject, &schedule, *op, m)).collect::<Vec<_>>(),
        "resources": resources(&generated),
        "roofline": roofline(&subject, &generated, seconds),
        "fallback": generated.fallback,
        "launches": generated.launches.iter().map(|launch| &launch.abi.entry).collect::<Vec<_>>(),
        "knobs": knobs,
    }))
}

/// The command that gives the same CUDA C.
fn command(asked: &Asked, subject: &Subject, schedule: &Schedule) -> String {
    let list = |pairs: &mut dyn Iterator<Item = (&String, &i64)>| {
        pairs.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(",")
    };
    let (consts, sizes) = (list(&mut subject.instance.binding.consts.iter()), list(&mut subject.sizes.iter()));
    let mut command = format!(
        "flashtile inspect {} --dtype {} --arch {}",
        quoted(&format!("{}:{}", asked.file, subject.instance.kernel.name)),
        asked.dtype,
        subject.arch
    );
    for (flag, value) in [("--set", consts), ("--shape", sizes), ("--schedule", schedule.to_string())] {
        if !value.is_empty() {
            command += &format!(" {flag} {}", quoted(&value));
        }
    }
    command
}

/// A word as a shell takes it: in quotes if it has a character that a shell may read otherwise.
fn quoted(word: &str) -> String {
    match word.chars().all(|c| c.is_ascii_alphanumeric() || "_-.,:/=".contains(c)) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

fn hint(kernel: &Kernel, hint: &Hint) -> Value {
    let words = json!({ "message": hint.message(), "because": hint.because, "instead": hint.instead });
    place::with(words, place::of(&kernel.source, hint.span))
}

/// FLOPs, bytes and special functions, and the roofline of a typical machine.
fn cost(subject: &Subject, generated: &Generated) -> String {
    let (instance, machine) = (&subject.instance, &subject.machine);
    let workload = Workload { kernel: &instance.kernel, binding: &instance.binding, sizes: &subject.sizes };
    let executed = generated.executed(&instance.binding, &subject.sizes);
    let sizes: Vec<String> = subject.sizes.iter().map(|(name, size)| format!("{name}={size}")).collect();
    let head = format!("{} on {} ({} SMs, {} GHz)", sizes.join(","), subject.arch, machine.sms, machine.ghz);
    let peak = machine.peak(subject.arch, &instance.binding);
    format!("{head}\n{}", workload.cost().text(Some(&executed), Some(&peak)))
}

/// Statements, those that need each other, and the flow between them.
fn graph(dependences: &Dependences) -> Value {
    let flow = dependences.edges.iter().filter(|edge| edge.kind == Kind::Raw);
    let edge = |edge: &Edge| {
        let carried = edge.carried_by().map(|of| &dependences.loops[of].name);
        json!({ "from": edge.source, "to": edge.target, "carried": carried })
    };
    json!({
        "statements": dependences.statements.iter().map(|s| &s.text).collect::<Vec<_>>(),
        "components": dependences.components.iter().map(|c| &c.statements).collect::<Vec<_>>(),
        "edges": flow.map(edge).collect::<Vec<_>>(),
    })
}

/// The seconds that each kind of work takes at the least, and those that the cost model predicts.
fn roofline(subject: &Subject, generated: &Generated, predicted: Option<f64>) -> Value {
    let binding = &subject.instance.binding;
    let work = generated.executed(binding, &subject.sizes);
    let peak = subject.machine.peak(subject.arch, binding);
    let limits = [
        ("matrix products", work.flops as f64 / peak.flops),
        ("global memory", work.read.saturating_add(work.written) as f64 / peak.bytes_per_s),
        ("special functions", work.special as f64 / peak.special_per_s),
    ];
    json!({
        "limits": limits.map(|(name, seconds)| json!({ "name": name, "seconds": seconds })),
        "predicted": predicted,
    })
}

/// What a block of the main launch takes, as predicted from the plan.
fn resources(generated: &Generated) -> Vec<[String; 2]> {
    let predicted = generated.main().predicted;
    let rows = [
        ("registers of a thread", predicted.registers.to_string()),
        ("bytes of dynamic shared memory", predicted.shared_bytes.to_string()),
        ("threads of a block", predicted.threads.to_string()),
        ("blocks of a multiprocessor", predicted.blocks_per_sm.to_string()),
        ("limited by", format!("{:?}", predicted.limit).to_lowercase()),
    ];
    rows.map(|(name, value)| [name.to_owned(), value]).into()
}
