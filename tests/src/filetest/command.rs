//! The commands of file tests.

use std::collections::BTreeMap;

use flashtile_dsl::analysis::cost::{Machine, Workload};
use flashtile_dsl::analysis::dependence::Dependences;
use flashtile_dsl::analysis::inputs::inputs;
use flashtile_dsl::analysis::mask::{LoopMasks, MaskOptions, loop_masks};
use flashtile_dsl::analysis::picture::picture;
use flashtile_dsl::analysis::predicate::Summaries;
use flashtile_dsl::ir::{AxisId, Binding, Elem, Kernel, Op, ProgramDim, SizeExpr, SizeKind, SourceText, ValueId};
use flashtile_dsl::syntax::{Style, parse, render};

use super::generated::Request;

/// Name, options and meaning of each command.
pub const COMMANDS: &[(&str, &str, &str)] = &[
    ("check", "", "the kernel is well formed; prints its name"),
    ("check-error", "", "the kernel is refused; prints the errors"),
    ("deps", "", "loops, statements, dependences, components, interchanges, streaming reductions"),
    ("mermaid", "", "the flow of values as a graph"),
    ("mask", "i=64 j=64 [early_stop=off] [D=64]", "loop bounds in closed form, for blocks by axis name"),
    ("tiles", "i=64 j=64 M=256 N=256 [early_stop=off]", "the tiles of each loop as a picture"),
    ("cost", "M=1024 N=1024 D=64 [i=64 j=64] [T=bf16]", "FLOPs, special functions, bytes, least time"),
    ("inputs", "M=64 N=64 D=64", "what inputs hold for a check: meanings of integers, sizes of floats"),
    ("ir", "", "the tile IR, as written"),
    ("normal", "[schedule=KNOB=V,..] [arch=sm_80] [facts=best|none] [T=f16] [D=64]", "the tile IR after all rewrites"),
    ("plan", "as normal", "the plan"),
    ("cuda", "as normal, [part=file|kernel]", "the generated CUDA C, or the kernel without its device functions"),
    (
        "hints",
        "as normal, with arch=sm_90a and 64 for constants by default",
        "what the kernel loses, why, and what to write instead",
    ),
    ("illegal", "as normal", "no code can be generated; prints the reasons"),
];

/// The machine of `cost`: round numbers near those of a large GPU.
const MACHINE: Machine = Machine { flops: 1e15, bytes_per_s: 4e12, special_per_s: 4e12 };

/// Runs a command on all kernels of a text.
pub(super) fn run(command: &str, file: &str, text: &str) -> Result<String, String> {
    let mut words = command.split_whitespace();
    let name = words.next().ok_or("a command is expected")?;
    let options: Vec<(&str, &str)> =
        words.map(|w| w.split_once('=').ok_or_else(|| format!("`{w}` is not NAME=VALUE"))).collect::<Result<_, _>>()?;
    let source = SourceText { name: file.into(), text: text.into(), first_line: 1 };
    let kernels = match (parse(&source), name) {
        (Err(errors), "check-error") => return Ok(render(&errors, Style::Plain)),
        (Ok(_), "check-error") => return Err("the kernel text is accepted".into()),
        (Err(errors), _) => return Err(format!("the kernel text is refused:\n{}", render(&errors, Style::Plain))),
        (Ok(kernels), _) => kernels,
    };
    let mut out = Vec::new();
    for kernel in &kernels {
        let on = || Options::read(kernel, &options);
        let request = || Request::read(kernel, &options);
        out.push(match name {
            "check" => kernel.name.clone(),
            "ir" => kernel.to_string(),
            "normal" => request()?.each(|launch| launch.normal.renumbered().to_string())?,
            "plan" => request()?.each(|launch| launch.plan.to_string())?,
            "cuda" => request()?.source()?,
            "illegal" => request()?.refusal()?,
            "hints" => {
                let consts = kernel.sizes.values().filter(|s| s.kind == SizeKind::Const).map(|s| (&*s.name, "64"));
                let usual: Vec<_> = consts.chain([("arch", "sm_90a")]).chain(options.iter().copied()).collect();
                Request::read(kernel, &usual)?.hints(&source)
            }
            "deps" => Dependences::of(kernel).text(kernel),
            "mermaid" => Dependences::of(kernel).mermaid(),
            "mask" => on()?.masks()?.iter().map(|m| m.text(kernel)).collect::<Vec<_>>().join("\n"),
            "tiles" => on()?.tiles()?,
            "cost" => on()?.cost()?,
            "inputs" => {
                let on = on()?;
                inputs(kernel, &|size| on.size(size), &|_| None).text(kernel)
            }
            other => {
                let known: Vec<_> = COMMANDS.iter().map(|(name, ..)| *name).collect();
                return Err(format!("unknown command `{other}`; there are {}", known.join(", ")));
            }
        });
    }
    Ok(out.join("\n"))
}

