//! Which schedule a launch takes, if none was asked for.
//!
//! 1. What tuning found for these sizes (each rounded up to a power of two).
//! 2. The best of what tuning measured for sizes near these: so lengths that change need one tune, not one each.
//! 3. What the model chose for these sizes before.
//! 4. What the model chooses now: of the schedules that it ranks, the fastest with what its code
//!    keeps in memory. It is kept.
//!
//! For near sizes the best few candidates of the nearest tuned shape are compared, each by its
//! measured time and by how the model says that this time moves with the sizes. Where even the best
//! of them uses much less of the machine than it does there, the model ranks all schedules, and its
//! choice is taken if it promises to be faster.
//!
//! How a loop is split depends on how many programs there are: 5 sequences in 16 parts each leave a
//! third of 132 multiprocessors idle, where 8 sequences take all. So what was found for other
//! sizes, of the same bucket too, is taken with as many parts as suit these, where the model
//! promises that this pays.

use std::collections::BTreeMap;

use flashtile_codegen::{Arch, Facts, PackGqa, Ranker, Schedule};

use crate::cache::{Bucket, Cache, Candidate, DeviceKey, NO_NVRTC, Outcome, TuningKey, TuningRecord};
use crate::device::Origin;
use crate::error::Result;
use crate::kernel::BoundKernel;
use crate::lowering::{self, Code, Machine};
use crate::toolchain::Toolchain;
use flashtile_dsl::inputs::InputData;

/// Sizes are near if each is within this factor of the tuned one.
const NEAR: f64 = 4.0;
/// Candidates of a tuned shape that compete for a near one.
const COMPETING: usize = 4;
/// Time beyond what the work of a near shape should take, from which on the model ranks all
/// schedules.
const SLOWER: f64 = 1.15;
/// What the model's choice, of schedules or of parts, must promise to win over what was measured
/// for other sizes.
const PROMISED: f64 = 0.9;

/// The facts and sizes of a call, and what is known of its kernel.
pub(crate) struct Choice<'a> {
    pub kernel: &'a BoundKernel,
    pub arch: &'static Arch,
    pub device: DeviceKey,
    pub machine: Machine,
    pub cache: &'a Cache,
    /// Of the kernel under these facts.
    pub ranker: &'a Ranker,
    pub facts: &'a Facts,
    pub sizes: &'a BTreeMap<String, i64>,
}

