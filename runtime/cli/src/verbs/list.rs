//! `flashtile list`: built-in kernels, knobs of the schedule, architectures.

use clap::Args;
use flashtile::kernel::BUILTINS;
use flashtile::{ARCHS, Kernel};
use flashtile_codegen::{KNOBS, Knob, Scope};
use flashtile_dsl::ir::{self, ParamKind};
use serde_json::json;

use crate::failure::Result;
use crate::flags::GlobalFlags;
use crate::output::Output;

/// Flags of `flashtile list`.
#[derive(Args, Debug)]
pub struct Flags {
    /// With the parameters of each kernel
    #[arg(long, conflicts_with_all = ["knobs", "archs"])]
    parameters: bool,
    /// List the knobs of a schedule instead
    #[arg(long)]
    knobs: bool,
    /// List the architectures instead
    #[arg(long, conflicts_with = "knobs")]
    archs: bool,
}

/// Prints a list.
pub fn run(flags: &Flags, _: &GlobalFlags, output: &mut Output) -> Result<()> {
    match (flags.knobs, flags.archs) {
        (true, _) => knobs(output),
        (_, true) => archs(output),
        _ => kernels(flags.parameters, output),
    }
}

fn kernels(with_parameters: bool, output: &mut Output) -> Result<()> {
    let kernels =
        BUILTINS.iter().map(|b| Ok((b.group.name(), Kernel::builtin(b.name)?))).collect::<flashtile::Result<Vec<_>>>()?;
    if output.json {
        for (group, kernel) in &kernels {
            let ir = kernel.ir();
            let sizes: Vec<&str> = ir.sizes.values().map(|s| s.name.as_str()).collect();
            let (doc, parameters) = (ir.doc.trim(), parameters(ir));
            output.json(&json!({ "kernel": ir.name, "group": group, "doc": doc, "parameters": parameters, "sizes": sizes }))?;
        }
        return Ok(());
    }
    // A group is named once, at its first kernel.
    let is_first = |at: usize| at == 0 || kernels[at - 1].0 != kernels[at].0;
    let rows = kernels.iter().enumerate().map(|(at, (group, k))| {
        let group = if is_first(at) { (*group).to_owned() } else { String::new() };
        // The first sentence; a line break in the text is none in the table.
        let doc = k.ir().doc.split_whitespace().collect::<Vec<_>>().join(" ");
        let doc = doc.split_once(". ").map_or(doc.clone(), |(first, _)| format!("{first}."));
        let parameters = with_parameters.then(|| parameters(k.ir()).join("\n"));
        [group, k.name().to_owned()].into_iter().chain(parameters).chain([doc]).collect()
    });
    match with_parameters {
        true => output.table(&["group", "kernel", "parameters", "what it computes"], rows),
        false => output.table(&["group", "kernel", "what it computes"], rows),
    }
}

/// The parameters as the text declares them.
pub fn parameters(ir: &ir::Kernel) -> Vec<String> {
    let text = |p: &ir::Param| match &p.kind {
        ParamKind::Scalar(elem) => format!("{}: {}", p.name, ir.elem_name(*elem)),
        ParamKind::Tensor(t) => {
            let shape: Vec<String> = t.shape.iter().map(|size| ir.size_text(size)).collect();
            let reference = if t.direction.is_written() { "&mut " } else { "&" };
            format!("{}: {reference}{} ({})", p.name, ir.elem_name(t.elem), shape.join(", "))
        }
    };
    ir.params.values().map(text).collect()
}

fn knobs(output: &mut Output) -> Result<()> {
    if output.json {
        for knob in KNOBS {
            output.json(&json!({ "knob": knob.name, "doc": knob.doc, "values": (knob.values)(), "about": about(knob) }))?;
        }
        return Ok(());
    }
    let values = |values: Vec<&str>| if values.is_empty() { "a number".to_owned() } else { values.join(", ") };
    let rows = KNOBS.iter().map(|k| vec![k.name.to_owned(), values((k.values)()), about(k).to_owned(), k.doc.to_owned()]);
    output.table(&["knob", "values", "about", "what it does"], rows)
}

/// Whether a knob says which launches there are, or is one of a launch.
fn about(knob: &Knob) -> &'static str {
    match knob.scope {
        Scope::Launches => "all launches",
        Scope::Block => "one launch",
    }
}

fn archs(output: &mut Output) -> Result<()> {
    if output.json {
        return ARCHS.iter().try_for_each(|arch| output.json(arch));
    }
    let rows = ARCHS.iter().map(|a| {
        let capability = format!("{}.{}", a.capability.0, a.capability.1);
        let shared = format!("{} KiB", a.shared_per_block >> 10);
        vec![a.name.to_owned(), capability, shared, if a.bf16 { "yes" } else { "no" }.to_owned()]
    });
    output.table(&["architecture", "compute capability", "shared memory of a block", "bf16"], rows)
}