/// Options of a command, read for one kernel: blocks by axis, sizes, element types.
struct Options<'a> {
    kernel: &'a Kernel,
    blocks: BTreeMap<AxisId, i64>,
    sizes: BTreeMap<String, i64>,
    binding: Binding,
    early_stop: bool,
}

impl<'a> Options<'a> {
    fn read(kernel: &'a Kernel, options: &[(&str, &str)]) -> Result<Self, String> {
        let mut on =
            Self { kernel, blocks: BTreeMap::new(), sizes: BTreeMap::new(), binding: Binding::default(), early_stop: true };
        on.binding.types = kernel.type_params.iter().map(|t| (t.clone(), Elem::Bf16)).collect();
        for &(name, value) in options {
            let number = || value.parse::<i64>().map_err(|_| format!("`{value}` is not a number"));
            let axes: Vec<_> = kernel.axes.iter().filter(|(_, a)| a.name == name).map(|(id, _)| id).collect();
            if name == "early_stop" {
                on.early_stop = value != "off";
            } else if kernel.type_params.iter().any(|t| t == name) {
                let elem = Elem::from_name(value).ok_or_else(|| format!("`{value}` is not an element type"))?;
                on.binding.types.insert(name.into(), elem);
            } else if !axes.is_empty() {
                let block = number()?;
                on.blocks.extend(axes.into_iter().map(|a| (a, block)));
            } else if let Some(size) = kernel.size_named(name) {
                match kernel.sizes[size].kind {
                    SizeKind::Const => on.binding.consts.insert(name.into(), number()?),
                    SizeKind::Runtime => on.sizes.insert(name.into(), number()?),
                };
            } else if kernel.param_named(name).is_some() {
                on.sizes.insert(name.into(), number()?);
            } else {
                return Err(format!("`{name}` is no axis, size, parameter or type parameter of `{}`", kernel.name));
            }
        }
        Ok(on)
    }

    fn size(&self, s: &SizeExpr) -> Option<i64> {
        s.eval(|id| {
            let name = self.kernel.size_name(id);
            self.sizes.get(name).or_else(|| self.binding.consts.get(name)).copied()
        })
    }

    fn masks(&self) -> Result<Vec<LoopMasks>, String> {
        let missing = |a: &AxisId| !self.blocks.contains_key(a);
        if let Some(a) = self.kernel.axes.keys().find(missing) {
            return Err(format!("a block for `{}` is missing", self.kernel.axes[a].name));
        }
        let options = MaskOptions { early_stop: self.early_stop, summaries: Summaries::All, ..MaskOptions::default() };
        let of = |op| loop_masks(self.kernel, op, &|a| self.blocks[&a], &|s| self.binding.size(self.kernel, s), options);
        let is_loop = |op: &_| matches!(self.kernel.ops[*op].op, Op::For { .. });
        Ok(self.kernel.walk().into_iter().map(|(_, op)| op).filter(is_loop).map(of).collect())
    }

    fn tiles(&self) -> Result<String, String> {
        let kernel = self.kernel;
        if let Some(s) = kernel.axes.values().find(|a| self.size(&a.extent).is_none()) {
            return Err(format!("a size of `{}` is missing", kernel.size_text(&s.extent)));
        }
        let rows = kernel.grid().iter().find_map(|d| if let ProgramDim::Tiles(a) = d { Some(*a) } else { None });
        let rows = rows.ok_or("the grid has no tiles")?;
        let mut out = Vec::new();
        for masks in self.masks()? {
            let size = |s: &SizeExpr| self.size(s).expect("the extents are known");
            let count = (size(&kernel.axes[rows].extent) + self.blocks[&rows] - 1) / self.blocks[&rows];
            let value = |row, v: ValueId| if *kernel.ty(v) == flashtile_dsl::ir::Type::Coord(rows) { row } else { 0 };
            let param = |p| self.sizes.get(&kernel.params[p].name).copied().unwrap_or(0);
            out.push(picture(&masks, count, &size, &value, &param, &|_| i64::from(i32::MAX)).join("\n"));
        }
        Ok(out.join("\n\n"))
    }

    fn cost(&self) -> Result<String, String> {
        let load = Workload { kernel: self.kernel, binding: &self.binding, sizes: &self.sizes };
        if let Some(missing) = load.missing().first() {
            return Err(format!("a value for `{missing}` is missing"));
        }
        let executed = if self.blocks.is_empty() {
            None
        } else {
            self.masks()?;
            Some(load.executed(&|a| self.blocks[&a], MaskOptions { early_stop: self.early_stop, ..MaskOptions::default() }))
        };
        Ok(load.cost().text(executed.as_ref(), Some(&MACHINE)))
    }
}
