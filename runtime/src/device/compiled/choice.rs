//! Which schedule a launch takes, if none was asked for.
//!
//! 1. What tuning found for these sizes (each rounded up to a power of two).
//! 2. The best of what tuning measured for sizes near these: so lengths that change need one tune, not one each.
//! 3. What the model chose for these sizes before.
//! 4. What the model chooses now: of the schedules that it ranks, the first whose code keeps its
//!    values in registers. It is kept.
//!
//! For near sizes the best few candidates of the nearest tuned shape are compared, each by its measured time and by how
//! the model says that this time moves with the sizes.

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
        let own = self.key(self.facts.clone());
        let known = self.winner(&own);
        let tuned = known.clone().filter(is_measured).or_else(|| self.tuned_for_other_facts());
        if let Some(tuned) = tuned {
            return Some((tuned.schedule, Origin::Tuned));
        }
        if let Some(schedule) = self.tuned_nearby(&own) {
            return Some((schedule, Origin::TunedNearby));
        }
        known.map(|known| (known.schedule, Origin::Model))
    }

    /// What a launch takes, and where it comes from: what is known, else the first of the `ranked`
    /// whose code keeps its values in registers, which is kept. `make` makes the code of a schedule,
    /// and says how many bytes a thread has in memory.
    ///
    /// # Errors
    /// Those of `ranked` and `make`.
    pub fn take<V: Send>(
        &self,
        ranked: impl FnOnce() -> Result<Vec<(Schedule, f64)>>,
        make: impl Fn(&Schedule) -> Result<(u32, V)> + Sync,
    ) -> Result<(Schedule, Origin, V)> {
        if let Some((schedule, origin)) = self.known() {
            let (_, made) = make(&schedule)?;
            return Ok((schedule, origin, made));
        }
        let (schedule, predicted, made) = lowering::first_in_registers(ranked()?, make)?;
        self.keep(schedule.clone(), predicted);
        Ok((schedule, Origin::Model, made))
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

    /// The winner of a record, if it is still legal for these sizes.
    fn winner(&self, key: &TuningKey) -> Option<Candidate> {
        let record = self.cache.tuning(key)?;
        record.winning().filter(|w| self.predicted(&w.schedule).is_some()).cloned()
    }

    /// What was tuned under other facts and serves these too. A winner for 32-bit index arithmetic
    /// serves 64-bit: it is a few instructions of each program. If the winner has `pack_gqa=off`,
    /// it is stored for both kinds of arguments: those whose rows can be folded and those whose
    /// rows cannot.
    fn tuned_for_other_facts(&self) -> Option<Candidate> {
        let narrow = Facts { wide: false, ..self.facts.clone() };
        let unfolded = Facts { foldable: !self.facts.foldable, ..narrow.clone() };
        let same = self.winner(&self.key(narrow)).filter(|w| self.facts.wide && is_measured(w));
        same.or_else(|| {
            self.winner(&self.key(unfolded)).filter(|w| is_measured(w) && w.schedule.launches.pack_gqa == PackGqa::Off)
        })
    }

    /// Seconds that the model predicts; `None` if the schedule is not legal for these sizes.
    pub fn predicted(&self, schedule: &Schedule) -> Option<f64> {
        self.ranker.predict(schedule, self.sizes, &self.machine).ok().filter(|p| p.is_finite())
    }

    /// The best of the nearest tuned shape's candidates for these sizes.
    fn tuned_nearby(&self, own: &TuningKey) -> Option<Schedule> {
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
        let [there, here] = [&record.sizes, self.sizes].map(|sizes| self.ranker.predict_all(&schedules, sizes, &self.machine));
        let estimates =
            candidates.iter().zip(there.into_iter().zip(here)).filter_map(|(&(candidate, measured), (there, here))| {
                let moved = here.ok()? / there.ok()?;
                moved.is_finite().then_some((&candidate.schedule, measured * moved))
            });
        Some(estimates.min_by(|a, b| a.1.total_cmp(&b.1))?.0.clone())
    }
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
}