impl Choice<'_> {
    /// What the model ranks.
    pub fn rank(&self) -> Result<Vec<(Schedule, f64)>> {
        Ok(lowering::rank_with(self.ranker, self.kernel, self.arch, self.sizes, &self.machine)?)
    }

    /// What was tuned, or chosen before.
    pub fn known(&self) -> Option<(Schedule, Origin)> {
        match self.found() {
            Found::Known(schedule, origin) => Some((schedule, origin)),
            Found::AskModel(_) => None,
        }
    }

    fn found(&self) -> Found {
        let own = self.key(self.facts.clone());
        let known = self.winner(&own);
        let tuned = known.clone().filter(is_measured).or_else(|| self.tuned_for_other_facts());
        if let Some(tuned) = tuned {
            return Found::Known(tuned.schedule, Origin::Tuned);
        }
        match (self.tuned_nearby(&own), known) {
            (Some(near), None) if !near.is_slow => Found::Known(near.schedule, Origin::TunedNearby),
            (near, None) => Found::AskModel(near),
            (near, Some(known)) => {
                let (schedule, origin) = self.better(near, known.schedule);
                Found::Known(schedule, origin)
            }
        }
    }

    /// Of what was tuned nearby and what the model chose, the one that promises to be faster.
    fn better(&self, near: Option<Nearby>, chosen: Schedule) -> (Schedule, Origin) {
        let promised = |near: &Nearby| self.predicted(&chosen).is_some_and(|s| s * near.correction < PROMISED * near.seconds);
        match near {
            Some(near) if !near.is_slow || !promised(&near) => (near.schedule, Origin::TunedNearby),
            _ => (chosen, Origin::Model),
        }
    }

    /// What a launch takes, and where it comes from: what is known, else the fastest of the `ranked`
    /// with what its code keeps in memory, which is kept. `make` makes the code of a schedule, and
    /// says how many bytes a thread has in memory.
    ///
    /// # Errors
    /// Those of `ranked` and `make`.
    pub fn take<V: Send>(
        &self,
        ranked: impl FnOnce() -> Result<Vec<(Schedule, f64)>>,
        make: impl Fn(&Schedule) -> Result<(u32, V)> + Sync,
    ) -> Result<(Schedule, Origin, V)> {
        let (schedule, origin) = match self.found() {
            Found::Known(schedule, origin) => (schedule, origin),
            Found::AskModel(near) => {
                let (chosen, predicted, made) = lowering::first_in_registers(ranked()?, &make)?;
                self.keep(chosen.clone(), predicted);
                match self.better(near, chosen) {
                    (schedule, Origin::Model) => return Ok((schedule, Origin::Model, made)),
                    near => near,
                }
            }
        };
        let (_, made) = make(&schedule)?;
        Ok((schedule, origin, made))
    }

    /// The same where nothing is loaded: the code that NVRTC makes.
    ///
    /// # Errors
    /// No schedule is legal; NVRTC failed.
    pub fn code(&self, toolchain: &Toolchain) -> Result<(Code, Origin)> {
        let compile = |schedule: &Schedule| {
            let generated = lowering::generate_with(self.ranker, self.kernel, schedule, self.arch)?;
            let code = lowering::compile_generated(&self.kernel.ir().name, generated, toolchain, self.cache)?;
            Ok((code.module.report.stack, code))
        };
        let (_, origin, code) = self.take(|| self.rank(), compile)?;
        Ok((code, origin))
    }

    /// Keeps what was taken of the schedules that the model ranks.
    fn keep(&self, schedule: Schedule, predicted: f64) {
        let choice = Candidate { outcome: Outcome::Predicted, ..Candidate::new(schedule, predicted) };
        self.cache.keep_tuning(&TuningRecord {
            key: self.key(self.facts.clone()),
            nvrtc: NO_NVRTC,
            sizes: self.sizes.clone(),
            data: InputData::default(),
            winner: Some(0),
            complete: false,
            candidates: vec![choice],
        });
    }

    fn key(&self, facts: Facts) -> TuningKey {
        TuningKey::new(
            (&self.kernel.ir().name, &self.kernel.fingerprint()),
            self.kernel.binding().clone(),
            facts,
            Bucket::of(self.sizes.iter().map(|(name, &size)| (name.as_str(), size))),
            self.arch.name,
            self.device.clone(),
        )
    }

    /// The winner of a record, if it is still legal for these sizes, with as many parts as suit
    /// them.
    fn winner(&self, key: &TuningKey) -> Option<Candidate> {
        let record = self.cache.tuning(key)?;
        let mut winner = record.winning().filter(|w| self.predicted(&w.schedule).is_some()).cloned()?;
        if distance(&record.sizes, self.sizes) != Some(0.0) {
            winner.schedule = self.fitted(&winner.schedule)?.0;
        }
        Some(winner)
    }

    /// A schedule of other sizes with as many parts as suit these, and the seconds that the model
    /// predicts; `None` if it is not legal for these sizes.
    fn fitted(&self, schedule: &Schedule) -> Option<(Schedule, f64)> {
        let found = self.ranker.split_for(schedule, self.sizes, &self.machine);
        let found = || found.iter().filter(|(_, seconds)| seconds.is_finite());
        let best = found().min_by(|a, b| a.1.total_cmp(&b.1));
        let as_it_is = found().find(|(of, _)| of == schedule);
        match (best, as_it_is) {
            (Some(best), Some(as_it_is)) if best.1 >= PROMISED * as_it_is.1 => Some(as_it_is.clone()),
            (best, _) => best.cloned(),
        }
    }

    /// What was tuned under other facts and serves these too. A winner for 32-bit index arithmetic
    /// serves 64-bit: it is a few instructions of each program. If the winner has `pack_gqa=off`,
    /// it is stored for both kinds of arguments: those whose rows can be folded and those whose
    /// rows cannot.
    fn tuned_for_other_facts(&self) -> Option<Candidate> {
        let narrow = Facts { wide: false, ..self.facts.clone() };
        let unfolded = Facts { foldable: !self.facts.foldable, ..narrow.clone() };
        let same = if self.facts.wide { self.winner(&self.key(narrow)) } else { None };
        same.filter(is_measured).or_else(|| {
            self.winner(&self.key(unfolded)).filter(|w| is_measured(w) && w.schedule.launches.pack_gqa == PackGqa::Off)
        })
    }

    /// Seconds that the model predicts; `None` if the schedule is not legal for these sizes.
    pub fn predicted(&self, schedule: &Schedule) -> Option<f64> {
        self.ranker.predict(schedule, self.sizes, &self.machine).ok().filter(|p| p.is_finite())
    }

    /// The best of the nearest tuned shape's candidates for these sizes.
    fn tuned_nearby(&self, own: &TuningKey) -> Option<Nearby> {
        let records = self.cache.tunings_of_other_sizes(own);
        let near = records.iter().filter(|r| r.winning().is_some_and(is_measured));
        let near = near.filter_map(|r| Some((distance(&r.sizes, self.sizes)?, r)));
        let (_, record) = near.min_by(|a, b| a.0.total_cmp(&b.0))?;
        let mut candidates: Vec<(&Candidate, f64)> =
            record.candidates.iter().filter_map(|c| Some((c, measured(c)?))).filter(|(c, _)| c.predicted.is_finite()).collect();
        candidates.sort_by(|a, b| a.1.total_cmp(&b.1));
        candidates.truncate(COMPETING);
        let schedules: Vec<&Schedule> = candidates.iter().map(|(candidate, _)| &candidate.schedule).collect();
        // Both by what a launch knows: predictions of the record are for the data of its tune.
        let there = self.ranker.predict_all(&schedules, &record.sizes, &self.machine);
        let estimates = candidates.iter().zip(there).filter_map(|(&(candidate, measured), there)| {
            let correction = measured / there.ok()?;
            let (schedule, seconds) = self.fitted(&candidate.schedule)?;
            correction.is_finite().then_some((schedule, seconds * correction, correction))
        });
        let (schedule, seconds, correction) = estimates.min_by(|a, b| a.1.total_cmp(&b.1))?;
        let work = |sizes| lowering::most_work(self.kernel, sizes, self.arch, &self.machine);
        let is_slow = seconds > SLOWER * candidates[0].1 * work(self.sizes) / work(&record.sizes);
        Some(Nearby { schedule, seconds, correction, is_slow })
    }
}

