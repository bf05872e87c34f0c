//! Gradients of what several programs load: each stores its share, and a kernel of its own sums the
//! shares up, in one order.

use super::NotDifferentiable;
use super::columns::ColumnGroup;
use super::forward::{Class, Forward, Shape, WantedLoad};
use super::kept::Stored;
use super::names::free_name;
use crate::ir::{
    At, AxisKind, BinaryOp, Builder, Dim, Direction, Elem, Kernel, Op, Param, ParamId, ParamKind, ProgramDim, ReduceOp, SizeExpr,
    SizeKind, Span, TensorDecl, ValueDef,
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
    /// The range of the input that the shares have alone: its whole length is known in a launch.
    part: Option<At>,
}

/// The shares of the programs in the gradient of an input.
pub(super) struct Share {
    pub name: String,
    elem: Elem,
    pub tensor: ParamId,
    /// Indices of the grid, then rows, then columns, then what the input has besides. Rows and
    /// columns that the input has both have its order.
    dims: Vec<ShareDim>,
}

impl Share {
    /// The shares of a load of rows, of pairs or of whole programs; `None` where each program loads
    /// elements of its own.
    pub fn of(forward: &Forward<'_>, load: &WantedLoad) -> Result<Option<Self>, NotDifferentiable> {
        let kernel = forward.kernel;
        let grid = kernel.grid().iter().zip(&forward.program);
        let each = forward.each_dims().map(|(v, extent)| (At::Index(v), extent));
        let tiles = grid.filter_map(|(dim, &v)| match dim {
            ProgramDim::Tiles(axis) => Some((At::Tile(v), kernel.axes[*axis].extent.clone())),
            ProgramDim::Each(_) => None,
        });
        Self::among(forward, load, each.chain(tiles))
    }

    /// The shares of columns in the gradient of a load of whole programs.
    pub fn of_columns(forward: &Forward<'_>, group: &ColumnGroup, load: &WantedLoad) -> Result<Self, NotDifferentiable> {
        let (column, axis) = forward.columns[0];
        let each = group.indices.0.iter().map(|(v, extent)| (At::Index(*v), extent.clone()));
        let share = Self::among(forward, load, each.chain([(At::Tile(column), forward.kernel.axes[axis].extent.clone())]))?;
        Ok(share.expect("a value of whole programs has no dimension for columns"))
    }

    /// The shares of programs at these places, each with its extent.
    fn among(
        forward: &Forward<'_>,
        (value, tensor, at): &WantedLoad,
        programs: impl Iterator<Item = (At, SizeExpr)>,
    ) -> Result<Option<Self>, NotDifferentiable> {
        let kernel = forward.kernel;
        let find = |entry: &At| at.iter().position(|other| other == entry);
        let is_const = |size: &SizeExpr| size.sizes().all(|s| kernel.sizes[s].kind == SizeKind::Const);
        let (name, TensorDecl { shape, .. }) = forward.gradient(*tensor);
        let mut dims: Vec<ShareDim> = Vec::new();
        let mut lacks = false;
        for (at, extent) in programs {
            let (At::Index(v) | At::Tile(v)) = at else { unreachable!("a place in the grid") };
            let of_input = find(&at);
            lacks |= of_input.is_none();
            dims.push(ShareDim { name: forward.name(v), at, extent, of_input, part: None });
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
                _ if dims.iter().any(|dim| dim.of_input == Some(place)) => continue,
                At::Tile(v) if forward.is_column(*v) => kernel.axes[forward.columns[0].1].extent.clone(),
                // Several ranges and numbers of a dimension have their places in one tensor.
                At::Range { .. } if is_const(&shape[place]) => shape[place].clone(),
                At::Range { len, .. } => len.clone(),
                At::Index(v) if matches!(kernel.def(*v), Some((_, Op::IndexConst(_)))) => shape[place].clone(),
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
            let (at, part) = match entry {
                At::Range { len, .. } if !is_const(&shape[place]) => {
                    (At::Range { start: SizeExpr::constant(0), len: len.clone() }, Some(entry.clone()))
                }
                whole => (whole.clone(), None),
            };
            dims.push(ShareDim { at, extent, name, of_input: Some(place), part });
        }
        // Pairs that are loaded with columns for rows have their shares in that order.
        let tiled: Vec<usize> = (0..dims.len()).filter(|&n| matches!(dims[n].at, At::Tile(_))).collect();
        if let [rows, columns] = tiled[..]
            && let (Some(of_rows), Some(of_columns)) = (dims[rows].of_input, dims[columns].of_input)
            && of_columns < of_rows
        {
            dims.swap(rows, columns);
        }
        // Parts that have tensors of their own are told apart by numbers.
        let before = match dims.iter().any(|dim| dim.part.is_some()) {
            true => of_tensor(forward, *tensor).iter().position(|other| other.0 == *value).unwrap_or(0),
            false => 0,
        };
        let number = if before == 0 { String::new() } else { (before + 1).to_string() };
        let name = free_name(kernel, &format!("{name}_shares{number}"));
        Ok(Some(Self { name, elem: Elem::F32, tensor: *tensor, dims }))
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
        self.dims.iter().map(|dim| dim.at.clone()).collect()
    }

