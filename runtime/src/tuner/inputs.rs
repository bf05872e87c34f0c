//! Arguments of a kernel for given sizes: what candidates are checked and measured on. They are
//! drawn, or come from an earlier kernel.

use std::borrow::Cow;
use std::collections::BTreeMap;

use flashtile_dsl::analysis::reach::MAX_SIZE;
use flashtile_dsl::interpret::HostTensor;
use flashtile_dsl::ir::{Elem, Entity, Kernel, ParamId, ParamKind, SizeExpr, SizeId, SizeKind};

use super::TuneError;
use crate::device::Device;
use crate::error::Result;
use crate::kernel::BoundKernel;
use crate::launch::{Argument, ArgumentForm, Signature};
use crate::memory;
use crate::tensor::{AnyTensor, Tensor};
use crate::verify::HostArgument;
use flashtile_dsl::inputs::{InputData, Plan};

/// Programs of the oracle that are sampled.
pub(super) const SAMPLES: usize = 12;

/// Arguments of a kernel for given sizes.
pub(super) struct Inputs {
    pub values: Vec<Value>,
    /// Values of all sizes by [`flashtile_dsl::ir::SizeId`].
    pub sizes: Vec<i64>,
}

/// One argument.
pub(super) enum Value {
    Input(AnyTensor),
    Output(AnyTensor),
    F32(f32),
    I32(i32),
}

/// Inputs that come from an earlier kernel: what it has read or stored, by the names of its
/// parameters.
#[derive(Default)]
pub(super) struct Earlier(pub BTreeMap<String, HostArgument>);

impl Earlier {
    /// The tensor that an input of this name holds, if an earlier kernel has one.
    fn tensor(&self, name: &str, elem: Elem, shape: &[usize]) -> Result<Option<&HostTensor>, TuneError> {
        let Some(tensor) = self.0.get(name).and_then(HostArgument::tensor) else { return Ok(None) };
        if (tensor.elem, &*tensor.shape) == (elem, shape) {
            return Ok(Some(tensor));
        }
        let text = |elem: Elem, shape: &[usize]| format!("{} {shape:?}", elem.name());
        let (one, other) = (text(tensor.elem, &tensor.shape), text(elem, shape));
        Err(TuneError::Sequence { tensor: name.to_owned(), reason: format!("is {one} in one kernel and {other} in another") })
    }
}

/// Values of all sizes by [`flashtile_dsl::ir::SizeId`], the run-time ones as given by name.
pub(super) fn all_sizes(kernel: &BoundKernel, given: &BTreeMap<String, i64>) -> Result<Vec<i64>, TuneError> {
    let ir = kernel.ir();
    let wrong = |name: &str, reason: &str| {
        let runtime = ir.sizes.values().filter(|s| s.kind == SizeKind::Runtime);
        TuneError::Size {
            kernel: ir.name.clone(),
            name: name.to_owned(),
            reason: reason.to_owned(),
            known: runtime.map(|s| s.name.as_str()).collect::<Vec<_>>().join(", "),
        }
    };
    for (name, &value) in given {
        match ir.size_named(name).map(|id| ir.sizes[id].kind) {
            None => return Err(wrong(name, "is unknown")),
            Some(SizeKind::Const) if kernel.binding().consts[name] != value => {
                return Err(wrong(name, "is a constant that is bound to another value"));
            }
            Some(_) if !(0..=MAX_SIZE).contains(&value) => return Err(wrong(name, "is not between 0 and 2^31 - 2^16")),
            Some(_) => {}
        }
    }
    ir.sizes
        .values()
        .map(|size| match size.kind {
            SizeKind::Const => Ok(kernel.binding().consts[&size.name]),
            SizeKind::Runtime => given.get(&size.name).copied().ok_or_else(|| wrong(&size.name, "is not given")),
        })
        .collect()
}

/// The sizes that an extent is computed from, as `N=203`.
fn known_sizes(ir: &Kernel, extent: &SizeExpr, sizes: &[i64]) -> String {
    let of = |id: SizeId| format!("{}={}", ir.size_name(id), sizes[id.index()]);
    extent.sizes().map(of).collect::<Vec<_>>().join(", ")
}

