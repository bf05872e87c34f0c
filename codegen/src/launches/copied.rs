//! Tensors copied, before the kernel runs, to where their rows begin at whole lines of the L2
//! cache: right operands of products, and others of which rows begin at no multiples of 16 bytes,
//! which TMA and 16-byte copies cannot read. The others are left operands, and tiles that a loop
//! loads for its elementwise work, such as a bias.
//!
//! A multiprocessor gets half as many bytes of a cycle from rows that begin at odd multiples of 16
//! bytes (head dims 88, 120, 232: docs/performance.md, "What decides at head dims and lengths of
//! one's own"). Every tile of Q reads K and V anew, so that one pass which copies them to scratch
//! memory pays where there are some tiles of Q. A bias that is not aligned takes each lane 16 bytes
//! at a time, one after the other; of the copy a ring brings whole tiles ahead. The copy has the
//! same shape, elements and meaning; rows of scratch memory are padded
//! ([`crate::Scratch::layout`]).

use std::collections::{BTreeMap, BTreeSet};

use flashtile_dsl::ir::{
    At, AxisKind, Direction, Kernel, Op, OpId, ParamId, ProgramDim, SizeExpr, SizeKind, TensorDecl, ValueId,
};

use super::staged::{NotStaged, Staged};
use crate::elementwise_tiles::elementwise_rows;
use crate::instance::Instance;
use crate::rewrite::edit;

/// Why there is nothing to copy; `None` if there is something.
pub fn why_not_copy(instance: &Instance) -> Option<String> {
    candidates(instance, &instance.kernel).is_empty().then(|| NOTHING.into())
}

const NOTHING: &str = "no right operand of a product is loaded from an input whose packed rows begin within lines of 128 bytes, \
                       and no operand, and no tile of 16-bit elements in a loop, from one that is not aligned to 16";

/// The instance that is left if tensors are copied, where that may pay: where packed rows begin at
/// odd multiples of 16 bytes, or a tensor is aligned to fewer. Where they begin at multiples of 32
/// or 64 bytes it lost in every cell that was measured (docs/performance.md, "What decides at head
/// dims and lengths of one's own"). None for a kernel that came out wrong, too: generating code
/// under a schedule that asks for it says so. `text` is the kernel of the text, of which launches
/// ahead may have made that of the instance.
pub(crate) fn with_copies(instance: &Instance, text: &Kernel) -> Option<Instance> {
    let odd =
        |(tensor, found): (&ParamId, &Candidate)| found.row.is_some_and(|row| row % 32 != 0) || !is_aligned(instance, *tensor);
    let made = candidates(instance, text).iter().any(odd).then(|| copy_ahead(instance, text))?.ok()?;
    Some(made.main_of(instance))
}

/// Whether TMA can read a tensor.
fn is_aligned(instance: &Instance, tensor: ParamId) -> bool {
    instance.facts.alignment_of(&instance.kernel.params[tensor].name) >= 16
}

/// Bytes of a line of the L2 cache.
const LINE: i64 = 128;

/// Copies what can be of an instance that launches ahead may have made of the kernel of the text.
///
/// # Errors
/// What [`why_not_copy`] says.
pub fn copy_ahead(instance: &Instance, text: &Kernel) -> Result<Staged, NotStaged> {
    let kernel = &instance.kernel;
    let found = candidates(instance, text);
    if found.is_empty() {
        return Err(NOTHING.to_owned().into());
    }
    let mut main = kernel.clone();
    let mut groups: Vec<(Programs, Vec<Copy>)> = Vec::new();
    let mut between = Vec::new();
    for (from, Candidate { load, .. }) in found {
        let name = edit::free_name(&main, &format!("{}_copy", kernel.params[from].name), std::iter::empty());
        let read = TensorDecl { direction: Direction::In, ..kernel.tensor(from).clone() };
        let copy = edit::add_tensor(&mut main, &name, read);
        for (_, id) in kernel.walk() {
            if let Op::Load { tensor, .. } = &mut main.ops[id].op
                && *tensor == from
            {
                *tensor = copy;
            }
        }
        between.push(name.clone());
        let (programs, copy) = (programs(kernel, from, load), Copy { from, name, load });
        match groups.iter_mut().find(|(of, _)| *of == programs) {
            Some((_, copies)) => copies.push(copy),
            None => groups.push((programs, vec![copy])),
        }
    }
    let ahead = groups.into_iter().map(|(programs, copies)| copier(kernel, &programs, &copies)).collect();
    Staged::new(ahead, edit::finished(main), Vec::new(), between)
}

/// A tensor that a copy changes.
struct Candidate {
    /// One of its loads.
    load: OpId,
    /// Bytes of its packed rows, if they are known.
    row: Option<i64>,
}

