//! Gradients of what several programs load: each stores its share, and a kernel of its own sums the
//! shares up, in one order.

use super::NotDifferentiable;
use super::forward::{Forward, WantedLoad};
use super::kept::{free_name, grad_name};
use crate::ir::{
    At, AxisKind, BinaryOp, Builder, Dim, Direction, Elem, Kernel, Op, Param, ParamId, ParamKind, ProgramDim, ReduceOp, SizeExpr,
    Span, TensorDecl, ValueId,
};

/// A dimension of the tensor of shares.
#[derive(Clone)]
struct ShareDim {
    /// Its place, by values of the forward kernel.
    at: At,
    extent: SizeExpr,
    /// Its name in the kernel of totals.
    name: String,
    /// Its place among the dimensions of the input, if that has it.
    of_input: Option<usize>,
}

/// The shares of the programs in the gradient of an input.
pub(super) struct Share {
    pub name: String,
    elem: Elem,
    tensor: ParamId,
    /// The address of the input.
    at: Vec<At>,
    /// Indices of the grid, then rows, then columns, then what the input has besides. Rows and
    /// columns that the input has both have its order.
    dims: Vec<ShareDim>,
}

impl Share {
    /// The shares of a load of rows, of pairs or of whole programs; `None` where each program loads
    /// elements of its own.
    pub fn of(forward: &Forward<'_>, load: &WantedLoad) -> Result<Option<Self>, NotDifferentiable> {
        let (value, tensor, at) = load;
        let kernel = forward.kernel;
        let find = |entry: &At| at.iter().position(|other| other == entry);
        let mut dims: Vec<ShareDim> = Vec::new();
        let mut lacks = false;
        let grid = || kernel.grid().iter().zip(&forward.program);
        let each = grid().filter_map(|(dim, &v)| match dim {
            ProgramDim::Each(extent) => Some((At::Index(v), extent.clone())),
            ProgramDim::Tiles(_) => None,
        });
        let tiles = grid().filter_map(|(dim, &v)| match dim {
            ProgramDim::Tiles(axis) => Some((At::Tile(v), kernel.axes[*axis].extent.clone())),
            ProgramDim::Each(_) => None,
        });
        for (at, extent) in each.chain(tiles) {
            let (At::Index(v) | At::Tile(v)) = at else { unreachable!("a place in the grid") };
            let of_input = find(&at);
            lacks |= of_input.is_none();
            dims.push(ShareDim { name: forward.name(v), at, extent, of_input });
        }
        if !lacks {
            return Ok(None);
        }
        let lost = dims.iter().filter(|dim| dim.of_input.is_none() && matches!(dim.at, At::Tile(_))).count();
        if lost > 1 {
            let what = format!("`{}` has one number for whole tiles of rows and columns", kernel.params[*tensor].name);
            let instead = "leave it out, or give it a dimension for rows or for columns";
            return Err(NotDifferentiable::new(what, forward.span(*value), instead));
        }
        for (place, entry) in at.iter().enumerate() {
            let extent = match entry {
                own if dims.iter().any(|dim| dim.at == *own) => continue,
                At::Tile(v) if forward.is_column(*v) => kernel.axes[forward.columns[0].1].extent.clone(),
                At::Range { len, .. } => len.clone(),
                // The one element of a dimension: a number that all programs share.
                At::Index(v) if is_only_one(kernel, *v, &kernel.tensor(*tensor).shape[place]) => SizeExpr::constant(1),
                _ => {
                    let name = &kernel.params[*tensor].name;
                    let what = format!("`{name}` is loaded at an index that is no dimension of the grid, by several programs");
                    let instead = "give the input a dimension for that of the grid, and sum its gradient behind";
                    return Err(NotDifferentiable::new(what, forward.span(*value), instead));
                }
            };
            let name = match entry {
                At::Tile(v) => forward.name(*v),
                _ => format!("d{place}"),
            };
            dims.push(ShareDim { at: entry.clone(), extent, name, of_input: Some(place) });
        }
        // Pairs that are loaded with columns for rows have their shares in that order.
        let tiled: Vec<usize> = (0..dims.len()).filter(|&n| matches!(dims[n].at, At::Tile(_))).collect();
        if let [rows, columns] = tiled[..]
            && let (Some(of_rows), Some(of_columns)) = (dims[rows].of_input, dims[columns].of_input)
            && of_columns < of_rows
        {
            dims.swap(rows, columns);
        }
        let name = free_name(kernel, &format!("{}_shares", grad_name(&kernel.params[*tensor].name)));
        Ok(Some(Self { name, elem: Elem::F32, tensor: *tensor, at: at.clone(), dims }))
    }

    /// The same, where another output holds the shares.
    pub fn stored_as(self, name: String, elem: Elem) -> Self {
        Self { name, elem, ..self }
    }

    /// The tensor of the shares.
    pub fn decl(&self, direction: Direction) -> TensorDecl {
        TensorDecl { elem: self.elem, shape: self.dims.iter().map(|dim| dim.extent.clone()).collect(), direction }
    }

    /// Where a program stores its share, by values of the forward kernel.
    pub fn place(&self) -> Vec<At> {
        let whole = |dim: &ShareDim| match &dim.at {
            At::Range { len, .. } => At::Range { start: SizeExpr::constant(0), len: len.clone() },
            other => other.clone(),
        };
        self.dims.iter().map(whole).collect()
    }