/// Shapes of the tensor parameters, `None` for scalars.
pub(super) fn shapes(kernel: &BoundKernel, sizes: &[i64]) -> Result<Vec<Option<Vec<usize>>>, TuneError> {
    let ir = kernel.ir();
    let extent = |extent: &SizeExpr| {
        let value = extent.eval(|s| sizes.get(s.index()).copied());
        value.and_then(|v| usize::try_from(v).ok()).ok_or_else(|| TuneError::Size {
            kernel: ir.name.clone(),
            name: ir.size_text(extent),
            reason: format!("is no whole number of elements where {}", known_sizes(ir, extent, sizes)),
            known: ir.sizes.values().map(|s| s.name.as_str()).collect::<Vec<_>>().join(", "),
        })
    };
    let shape = |kind: &ParamKind| match kind {
        ParamKind::Tensor(t) => t.shape.iter().map(extent).collect::<Result<Vec<_>, _>>().map(Some),
        ParamKind::Scalar(_) => Ok(None),
    };
    ir.params.values().map(|p| shape(&p.kind)).collect()
}

/// Refuses sizes and integers that a launch on packed tensors refuses, before time is spent.
///
/// # Errors
/// [`TuneError`] for sizes and data that the kernel does not have; what a launch says.
pub(super) fn check(kernel: &BoundKernel, given: &BTreeMap<String, i64>, data: &InputData) -> Result<()> {
    let (ir, sizes) = (kernel.ir(), all_sizes(kernel, given)?);
    let plan = Plan::new(ir, &sizes, data).map_err(TuneError::from)?;
    let signature = Signature::new(kernel.shared_ir(), kernel.binding())?;
    let packed = |shape: Option<Vec<usize>>| {
        let shape = shape.unwrap_or_default();
        Ok((Tensor::<f32>::packed_strides(&shape)?, shape))
    };
    let layouts = shapes(kernel, &sizes)?.into_iter().map(packed).collect::<Result<Vec<_>>>()?;
    let mut forms = Vec::new();
    for (param, (strides, shape)) in ir.params.values().zip(&layouts) {
        forms.push(match &param.kind {
            ParamKind::Tensor(t) => ArgumentForm::Tensor { elem: kernel.binding().elem(ir, t.elem), shape, strides },
            ParamKind::Scalar(Elem::I32) => ArgumentForm::I32,
            ParamKind::Scalar(_) => ArgumentForm::F32,
        });
    }
    signature.check_forms(&forms, &mut std::array::from_fn(|_| 0))?;
    signature.check_reach(&|param| plan.i32(ParamId::from_index(param)), &sizes)?;
    Ok(())
}

impl Inputs {
    /// Packed tensors on a device, and scalars, that hold what `data` says, and else what the kernel's text asks for.
    pub fn random(
        kernel: &BoundKernel,
        given: &BTreeMap<String, i64>,
        device: &Device,
        seed: u64,
        data: &InputData,
    ) -> Result<Self> {
        Self::after(&Earlier::default(), kernel, given, device, seed, data)
    }

    /// The same, but for inputs that come from an earlier kernel.
    pub fn after(
        earlier: &Earlier,
        kernel: &BoundKernel,
        given: &BTreeMap<String, i64>,
        device: &Device,
        seed: u64,
        data: &InputData,
    ) -> Result<Self> {
        let sizes = all_sizes(kernel, given)?;
        memory::require(kernel, &sizes, device, SAMPLES)?;
        let ir = kernel.ir();
        let plan = Plan::new(ir, &sizes, data).map_err(TuneError::from)?;
        let mut values = Vec::new();
        for ((id, param), shape) in ir.params.iter().zip(shapes(kernel, &sizes)?) {
            values.push(match (&param.kind, shape) {
                (ParamKind::Tensor(t), Some(shape)) => {
                    let elem = kernel.binding().elem(ir, t.elem);
                    if t.direction.is_written() {
                        Value::Output(AnyTensor::zeros(device, elem, &shape)?)
                    } else {
                        let bytes = match earlier.tensor(&param.name, elem, &shape)? {
                            Some(tensor) => Cow::from(&tensor.bytes),
                            None => plan.bytes(id, elem, &shape, seed).into(),
                        };
                        Value::Input(AnyTensor::from_bytes(device, elem, &shape, &bytes)?)
                    }
                }
                (ParamKind::Scalar(elem), _) => match (elem, earlier.0.get(&param.name)) {
                    (Elem::I32, Some(&HostArgument::I32(x))) => Value::I32(x),
                    (Elem::I32, _) => Value::I32(plan.i32(id)),
                    (_, Some(&HostArgument::F32(x))) => Value::F32(x),
                    _ => Value::F32(plan.f32(id)),
                },
                (ParamKind::Tensor(_), None) => unreachable!("a tensor has a shape"),
            });
        }
        Ok(Self { values, sizes })
    }

