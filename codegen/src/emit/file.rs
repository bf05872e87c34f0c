//! The file around the body: header comment, wrappers, parameter block; and the names that element
//! types have in it.

use flashtile_dsl::ir::{Elem, Param, ParamKind, SizeKind};
use flashtile_templates::{KernelEntry, KernelFile, LaunchNote, ParamField, Renderer, TileNote, Wrapper};

use super::writer::{Emission, Head, Writer};
use crate::abi::{Blocks, Field};
use crate::error::Error;
use crate::instance::Instance;
use crate::names;
use crate::plan::{MeetBy, Plan};

/// The file of these entry points.
pub(super) fn file(head: &Head<'_>, launches: &[Emission<'_>], entries: Vec<String>) -> Result<String, Error> {
    let kernel = &head.instance.kernel;
    let mut generics: Vec<String> = Vec::new();
    for (name, elem) in &head.instance.binding.types {
        generics.push(format!("{name} = {}", elem.name()));
    }
    for (name, value) in &head.instance.binding.consts {
        generics.push(format!("{name} = {value}"));
    }
    let note = |e: &Emission<'_>| LaunchNote {
        entry: if launches.len() > 1 { e.abi.entry.clone() } else { String::new() },
        tiles: e
            .plan
            .tiles
            .iter()
            .map(|t| TileNote {
                name: t.name.clone(),
                offset: t.offset,
                slots: t.slots,
                rows: t.rows,
                columns: t.columns,
                elem: t.elem.name().into(),
                pitch: t.pitch,
                layout: format!("{:?}", t.layout).to_lowercase(),
            })
            .collect(),
        threads: e.plan.threads(),
        shared_bytes: e.plan.shared_bytes(),
        blocks: match e.abi.blocks {
            Blocks::PerProgram => "one block per program".into(),
            Blocks::Persistent(n) => format!("{n} blocks per multiprocessor, or one per program if these are fewer"),
        },
    };
    let text = Renderer::shared()?.render(&KernelFile {
        name: kernel.name.clone(),
        generics: if generics.is_empty() { String::new() } else { format!("<{}>", generics.join(", ")) },
        doc: kernel.doc.lines().map(|l| l.trim().to_owned()).collect(),
        arch: head.arch.name.into(),
        compute: head.arch.name.replace("sm_", "compute_"),
        schedule: head.schedule.to_string(),
        assumptions: head.assumptions.to_vec(),
        fallback: head.fallback.unwrap_or_default().to_owned(),
        launches: launches.iter().map(note).collect(),
        maps: launches.iter().any(|e| !e.plan.maps.is_empty()),
        version: env!("CARGO_PKG_VERSION").into(),
        entries,
    })?;
    Ok(text)
}