/// The tensors that a copy changes. Rows of one piece of 16 bytes that a launch ahead has written,
/// such as terms of products, lie as narrow tiles read them.
fn candidates(instance: &Instance, text: &Kernel) -> BTreeMap<ParamId, Candidate> {
    let kernel = &instance.kernel;
    let loads = |operand: ValueId| match kernel.def(operand)? {
        (_, Op::Transpose(x)) => kernel.def(*x).map(|(load, _)| load),
        (load, _) => Some(load),
    };
    let operands = |op: OpId| if let Op::Dot { a, b, .. } = kernel.ops[op].op { Some((a, b)) } else { None };
    let dots: Vec<(ValueId, ValueId)> = kernel.walk().into_iter().filter_map(|(_, op)| operands(op)).collect();
    let right: BTreeSet<OpId> = dots.iter().filter_map(|(_, b)| loads(*b)).collect();
    let left: BTreeSet<OpId> = dots.iter().filter_map(|(a, _)| loads(*a)).collect();
    // They come by a ring beside operands.
    let elementwise = if dots.is_empty() { Vec::new() } else { elementwise_rows(instance) };
    let all: BTreeSet<OpId> = right.iter().copied().chain(left).chain(elementwise).collect();
    let mut found = BTreeMap::new();
    for load in all {
        let Op::Load { tensor, at } = &kernel.ops[load].op else { continue };
        let decl = kernel.tensor(*tensor);
        let width = decl.shape.last().filter(|size| is_constant(kernel, size));
        let elem = instance.binding.elem(kernel, decl.elem).bytes();
        let row = width.and_then(|width| instance.binding.size(kernel, width)).zip(elem).map(|(n, bytes)| n * bytes as i64);
        let is_matrix = at.iter().filter(|a| !matches!(a, At::Index(_))).count() == 2;
        // Of whole rows at once.
        let one_tile = at.iter().filter(|a| matches!(a, At::Tile(_))).count() == 1;
        let by_rows = one_tile && matches!(at.last(), Some(At::Range { .. }));
        let is_of_text = || text.params.values().any(|param| param.name == kernel.params[*tensor].name);
        let is_narrow = row.is_some_and(|row| row <= 16) && !is_of_text();
        let within_lines = right.contains(&load) && by_rows && !is_narrow && row.is_some_and(|row| row % LINE != 0);
        if decl.direction == Direction::In && is_matrix && (within_lines || !is_aligned(instance, *tensor)) {
            found.entry(*tensor).or_insert(Candidate { load, row });
        }
    }
    found
}

fn is_constant(kernel: &Kernel, size: &SizeExpr) -> bool {
    size.sizes().all(|s| kernel.sizes[s].kind == SizeKind::Const)
}

/// How the programs that copy a tensor walk one of its dimensions.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Walked {
    /// A program for each element.
    Each,
    /// A program for each tile.
    Tiles,
    /// All of it by each program.
    Whole,
}

/// The dimensions of the programs that copy a tensor, and how they are walked.
type Programs = Vec<(SizeExpr, Walked)>;

/// A tensor to copy.
struct Copy {
    from: ParamId,
    /// Name of the copy.
    name: String,
    /// One of its loads.
    load: OpId,
}

/// The programs that copy a tensor: one for each tile of the two dimensions that `load` reads. Rows
/// of a known length are copied whole.
fn programs(kernel: &Kernel, tensor: ParamId, load: OpId) -> Programs {
    let Op::Load { at, .. } = &kernel.ops[load].op else { unreachable!("a load") };
    let shape = &kernel.tensor(tensor).shape;
    let walked = |(number, (size, at)): (usize, (&SizeExpr, &At))| match at {
        At::Index(_) => Some((size.clone(), Walked::Each)),
        // Tensors with rows of other lengths have the same programs.
        At::Range { .. } if number + 1 == shape.len() && is_constant(kernel, size) => None,
        At::Range { .. } | At::Tile(_) => Some((size.clone(), Walked::Tiles)),
    };
    let mut all: Programs = shape.iter().zip(at).enumerate().filter_map(walked).collect();
    if all.len() < shape.len() {
        all.push((SizeExpr::constant(0), Walked::Whole));
    }
    all
}

/// The kernel that copies tensors, all with the same programs.
fn copier(kernel: &Kernel, programs: &[(SizeExpr, Walked)], copies: &[Copy]) -> Kernel {
    let names: Vec<&str> = copies.iter().map(|c| kernel.params[c.from].name.as_str()).collect();
    let mut b = edit::beside(kernel, format!("{}_copy_{}", kernel.name, names.join("_")));
    b.span = kernel.ops[copies[0].load].span;
    let mut words = ["row", "column"].into_iter();
    let mut tiled: Vec<(usize, &str)> = Vec::new();
    let mut dims = Vec::new();
    for (number, (size, walked)) in programs.iter().enumerate() {
        match walked {
            Walked::Each => dims.push(ProgramDim::Each(size.clone())),
            Walked::Tiles => {
                let name = words.next().expect("a matrix has two dimensions");
                dims.push(ProgramDim::Tiles(b.axis(name, size.clone(), AxisKind::Program)));
                tiled.push((number, name));
            }
            Walked::Whole => {}
        }
    }
    let params: Vec<(ParamId, ParamId)> = copies
        .iter()
        .map(|copy| {
            let from = b.kernel.params.push(kernel.params[copy.from].clone());
            let written = TensorDecl { direction: Direction::Out, ..kernel.tensor(copy.from).clone() };
            (from, edit::add_tensor(&mut b.kernel, &copy.name, written))
        })
        .collect();
    let (_, place) = b.append(Op::Program(dims));
    for (copy, (from, to)) in copies.iter().zip(params) {
        let columns = kernel.tensor(copy.from).shape.last().expect("a matrix").clone();
        let one = |(number, (_, walked)): (usize, &(SizeExpr, Walked))| match walked {
            Walked::Each => At::Index(place[number]),
            Walked::Tiles => At::Tile(place[number]),
            Walked::Whole => At::Range { start: SizeExpr::constant(0), len: columns.clone() },
        };
        let at: Vec<At> = programs.iter().enumerate().map(one).collect();
        let loaded = b.emit(Op::Load { tensor: from, at: at.clone() });
        b.append(Op::Store { tensor: to, at, value: loaded });
    }
    for (number, name) in tiled {
        b.name(place[number], name);
    }
    b.finish()
}
