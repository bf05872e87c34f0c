//! Launches of one kernel: facts are computed per call, and the variant for them is chosen, or made.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, RwLock};

use flashtile_codegen::{Arch, Facts, Ranker, Schedule, why_not_split, wide_tensors};
use flashtile_dsl::ir::{Elem, Entity, ParamKind, ProgramDim, SizeKind};
use flashtile_emulator::Report;

use super::Processor;
use super::choice::Choice;
use crate::cache::Bucket;
use crate::device::Carried;
use crate::device::facts::{FactKey, FixedFacts};
use crate::device::fold::FoldPlan;
use crate::device::{Call, DeviceError, FixedCall, LaunchOptions, Launcher, Origin, VariantInfo, eighths, machine_of};
use crate::error::Result;
use crate::kernel::{BoundKernel, KernelError};
use crate::lowering;

/// Sizes that a kernel may have; see the signature.
const MAX_SIZES: usize = 32;

/// Facts and sizes, and the schedules that the model ranks for them, best first.
type RankedFor = (FactKey, BTreeMap<String, i64>, Vec<(Schedule, f64)>);

/// What a variant is chosen by: facts, and the range that each run-time size is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct VariantKey {
    facts: FactKey,
    ranges: Ranges,
}

/// Number of the range that each run-time size is in.
type Ranges = [u16; MAX_SIZES];

struct Entry<P: Processor> {
    key: VariantKey,
    variant: Arc<P::Variant>,
    info: VariantInfo,
    /// Place of the code in a bundle, if it is of one.
    code: Option<usize>,
}

/// What is kept for calls that differ in addresses, scalars and streams only.
struct Fixed<P: Processor> {
    facts: FixedFacts,
    ranges: Ranges,
    /// The variants of such calls by their facts.
    variants: RwLock<Vec<(FactKey, Arc<FixedVariant<P>>)>>,
}

/// A variant, and what the processor keeps of it for such calls.
struct FixedVariant<P: Processor> {
    variant: Arc<P::Variant>,
    kept: P::Fixed,
}

/// A kernel made ready for a device that runs compiled code.
pub(crate) struct CompiledLauncher<P: Processor> {
    processor: P,
    kernel: BoundKernel,
    options: LaunchOptions,
    arch: &'static Arch,
    /// Positions of f32 scalar parameters.
    scalars: Vec<usize>,
    /// For every parameter, whether its alignment matters.
    wide: Vec<bool>,
    /// The rows that may be folded, if there are any.
    fold: Option<FoldPlan>,
    /// Positions of run-time sizes, each with whether it is told apart from others of its bucket:
    /// if it is a number of programs, on which the best split of a loop depends, or if code of a
    /// bundle is chosen by it.
    runtime_sizes: Vec<(usize, bool)>,
    entries: RwLock<Vec<Entry<P>>>,
    /// For the facts of calls so far.
    rankers: Mutex<Vec<(FactKey, Arc<Ranker>)>>,
    /// What was ranked for a prediction, for the launch that follows it.
    ranked: Mutex<Option<RankedFor>>,
    /// Held while a variant is made, so that it is made once.
    making: Mutex<()>,
}

impl<P: Processor> fmt::Debug for CompiledLauncher<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CompiledLauncher({} on {}, code for {})", self.kernel.ir().name, self.processor.info().id, self.arch)
    }
}

impl<P: Processor> CompiledLauncher<P> {
    pub fn new(processor: &P, kernel: &BoundKernel, options: &LaunchOptions) -> Result<Self, DeviceError> {
        let arch = options.arch.unwrap_or(processor.arch());
        processor.check(arch)?;
        let params = kernel.ir().params.iter();
        let scalars = params.filter(|(_, p)| p.kind == ParamKind::Scalar(Elem::F32)).map(|(id, _)| id.index()).collect();
        let sizes = kernel.ir().sizes.iter().filter(|(_, s)| s.kind == SizeKind::Runtime);
        let is_carried = options.carried.is_some();
        let can_split = !is_carried && why_not_split(kernel.ir()).is_none();
        let counts = |dim: &ProgramDim, id| matches!(dim, ProgramDim::Each(size) if size.sizes().any(|of| of == id));
        let counts_programs = |id| can_split && kernel.ir().grid().iter().any(|dim| counts(dim, id));
        let is_told_apart = |id| is_carried || counts_programs(id);
        Ok(Self {
            processor: processor.clone(),
            kernel: kernel.clone(),
            options: options.clone(),
            arch,
            scalars,
            wide: wide_tensors(kernel.ir()),
            fold: FoldPlan::of(kernel.ir(), kernel.binding()),
            runtime_sizes: sizes.map(|(id, _)| (id.index(), is_told_apart(id))).collect(),
            entries: RwLock::default(),
            rankers: Mutex::default(),
            ranked: Mutex::default(),
            making: Mutex::default(),
        })
    }