    /// As a launch takes them.
    pub fn arguments(&self) -> Vec<Argument<'_>> {
        self.values.iter().map(Value::argument).collect()
    }
}

impl Value {
    fn argument(&self) -> Argument<'_> {
        match self {
            Value::Input(t) => Argument::Input(t),
            Value::Output(t) => Argument::Output(t),
            Value::F32(x) => Argument::F32(*x),
            Value::I32(x) => Argument::I32(*x),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Kernel;

    #[test]
    fn what_a_launch_refuses_is_refused_with_the_sizes_given() {
        let text = "pub fn blocks(x: &Tensor<f32, (N)>, block: i32, y: &mut Tensor<f32, (N)>) {
            let i = program(tiles(N));
            store(y, [i], mask(load(x, [i]), pos(i) / block > 0));
        }";
        let source = flashtile_dsl::ir::SourceText { name: "blocks.rs".into(), text: text.into(), first_line: 1 };
        let kernel = Kernel::from_source(&source).expect("is well formed").remove(0);
        let kernel = kernel.bind(Elem::F32, [] as [(&str, i64); 0]).expect("binds");
        let of = |kernel: &BoundKernel, sizes: &[(&str, i64)], data: &str| {
            let data = if data.is_empty() { InputData::default() } else { data.parse().expect("data") };
            check(kernel, &sizes.iter().map(|&(n, v)| (n.to_owned(), v)).collect(), &data).map_err(|e| e.to_string())
        };
        assert_eq!(of(&kernel, &[("N", 512)], "block:constant=8"), Ok(()));
        let zero = of(&kernel, &[("N", 512)], "block:constant=0").expect_err("divides by zero");
        assert_eq!(zero, "kernel `blocks` divides by `block` in line 3, which is 0; sizes are N = 512, block = 0");
        // The columns of a table, which no tile walks.
        let rope = Kernel::builtin("causal_rope_attention").expect("a built-in").bind(Elem::F16, [("D", 64)]).expect("binds");
        let sizes = |c| [("B", 1), ("H", 2), ("G", 1), ("M", 64), ("N", 64), ("C", c)];
        assert_eq!(of(&rope, &sizes(32), ""), Ok(()));
        assert!(
            of(&rope, &sizes(8), "").expect_err("reads 32").contains("must be at least 32"),
            "{:?}",
            of(&rope, &sizes(8), "")
        );
    }

    #[test]
    fn sizes_are_checked_by_name() {
        let kernel = Kernel::builtin("row_softmax").expect("a built-in").bind(Elem::F32, [] as [(&str, i64); 0]).expect("binds");
        let sizes = |given: &[(&str, i64)]| {
            all_sizes(&kernel, &given.iter().map(|&(n, v)| (n.to_owned(), v)).collect()).map_err(|e| e.to_string())
        };
        assert_eq!(sizes(&[("M", 3), ("N", 4)]), Ok(vec![3, 4]));
        assert_eq!(sizes(&[("M", 3)]), Err("size `N` is not given; kernel `row_softmax` has M, N".to_owned()));
        assert_eq!(sizes(&[("M", 3), ("K", 4)]), Err("size `K` is unknown; kernel `row_softmax` has M, N".to_owned()));
        assert!(sizes(&[("M", -3), ("N", 4)]).is_err());
    }
}
