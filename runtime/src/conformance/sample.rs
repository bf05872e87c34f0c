//! Cases of the suite with schedules drawn at random: what neither the cost model nor a tuner would choose.
//!
//! A sample is a case and a schedule that is legal for its kernel, its binding and the facts of its arguments. The number of a
//! sample and the seed determine it, whatever the others are.

use std::collections::HashMap;

use flashtile_codegen::{Arch, Facts, Instance, KNOBS, Machine, Schedule, check, draw};
use flashtile_dsl::ir::Size;
use rayon::prelude::*;

use super::case::Case;
use super::data;
use super::report::{CaseResult, Report, judge_all};
use crate::cache::Cache;
use crate::device::{Device, LaunchOptions, host_facts};
use crate::error::Result;
use crate::kernel::{BoundKernel, KernelError};
use crate::lowering::default_schedule;
use crate::verify::{self, HostArgument};
use flashtile_dsl::inputs::Random;

/// Draws of whole schedules. Where operands have 32 bits and rows are long a few percent are legal.
const DRAWS: usize = 200;
/// Draws of some knobs of the schedule that the model prefers, where none of those is legal: heads of
/// 520 columns need column groups and warps that fit each other.
const NEAR: usize = 200;
/// Knobs of such a draw, at most.
const CHANGED: usize = 6;

/// A case, and the schedule to run it with.
#[derive(Clone, PartialEq, Debug)]
pub struct Sample {
    /// The case.
    pub case: Case,
    /// A schedule that is legal for it.
    pub schedule: Schedule,
}

impl Case {
    /// The facts that a launch of it finds about its arguments: which scalars are positive, and how tensors are aligned.
    ///
    /// # Errors
    /// As [`Case::bound`].
    pub fn facts(&self) -> Result<Facts> {
        Ok(self.facts_of(&self.bound()?))
    }

    fn facts_of(&self, kernel: &BoundKernel) -> Facts {
        let places = data::places(self, kernel.ir());
        let scalar = |number: usize| match places[number] {
            HostArgument::F32(x) => Some(x),
            _ => None,
        };
        let size = |s: &Size| {
            let given = self.sizes.iter().find(|(name, _)| *name == s.name).map(|(_, size)| *size);
            given.unwrap_or_else(|| kernel.binding().consts.get(&s.name).copied().unwrap_or_default())
        };
        let sizes: Vec<i64> = kernel.ir().sizes.values().map(size).collect();
        let integer = |number: usize| match places[number] {
            HostArgument::I32(x) => x,
            _ => 0,
        };
        host_facts(kernel, &sizes, scalar, integer, |number| places[number].tensor())
    }
}

/// As many samples as asked for, each one of these cases with a legal schedule of the architecture. Empty if there are no cases.
///
/// ```
/// use flashtile::Arch;
/// use flashtile::conformance::{cases, samples};
/// let arch = Arch::named("sm_90a").expect("in the table");
/// let drawn = samples(&cases(), arch, 3, 7)?;
/// assert_eq!(drawn[..2], samples(&cases(), arch, 2, 7)?);
/// # Ok::<(), flashtile::Error>(())
/// ```
///
/// # Errors
/// [`KernelError::NoSchedule`] with a case for which no draw is legal, such as one of bf16 on an architecture that has none.
pub fn samples(cases: &[Case], arch: &'static Arch, count: usize, seed: u64) -> Result<Vec<Sample>> {
    let count = if cases.is_empty() { 0 } else { count };
    (0..count).into_par_iter().map(|number| sample(cases, arch, seed, number)).collect()
}

/// A legal schedule for a kernel of one's own, of which every knob is drawn. The seed and a number determine it.
///
/// # Errors
/// [`KernelError::NoSchedule`] if no draw is legal.
pub fn drawn_schedule(instance: &Instance, arch: &'static Arch, seed: u64, number: usize) -> Result<Schedule> {
    let name = &instance.kernel.name;
    legal(instance, arch, (name, name), &mut draws(seed, number))
}