    fn key(&self, call: &Call<'_>) -> VariantKey {
        let facts = FactKey::of(call, &self.scalars, &self.wide, self.fold.as_ref());
        VariantKey { facts, ranges: self.ranges(call) }
    }

    fn ranges(&self, call: &Call<'_>) -> Ranges {
        let mut ranges = [0; MAX_SIZES];
        for (slot, &(size, is_told_apart)) in ranges.iter_mut().zip(&self.runtime_sizes) {
            *slot = if is_told_apart { eighths(call.sizes[size]) as u16 } else { bucket(call.sizes[size]) };
        }
        ranges
    }

    /// The variant of a call of those that something is kept for, and what is kept for it.
    fn fixed_variant(&self, fixed: &Fixed<P>, call: &Call<'_>) -> Result<Arc<FixedVariant<P>>> {
        let facts = FactKey::with(call, &self.scalars, &self.wide, fixed.facts);
        let known = fixed.variants.read().unwrap_or_else(|e| e.into_inner());
        if let Some((_, variant)) = known.iter().find(|(known, _)| *known == facts) {
            return Ok(variant.clone());
        }
        drop(known);
        let key = VariantKey { facts, ranges: fixed.ranges };
        let variant = match self.find(&key) {
            Some(variant) => variant,
            None => self.make(key, call)?,
        };
        let kept = self.processor.fix(&variant, call)?;
        let made = Arc::new(FixedVariant { variant, kept });
        fixed.variants.write().unwrap_or_else(|e| e.into_inner()).push((facts, made.clone()));
        Ok(made)
    }

    fn find(&self, key: &VariantKey) -> Option<Arc<P::Variant>> {
        let entries = self.entries.read().unwrap_or_else(|e| e.into_inner());
        entries.iter().find(|e| e.key == *key).map(|e| e.variant.clone())
    }

    /// Chooses a schedule, compiles and loads it; or takes the variant of another bucket that has the same.
    fn make(&self, key: VariantKey, call: &Call<'_>) -> Result<Arc<P::Variant>> {
        let _making = self.making.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(variant) = self.find(&key) {
            return Ok(variant); // another thread was first
        }
        let facts = self.facts(&key.facts);
        let sizes = self.sizes(call);
        if let Some(carried) = &self.options.carried {
            return self.make_carried(key, carried, &facts, &sizes);
        }
        let ranker = self.ranker(&key.facts, &facts);
        let (schedule, origin, variant) = self.choose(&key.facts, &ranker, &facts, &sizes)?;
        // Code from given plans is code under the facts of those.
        let facts = self.options.plans.as_ref().map_or(facts, |given| given.facts.clone());
        let info = VariantInfo {
            facts,
            bucket: Bucket::of(borrowed(&sizes)),
            schedule,
            arch: self.arch.name.to_owned(),
            origin,
            resources: self.processor.resources(&variant)?,
        };
        let entry = Entry { key, variant: variant.clone(), info, code: None };
        self.entries.write().unwrap_or_else(|e| e.into_inner()).push(entry);
        Ok(variant)
    }