    /// The dimension along which the kernel of totals has its tiles: the last one that the input
    /// has.
    fn lane(&self, forward: &Forward<'_>) -> Result<usize, NotDifferentiable> {
        let tiled = |dim: &ShareDim| dim.of_input.is_some() && matches!(dim.at, At::Tile(_));
        let own = |dim: &ShareDim| dim.of_input.is_some();
        let lane = self.dims.iter().position(tiled).or_else(|| self.dims.iter().rposition(own));
        let param = &forward.kernel.params[self.tensor];
        let whole = lane.filter(|&lane| match (&self.dims[lane].at, self.dims[lane].of_input) {
            (At::Range { start, len }, Some(place)) => {
                *start == SizeExpr::constant(0) && *len == forward.kernel.tensor(self.tensor).shape[place]
            }
            _ => true,
        });
        whole.ok_or_else(|| {
            let what = format!("`{}` is loaded in parts, each by all programs", param.name);
            NotDifferentiable::new(what, param.span, "load its whole last dimension, `..`")
        })
    }
}

/// Whether an index is that of the only element of a dimension.
fn is_only_one(kernel: &Kernel, index: ValueId, extent: &SizeExpr) -> bool {
    extent.as_constant() == Some(1) && matches!(kernel.def(index), Some((_, Op::IndexConst(0))))
}

/// The kernel that sums up shares.
pub(super) fn totals(forward: &Forward<'_>, share: &Share) -> Result<Kernel, NotDifferentiable> {
    let kernel = forward.kernel;
    let lane = share.lane(forward)?;
    let param = &kernel.params[share.tensor];
    let mut b = Builder::new(format!("{}_{}", kernel.name, grad_name(&param.name)));
    b.kernel.type_params.clone_from(&kernel.type_params);
    b.kernel.sizes = kernel.sizes.clone();
    b.kernel.doc = format!("The gradient of `{}`: the sum of the shares of all programs of `{}`.", param.name, kernel.name);
    let mut tensor = |name: &str, decl: TensorDecl| {
        b.kernel.params.push(Param { name: name.to_owned(), kind: ParamKind::Tensor(decl), span: Span::default() })
    };
    let shares = tensor(&share.name, share.decl(Direction::In));
    let output = tensor(&grad_name(&param.name), TensorDecl { direction: Direction::Out, ..kernel.tensor(share.tensor).clone() });

    // Tiles: of the lane, and of other dimensions of the input that have them.
    let is_tiled = |n: usize, dim: &ShareDim| n == lane || matches!(dim.at, At::Tile(_));
    let mut places: Vec<Option<At>> = share.dims.iter().map(|_| None).collect();
    let mut grid = Vec::new();
    let mut axes = Vec::new();
    for (n, dim) in share.dims.iter().enumerate().filter(|(_, dim)| dim.of_input.is_some()) {
        match (is_tiled(n, dim), &dim.at) {
            (true, _) => {
                let axis = b.axis(dim.name.clone(), dim.extent.clone(), AxisKind::Program);
                axes.push(Dim::Axis(axis));
                grid.push((n, ProgramDim::Tiles(axis)));
            }
            (false, At::Range { len, .. }) => {
                axes.push(Dim::Range(len.clone()));
                places[n] = Some(At::Range { start: SizeExpr::constant(0), len: len.clone() });
            }
            (false, _) => grid.push((n, ProgramDim::Each(dim.extent.clone()))),
        }
    }
    let (_, program) = b.append(Op::Program(grid.iter().map(|(_, dim)| dim.clone()).collect()));
    for (&v, (n, dim)) in program.iter().zip(&grid) {
        b.kernel.values[v].name = Some(share.dims[*n].name.clone());
        places[*n] = Some(if matches!(dim, ProgramDim::Tiles(_)) { At::Tile(v) } else { At::Index(v) });
    }
    let zero = b.emit(Op::Constant(Elem::F32, 0.0));
    let zeros = b.emit(Op::Full { value: zero, dims: axes });
    b.kernel.values[zeros].name = Some("total".to_owned());

    // What the input has not is walked: indices first, rows within.
    let mut open = Vec::new();
    let mut carried = zeros;
    for (n, dim) in share.dims.iter().enumerate().filter(|(_, dim)| dim.of_input.is_none()) {
        let kind = if matches!(dim.at, At::Tile(_)) { AxisKind::Loop } else { AxisKind::Each };
        let axis = b.axis(dim.name.clone(), dim.extent.clone(), kind);
        let (at, next) = b.begin_for(axis, &[carried]);
        places[n] = Some(if kind == AxisKind::Loop { At::Tile(at) } else { At::Index(at) });
        open.push((axis, carried));
        carried = next[0];
    }
    let at: Vec<At> = places.into_iter().map(|place| place.expect("each dimension has a place")).collect();
    let mut term = b.emit(Op::Load { tensor: shares, at: at.clone() });
    // Rows that the input has not are summed: they are the last dimension, or the one before the
    // lane.
    if let Some(rows) = share.dims.iter().position(|dim| dim.of_input.is_none() && matches!(dim.at, At::Tile(_))) {
        if lane > rows {
            term = b.emit(Op::Transpose(term));
        }
        term = b.emit(Op::Reduce(ReduceOp::Sum, term));
    }
    let mut total = b.emit(Op::Binary(BinaryOp::Add, carried, term));
    for (axis, init) in open.into_iter().rev() {
        total = b.end_for(axis, vec![init], vec![total])[0];
    }
    let mut target: Vec<At> = share.at.clone();
    for (dim, at) in share.dims.iter().zip(at) {
        if let Some(place) = dim.of_input {
            target[place] = match (&share.at[place], at) {
                (range @ At::Range { .. }, At::Range { .. }) => range.clone(),
                (_, at) => at,
            };
        }
    }
    b.append(Op::Store { tensor: output, at: target, value: total });
    Ok(b.finish().renumbered())
}
