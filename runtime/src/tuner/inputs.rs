//! Random inputs of a shape: what candidates are checked and measured on.

use std::collections::BTreeMap;

use flashtile_dsl::analysis::reach::MAX_SIZE;
use flashtile_dsl::ir::{Direction, Elem, Entity, ParamKind, SizeKind};
use half::{bf16, f16};
use rayon::prelude::*;

use super::{Distribution, InputData, TuneError};
use crate::conformance::data::rotation_table;
use crate::device::Device;
use crate::error::Result;
use crate::kernel::BoundKernel;
use crate::launch::Argument;
use crate::memory;
use crate::tensor::AnyTensor;

/// The value of i32 scalars.
pub(super) const INTEGER: i32 = 1;

/// Arguments of a kernel for given sizes.
pub(super) struct Inputs {
    pub values: Vec<Value>,
    /// Values of all sizes by [`flashtile_dsl::ir::SizeId`].
    pub sizes: Vec<i64>,
}

/// One argument. Tensors that are read hold normally distributed values, tables of rotations (`cos..`, `sin..`) those.
pub(super) enum Value {
    Input(AnyTensor),
    Output(AnyTensor),
    F32(f32),
    I32(i32),
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

/// Shapes of the tensor parameters, `None` for scalars.
pub(super) fn shapes(kernel: &BoundKernel, sizes: &[i64]) -> Result<Vec<Option<Vec<usize>>>, TuneError> {
    let ir = kernel.ir();
    let extent = |extent: &flashtile_dsl::ir::SizeExpr| {
        let value = extent.eval(|s| sizes.get(s.index()).copied());
        value.and_then(|v| usize::try_from(v).ok()).ok_or_else(|| TuneError::Size {
            kernel: ir.name.clone(),
            name: ir.size_text(extent),
            reason: "is no whole number of elements".to_owned(),
            known: ir.sizes.values().map(|s| s.name.as_str()).collect::<Vec<_>>().join(", "),
        })
    };
    let shape = |kind: &ParamKind| match kind {
        ParamKind::Tensor(t) => t.shape.iter().map(extent).collect::<Result<Vec<_>, _>>().map(Some),
        ParamKind::Scalar(_) => Ok(None),
    };
    ir.params.values().map(|p| shape(&p.kind)).collect()
}

impl Inputs {
    /// Packed tensors on a device. An f32 scalar is `1 / sqrt(D)`, with the kernel's first constant as D, or 1.
    pub fn random(
        kernel: &BoundKernel,
        given: &BTreeMap<String, i64>,
        device: &Device,
        seed: u64,
        data: &InputData,
    ) -> Result<Self> {
        check_data(kernel, data)?;
        let sizes = all_sizes(kernel, given)?;
        let shapes = shapes(kernel, &sizes)?;
        memory::require(kernel, &sizes, device, super::gate::SAMPLES)?;
        let ir = kernel.ir();
        let scale = kernel.binding().consts.values().next().map_or(1.0, |&d| 1.0 / (d as f32).sqrt());
        let mut values = Vec::new();
        for (index, (param, shape)) in ir.params.values().zip(shapes).enumerate() {
            values.push(match (&param.kind, shape) {
                (ParamKind::Tensor(t), Some(shape)) => {
                    let elem = kernel.binding().elem(ir, t.elem);
                    if t.direction.is_written() {
                        Value::Output(AnyTensor::zeros(device, elem, &shape)?)
                    } else {
                        let drawn = || {
                            let like = data.of(&param.name);
                            distributed(elem, &shape, seed ^ ((index as u64 + 1) << 48), like)
                        };
                        let bytes = rotations(&param.name, elem, &shape).unwrap_or_else(drawn);
                        Value::Input(AnyTensor::from_bytes(device, elem, &shape, &bytes)?)
                    }
                }
                (ParamKind::Scalar(Elem::I32), _) => Value::I32(INTEGER),
                _ => Value::F32(scale),
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

/// Little-endian bytes of a table of rotations, if the parameter is one.
pub(super) fn rotations(name: &str, elem: Elem, shape: &[usize]) -> Option<Vec<u8>> {
    let columns = shape.last().copied().unwrap_or(1).max(1);
    let table = rotation_table(name, columns)?;
    let width = elem.bytes().unwrap_or(4);
    let mut bytes = vec![0u8; shape.iter().product::<usize>() * width];
    for (at, slot) in bytes.chunks_mut(width).enumerate() {
        write(elem, table(at / columns, at % columns) as f32, slot);
    }
    Some(bytes)
}

/// Refuses data for what is no input tensor.
fn check_data(kernel: &BoundKernel, data: &InputData) -> Result<(), TuneError> {
    let ir = kernel.ir();
    let inputs = ir.params.values().filter(|p| matches!(&p.kind, ParamKind::Tensor(t) if t.direction == Direction::In));
    let names: Vec<&str> = inputs.map(|p| p.name.as_str()).collect();
    match data.0.keys().find(|name| !names.contains(&name.as_str())) {
        None => Ok(()),
        Some(name) => Err(TuneError::Data { kernel: ir.name.clone(), name: name.clone(), known: names.join(", ") }),
    }
}

/// Little-endian bytes of normally distributed values; of zeros for integers.
pub(super) fn normal(elem: Elem, count: usize, seed: u64) -> Vec<u8> {
    distributed(elem, &[count], seed, Distribution::default())
}

/// Little-endian bytes of the values of a tensor; of zeros for integers.
fn distributed(elem: Elem, shape: &[usize], seed: u64, like: Distribution) -> Vec<u8> {
    let count: usize = shape.iter().product();
    let (rows, columns) = match shape {
        [.., rows, columns] => (*rows, (*columns).max(1)),
        [columns] => (1, (*columns).max(1)),
        [] => (1, 1),
    };
    let width = elem.bytes().unwrap_or(4);
    let mut bytes = vec![0u8; count * width];
    if elem == Elem::I32 {
        return bytes;
    }
    // Each run of values has a generator of its own, so that threads share nothing and the values depend on the seed alone.
    const RUN: usize = 1 << 14;
    bytes.par_chunks_mut(RUN * width).enumerate().for_each(|(run, bytes)| {
        let mut random = Random(seed.wrapping_add((run as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        for (at, slot) in bytes.chunks_mut(width).enumerate() {
            let row = (run * RUN + at) / columns % rows.max(1);
            write(elem, (f64::from(random.normal()) * like.factor(row, rows)) as f32, slot);
        }
    });
    bytes
}

fn write(elem: Elem, x: f32, slot: &mut [u8]) {
    match elem {
        Elem::F16 => slot.copy_from_slice(&f16::from_f32(x).to_le_bytes()),
        Elem::Bf16 => slot.copy_from_slice(&bf16::from_f32(x).to_le_bytes()),
        _ => slot.copy_from_slice(&x.to_le_bytes()),
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): small, and good enough for test data.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In (0, 1].
    fn unit(&mut self) -> f32 {
        ((self.next() >> 40) as f32 + 1.0) / (1u64 << 24) as f32
    }

    /// Box and Muller.
    fn normal(&mut self) -> f32 {
        (-2.0 * self.unit().ln()).sqrt() * (std::f32::consts::TAU * self.unit()).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Kernel;

    #[test]
    fn values_are_normal_and_repeatable() {
        let bytes = normal(Elem::F32, 100_000, 7);
        let values: Vec<f64> = bytes.chunks(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().expect("four")))).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / values.len() as f64;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.02, "{mean} {variance}");
        assert_eq!(bytes, normal(Elem::F32, 100_000, 7));
        assert_ne!(bytes, normal(Elem::F32, 100_000, 8));
    }

    #[test]
    fn rows_grow_as_the_data_say() {
        let like = Distribution { scale: 1.0, growth: Some(300.0) };
        let values = |like| distributed(Elem::F32, &[2, 50, 1000], 7, like);
        let read =
            |bytes: Vec<u8>| -> Vec<f32> { bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().expect("four"))).collect() };
        let (plain, grown) = (read(values(Distribution::default())), read(values(like)));
        for (at, (x, y)) in plain.iter().zip(&grown).enumerate() {
            assert_eq!((f64::from(*x) * like.factor(at / 1000 % 50, 50)) as f32, *y, "{at}");
        }
    }

    #[test]
    fn data_are_checked_by_name() {
        let kernel = Kernel::builtin("row_softmax").expect("a built-in").bind(Elem::F32, [] as [(&str, i64); 0]).expect("binds");
        let error = check_data(&kernel, &"k:scale=2".parse().expect("data")).expect_err("no such tensor").to_string();
        assert_eq!(error, "`k`, for which data are given, is no input tensor of kernel `row_softmax`, which has x");
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