    /// Loads the code that a bundle has for these facts and sizes, unless it is loaded already.
    fn make_carried(
        &self,
        key: VariantKey,
        carried: &Carried,
        facts: &Facts,
        sizes: &BTreeMap<String, i64>,
    ) -> Result<Arc<P::Variant>> {
        let chosen = carried.choose(facts, sizes)?;
        let entries = self.entries.read().unwrap_or_else(|e| e.into_inner());
        let loaded = entries.iter().find(|e| e.code == Some(chosen.code)).map(|e| e.variant.clone());
        drop(entries);
        let code = carried.code(chosen.code);
        let variant = match loaded {
            Some(variant) => variant,
            None => Arc::new(self.processor.load_carried(&self.kernel, code, self.arch, &self.options)?),
        };
        let info = VariantInfo {
            facts: chosen.facts.clone(),
            bucket: Bucket::of(borrowed(sizes)),
            schedule: code.schedule.clone(),
            arch: self.arch.name.to_owned(),
            origin: chosen.origin,
            resources: self.processor.resources(&variant)?,
        };
        let entry = Entry { key, variant: variant.clone(), info, code: Some(chosen.code) };
        self.entries.write().unwrap_or_else(|e| e.into_inner()).push(entry);
        Ok(variant)
    }

    fn same_code(&self, facts: &FactKey, schedule: &Schedule) -> Option<Arc<P::Variant>> {
        let entries = self.entries.read().unwrap_or_else(|e| e.into_inner());
        entries.iter().find(|e| e.key.facts == *facts && e.info.schedule == *schedule).map(|e| e.variant.clone())
    }

    /// The schedule that was asked for, or the one that [`Choice`] makes; where it comes from; and
    /// its code.
    fn choose(
        &self,
        key: &FactKey,
        ranker: &Ranker,
        facts: &Facts,
        sizes: &BTreeMap<String, i64>,
    ) -> Result<(Schedule, Origin, Arc<P::Variant>)> {
        let given = |schedule: &Schedule| Ok((schedule.clone(), Origin::Given, self.code(key, ranker, schedule)?));
        if let Some(plans) = &self.options.plans {
            let assumed = plans.facts.beyond(facts);
            if !assumed.is_empty() {
                return Err(KernelError::PlanFacts { kernel: self.kernel.ir().name.clone(), assumed }.into());
            }
            return given(&plans.schedule);
        }
        if let Some(schedule) = &self.options.schedule {
            return given(schedule);
        }
        let choice = self.choice(ranker, facts, sizes);
        let ranked = || match self.ranked.lock().unwrap_or_else(|e| e.into_inner()).take() {
            Some((of_key, of_sizes, ranked)) if of_key == *key && of_sizes == *sizes => Ok(ranked),
            _ => choice.rank(),
        };
        choice.take(ranked, |schedule| {
            let variant = self.code(key, ranker, schedule)?;
            let in_memory = self.processor.resources(&variant)?.map_or(0, |resources| resources.local_bytes);
            Ok((in_memory, variant))
        })
    }

    fn choice<'a>(&'a self, ranker: &'a Ranker, facts: &'a Facts, sizes: &'a BTreeMap<String, i64>) -> Choice<'a> {
        Choice {
            kernel: &self.kernel,
            arch: self.arch,
            device: self.processor.info().key(),
            machine: machine_of(self.arch, self.processor.info().gpu.as_ref()),
            cache: &self.options.cache,
            ranker,
            facts,
            sizes,
        }
    }

    /// The code of a schedule: that of another bucket, or compiled and loaded.
    fn code(&self, key: &FactKey, ranker: &Ranker, schedule: &Schedule) -> Result<Arc<P::Variant>> {
        if let Some(variant) = self.same_code(key, schedule) {
            return Ok(variant);
        }
        let generated = match &self.options.plans {
            Some(given) => {
                let instance = self.kernel.instance(given.facts.clone());
                lowering::generate_from(given.plans.to_vec(), &instance, schedule, self.arch)?
            }
            None => lowering::generate_with(ranker, &self.kernel, schedule, self.arch)?,
        };
        Ok(Arc::new(self.processor.load(&self.kernel, generated, self.arch, &self.options)?))
    }

    /// The ranker for these facts. It keeps what it has planned for launches with other sizes.
    fn ranker(&self, key: &FactKey, facts: &Facts) -> Arc<Ranker> {
        let mut rankers = self.rankers.lock().unwrap_or_else(|e| e.into_inner());
        if let Some((_, ranker)) = rankers.iter().find(|(k, _)| k == key) {
            return ranker.clone();
        }
        let ranker = Arc::new(Ranker::new(&self.kernel.instance(facts.clone()), self.arch));
        rankers.push((*key, ranker.clone()));
        ranker
    }

