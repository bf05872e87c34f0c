//! A tree to programs: variables and parameters get addresses, instructions are decoded and joined to the control flow.

use std::collections::HashMap;

use super::Lines;
use super::control::{Flow, reconvergence};
use super::kernel::{Kernel, Parameter, Program, Step};
use super::operands::Decoder;
use super::operation::Op;
use super::touched::{tensor_rows, touched};
use crate::LoadError;
use crate::memory::windows;
use crate::syntax::{KernelTree, Space, Tree, Variable};

impl Program {
    /// Loads a module from its tree.
    pub fn new(tree: &Tree<'_>) -> Result<Self, LoadError> {
        let mut symbols = HashMap::new();
        let mut variables = vec![];
        for v in tree.variables.iter().filter(|v| v.space != Space::Shared) {
            place_initialised(v, &mut variables, &mut symbols);
        }
        let mut kernels = vec![];
        for kernel in &tree.kernels {
            let mut symbols = symbols.clone();
            for v in kernel.variables.iter().filter(|v| matches!(v.space, Space::Global | Space::Const)) {
                place_initialised(v, &mut variables, &mut symbols);
            }
            kernels.push(load(tree, kernel, symbols)?);
        }
        Ok(Self { target: tree.target.to_owned(), kernels, lines: Lines::new(tree), variables })
    }
}

fn place_initialised<'t>(v: &Variable<'t>, memory: &mut Vec<u8>, symbols: &mut HashMap<&'t str, (Space, u64)>) {
    let at = memory.len().next_multiple_of(v.align.max(1) as usize);
    memory.resize(at + v.bytes as usize, 0);
    let initial = v.initial.len().min(v.bytes as usize);
    memory[at..at + initial].copy_from_slice(&v.initial[..initial]);
    symbols.insert(v.name, (v.space, windows::MODULE + at as u64));
}

fn load<'t>(tree: &Tree<'t>, kernel: &KernelTree<'t>, mut symbols: HashMap<&'t str, (Space, u64)>) -> Result<Kernel, LoadError> {
    let mut parameters = vec![];
    let mut parameter_bytes = 0u32;
    for p in &kernel.parameters {
        let offset = parameter_bytes.next_multiple_of(p.align.max(1));
        symbols.insert(p.name, (Space::Param, offset.into()));
        parameters.push(Parameter { offset, bytes: p.bytes });
        parameter_bytes = offset + p.bytes;
    }
    let shared = || tree.variables.iter().chain(&kernel.variables).filter(|v| v.space == Space::Shared);
    let mut at = windows::SHARED_START;
    for v in shared().filter(|v| v.bytes > 0) {
        at = at.checked_next_multiple_of(v.align.max(1)).unwrap_or(u32::MAX);
        symbols.insert(v.name, (Space::Shared, at.into()));
        at = at.saturating_add(v.bytes);
    }
    let align = shared().filter(|v| v.bytes == 0).map(|v| v.align.max(1)).max();
    at = at.checked_next_multiple_of(align.unwrap_or(1)).unwrap_or(u32::MAX);
    for v in shared().filter(|v| v.bytes == 0) {
        symbols.insert(v.name, (Space::Shared, at.into()));
    }
    let mut local_bytes = 0u32;
    for v in kernel.variables.iter().filter(|v| v.space == Space::Local) {
        let offset = local_bytes.next_multiple_of(v.align.max(1));
        symbols.insert(v.name, (Space::Local, offset.into()));
        local_bytes = offset.saturating_add(v.bytes);
        if local_bytes > 1 << 19 {
            // No GPU gives a thread more.
            return Err(LoadError::Syntax { line: kernel.line, what: format!("{local_bytes} bytes of local memory") });
        }
    }
    let mut decoder = Decoder { kernel, symbols: &symbols, words: vec![], doubles: vec![], constants: HashMap::new() };
    let mut steps = Vec::with_capacity(kernel.instructions.len() + 1);
    for i in &kernel.instructions {
        let op = decoder.decode(i)?;
        steps.push(Step { op, guard: i.guard, meet: 0, line: i.line, location: i.location, touched: Box::default() });
    }
    // Control may run off the end of the text, or branch there.
    let line = steps.last().map_or(kernel.line, |s| s.line);
    steps.push(Step { op: Op::Exit, guard: None, meet: 0, line, location: None, touched: Box::default() });
    let flow: Vec<Flow> = steps
        .iter()
        .map(|s| match s.op {
            Op::Branch { target } => Flow::Branch { target, guarded: s.guard.is_some() },
            Op::Exit | Op::Trap => Flow::Exit { guarded: s.guard.is_some() },
            _ => Flow::Next,
        })
        .collect();
    for (step, meet) in steps.iter_mut().zip(reconvergence(&flow)) {
        step.meet = meet;
    }
    let (words, doubles) = (decoder.words, decoder.doubles);
    let opcodes = kernel.instructions.iter().map(|i| i.opcode.into()).chain(["exit".into()]).collect();
    let granule = steps.iter().filter_map(|s| shared_width(&s.op)).min().unwrap_or(16).min(16);
    let tensor_rows = tensor_rows(&steps, kernel.registers[1]);
    for step in &mut steps {
        step.touched = touched(&step.op, &tensor_rows);
    }
    let uses_wgmma = steps.iter().any(|s| matches!(s.op, Op::Wgmma(_)));
    Ok(Kernel {
        name: kernel.name.to_owned(),
        steps,
        opcodes,
        registers: kernel.registers,
        words,
        doubles,
        parameters,
        parameter_bytes,
        static_shared: at - windows::SHARED_START,
        local_bytes,
        max_threads: kernel.max_threads,
        min_blocks: kernel.min_blocks,
        max_registers: kernel.max_registers,
        cluster: kernel.cluster,
        granule,
        uses_wgmma,
    })
}

/// Bytes of an access to shared memory; `None` if there is none.
fn shared_width(op: &Op) -> Option<u32> {
    match op {
        Op::Load(a) | Op::Store(a) if matches!(a.space, Space::Shared | Space::Generic) => Some(a.bytes()),
        Op::Atomic { space: Space::Shared | Space::Generic, wide, .. } => Some(if *wide { 8 } else { 4 }),
        Op::CopyAsync { bytes, .. } => Some((*bytes).into()),
        Op::BarrierInit { .. } => Some(8),
        _ => None,
    }
}
