//! A kernel with its sizes, block sizes and arguments, checked against each other: what every
//! program of a grid reads and none changes.

use std::sync::atomic::{AtomicBool, AtomicU64};

use super::error::InterpretError;
use super::hidden::Hidden;
use super::memory::{Argument, TensorView};
use crate::ir::{
    AxisId, AxisKind, Binding, Direction, Elem, Entity, Kernel, ParamId, ParamKind, ProgramDim, SizeExpr, SizeKind, ValueId,
};

/// How many positions a tile of each axis has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Blocks {
    /// The given number for program axes; loops have one tile of their whole extent, so that
    /// streaming adds no error.
    WholeLoops(usize),
    /// One number per [`AxisId`]; that of an axis of single positions is not used.
    PerAxis(Vec<usize>),
}

/// What all programs of a grid have in common.
#[derive(Debug)]
pub(super) struct Call<'a> {
    pub kernel: &'a Kernel,
    pub binding: &'a Binding,
    /// Values of all sizes.
    pub sizes: Vec<i64>,
    /// Extent and block size by axis.
    pub axes: Vec<(usize, usize)>,
    /// Extents of the grid, outermost first.
    pub grid: Vec<usize>,
    pub arguments: Vec<Argument<'a>>,
    /// Loops of which one tile is walked: by coordinate, its number.
    pub only: Vec<(ValueId, usize)>,
    /// Shapes of the tensor parameters; empty for scalars.
    pub shapes: Vec<Vec<usize>>,
    /// What hidden elements are to reductions and contractions.
    pub rule: Hidden,
    /// Whether one of them met what is not finite.
    pub met: AtomicBool,
    /// What [`super::Interpreter::exponent_terms`] gives, as bits: numbers that are not negative are in
    /// the order of their bits.
    pub exponent_terms: AtomicU64,
}