fn sample(cases: &[Case], arch: &'static Arch, seed: u64, number: usize) -> Result<Sample> {
    let mut next = draws(seed, number);
    let case = &cases[next(cases.len())];
    let kernel = case.bound()?;
    let instance = kernel.instance(case.facts_of(&kernel));
    let schedule = legal(&instance, arch, (case.kernel, &case.name()), &mut next)?;
    Ok(Sample { case: case.clone(), schedule })
}

/// Numbers below a bound, one after the other.
fn draws(seed: u64, number: usize) -> impl FnMut(usize) -> usize {
    let mut random = Random(seed.wrapping_mul(0xD6E8_FEB8_6659_FD93) ^ number as u64);
    move |bound| random.below(bound as u64) as usize
}

/// The first draw that is legal. An error names the kernel, and what it was drawn for.
fn legal(
    instance: &Instance,
    arch: &'static Arch,
    (kernel, what): (&str, &str),
    next: &mut dyn FnMut(usize) -> usize,
) -> Result<Schedule> {
    let is_legal = |schedule: &Schedule| check(instance, schedule, arch).is_legal();
    if let Some(drawn) = (0..DRAWS).map(|_| draw(instance, arch, next)).find(is_legal) {
        return Ok(drawn);
    }
    let sizes = instance.kernel.sizes.values().map(|size| (size.name.clone(), 256)).collect();
    let chosen = default_schedule(instance, arch, &sizes, &Machine::typical(arch)).map_err(|error| match error {
        KernelError::NoSchedule { reason, reasons, .. } => KernelError::NoSchedule {
            kernel: kernel.to_owned(),
            arch: arch.name.to_owned(),
            reason: format!("{reason}; none of {DRAWS} draws is legal for {what} either"),
            reasons,
        },
        other => other,
    })?;
    let near = (0..NEAR).map(|_| with_some_knobs(&chosen, &draw(instance, arch, next), next)).find(is_legal);
    Ok(near.unwrap_or(chosen))
}

/// A schedule with a few knobs of another one.
fn with_some_knobs(schedule: &Schedule, other: &Schedule, next: &mut dyn FnMut(usize) -> usize) -> Schedule {
    let mut made = schedule.clone();
    for _ in 0..=next(CHANGED) {
        let knob = &KNOBS[next(KNOBS.len())];
        (knob.set)(&mut made, &(knob.get)(other));
    }
    made
}

/// Chooses samples from a pool, each the one with the most pairs of knob values that no earlier one has, until every pair that
/// the pool has is in some sample or `most` are chosen. Gives them and the part of the pairs that they have.
///
/// ```
/// use flashtile::Arch;
/// use flashtile::conformance::{cases, pairwise, samples};
/// let arch = Arch::named("sm_80").expect("in the table");
/// let (chosen, covered) = pairwise(samples(&cases(), arch, 40, 7)?, 20);
/// assert!(chosen.len() == 20 && covered > 0.8);
/// # Ok::<(), flashtile::Error>(())
/// ```
pub fn pairwise(mut pool: Vec<Sample>, most: usize) -> (Vec<Sample>, f64) {
    let mut number: HashMap<(usize, String, usize, String), usize> = HashMap::new();
    let mut of: Vec<Vec<usize>> = Vec::new();
    for sample in &pool {
        let values: Vec<String> = KNOBS.iter().map(|knob| (knob.get)(&sample.schedule)).collect();
        let pairs = (0..values.len()).flat_map(|i| (i + 1..values.len()).map(move |j| (i, j)));
        let mut numbers = |(i, j): (usize, usize)| {
            let next = number.len();
            *number.entry((i, values[i].clone(), j, values[j].clone())).or_insert(next)
        };
        of.push(pairs.map(&mut numbers).collect());
    }
    let (mut seen, mut chosen, mut left) = (vec![false; number.len()], Vec::new(), number.len());
    while chosen.len() < most && left > 0 {
        let fresh = |numbers: &Vec<usize>| numbers.iter().filter(|&&n| !seen[n]).count();
        // The first of the best, so that the choice depends on the pool alone.
        let best = (0..pool.len()).rev().max_by_key(|&i| fresh(&of[i])).expect("a pair that is left is of a sample that is left");
        for n in of.swap_remove(best) {
            left -= usize::from(!std::mem::replace(&mut seen[n], true));
        }
        chosen.push(pool.swap_remove(best));
    }
    let covered = 1.0 - left as f64 / seen.len().max(1) as f64;
    (chosen, covered)
}

