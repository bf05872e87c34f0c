//! Checks the arguments of a launch against a kernel's parameters and solves for its sizes.
//!
//! Everything about the parameters is worked out once; a check of good arguments then allocates nothing and formats
//! nothing.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError, RwLock};

use flashtile_dsl::analysis::reach::{Fault, MAX_SIZE, Reach, Values, Width};
use flashtile_dsl::ir::{self, At, Binding, Elem, Entity, Op, ParamKind, SizeExpr, SizeKind};

use super::{Argument, ArgumentError, ArgumentForm, ArgumentValue};
use crate::device::Device;
use crate::tensor::{has_contiguous_rows, overlaps_itself};

/// How one size follows from the arguments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    pub size: usize,
    pub param: usize,
    pub dimension: usize,
    /// `extent * divisor = coefficient * size + constant`.
    pub coefficient: i64,
    pub constant: i64,
    pub divisor: i64,
}

#[derive(Debug)]
enum Param {
    Tensor { elem: Elem, bytes: usize, shape: Vec<SizeExpr>, output: bool },
    Scalar(Elem),
}

/// A bound kernel's parameters, ready for checks.
#[derive(Debug)]
pub(crate) struct Signature {
    ir: Arc<ir::Kernel>,
    params: Vec<Param>,
    /// Const sizes filled in, zero elsewhere.
    consts: Vec<i64>,
    sources: Vec<Source>,
    /// Parameters, dimensions of them, and how much of these is addressed by ranges.
    ranges: Vec<(usize, usize, usize)>,
    /// Positions of the i32 scalars.
    integers: Vec<usize>,
    /// What is computed from sizes and scalars.
    reach: Reach,
    /// Sizes and integer scalars that were found to be right, the last ones first.
    right: RwLock<VecDeque<Right>>,
}

/// Sizes, then integer scalars, and the width of index arithmetic that they need.
#[derive(Debug)]
struct Right {
    sizes: Vec<i64>,
    scalars: Vec<i32>,
    width: Width,
}

/// Sizes that are remembered, so that a launch like the one before checks nothing anew.
const REMEMBERED: usize = 8;

/// Sizes that a kernel may have. A launch keeps them on its stack.
pub(super) const MAX_SIZES: usize = 32;
/// Parameters that a kernel may have, likewise.
pub(super) const MAX_ARGUMENTS: usize = 32;

impl Signature {
    /// Works out how the sizes follow from the shapes.
    pub fn new(ir: &Arc<ir::Kernel>, binding: &Binding) -> Result<Self, ArgumentError> {
        if ir.sizes.len() > MAX_SIZES || ir.params.len() > MAX_ARGUMENTS {
            return Err(ArgumentError::TooMany {
                kernel: ir.name.clone(),
                sizes: ir.sizes.len(),
                params: ir.params.len(),
                max_sizes: MAX_SIZES,
                max_params: MAX_ARGUMENTS,
            });
        }
        let params: Vec<Param> = ir
            .params
            .values()
            .map(|p| match &p.kind {
                ParamKind::Tensor(t) => {
                    let elem = binding.elem(ir, t.elem);
                    let bytes = elem.bytes().expect("verified: a tensor holds what has a size");
                    Param::Tensor { elem, bytes, shape: t.shape.clone(), output: t.direction.is_written() }
                }
                ParamKind::Scalar(elem) => Param::Scalar(binding.elem(ir, *elem)),
            })
            .collect();
        let consts: Vec<i64> = ir.sizes.values().map(|s| binding.consts.get(&s.name).copied().unwrap_or(0)).collect();
        let integers = |(index, param): (usize, &Param)| matches!(param, Param::Scalar(Elem::I32)).then_some(index);
        let mut signature = Self {
            ir: ir.clone(),
            integers: params.iter().enumerate().filter_map(integers).collect(),
            params,
            consts,
            sources: Vec::new(),
            ranges: Vec::new(),
            reach: Reach::new(ir, binding),
            right: RwLock::default(),
        };
        signature.sources = signature.solve()?;
        signature.ranges = signature.addressed();
        Ok(signature)
    }

