//! The gate: results of a candidate against the float64 oracle, before it is timed.
//!
//! The oracle is run on a sample of the programs of the shape that is tuned, and on all of them where the shape is small; the
//! tolerance is that of [`crate::verify`].

use std::collections::BTreeMap;

use flashtile_dsl::interpret::HostTensor;
use flashtile_dsl::ir::{Binding, Elem, Entity, Kernel, ProgramDim};

use super::InputData;
use super::bench::Rejection;
use super::inputs::{Inputs, SAMPLES, Value};
use crate::cache::Stage;
use crate::device::Device;
use crate::element::Element;
use crate::error::Result;
use crate::kernel::BoundKernel;
use crate::tensor::AnyTensor;
use crate::verify::{HostArgument, OutputVerdict, Programs, Reference};

/// Shapes of which the axes and the grid have no more points than this are small: all programs are run.
const SMALL: i64 = 1 << 20;

/// Expected results of a sample of programs.
pub(super) struct Gate {
    reference: Reference,
}

impl Gate {
    /// Runs the oracle and its baseline on a sample of programs.
    pub fn new(kernel: &BoundKernel, inputs: &Inputs, seed: u64) -> Result<Self> {
        Self::of(kernel, inputs, programs(kernel, &inputs.sizes, seed))
    }

    /// Runs the oracle and its baseline on all programs, so that it knows all that is stored.
    pub fn whole(kernel: &BoundKernel, inputs: &Inputs) -> Result<Self> {
        Self::of(kernel, inputs, Programs::All)
    }

    fn of(kernel: &BoundKernel, inputs: &Inputs, programs: Programs) -> Result<Self> {
        let arguments = inputs.values.iter().map(host).collect::<Result<Vec<_>>>()?;
        Ok(Self { reference: Reference::new(kernel, &inputs.sizes, &arguments, programs)? })
    }

    /// What the programs that were run store, rounded to the elements of the outputs: by name, with
    /// 0 where they store nothing.
    pub fn stored(&self) -> impl Iterator<Item = (&str, HostTensor)> {
        self.reference.outputs.iter().map(|output| {
            let mut values = vec![0.0; output.shape.iter().product()];
            for (&at, &value) in output.places.iter().zip(&output.exact) {
                values[at] = value;
            }
            (output.name.as_str(), HostTensor::from_f64(output.elem, &output.shape, &values))
        })
    }

    /// Whether the text itself stays finite in f32 wherever it is finite in f64.
    pub fn is_steady(&self) -> bool {
        self.reference.is_steady()
    }

    /// Whether the oracle stores NaN somewhere, or NaN is right since a hidden element met what is
    /// not finite.
    pub fn holds_nan(&self) -> bool {
        self.reference.holds_nan()
    }

    /// The same, with NaN right only where the oracle has it.
    pub fn without_hidden_nan(self) -> Self {
        Self { reference: self.reference.without_hidden_nan() }
    }

    /// Judges what is in the output tensors. Gives the largest error, or why the candidate is out.
    pub fn check(&self, inputs: &Inputs) -> Result<Result<f64, Rejection>> {
        Ok(checked(&self.verdicts(inputs)?))
    }

    /// Judges what is in the output tensors, one by one.
    pub fn verdicts(&self, inputs: &Inputs) -> Result<Vec<OutputVerdict>> {
        let found = self.reference.outputs.iter().map(|output| {
            let Value::Output(tensor) = &inputs.values[output.param.index()] else { unreachable!("an output") };
            let bytes = tensor.to_bytes()?;
            Ok(Some(output.at_places(|at| read(output.elem, &bytes, at))))
        });
        self.reference.judge(&found.collect::<Result<Vec<_>>>()?, || inputs.values.iter().map(host).collect())
    }
}

/// The largest error of any output; a rejection, which has it too, if an output is wrong.
pub(super) fn checked(verdicts: &[OutputVerdict]) -> Result<f64, Rejection> {
    let max_error = verdicts.iter().map(|v| v.max_error).fold(0.0, f64::max);
    match verdicts.iter().find(|v| !v.passed()) {
        Some(wrong) => Err(Rejection { max_error: Some(max_error), ..Rejection::new(Stage::Check, wrong.to_string()) }),
        None => Ok(max_error),
    }
}

