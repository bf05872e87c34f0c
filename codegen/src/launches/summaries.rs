//! Integers that a loop loads for each position, such as the documents of keys, summarised ahead:
//! the least and the largest of each tile of the loop.
//!
//! A mask that compares them hides tiles which no closed form of positions tells. With the
//! summaries a program finds the tiles that it must walk, and those that nothing cuts, before its
//! loop: it searches two integers a tile (`flashtile_dsl::analysis::index::Search`). The summaries
//! take one pass over the integers, and serve the programs of all heads. What is computed does not
//! change, whatever the integers are: those in no order only leave more tiles to walk.

use std::collections::BTreeSet;

use flashtile_dsl::analysis::index::IndexExpr;
use flashtile_dsl::analysis::mask::{MaskOptions, loop_runs};
use flashtile_dsl::analysis::predicate::Summaries;
use flashtile_dsl::ir::{At, AxisId, AxisKind, Direction, Elem, Kernel, Op, ParamId, ProgramDim, Summary, TensorDecl};

use super::staged::{NotStaged, Staged};
use crate::instance::Instance;
use crate::rewrite::edit;

/// Why there is nothing to summarise; `None` if there is something.
pub fn why_not_summarise(instance: &Instance) -> Option<String> {
    // Which tensors they are does not depend on block sizes.
    found(instance, &|_| 64).is_empty().then(|| NOTHING.into())
}

const NOTHING: &str = "no mask that hides tiles compares integers that are loaded for each position of the loop";

/// Summarises what masks compare.
///
/// # Errors
/// What [`why_not_summarise`] says.
pub fn summarise(instance: &Instance, block: &dyn Fn(AxisId) -> i64) -> Result<Staged, NotStaged> {
    let kernel = &instance.kernel;
    let found = found(instance, block);
    if found.is_empty() {
        return Err(NOTHING.to_owned().into());
    }
    let mut main = kernel.clone();
    let (mut ahead, mut between) = (Vec::new(), Vec::new());
    for of in found {
        let name = |main: &Kernel, suffix: &str| {
            edit::free_name(main, &format!("{}_{suffix}", kernel.params[of.tensor].name), std::iter::empty())
        };
        let decl = TensorDecl { elem: Elem::I32, ..kernel.tensor(of.tensor).clone() };
        let names = ["least", "most"].map(|suffix| name(&main, suffix));
        let [least, most] = names.clone().map(|name| edit::add_tensor(&mut main, &name, decl.clone()));
        main.summaries.push(Summary { of: of.tensor, dim: of.dim, block: of.block, least, most });
        ahead.push(summariser(kernel, &of, &names));
        between.extend(names);
    }
    Staged::new(ahead, edit::finished(main), Vec::new(), between)
}

/// Integers to summarise.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Summarised {
    tensor: ParamId,
    dim: usize,
    /// Positions of a tile.
    block: u32,
}

/// What the bounds of the loops would search.
fn found(instance: &Instance, block: &dyn Fn(AxisId) -> i64) -> BTreeSet<Summarised> {
    let kernel = &instance.kernel;
    let size = |size: &_| instance.binding.size(kernel, size);
    let options = MaskOptions { summaries: Summaries::All, ..MaskOptions::default() };
    let mut found = BTreeSet::new();
    for (_, op) in kernel.walk() {
        let Op::For { axis, .. } = kernel.ops[op].op else { continue };
        if kernel.axes[axis].kind != AxisKind::Loop {
            continue;
        }
        let runs = loop_runs(kernel, op, block, &size, options);
        for search in runs.exprs().flat_map(IndexExpr::searches) {
            let (tensor, _, dim) = search.read(kernel);
            let block = u32::try_from(search.block).expect("a block size");
            found.insert(Summarised { tensor, dim, block });
        }
    }
    found
}

/// The kernel that stores the least and the largest integer of each block of a tensor.
fn summariser(kernel: &Kernel, of: &Summarised, names: &[String; 2]) -> Kernel {
    let param = &kernel.params[of.tensor];
    let mut b = edit::beside(kernel, format!("{}_tiles_{}", kernel.name, param.name));
    let decl = kernel.tensor(of.tensor).clone();
    let axis = b.axis("tile", decl.shape[of.dim].clone(), AxisKind::Program);
    let dims = decl.shape.iter().enumerate().map(|(dim, extent)| match dim == of.dim {
        true => ProgramDim::Tiles(axis),
        false => ProgramDim::Each(extent.clone()),
    });
    let tensor = b.kernel.params.push(param.clone());
    let written = TensorDecl { elem: Elem::I32, direction: Direction::Out, ..decl.clone() };
    let outputs = names.each_ref().map(|name| edit::add_tensor(&mut b.kernel, name, written.clone()));
    let (_, place) = b.append(Op::Program(dims.collect()));
    let entry = |(dim, &v)| if dim == of.dim { At::Tile(v) } else { At::Index(v) };
    let at: Vec<At> = place.iter().enumerate().map(entry).collect();
    for (output, largest) in outputs.into_iter().zip([false, true]) {
        let value = b.emit(Op::BlockExtreme { tensor, at: at.clone(), block: of.block, largest });
        b.append(Op::Store { tensor: output, at: at.clone(), value });
    }
    b.name(place[of.dim], "tile");
    b.finish()
}