    /// Const sizes, zero elsewhere.
    pub fn consts(&self) -> &[i64] {
        &self.consts
    }

    /// How the run-time sizes follow from extents.
    pub fn sources(&self) -> &[Source] {
        &self.sources
    }

    /// Parameters, dimensions of them, and how much of these is addressed by ranges.
    pub fn ranges(&self) -> &[(usize, usize, usize)] {
        &self.ranges
    }

    /// Finds for every run-time size a dimension that determines it: one that is the size alone, or
    /// else one in which all other sizes are const.
    fn solve(&self) -> Result<Vec<Source>, ArgumentError> {
        let at_launch = self.ir.sizes.iter().filter(|(_, s)| s.kind == SizeKind::Runtime);
        let source = |(id, size): (ir::SizeId, &ir::Size)| {
            let undetermined = || ArgumentError::Undetermined { kernel: self.ir.name.clone(), size: size.name.clone() };
            let tensors = self.params.iter().enumerate().filter_map(|(param, p)| match p {
                Param::Tensor { shape, .. } => Some((param, shape)),
                Param::Scalar(_) => None,
            });
            let dimensions = tensors
                .flat_map(|(param, shape)| shape.iter().enumerate().map(move |(dimension, extent)| (param, dimension, extent)));
            let sources = dimensions.filter_map(|(param, dimension, extent)| {
                let source = self.source(id, param, dimension, extent)?;
                Some((extent.as_size() != Some(id), source))
            });
            // Of several the first; false comes before true.
            let best = sources.min_by_key(|(computed, _)| *computed);
            best.map(|(_, source)| source).ok_or_else(undetermined)
        };
        at_launch.map(source).collect()
    }

    /// How a size follows from a dimension in which all other sizes are const.
    fn source(&self, id: ir::SizeId, param: usize, dimension: usize, extent: &SizeExpr) -> Option<Source> {
        let (terms, constant, divisor) = extent.parts();
        let coefficient = *terms.get(&id)?;
        let mut others = terms.iter().filter(|(other, _)| **other != id);
        let constant = others.try_fold(constant, |sum, (other, c)| {
            let is_const = self.ir.sizes[*other].kind == SizeKind::Const;
            is_const.then(|| sum + c * self.consts[other.index()])
        })?;
        Some(Source { size: id.index(), param, dimension, coefficient, constant, divisor })
    }

