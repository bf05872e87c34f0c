//! The same code on two devices: whether they give the same bits.
//!
//! Integer, memory and matrix operations must agree to the last bit where sums are exact ([`Case::is_exact`]). Elsewhere a
//! GPU adds the products of a matrix instruction in an order and with roundings of its own, and approximates exponentials in
//! its own way; then the difference is counted in units in the last place of the output's type.

use flashtile_dsl::interpret::HostTensor;
use flashtile_dsl::ir::Elem;
use rayon::prelude::*;
use serde::Serialize;

use super::case::Case;
use super::sample::Sample;
use crate::cache::Cache;
use crate::device::{Device, LaunchOptions};
use crate::error::Result;
use crate::verify::{self, HostArgument};

/// How two devices agree on one output of a sample.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Agreement {
    /// Name of the output.
    pub name: String,
    /// Its elements.
    pub elements: u64,
    /// Those of which both gave the same bits; a NaN equals every other.
    pub equal: u64,
    /// The largest difference in units in the last place of the output's type.
    pub most_ulps: u64,
}

/// How two devices agree on a sample.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Comparison {
    /// Name of the case.
    pub name: String,
    /// Whether they must give the same bits.
    pub exact: bool,
    /// One per output; empty if a launch failed.
    pub outputs: Vec<Agreement>,
    /// What is wrong, in words; `None` if all is right. Where the case is not exact, the oracle judges each device.
    pub failure: Option<String>,
}

/// Runs samples on two devices, with the same source each, and compares the outputs. On each they are judged by the oracle
/// too.
pub fn compare(
    devices: [(&Device, &LaunchOptions); 2],
    samples: &[Sample],
    watch: impl Fn(&Comparison) + Sync,
) -> Vec<Comparison> {
    let one = |sample: &Sample| {
        let (outputs, failure) = match agreements(devices, sample) {
            Ok(outputs) => {
                let differing = outputs.iter().find(|o| sample.case.is_exact() && o.equal < o.elements);
                let told = |o: &Agreement| {
                    let differ = o.elements - o.equal;
                    format!("{}: {differ} of {} elements differ, by up to {} ulp", o.name, o.elements, o.most_ulps)
                };
                let failure = differing.map(told);
                (outputs, failure)
            }
            Err(failure) => (Vec::new(), Some(failure)),
        };
        let comparison = Comparison { name: sample.case.name(), exact: sample.case.is_exact(), outputs, failure };
        watch(&comparison);
        comparison
    };
    samples.par_iter().map(one).collect()
}

fn agreements(devices: [(&Device, &LaunchOptions); 2], sample: &Sample) -> Result<Vec<Agreement>, String> {
    let mut results = Vec::new();
    for (device, options) in devices {
        let run = |case: &Case| -> Result<_> {
            let mut prepared = case.prepare()?;
            let options = LaunchOptions { schedule: Some(sample.schedule.clone()), cache: Cache::disabled(), ..options.clone() };
            verify::run(&prepared.kernel.on_with(device, options)?, &mut prepared.arguments)?;
            Ok(prepared)
        };
        let prepared = run(&sample.case).map_err(|e| format!("{device}: {e}"))?;
        if let (_, Some(wrong)) = prepared.judge() {
            return Err(format!("{device}: {wrong}"));
        }
        results.push(prepared);
    }
    let names = results[0].kernel.ir().params.values().map(|param| &param.name);
    let pairs = results[0].arguments.iter().zip(&results[1].arguments).zip(names);
    let agree = |((a, b), name): ((&HostArgument, &HostArgument), &String)| match (a, b) {
        (HostArgument::Output(a), HostArgument::Output(b)) => Some(agreement(name, a, b)),
        _ => None,
    };
    Ok(pairs.filter_map(agree).collect())
}

fn agreement(name: &str, a: &HostTensor, b: &HostTensor) -> Agreement {
    let mut agreement = Agreement { name: name.to_owned(), elements: 0, equal: 0, most_ulps: 0 };
    let width = a.elem.bytes().expect("an output holds what has a size");
    for at in a.places() {
        let bits = |tensor: &HostTensor| {
            let bytes = &tensor.bytes[at * width..][..width];
            bytes.iter().rev().fold(0u32, |all, &byte| all << 8 | u32::from(byte))
        };
        let ulps = distance(a.elem, bits(a), bits(b));
        agreement.elements += 1;
        agreement.equal += u64::from(ulps == 0);
        agreement.most_ulps = agreement.most_ulps.max(ulps);
    }
    agreement
}

/// Units in the last place between two values, given by their bits.
fn distance(elem: Elem, a: u32, b: u32) -> u64 {
    let (bits, largest) = match elem {
        Elem::F16 => (16, 0x7c00),
        Elem::Bf16 => (16, 0x7f80),
        Elem::F32 => (32, 0x7f80_0000),
        _ => return u64::from(a != b),
    };
    let sign = 1u32 << (bits - 1);
    let magnitude = |x: u32| x & (sign - 1);
    match (magnitude(a) > largest, magnitude(b) > largest) {
        (true, true) => return 0,
        (false, false) => {}
        _ => return u64::MAX,
    }
    // Bits in the order of the numbers; the two zeros are apart by one, since they are not the same bits.
    let place = |x: u32| if x & sign == 0 { i64::from(magnitude(x)) } else { -1 - i64::from(magnitude(x)) };
    place(a).abs_diff(place(b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::{cases, samples};
    use flashtile_codegen::Arch;

    #[test]
    fn distances_are_in_units_in_the_last_place() {
        assert_eq!(distance(Elem::F32, 1.0f32.to_bits(), 1.0f32.to_bits()), 0);
        assert_eq!(distance(Elem::F32, 1.0f32.to_bits(), 1.0f32.next_up().to_bits()), 1);
        assert_eq!(distance(Elem::F16, 0x3c00, 0x3bfe), 2);
        assert_eq!(distance(Elem::Bf16, 0x0000, 0x8000), 1);
        assert_eq!(distance(Elem::Bf16, 0x7fc0, 0x7fff), 0);
        assert_eq!(distance(Elem::F16, 0x7e00, 0x3c00), u64::MAX);
        assert_eq!(distance(Elem::F16, 0x0001, 0x8001), 3);
    }

    /// Needs NVRTC. The CPU and the emulator agree on what is exact; that a difference shows is tested by giving one device
    /// other inputs.
    #[test]
    fn exact_cases_agree_and_a_difference_shows() {
        let exact: Vec<Case> = cases().into_iter().filter(|c| c.is_exact() && c.small).collect();
        let drawn = samples(&exact, Arch::named("sm_80").expect("in the table"), 4, 5).expect("draws");
        let (cpu, emulator) = (Device::cpu(), Device::emulator());
        let options = LaunchOptions { arch: Arch::named("sm_80"), ..LaunchOptions::default() };
        let found = compare([(&cpu, &LaunchOptions::default()), (&emulator, &options)], &drawn, |_| {});
        assert!(found.iter().all(|c| c.failure.is_none() && c.outputs.len() == 2), "{found:?}");
        let tensor =
            |bytes: [u8; 4]| HostTensor { elem: Elem::F16, shape: vec![2], strides: vec![1], offset: 0, bytes: bytes.to_vec() };
        let found = agreement("o", &tensor([0, 0x3c, 0, 0]), &tensor([0, 0x3c, 2, 0]));
        assert_eq!((found.elements, found.equal, found.most_ulps), (2, 1, 2));
    }
}