/// The programs to run of a shape.
fn programs(kernel: &BoundKernel, sizes: &[i64], seed: u64) -> Programs {
    let ir = kernel.ir();
    let each = ir.grid().iter().filter_map(|dim| match dim {
        ProgramDim::Each(size) => Some(size),
        ProgramDim::Tiles(_) => None,
    });
    let mut extents = ir.axes.values().map(|axis| &axis.extent).chain(each);
    let points = extents.try_fold(1i64, |all, extent| all.checked_mul(extent.eval(|s| sizes.get(s.index()).copied())?.max(1)));
    match points {
        Some(points) if points <= SMALL => Programs::All,
        _ => Programs::Sample { count: SAMPLES, seed },
    }
}

/// A kernel with its inputs for a shape and what it must give, to hold other texts of the same parameters against.
///
/// The inputs are those of [`super::judge`], and the tolerance is the same. Unlike there the texts are interpreted, in f32
/// and in tiles, so that thousands may be judged in a minute.
pub struct Trial {
    sizes: Vec<i64>,
    arguments: Vec<HostArgument>,
    reference: Reference,
}

impl Trial {
    /// Draws inputs, and runs the oracle and its baseline on some of the programs.
    ///
    /// # Errors
    /// Sizes or data that do not fit the kernel.
    pub fn new(
        kernel: &BoundKernel,
        sizes: &BTreeMap<String, i64>,
        seed: u64,
        data: &InputData,
        programs: Programs,
    ) -> Result<Self> {
        let inputs = Inputs::random(kernel, sizes, &Device::cpu(), seed, data)?;
        let arguments = inputs.values.iter().map(host).collect::<Result<Vec<_>>>()?;
        let reference = Reference::new(kernel, &inputs.sizes, &arguments, programs)?;
        Ok(Self { sizes: inputs.sizes, arguments, reference })
    }

    /// Whether the kernel itself stays finite in f32 wherever it is finite in f64. On steep inputs some do not.
    pub fn is_steady(&self) -> bool {
        self.reference.is_steady()
    }

    /// Judges what another text computes from the same inputs; its loops walk tiles of `block` positions.
    ///
    /// # Errors
    /// The text cannot be executed on these inputs: it reads beyond a tensor, or its parameters differ.
    pub fn judge(&self, text: &Kernel, binding: &Binding, block: usize) -> Result<Vec<OutputVerdict>> {
        self.reference.check_text(text, binding, &self.sizes, &self.arguments, block)
    }

    /// How far another text is from this one where nothing is rounded: the largest difference, relative to the largest value of
    /// the output; infinite where one is NaN or infinite and the other is something else.
    ///
    /// # Errors
    /// As [`Trial::judge`].
    pub fn difference(&self, text: &Kernel, binding: &Binding, block: usize) -> Result<f64> {
        self.reference.difference(text, binding, &self.sizes, &self.arguments, block)
    }
}

/// An argument in memory of the host. The memory of an output is not needed.
pub(super) fn host(value: &Value) -> Result<HostArgument> {
    let packed = |tensor: &AnyTensor, bytes| HostTensor {
        elem: tensor.elem(),
        shape: tensor.shape().to_vec(),
        strides: tensor.strides().to_vec(),
        offset: 0,
        bytes,
    };
    Ok(match value {
        Value::Input(tensor) => HostArgument::Input(packed(tensor, tensor.to_bytes()?)),
        Value::Output(tensor) => HostArgument::Output(packed(tensor, Vec::new())),
        Value::F32(x) => HostArgument::F32(*x),
        Value::I32(x) => HostArgument::I32(*x),
    })
}