    /// The tensor of the shares, with that place.
    pub fn stored(&self) -> Stored {
        Stored { name: self.name.clone(), at: self.place(), decl: self.decl(Direction::In), is_new: true }
    }

    /// The dimension along which the kernel of totals has its tiles: the last one that the input
    /// has.
    fn lane(&self, forward: &Forward<'_>) -> Result<usize, NotDifferentiable> {
        let tiled = |dim: &ShareDim| dim.of_input.is_some() && matches!(dim.at, At::Tile(_));
        let own = |dim: &ShareDim| dim.of_input.is_some() && dim.part.is_none();
        let lane = self.dims.iter().position(tiled).or_else(|| self.dims.iter().rposition(own));
        let param = &forward.kernel.params[self.tensor];
        lane.ok_or_else(|| {
            let what = format!("`{}` is loaded in parts of a length that a launch knows, each by all programs", param.name);
            NotDifferentiable::new(what, param.span, "make the length of its last dimension a constant")
        })
    }
}

/// The tensor that kernels store the gradient of an input to: that of its shares, if it comes in
/// these.
pub(super) fn stored_to(
    forward: &Forward<'_>,
    groups: &[ColumnGroup],
    tensor: ParamId,
) -> Result<(String, TensorDecl), NotDifferentiable> {
    let of_columns = groups.iter().find_map(|group| Some((group, group.of_programs.iter().find(|load| load.1 == tensor)?)));
    // Kernels of columns and of operands sum up what programs load by themselves.
    let by_programs = |load: &WantedLoad| match (forward.shape, forward.kernel.values[load.0].def) {
        (Shape::Product, ValueDef::Result(op, _)) => !forward.is_in_loop(op),
        (Shape::Rows, _) => forward.class(load.0) != Class::Column && !forward.is_of_pairs(load),
        (Shape::Product, _) => true,
    };
    let mut loads = of_tensor(forward, tensor).into_iter().filter(by_programs);
    let share = match of_columns {
        Some((group, load)) => Some(Share::of_columns(forward, group, load)?),
        None => loads.next().map(|load| Share::of(forward, &load)).transpose()?.flatten(),
    };
    let share = share.filter(|share| share.dims.iter().all(|dim| dim.part.is_none()));
    Ok(share.map_or_else(|| forward.gradient(tensor), |share| (share.name.clone(), share.decl(Direction::Out))))
}

/// The loads of an input.
fn of_tensor(forward: &Forward<'_>, tensor: ParamId) -> Vec<WantedLoad> {
    let classes = [Class::Row, Class::Column, Class::Pair, Class::Program];
    classes.into_iter().flat_map(|class| forward.wanted_loads(class)).filter(|load| load.1 == tensor).collect()
}

/// The kernels that sum up shares, one for each input and each tensor of its shares. Inputs that are
/// added to one sum have the same tensor: the gradient of the sum.
pub(super) fn all_totals(forward: &Forward<'_>, shares: &[Share]) -> Result<Vec<Kernel>, NotDifferentiable> {
    let is_first = |(n, share): &(usize, &Share)| {
        shares[..*n].iter().all(|other| (&other.name, other.tensor) != (&share.name, share.tensor))
    };
    shares.iter().enumerate().filter(is_first).map(|(_, share)| totals(forward, share)).collect()
}

fn totals(forward: &Forward<'_>, share: &Share) -> Result<Kernel, NotDifferentiable> {
    let kernel = forward.kernel;
    let lane = share.lane(forward)?;
    let param = &kernel.params[share.tensor];
    let (name, decl) = forward.gradient(share.tensor);
    let mut b = Builder::new(format!("{}_{name}", kernel.name));
    b.kernel.type_params.clone_from(&kernel.type_params);
    b.kernel.sizes = kernel.sizes.clone();
    b.kernel.doc = format!("The gradient of `{}`: the sum of the shares of all programs of `{}`.", param.name, kernel.name);
    let mut tensor = |name: &str, decl: TensorDecl| {
        b.kernel.params.push(Param { name: name.to_owned(), kind: ParamKind::Tensor(decl), span: Span::default() })
    };
    let shares = tensor(&share.name, share.decl(Direction::In));
    let rank = decl.shape.len();
    let output = tensor(&name, decl);

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
            (false, At::Range { .. }) => {
                axes.push(Dim::Range(dim.extent.clone()));
                places[n] = Some(At::Range { start: SizeExpr::constant(0), len: dim.extent.clone() });
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
    let place = |dim: usize| share.dims.iter().position(|own| own.of_input == Some(dim)).expect("a place for each dimension");
    let target = (0..rank).map(|dim| share.dims[place(dim)].part.clone().unwrap_or_else(|| at[place(dim)].clone())).collect();
    b.append(Op::Store { tensor: output, at: target, value: total });
    Ok(b.finish().renumbered())
}