/// What the cache says of a call.
enum Found {
    /// What was tuned, or chosen before, and where it comes from.
    Known(Schedule, Origin),
    /// Nothing, or what was tuned nearby would waste the machine: the model is to be asked.
    AskModel(Option<Nearby>),
}

/// What tuning of a near shape says for these sizes.
struct Nearby {
    schedule: Schedule,
    /// Seconds that it promises.
    seconds: f64,
    /// What was measured there over what the model predicts.
    correction: f64,
    /// Whether that is more than its work should take, by what work took there: it wastes the
    /// machine.
    is_slow: bool,
}

fn is_measured(candidate: &Candidate) -> bool {
    measured(candidate).is_some()
}

/// Seconds under load where they are known, since these chose the winner, else of single runs.
fn measured(candidate: &Candidate) -> Option<f64> {
    candidate.under_load.as_ref().or(candidate.measured.as_ref()).map(|m| m.median)
}

/// How far two shapes are apart: the sum of the logarithms of the factors between their sizes. None if a size is not near.
fn distance(from: &BTreeMap<String, i64>, to: &BTreeMap<String, i64>) -> Option<f64> {
    let factor = |(name, &size): (&String, &i64)| {
        let other = *from.get(name)?;
        let apart = (size.max(1) as f64 / other.max(1) as f64).ln().abs();
        (apart <= NEAR.ln() + 1e-9).then_some(apart)
    };
    to.iter().map(factor).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Measurement;
    use crate::kernel::Kernel;
    use flashtile_dsl::ir::Elem;

    fn sizes(n: i64, h: i64) -> BTreeMap<String, i64> {
        [("N", n), ("H", h)].map(|(name, size)| (name.to_owned(), size)).into()
    }

    #[test]
    fn near_is_within_a_factor_in_every_size() {
        assert_eq!(distance(&sizes(1000, 8), &sizes(1000, 8)), Some(0.0));
        let twice = distance(&sizes(1000, 8), &sizes(2000, 4)).expect("near");
        assert!((twice - 2.0 * 2f64.ln()).abs() < 1e-9);
        assert!(distance(&sizes(1000, 8), &sizes(4000, 8)).is_some());
        assert_eq!(distance(&sizes(1000, 8), &sizes(4001, 8)), None);
        assert_eq!(distance(&sizes(1, 8), &sizes(1000, 8)), None, "generation of text is no prefill");
        assert_eq!(distance(&BTreeMap::new(), &sizes(1, 8)), None, "a size that the record does not have");
    }

    /// A kernel on an H200, nothing but the cost model and a cache.
    struct Setting {
        kernel: BoundKernel,
        arch: &'static Arch,
        cache: Cache,
        facts: Facts,
        ranker: Ranker,
        _folder: tempfile::TempDir,
    }

    impl Setting {
        fn new(name: &str, consts: &[(&str, i64)]) -> Self {
            let consts = consts.iter().copied();
            let kernel = Kernel::builtin(name).and_then(|kernel| kernel.bind(Elem::Bf16, consts)).expect("binds");
            let arch = Arch::named("sm_90a").expect("is in the table");
            let folder = tempfile::tempdir().expect("a folder");
            let facts = Facts::best(kernel.ir());
            let ranker = Ranker::new(&kernel.instance(facts.clone()), arch);
            Self { kernel, arch, cache: Cache::at(folder.path()), facts, ranker, _folder: folder }
        }

        fn choice<'a>(&'a self, sizes: &'a BTreeMap<String, i64>) -> Choice<'a> {
            let machine = Machine { sms: 132, ..Machine::typical(self.arch) };
            let (device, facts) = (crate::tuner::model_key(self.arch), &self.facts);
            Choice {
                kernel: &self.kernel,
                arch: self.arch,
                device,
                machine,
                cache: &self.cache,
                ranker: &self.ranker,
                facts,
                sizes,
            }
        }

        /// Keeps the result of a search that measured this schedule alone, as fast as predicted.
        fn tuned(&self, sizes: &BTreeMap<String, i64>, schedule: &Schedule) {
            let choice = self.choice(sizes);
            let seconds = choice.predicted(schedule).expect("is legal");
            let measured = Some(Measurement { median: seconds, min: seconds, repetitions: 3 });
            let candidate = Candidate { measured, outcome: Outcome::Measured, ..Candidate::new(schedule.clone(), seconds) };
            self.cache.keep_tuning(&TuningRecord {
                key: choice.key(self.facts.clone()),
                nvrtc: (13, 0),
                sizes: sizes.clone(),
                data: InputData::default(),
                winner: Some(0),
                complete: true,
                candidates: vec![candidate],
            });
        }

        /// What a launch of these sizes takes.
        fn taken(&self, sizes: &BTreeMap<String, i64>) -> (Schedule, Origin) {
            let choice = self.choice(sizes);
            let (schedule, origin, ()) = choice.take(|| choice.rank(), |_| Ok((0, ()))).expect("a choice");
            (schedule, origin)
        }
    }

    #[test]
    fn parts_are_as_many_as_suit_the_sizes_of_a_call() {
        let decoding = Setting::new("mla_decode", &[("C", 512), ("R", 64)]);
        let sizes = |batches: i64| [("B", batches), ("H", 16), ("N", 65536)].map(|(name, size)| (name.to_owned(), size)).into();
        let winner = decoding.choice(&sizes(8)).rank().expect("ranks").swap_remove(0).0;
        assert_eq!(winner.launches.split_k, 16, "{winner}");
        decoding.tuned(&sizes(8), &winner);
        assert_eq!(decoding.taken(&sizes(8)), (winner.clone(), Origin::Tuned), "as it was measured");
        for (batches, origin) in [(5, Origin::Tuned), (6, Origin::Tuned), (2, Origin::TunedNearby), (3, Origin::TunedNearby)] {
            let (schedule, from) = decoding.taken(&sizes(batches));
            assert_eq!(from, origin, "{batches}: {schedule}");
            let blocks = batches * i64::from(schedule.launches.split_k);
            assert!((120..=132).contains(&blocks), "{batches} batches, {blocks} blocks for 132 multiprocessors: {schedule}");
            assert_eq!(schedule.main, winner.main, "the tile is the one that was measured");
        }
        assert_eq!(decoding.taken(&sizes(1)).1, Origin::Model, "eight times less is not near");
    }

    #[test]
    fn what_a_near_shape_wastes_the_model_may_choose_anew() {
        let attention = Setting::new("attention", &[("D", 128)]);
        let sizes = |batches: i64, length: i64| {
            let all = [("B", batches), ("H", 4), ("G", 4), ("M", length), ("N", length)];
            all.map(|(name, size)| (name.to_owned(), size)).into()
        };
        let (long, short) = (sizes(4, 2048), sizes(1, 512));
        let slow: Schedule = "block_m=128,warps=8".parse().expect("a schedule");
        attention.tuned(&long, &slow);
        assert_eq!(attention.taken(&long), (slow.clone(), Origin::Tuned));
        let (schedule, origin) = attention.taken(&short);
        assert_eq!(origin, Origin::Model, "{schedule}");
        let predicted = |schedule| attention.choice(&short).predicted(schedule).expect("legal");
        assert!(predicted(&schedule) < PROMISED * predicted(&slow), "{schedule}");
        assert_eq!(attention.taken(&short), (schedule, Origin::Model), "it is kept");
        assert_eq!(attention.taken(&sizes(4, 1536)), (slow, Origin::Tuned));
    }
}