pub(super) fn read(elem: Elem, bytes: &[u8], at: usize) -> f64 {
    fn value<T: Element>(bytes: &[u8], at: usize) -> T {
        T::read_bytes(&bytes[at * T::BYTES..][..T::BYTES])
    }
    match elem {
        Elem::F16 => value::<half::f16>(bytes, at).to_f64(),
        Elem::Bf16 => value::<half::bf16>(bytes, at).to_f64(),
        Elem::I32 => value::<i32>(bytes, at).into(),
        // Kernels store nothing else.
        _ => value::<f32>(bytes, at).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Kernel;

    fn setup() -> (BoundKernel, Inputs) {
        let kernel = Kernel::builtin("row_softmax").expect("a built-in").bind(Elem::F16, [] as [(&str, i64); 0]).expect("binds");
        let sizes = BTreeMap::from([("M".to_owned(), 70), ("N".to_owned(), 33)]);
        let inputs = Inputs::random(&kernel, &sizes, &Device::cpu(), 1, &InputData::default()).expect("fits");
        (kernel, inputs)
    }

    /// Softmax of each row in f64, rounded to f16.
    fn softmax(inputs: &Inputs) -> Vec<half::f16> {
        let Value::Input(x) = &inputs.values[0] else { panic!("an input") };
        let x = x.to_f32().expect("reads");
        let row = |row: &[f32]| {
            let sum: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
            row.iter().map(|&x| half::f16::from_f64(f64::from(x).exp() / sum)).collect::<Vec<_>>()
        };
        x.chunks(33).flat_map(row).collect()
    }

    fn put(inputs: &Inputs, values: &[half::f16]) {
        let Value::Output(y) = &inputs.values[1] else { panic!("an output") };
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        y.write_bytes(&bytes).expect("fits");
    }

    #[test]
    fn right_results_pass_and_wrong_ones_do_not() {
        let (kernel, inputs) = setup();
        let gate = Gate::new(&kernel, &inputs, 0).expect("runs");
        let check = || gate.check(&inputs).expect("reads");
        let right = softmax(&inputs);
        put(&inputs, &right);
        assert!(check().is_ok_and(|error| error > 0.0 && error < 1e-3));
        let mut wrong = right.clone();
        *wrong.last_mut().expect("not empty") += half::f16::from_f32(0.1);
        put(&inputs, &wrong);
        let rejection = check().expect_err("one element is off");
        assert!(rejection.reason.contains("an error is too large") && rejection.reason.contains("[69, 32]"), "{rejection:?}");
        let added = 0.1;
        assert!(rejection.max_error.is_some_and(|error| (error - added).abs() < 1e-2), "{rejection:?}");
        wrong = right.clone();
        wrong[0] = half::f16::NAN;
        put(&inputs, &wrong);
        assert!(check().is_err_and(|e| e.reason.contains("NaN or infinity")), "{:?}", check());
        let Value::Output(y) = &inputs.values[1] else { panic!("an output") };
        y.fill_bytes(0xff).expect("fills");
        assert!(check().is_err(), "outputs that were never written");
    }

    /// The kernel that adds to the gradient of queries, of grouped attention, with its inputs.
    fn columns() -> (BoundKernel, Inputs) {
        let forward = Kernel::builtin("attention").expect("a built-in");
        let gradient = forward.gradient_in(flashtile_dsl::grad::Form::Fused, &["q", "k", "v"], &["o"]).expect("has one");
        let kernel = gradient.backward[1].bind(Elem::Bf16, [("D", 16)]).expect("binds");
        let sizes = [("B", 2), ("H", 4), ("G", 2), ("M", 100), ("N", 70)].map(|(name, size)| (name.to_owned(), size));
        let inputs = Inputs::random(&kernel, &BTreeMap::from(sizes), &Device::cpu(), 3, &InputData::default()).expect("fits");
        (kernel, inputs)
    }

    #[test]
    fn parts_of_a_sum_are_what_all_programs_add() {
        let (kernel, inputs) = columns();
        let of = |programs| Gate::of(&kernel, &inputs, programs).expect("runs").reference.outputs;
        let (all, some) = (of(Programs::All), of(Programs::Sample { count: 5, seed: 1 }));
        for (all, some) in all.iter().zip(&some) {
            let name = &all.name;
            assert!(some.places.len() < all.places.len(), "{name} is known in part");
            for (place, value) in some.places.iter().zip(&some.exact) {
                let at = all.places.binary_search(place).expect("known");
                let tolerance = 1e-12 * value.abs().max(1.0);
                assert!((all.exact[at] - value).abs() <= tolerance, "{name}[{place}]: {value} is {}", all.exact[at]);
            }
        }
        let rows = |tile: usize| if tile == 3 { 4 } else { 32 };
        assert!(
            (0..=2).any(|short| some[0].places.len() == 16 * ((5 - short) * rows(0) + short * rows(3))),
            "five tiles of rows"
        );
    }

    #[test]
    fn a_wrong_sum_is_found_where_it_is_known() {
        let (kernel, inputs) = columns();
        let gate = Gate::of(&kernel, &inputs, Programs::Sample { count: 5, seed: 1 }).expect("runs");
        let loaded = kernel.on(&Device::cpu()).expect("loads");
        super::super::measure::launch(&loaded, &inputs).expect("runs");
        let check = || gate.check(&inputs).expect("reads");
        assert!(check().is_ok(), "{:?}", check());
        let sum = &gate.reference.outputs[0];
        let Value::Output(tensor) = &inputs.values[sum.param.index()] else { panic!("an output") };
        let mut bytes = tensor.to_bytes().expect("reads");
        bytes[4 * sum.places[100]..][..4].copy_from_slice(&1e3f32.to_le_bytes());
        tensor.write_bytes(&bytes).expect("fits");
        assert!(check().is_err_and(|e| e.reason.contains("an error is too large")), "{:?}", check());
    }
}