    /// What ranges of compile-time length address of dimensions whose extent is known only at launch.
    fn addressed(&self) -> Vec<(usize, usize, usize)> {
        let mut found: Vec<(usize, usize, usize)> = Vec::new();
        for (_, op) in self.ir.walk() {
            let (Op::Load { tensor, at } | Op::Store { tensor, at, .. }) = &self.ir.ops[op].op else { continue };
            for (dimension, (at, extent)) in at.iter().zip(&self.ir.tensor(*tensor).shape).enumerate() {
                let At::Range { start, len } = at else { continue };
                let at_launch = extent.sizes().any(|s| self.ir.sizes[s].kind == SizeKind::Runtime);
                let end = start.add(len).eval(|s| self.consts.get(s.index()).copied());
                if let (true, Some(least)) = (at_launch, end.and_then(|n| usize::try_from(n).ok())) {
                    found.push((tensor.index(), dimension, least));
                }
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Checks all of the arguments but what [`Signature::check_reach`] and
    /// [`Signature::check_aliases`] do, and writes the values of all sizes (by [`ir::SizeId`]) to
    /// `sizes`; returns how many there are.
    pub fn check(
        &self,
        device: &Device,
        arguments: &[Argument<'_>],
        sizes: &mut [i64; MAX_SIZES],
    ) -> Result<usize, ArgumentError> {
        if arguments.len() != self.params.len() {
            return Err(self.count_error(arguments.len()));
        }
        let mut forms = [ArgumentForm::I32; MAX_ARGUMENTS];
        for (index, (form, argument)) in forms.iter_mut().zip(arguments).enumerate() {
            *form = argument.form();
            self.check_kind(index, *form, || argument.describe())?;
            self.check_place(device, index, argument)?;
            self.check_rows(index, *form)?;
            self.check_address(index, argument.tensor().map_or(0, |tensor| tensor.address()))?;
        }
        self.check_sizes(&forms[..arguments.len()], sizes)
    }

    /// Checks what forms say of arguments, and writes the values of all sizes to `sizes`; returns
    /// how many there are.
    pub fn check_forms(&self, forms: &[ArgumentForm<'_>], sizes: &mut [i64; MAX_SIZES]) -> Result<usize, ArgumentError> {
        if forms.len() != self.params.len() {
            return Err(self.count_error(forms.len()));
        }
        for (index, form) in forms.iter().enumerate() {
            self.check_kind(index, *form, || form.describe())?;
            self.check_rows(index, *form)?;
            if self.is_output(index)
                && let ArgumentForm::Tensor { shape, strides, .. } = *form
                && overlaps_itself(shape, strides)
            {
                let (shape, strides) = (shape.to_vec(), strides.to_vec());
                return Err(ArgumentError::Overlapping { name: self.name(index), shape, strides });
            }
        }
        self.check_sizes(forms, sizes)
    }

    /// Solves for the sizes, and checks all extents against them.
    fn check_sizes(&self, forms: &[ArgumentForm<'_>], sizes: &mut [i64; MAX_SIZES]) -> Result<usize, ArgumentError> {
        let shape = |param: usize| forms[param].shape().expect("checked: a tensor parameter");
        let count = self.consts.len();
        sizes[..count].copy_from_slice(&self.consts);
        for source in &self.sources {
            let extent = shape(source.param)[source.dimension];
            let scaled = i64::try_from(extent).ok().filter(|&e| e <= MAX_SIZE).ok_or_else(|| ArgumentError::TooLarge {
                name: self.name(source.param),
                dimension: source.dimension,
                found: extent,
            })? * source.divisor
                - source.constant;
            if scaled % source.coefficient != 0 {
                return Err(ArgumentError::Fraction {
                    name: self.name(source.param),
                    dimension: source.dimension,
                    declared: self.declared(source.param, source.dimension),
                    found: extent,
                });
            }
            sizes[source.size] = scaled / source.coefficient;
        }
        for &(param, dimension, least) in &self.ranges {
            let found = shape(param)[dimension];
            if found < least {
                return Err(ArgumentError::Short { name: self.name(param), dimension, least, found });
            }
        }
        for (index, (param, form)) in self.params.iter().zip(forms).enumerate() {
            if let (Param::Tensor { shape, .. }, Some(extents)) = (param, form.shape()) {
                for (dimension, extent) in shape.iter().enumerate() {
                    let expected = extent.eval(|s| sizes.get(s.index()).copied());
                    let found = extents[dimension];
                    if expected != i64::try_from(found).ok() {
                        return Err(self.extent_error(index, dimension, expected, found));
                    }
                }
            }
        }
        Ok(count)
    }

    /// Whether an argument is what the parameter takes: a scalar, or a tensor of its element type
    /// and rank.
    fn check_kind(&self, index: usize, form: ArgumentForm<'_>, describe: impl FnOnce() -> String) -> Result<(), ArgumentError> {
        let name = || self.name(index);
        match (&self.params[index], form) {
            (Param::Scalar(Elem::F32), ArgumentForm::F32) | (Param::Scalar(Elem::I32), ArgumentForm::I32) => Ok(()),
            (Param::Tensor { elem, shape: expected, .. }, ArgumentForm::Tensor { elem: found, shape, .. }) => {
                if found != *elem {
                    return Err(ArgumentError::Element { name: name(), expected: *elem, found });
                }
                if shape.len() != expected.len() {
                    let texts: Vec<_> = (0..expected.len()).map(|d| self.declared(index, d)).collect();
                    let declared = format!("({})", texts.join(", "));
                    return Err(ArgumentError::Rank { name: name(), expected: expected.len(), declared, found: shape.to_vec() });
                }
                Ok(())
            }
            (param, _) => {
                let expected = match param {
                    Param::Tensor { elem, .. } => format!("a tensor of {}", elem.name()),
                    Param::Scalar(elem) => format!("a scalar of type {}", elem.name()),
                };
                Err(ArgumentError::Kind { name: name(), expected, found: describe() })
            }
        }
    }

    /// Whether a tensor is on the device, and may be written if the kernel writes it.
    pub fn check_place(&self, device: &Device, index: usize, argument: &Argument<'_>) -> Result<(), ArgumentError> {
        let Some(tensor) = argument.tensor() else { return Ok(()) };
        if tensor.device() != device {
            let (expected, found) = (device.to_string(), tensor.device().to_string());
            return Err(ArgumentError::Device { name: self.name(index), expected, found });
        }
        if !self.is_output(index) {
            return Ok(());
        }
        if !matches!(argument, Argument::Output(_)) {
            return Err(ArgumentError::NotMutable { name: self.name(index) });
        }
        if !tensor.is_writable() {
            return Err(ArgumentError::ReadOnly { name: self.name(index) });
        }
        Ok(())
    }

    fn check_rows(&self, index: usize, form: ArgumentForm<'_>) -> Result<(), ArgumentError> {
        match form {
            ArgumentForm::Tensor { shape, strides, .. } if !has_contiguous_rows(shape, strides) => {
                let (shape, strides) = (shape.to_vec(), strides.to_vec());
                Err(ArgumentError::NotContiguous { name: self.name(index), shape, strides })
            }
            _ => Ok(()),
        }
    }

    /// Whether the address of a tensor is a multiple of its elements' size.
    pub fn check_address(&self, index: usize, address: u64) -> Result<(), ArgumentError> {
        match &self.params[index] {
            Param::Tensor { bytes, .. } if !address.is_multiple_of(*bytes as u64) => {
                Err(ArgumentError::Misaligned { name: self.name(index), address, bytes: *bytes })
            }
            _ => Ok(()),
        }
    }

    /// Whether the kernel writes a parameter.
    pub fn is_output(&self, index: usize) -> bool {
        matches!(self.params[index], Param::Tensor { output: true, .. })
    }

    /// Whether a parameter is an i32 scalar: what the kernel computes depends on it.
    pub fn has_integers(&self) -> bool {
        !self.integers.is_empty()
    }

    /// The error of a value that is none of the parameter.
    pub fn value_error(&self, index: usize, form: &ArgumentForm<'_>, value: ArgumentValue) -> ArgumentError {
        ArgumentError::Kind { name: self.name(index), expected: form.describe(), found: format!("{value:?}") }
    }

    /// The error of an output that shares memory with another argument.
    pub fn aliased(&self, output: usize, other: usize) -> ArgumentError {
        ArgumentError::Aliased { name: self.name(output), other: self.name(other) }
    }

    /// Refuses an output that shares memory with another argument, or elements of it with each other.
    pub fn check_aliases(&self, arguments: &[Argument<'_>]) -> Result<(), ArgumentError> {
        for (index, argument) in arguments.iter().enumerate() {
            let Argument::Output(output) = argument else { continue };
            if output.overlaps_itself() {
                let (shape, strides) = (output.shape().to_vec(), output.strides().to_vec());
                return Err(ArgumentError::Overlapping { name: self.name(index), shape, strides });
            }
            for (other, second) in arguments.iter().enumerate() {
                if let Some(tensor) = second.tensor()
                    && other != index
                    && output.overlaps(tensor)
                {
                    return Err(self.aliased(index, other));
                }
            }
        }
        Ok(())
    }

    /// Checks what the kernel computes from sizes and scalars: indices, divisors, widths. Says which width its index
    /// arithmetic needs. `integer` gives the i32 scalars by position.
    pub fn check_reach(&self, integer: &dyn Fn(usize) -> i32, sizes: &[i64]) -> Result<Width, ArgumentError> {
        let scalars = || self.integers.iter().map(|&index| integer(index));
        let known = |right: &&Right| right.sizes == sizes && right.scalars.iter().copied().eq(scalars());
        if let Some(right) = self.right.read().unwrap_or_else(PoisonError::into_inner).iter().find(known) {
            return Ok(right.width);
        }
        let value = |param: ir::ParamId| if self.integers.contains(&param.index()) { integer(param.index()) } else { 0 };
        let checked = self.reach.check(Values { sizes, scalar: &value });
        let width = checked.map_err(|fault| self.fault(fault, integer, sizes))?;
        let mut right = self.right.write().unwrap_or_else(PoisonError::into_inner);
        right.truncate(REMEMBERED - 1);
        right.push_front(Right { sizes: sizes.to_vec(), scalars: scalars().collect(), width });
        Ok(width)
    }

    fn fault(&self, fault: Fault, integer: &dyn Fn(usize) -> i32, sizes: &[i64]) -> ArgumentError {
        let kernel = self.ir.name.clone();
        let place = |span| self.ir.source.line_column(span).map(|(line, _)| format!(" in line {line}")).unwrap_or_default();
        let scalars = self.integers.iter().map(|&index| format!("{} = {}", self.name(index), integer(index)));
        let named = self.ir.sizes.values().zip(sizes).map(|(size, value)| format!("{} = {value}", size.name));
        let sizes = named.chain(scalars).collect::<Vec<_>>().join(", ");
        match fault {
            Fault::Size { text, value } => {
                let value = value.map_or("no whole number".to_owned(), |value| value.to_string());
                ArgumentError::Size { kernel, text, value, most: MAX_SIZE, sizes }
            }
            Fault::Programs => ArgumentError::Programs { kernel, sizes },
            Fault::Outside { tensor, dimension, text, value, extent, span } => {
                let name = self.name(tensor.index());
                ArgumentError::Outside { name, dimension, extent, value, text, place: place(span), sizes }
            }
            Fault::Division { text, span } => ArgumentError::Division { kernel, text, place: place(span), sizes },
            Fault::Overflow { text, bits, span } => ArgumentError::Overflow { kernel, text, place: place(span), bits, sizes },
            Fault::Undecided { text, span } => ArgumentError::Undecided { kernel, text, place: place(span), sizes },
        }
    }

    fn name(&self, param: usize) -> String {
        self.ir.params[ir::ParamId::from_index(param)].name.clone()
    }

    fn declared(&self, param: usize, dimension: usize) -> String {
        match &self.params[param] {
            Param::Tensor { shape, .. } => self.ir.size_text(&shape[dimension]),
            Param::Scalar(_) => String::new(),
        }
    }

    /// The error of another number of arguments.
    pub fn count_error(&self, found: usize) -> ArgumentError {
        ArgumentError::Count {
            kernel: self.ir.name.clone(),
            expected: self.params.len(),
            names: self.ir.params.values().map(|p| p.name.as_str()).collect::<Vec<_>>().join(", "),
            found,
        }
    }

    fn extent_error(&self, param: usize, dimension: usize, expected: Option<i64>, found: usize) -> ArgumentError {
        let declared = self.declared(param, dimension);
        let Some(expected) = expected else {
            return ArgumentError::Fraction { name: self.name(param), dimension, declared, found };
        };
        let Param::Tensor { shape, .. } = &self.params[param] else { unreachable!("extents belong to tensors") };
        let sources: Vec<String> = shape[dimension]
            .sizes()
            .map(|s| match self.sources.iter().find(|source| source.size == s.index()) {
                Some(source) => format!("from dimension {} of `{}`", source.dimension, self.name(source.param)),
                None => format!("constant `{}`", self.ir.size_name(s)),
            })
            .collect();
        let because = sources.join(", ");
        ArgumentError::Extent { name: self.name(param), dimension, declared, expected, because, found }
    }
}