/// Runs samples on a device, side by side, telling `watch` of each as it is judged. The report has one case per sample, in
/// order.
///
/// The code of a sample is not kept in the cache of `options`, whose schedule is not used either.
pub fn run_samples(device: &Device, options: &LaunchOptions, samples: &[Sample], watch: impl Fn(&CaseResult) + Sync) -> Report {
    let launch = |number: usize, kernel: &BoundKernel, arguments: &mut [HostArgument]| {
        let schedule = Some(samples[number].schedule.clone());
        let options = LaunchOptions { schedule, cache: Cache::disabled(), ..options.clone() };
        verify::run(&kernel.on_with(device, options)?, arguments)
    };
    judge_all(samples.iter().map(|s| &s.case), launch, watch)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use flashtile_codegen::TensorOp;

    use super::super::case::Layout;
    use super::super::table::cases;
    use super::*;

    fn arch(name: &str) -> &'static Arch {
        Arch::named(name).expect("in the table")
    }

    fn case(name: &str) -> Case {
        cases().into_iter().find(|c| c.name() == name).unwrap_or_else(|| panic!("no case {name}"))
    }

    const NORMED: &str = "pub fn normed<T: Element, const D: usize>(
        q: &Tensor<T, (B, H, M, D)>, k: &Tensor<T, (B, H, N, D)>, v: &Tensor<T, (B, H, N, D)>, o: &mut Tensor<T, (B, H, M, D)>,
    ) {
        let (b, h, i) = program(B, H, tiles(M));
        let q_i = load(q, [b, h, i, ..]);
        let mut m = full(i, -INF);
        let mut l = zeros(i);
        let mut acc = zeros((i, D));
        for j in tiles(N) {
            let s = dot(q_i, load(k, [b, h, j, ..]).t()) * 0.05;
            let m_new = max(m, rowmax(s));
            let alpha = exp(m - m_new);
            let p = exp(s - m_new);
            l = l * alpha + rowsum(p);
            acc = acc * alpha + dot(p.to::<T>(), load(v, [b, h, j, ..]));
            m = m_new;
        }
        let a = acc / l;
        store(o, [b, h, i, ..], (a * rsqrt(rowsum(a * a) / D + 1e-6)).to::<T>());
    }";

    /// Column groups and warps have to fit each other for heads so wide, which whole draws hardly meet.
    #[test]
    fn schedules_of_wide_heads_are_drawn_near_the_choice_of_the_model() {
        let source = flashtile_dsl::ir::SourceText { name: "normed.rs".into(), text: NORMED.into(), first_line: 1 };
        let kernel = crate::kernel::Kernel::from_source(&source).unwrap_or_else(|errors| panic!("{errors}")).remove(0);
        let bound = kernel.bind(flashtile_dsl::ir::Elem::Bf16, [("D", 520)]).expect("binds");
        let (instance, arch) = (bound.instance(Facts::best(bound.ir())), arch("sm_90a"));
        let mut next = draws(5, 0);
        let whole = (0..DRAWS).map(|_| draw(&instance, arch, &mut next)).filter(|s| check(&instance, s, arch).is_legal());
        assert_eq!(whole.count(), 0, "a kernel for which whole draws do");
        let drawn = |number| drawn_schedule(&instance, arch, 5, number).unwrap_or_else(|error| panic!("{error}"));
        let (one, other) = (drawn(0), drawn(1));
        assert!(check(&instance, &one, arch).is_legal() && check(&instance, &other, arch).is_legal());
        assert_ne!(one, other);
    }

    #[test]
    fn facts_are_those_of_the_layout_and_the_scalars() {
        let facts = |name: &str| case(name).facts().expect("binds");
        let alignment = |name: &str| facts(name).alignment;
        assert_eq!(alignment("attention/f16/B2_H4_G2_M37_N101_D64/normal/bshd"), 16);
        assert_eq!(alignment("attention/f16/B2_H4_G2_M37_N101_D64/normal/padded8"), 16);
        assert_eq!(alignment("attention/f16/B2_H4_G2_M37_N101_D64/normal/padded2"), 4);
        assert_eq!(alignment("attention/f16/B2_H4_G2_M37_N101_D64/normal/padded3"), 2);
        assert_eq!(alignment("attention/f32/B2_H4_G2_M37_N101_D64/normal/padded3"), 4);
        // Rows of a mask of 65 bytes are aligned to nothing, and leave those of keys and values
        // alone.
        assert_eq!(alignment("boolean_mask/f16/B1_H2_G1_M33_N65_D64/normal"), 16);
        let mixed = facts("int8_keys/f16/B1_H4_G2_M19_N61_D64/normal/padded3");
        assert_eq!(["q", "k", "o"].map(|name| mixed.alignment_of(name)), [2, 1, 2]);
        // Rows of a bias are as long as there are keys.
        let odd = facts("bias_attention/f16/B1_H2_G1_M33_N65_D32/normal");
        assert_eq!(["q", "k", "bias", "o"].map(|name| odd.alignment_of(name)), [16, 16, 2, 16]);
        let positive = |scale: &str| {
            let name = format!("attention/f16/B1_H2_G1_M65_N130_D64/normal/scale={scale}");
            case(&name).facts().expect("binds").positive.contains("scale")
        };
        assert_eq!(["8", "0.000001", "0", "-3"].map(positive), [true, true, false, false]);
    }

    #[test]
    fn every_sample_is_legal_and_the_seed_determines_it() {
        for arch in ["sm_80", "sm_90a"].map(arch) {
            let drawn = samples(&cases(), arch, 60, 1).expect("draws");
            for Sample { case, schedule } in &drawn {
                let instance = case.bound().expect("binds").instance(case.facts().expect("binds"));
                assert!(check(&instance, schedule, arch).is_legal(), "{} on {arch} with {schedule}", case.name());
            }
            assert_eq!(drawn[..20], samples(&cases(), arch, 20, 1).expect("draws"));
            assert_ne!(drawn, samples(&cases(), arch, 60, 2).expect("draws"));
        }
    }

    #[test]
    fn samples_reach_all_kernels_and_on_hopper_many_multiply_with_wgmma() {
        let (all, drawn) = (cases(), samples(&cases(), arch("sm_90a"), 240, 3).expect("draws"));
        let of = |cases: &mut dyn Iterator<Item = &'static str>| cases.collect::<BTreeSet<&str>>().len();
        let (all, reached) = (of(&mut all.iter().map(|c| c.kernel)), of(&mut drawn.iter().map(|s| s.case.kernel)));
        // Few kernels have few cases, and are not among so few.
        assert!(10 * reached >= 8 * all, "{reached} of {all}");
        let wgmma: Vec<&Sample> = drawn.iter().filter(|s| s.schedule.main.tensor_op == TensorOp::Wgmma).collect();
        assert!((40..160).contains(&wgmma.len()), "{}", wgmma.len());
        assert!(wgmma.iter().all(|s| s.case.elem.bytes() == Some(2) && s.case.layout != Layout::Padded(3)));
        for knob in KNOBS.iter().filter(|k| k.doc.ends_with("(wgmma)")) {
            let values: BTreeSet<String> = wgmma.iter().map(|s| (knob.get)(&s.schedule)).collect();
            assert!(values.len() > 1, "{} is always {values:?}", knob.name);
        }
    }

    #[test]
    fn where_nothing_is_legal_the_error_names_the_case() {
        let bf16 = [case("causal_attention/bf16/B1_H2_G1_M113_N203_D64/normal")];
        let error = samples(&bf16, arch("sm_75"), 1, 0).expect_err("there is no bf16").to_string();
        assert!(error.contains("B1_H2_G1_M113_N203_D64/normal") && error.contains("sm_75 has no bf16"), "{error}");
        assert_eq!(samples(&[], arch("sm_75"), 1, 0).expect("no case"), []);
    }
}