    fn facts(&self, key: &FactKey) -> Facts {
        let name = |param: usize| {
            let params = &self.kernel.ir().params;
            params[flashtile_dsl::ir::ParamId::from_index(param)].name.clone()
        };
        let positive: BTreeSet<String> =
            self.scalars.iter().enumerate().filter(|(bit, _)| key.is_positive(*bit)).map(|(_, &p)| name(p)).collect();
        let moved = self.wide.iter().enumerate().filter(|(_, wide)| **wide);
        let aligned = moved.enumerate().map(|(n, (param, _))| (name(param), key.alignment_of(n)));
        Facts { positive, foldable: key.foldable, wide: key.wide, ..Facts::none() }.with_alignments(aligned)
    }

    fn sizes(&self, call: &Call<'_>) -> BTreeMap<String, i64> {
        let size = |&(index, _): &(usize, bool)| {
            let id = flashtile_dsl::ir::SizeId::from_index(index);
            (self.kernel.ir().size_name(id).to_owned(), call.sizes[index])
        };
        self.runtime_sizes.iter().map(size).collect()
    }
}

fn borrowed(sizes: &BTreeMap<String, i64>) -> impl Iterator<Item = (&str, i64)> {
    sizes.iter().map(|(name, &size)| (name.as_str(), size))
}

impl<P: Processor> Launcher for CompiledLauncher<P> {
    fn launch(&self, call: &Call<'_>) -> Result<()> {
        let key = self.key(call);
        let variant = match self.find(&key) {
            Some(variant) => variant,
            None => self.make(key, call)?,
        };
        self.processor.launch(&variant, call, &self.options)
    }

    fn fix(&self, call: &Call<'_>) -> Option<FixedCall> {
        let facts = FixedFacts::of(call, &self.wide, self.fold.as_ref());
        let fixed = Fixed::<P> { facts, ranges: self.ranges(call), variants: RwLock::default() };
        P::TAKES_ADDRESSES.then(|| FixedCall(Box::new(fixed)))
    }

    fn launch_fixed(&self, fixed: &FixedCall, call: &Call<'_>) -> Result<()> {
        let fixed: &Fixed<P> = fixed.0.downcast_ref().expect("made by this launcher");
        let made = self.fixed_variant(fixed, call)?;
        self.processor.launch_fixed(&made.variant, &made.kept, call, &self.options)
    }

    fn predict(&self, sizes: &BTreeMap<String, i64>) -> Result<Option<f64>> {
        if self.options.carried.is_some() {
            return Ok(None);
        }
        let key = FactKey::common(self.scalars.len(), self.fold.is_some());
        let facts = self.facts(&key);
        let ranker = self.ranker(&key, &facts);
        let choice = self.choice(&ranker, &facts, sizes);
        let given = self.options.plans.as_ref().map(|given| &given.schedule).or(self.options.schedule.as_ref());
        if let Some(schedule) = given.cloned().or_else(|| choice.known().map(|(schedule, _)| schedule)) {
            return Ok(choice.predicted(&schedule));
        }
        let ranked = choice.rank()?;
        let first = ranked.first().map(|(_, seconds)| *seconds);
        *self.ranked.lock().unwrap_or_else(|e| e.into_inner()) = Some((key, sizes.clone(), ranked));
        Ok(first)
    }

    fn variants(&self) -> Vec<VariantInfo> {
        let entries = self.entries.read().unwrap_or_else(|e| e.into_inner());
        entries.iter().map(|e| e.info.clone()).collect()
    }

    fn reports(&self) -> Vec<Report> {
        let entries = self.entries.read().unwrap_or_else(|e| e.into_inner());
        entries.iter().flat_map(|e| self.processor.reports(&e.variant)).collect()
    }
}

/// Number of the bucket of a size: 0 for a size of 0, else one more than the logarithm of the
/// bucket's upper end.
fn bucket(size: i64) -> u16 {
    match Bucket::round(size) {
        0 => 0,
        end => 1 + end.trailing_zeros() as u16,
    }
}

#[cfg(test)]
mod tests {
    use super::bucket;

    #[test]
    fn buckets_are_those_of_tuning() {
        assert_eq!([0, 1, 2, 3, 4, 5, 1024, 1025].map(bucket), [0, 1, 2, 3, 3, 4, 11, 12]);
    }
}