impl<'a> Call<'a> {
    /// Checks that everything fits. `sizes` has the values of all sizes by [`crate::ir::SizeId`];
    /// the values of const sizes are taken from the binding.
    pub fn new(
        kernel: &'a Kernel,
        binding: &'a Binding,
        sizes: &[i64],
        blocks: &Blocks,
        arguments: &[Argument<'a>],
    ) -> Result<Self, InterpretError> {
        let missing = binding.check(kernel);
        if !missing.is_empty() {
            return Err(InterpretError::Unbound { kernel: kernel.name.clone(), missing });
        }
        let sizes = kernel
            .sizes
            .iter()
            .map(|(id, size)| match size.kind {
                SizeKind::Const => Ok(binding.consts[&size.name]),
                SizeKind::Runtime => sizes
                    .get(id.index())
                    .copied()
                    .ok_or_else(|| InterpretError::MissingSize { kernel: kernel.name.clone(), size: size.name.clone() }),
            })
            .collect::<Result<Vec<_>, _>>()?;
        let (axes, grid, shapes) = (Vec::new(), Vec::new(), Vec::new());
        let mut this = Self {
            kernel,
            binding,
            sizes,
            axes,
            grid,
            arguments: arguments.to_vec(),
            only: Vec::new(),
            shapes,
            rule: Hidden::Absent,
            met: AtomicBool::new(false),
            exponent_terms: AtomicU64::new(0),
        };
        this.axes = this.block_axes(blocks)?;
        this.grid = kernel
            .grid()
            .iter()
            .map(|dim| match dim {
                ProgramDim::Each(size) => this.extent(size),
                ProgramDim::Tiles(axis) => Ok(this.tiles(*axis)),
            })
            .collect::<Result<_, _>>()?;
        this.shapes = this.check_arguments()?;
        Ok(this)
    }

    /// Number of programs in the grid.
    pub fn programs(&self) -> usize {
        self.grid.iter().product()
    }

    /// Where a program (numbered row-major) is in the grid.
    pub fn coordinates(&self, program: usize) -> Result<Vec<usize>, InterpretError> {
        let programs = self.programs();
        if program >= programs {
            return Err(InterpretError::Program { program, programs });
        }
        let mut coordinates = vec![0; self.grid.len()];
        let mut rest = program;
        for (coordinate, extent) in coordinates.iter_mut().zip(&self.grid).rev() {
            (*coordinate, rest) = (rest % extent, rest / extent);
        }
        Ok(coordinates)
    }

    /// Element type of the tensor parameter, with type parameters bound.
    pub fn elem(&self, param: ParamId) -> Elem {
        self.binding.elem(self.kernel, self.kernel.tensor(param).elem)
    }

    fn block_axes(&self, blocks: &Blocks) -> Result<Vec<(usize, usize)>, InterpretError> {
        if let Blocks::PerAxis(blocks) = blocks
            && blocks.len() != self.kernel.axes.len()
        {
            return Err(InterpretError::BlockCount { expected: self.kernel.axes.len(), found: blocks.len() });
        }
        let axis = |(id, axis): (AxisId, &crate::ir::Axis)| {
            let extent = self.extent(&axis.extent)?;
            let block = match (blocks, axis.kind) {
                (_, AxisKind::Each) => 1,
                (Blocks::PerAxis(blocks), _) => blocks[id.index()],
                (Blocks::WholeLoops(block), AxisKind::Program) => *block,
                (Blocks::WholeLoops(_), AxisKind::Loop) => extent.max(1),
            };
            if block == 0 {
                return Err(InterpretError::EmptyBlock { axis: axis.name.clone() });
            }
            Ok((extent, block))
        };
        self.kernel.axes.iter().map(axis).collect()
    }

    fn check_arguments(&self) -> Result<Vec<Vec<usize>>, InterpretError> {
        let (expected, found) = (self.kernel.params.len(), self.arguments.len());
        if expected != found {
            return Err(InterpretError::ArgumentCount { kernel: self.kernel.name.clone(), expected, found });
        }
        let mut shapes = Vec::with_capacity(expected);
        for (param, argument) in self.kernel.params.values().zip(&self.arguments) {
            let kind = |expected| Err(InterpretError::Kind { name: param.name.clone(), expected, found: argument.describe() });
            let ParamKind::Tensor(declared) = &param.kind else {
                match (&param.kind, argument) {
                    (ParamKind::Scalar(Elem::I32), Argument::I32(_)) | (ParamKind::Scalar(Elem::F32), Argument::F32(_)) => {}
                    (ParamKind::Scalar(Elem::I32), _) => return kind("an i32 scalar"),
                    _ => return kind("an f32 scalar"),
                }
                shapes.push(Vec::new());
                continue;
            };
            let shape = declared.shape.iter().map(|s| self.extent(s)).collect::<Result<Vec<_>, _>>()?;
            match (declared.direction, argument) {
                (Direction::Out | Direction::Sum, Argument::Output) => {}
                (Direction::Out | Direction::Sum, _) => return kind("an output tensor"),
                (Direction::In | Direction::InOut, Argument::Input(tensor)) => {
                    let expected = self.binding.elem(self.kernel, declared.elem);
                    check_tensor(&param.name, expected, &shape, tensor)?;
                }
                (Direction::In, _) => return kind("an input tensor"),
                (Direction::InOut, _) => return kind("an input tensor, for what is read before it is stored"),
            }
            shapes.push(shape);
        }
        Ok(shapes)
    }

    /// The value of a size that is a number of positions.
    pub fn extent(&self, size: &SizeExpr) -> Result<usize, InterpretError> {
        size.eval(|s| self.sizes.get(s.index()).copied())
            .and_then(|n| usize::try_from(n).ok())
            .ok_or_else(|| InterpretError::NotAnExtent { text: self.kernel.size_text(size) })
    }

    /// Number of tiles of an axis.
    pub fn tiles(&self, axis: AxisId) -> usize {
        let (extent, block) = self.axes[axis.index()];
        extent.div_ceil(block)
    }
}

fn check_tensor(name: &str, elem: Elem, shape: &[usize], tensor: &TensorView<'_>) -> Result<(), InterpretError> {
    let name = || name.to_owned();
    if tensor.elem != elem {
        return Err(InterpretError::Element { name: name(), expected: elem, found: tensor.elem });
    }
    if tensor.shape != shape {
        return Err(InterpretError::Shape { name: name(), expected: shape.to_vec(), found: tensor.shape.to_vec() });
    }
    let contiguous = shape.last().is_none_or(|&n| n <= 1 || tensor.strides.last() == Some(&1));
    if tensor.strides.len() != shape.len() || !contiguous {
        return Err(InterpretError::Strides { name: name(), strides: tensor.strides.to_vec() });
    }
    if !shape.contains(&0) {
        let last: usize = shape.iter().zip(tensor.strides).map(|(n, s)| (n - 1) * s).sum();
        let needed = (last + 1) * elem.bytes().expect("verified: a tensor holds what has a size");
        if needed > tensor.bytes.len() {
            return Err(InterpretError::Memory { name: name(), needed, found: tensor.bytes.len() });
        }
    }
    Ok(())
}