impl Writer<'_> {
    pub(super) fn entry(mut self, body: String) -> Result<String, Error> {
        let e = self.e;
        if e.plan.shared_bytes() > 0 {
            self.wrappers.insert(Wrapper::SharedAddress);
        }
        let copies = |w: &Wrapper| matches!(w, Wrapper::CopySync { .. } | Wrapper::CopyCpAsync { .. });
        let kernel = self.kernel();
        let has_bytes = |param: &Param| match &param.kind {
            ParamKind::Tensor(t) => self.e.instance.binding.elem(kernel, t.elem).bytes() == Some(1),
            ParamKind::Scalar(_) => false,
        };
        if kernel.params.values().any(has_bytes) {
            self.wrappers.extend([Wrapper::Widen, Wrapper::Narrow { fp8: self.e.arch.capability >= (8, 9) }]);
        }
        let mut wrappers = Vec::new();
        if self.wrappers.iter().any(copies) {
            wrappers.push(format!("constexpr int THREADS = {};", e.plan.threads()));
        }
        for wrapper in &self.wrappers {
            wrappers.push(wrapper.render(self.renderer)?);
        }
        let text = self.renderer.render(&KernelEntry {
            // Wrappers must not meet the functions that CUDA C++ declares, nor those and the parameter blocks of other entry
            // points. The `extern "C"` name of the entry point differs from the namespace's.
            space: format!("{}_launch", e.abi.entry),
            threads: e.plan.threads(),
            cluster: e.abi.cluster,
            min_blocks: if e.plan.is_specialized() { e.plan.min_blocks.max(1) } else { e.plan.min_blocks },
            shared_bytes: e.plan.shared_bytes(),
            wrappers,
            maps: e.plan.maps.iter().map(|m| m.name.clone()).collect(),
            first_warp: e.plan.roles.iter().rev().skip(1).map(|r| r.warps).sum(),
            fields: self.fields(),
            entry: e.abi.entry.clone(),
            body,
        })?;
        Ok(text)
    }

    pub(super) fn fields(&self) -> Vec<ParamField> {
        let kernel = self.kernel();
        let elem_type = |name: &str| {
            let param = kernel.param_named(name).expect("the ABI names parameters of the kernel");
            match &kernel.params[param].kind {
                ParamKind::Tensor(t) => (self.e.instance.binding.elem(kernel, t.elem), t.direction.is_written()),
                ParamKind::Scalar(e) => (*e, false),
            }
        };
        let field = |f: &Field| match f {
            Field::Pointer(name) if kernel.param_named(name).is_none() => {
                let note = "states that go from part to part".into();
                ParamField { r#type: "float*".into(), name: names::field(name), note }
            }
            Field::Pointer(name) => {
                let (elem, output) = elem_type(name);
                let shape = &kernel.tensor(kernel.param_named(name).expect("a parameter")).shape;
                let shape: Vec<_> = shape.iter().map(|s| kernel.size_text(s)).collect();
                let qualifier = if output { "" } else { "const " };
                ParamField {
                    r#type: format!("{qualifier}{}*", c_type(elem)),
                    name: names::field(name),
                    note: format!("({})", shape.join(", ")),
                }
            }
            Field::Stride(name, d) => {
                ParamField { r#type: "i64".into(), name: format!("{}_stride{d}", names::field(name)), note: "in elements".into() }
            }
            Field::Size(name) => ParamField { r#type: "int".into(), name: names::field(name), note: String::new() },
            Field::Scalar(name) => {
                ParamField { r#type: c_type(elem_type(name).0).into(), name: names::field(name), note: String::new() }
            }
            Field::Workspace { bytes, per_program, kept: _ } => {
                let size = match (bytes, per_program) {
                    (bytes, 0) => format!("{bytes} bytes"),
                    (0, each) => format!("{each} bytes a program"),
                    (bytes, each) => format!("{bytes} bytes, and {each} a program"),
                };
                ParamField { r#type: "u32*".into(), name: "workspace".into(), note: format!("{size}, zero") }
            }
        };
        self.e.abi.fields.iter().map(field).collect()
    }
}

/// The type of elements in memory.
pub(super) fn c_type(elem: Elem) -> &'static str {
    match elem {
        Elem::F32 => "float",
        Elem::I32 => "int",
        Elem::F16 => "f16",
        Elem::Bf16 => "bf16",
        Elem::Bool => "truth",
        Elem::U8 => "unsigned char",
        Elem::I8 => "signed char",
        Elem::F8E4M3 => "f8e4m3",
        Elem::F8E5M2 => "f8e5m2",
        Elem::Generic(_) => unreachable!("bound"),
    }
}

/// The parameter block of a kernel: tensors (pointer, strides but the last), run-time sizes, scalars.
pub fn fields(instance: &Instance, plan: &Plan) -> Vec<Field> {
    let kernel = &instance.kernel;
    let mut fields = Vec::new();
    for param in kernel.params.values() {
        if let ParamKind::Tensor(t) = &param.kind {
            fields.push(Field::Pointer(param.name.clone()));
            for d in 0..t.shape.len().saturating_sub(1) {
                fields.push(Field::Stride(param.name.clone(), d as u32));
            }
        }
    }
    fields.extend(kernel.sizes.values().filter(|s| s.kind == SizeKind::Runtime).map(|s| Field::Size(s.name.clone())));
    for param in kernel.params.values() {
        if let ParamKind::Scalar(_) = param.kind {
            fields.push(Field::Scalar(param.name.clone()));
        }
    }
    let semaphore = plan.meeting.as_ref().filter(|m| m.by == MeetBy::Semaphore);
    fields.extend(semaphore.map(|m| Field::Pointer(m.memory.clone())));
    // Programs taken, and blocks that are done; programs made again, and launches to come that begin
    // with what is made again.
    let (bytes, kept) = match plan.work_ring {
        None => (0, 0),
        Some(_) if plan.makes_again() => (16, 4),
        Some(_) => (8, 0),
    };
    // Whose turn it is, or the list of programs that are made again.
    let per_program = if semaphore.is_some() || plan.makes_again() { 4 } else { 0 };
    if bytes + per_program > 0 {
        fields.push(Field::Workspace { bytes, per_program, kept });
    }
    fields
}
