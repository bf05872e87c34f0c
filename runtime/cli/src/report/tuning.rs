//! What the page tells of a kernel. The result of tuning has the candidates; the cost model adds
//! what each moves and what the winner's time is made of.

use std::collections::BTreeMap;

use flashtile::cache::{Candidate, DeviceKey};
use flashtile::lowering::{self, Machine, TimeTerms};
use flashtile::tuner::{self, InputData, Stop};
use flashtile::{Arch, BoundKernel, Facts};
use flashtile_codegen::Resources;
use flashtile_codegen::plan::{PlanFile, SharedTile};
use flashtile_dsl::analysis::cost::{self, Workload};

use super::evidence::in_the_race;
use crate::failure::Result;

/// A search, as the page is made from it.
pub struct Search<'a> {
    /// The kernel.
    pub kernel: &'a BoundKernel,
    /// What code was generated for.
    pub arch: &'static Arch,
    /// What it ran on, or the typical machine of the architecture.
    pub device: &'a DeviceKey,
    /// That as the cost model has it.
    pub machine: Machine,
    /// Facts about the arguments.
    pub facts: &'a Facts,
    /// Run-time sizes that candidates were timed with.
    pub sizes: &'a BTreeMap<String, i64>,
    /// What inputs held.
    pub data: &'a InputData,
    /// What they were drawn with.
    pub seed: u64,
    /// Every candidate.
    pub candidates: &'a [Candidate],
    /// The best of them.
    pub winner: Option<usize>,
    /// Whether times are the cost model's.
    pub predicted: bool,
    /// Whether the cache had the result.
    pub from_cache: bool,
    /// Why it ended, in words.
    pub ended: String,
}

/// What the page tells of a kernel.
#[derive(Clone, Debug)]
pub struct Tuning {
    /// Its name.
    pub kernel: String,
    /// Rows of the table at the top: names and values.
    pub about: Vec<(&'static str, String)>,
    /// Architecture of the code.
    pub arch: String,
    /// Whether times are the cost model's.
    pub predicted: bool,
    /// Why the search ended, in words.
    pub ended: String,
    /// Every candidate.
    pub candidates: Vec<Candidate>,
    /// The best of them.
    pub winner: Option<usize>,
    /// Work of a call.
    pub work: Work,
    /// Peak rates of the machine.
    pub peak: cost::Machine,
    /// Bytes between global memory and the L2 cache, by the cost model, of each candidate that has
    /// a time. `None` for one that the model cannot judge, and for those without a time.
    pub bytes: Vec<Option<f64>>,
    /// The winner's code.
    pub won: Option<Won>,
}

/// Work of a call, whatever the schedule.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Work {
    /// FLOPs by which rates are told.
    pub flops: f64,
    /// Special functions.
    pub special: f64,
    /// The fewest bytes of global memory: each tensor once.
    pub bytes: f64,
    /// Whether these are exact; else upper bounds.
    pub exact: bool,
}

/// The code of the winner.
#[derive(Clone, Debug)]
pub struct Won {
    /// The plans of its launches, as `inspect --emit plan` prints them.
    pub plan: String,
    /// What its predicted time is made of.
    pub terms: TimeTerms,
    /// Its launches, in order.
    pub launches: Vec<WonLaunch>,
}

/// A launch of the winner.
#[derive(Clone, Debug)]
pub struct WonLaunch {
    /// Name of its entry function.
    pub name: String,
    /// Resources, as predicted.
    pub predicted: Resources,
    /// Registers of a thread, as compiled.
    pub registers: Option<u32>,
    /// Its tiles in shared memory.
    pub tiles: Vec<SharedTile>,
}

impl Tuning {
    /// What the page tells of a search.
    ///
    /// # Errors
    /// What the code generator says, if it does not generate the winner.
    pub fn of(search: &Search<'_>) -> Result<Self> {
        let Search { kernel, arch, machine, sizes, winner, predicted, .. } = *search;
        let instance = kernel.instance(search.facts.clone());
        let integers = tuner::integers_of(kernel, sizes, search.data, search.seed)?;
        let terms = |candidate: &Candidate| lowering::terms(&instance, &candidate.schedule, arch, (sizes, &integers), &machine);
        let bytes = |candidate: &Candidate| {
            let terms = in_the_race(candidate).then(|| terms(candidate).ok())??;
            Some(terms.launches.iter().map(|launch| launch.bytes).sum())
        };
        let cost = Workload { kernel: kernel.ir(), binding: kernel.binding(), sizes }.cost();
        let won = winner.and_then(|index| search.candidates.get(index)).map(|winner| -> Result<Won> {
            let generated = lowering::generate(&instance, &winner.schedule, arch)?;
            let entries = winner.report.as_ref().map(|report| &report.entries);
            let launches = generated.launches.iter().map(|launch| WonLaunch {
                name: launch.abi.entry.clone(),
                predicted: launch.predicted,
                registers: entries.and_then(|entries| entries.get(&launch.abi.entry).copied()),
                tiles: launch.plan.tiles.clone(),
            });
            Ok(Won {
                plan: PlanFile::text(&instance, &winner.schedule, arch, generated.launches.iter().map(|launch| &launch.plan)),
                terms: terms(winner)?,
                launches: launches.collect(),
            })
        });
        Ok(Self {
            kernel: kernel.ir().name.clone(),
            about: about(search),
            arch: arch.name.to_owned(),
            predicted,
            ended: search.ended.clone(),
            candidates: search.candidates.to_vec(),
            winner,
            work: Work {
                flops: cost.nominal_flops as f64,
                special: cost.algorithm.special as f64,
                bytes: cost.algorithm.read.saturating_add(cost.algorithm.written) as f64,
                exact: cost.exact,
            },
            peak: lowering::peak(kernel, arch, &machine),
            bytes: search.candidates.iter().map(bytes).collect(),
            won: won.transpose()?,
        })
    }

    /// The winner.
    pub fn winning(&self) -> Option<&Candidate> {
        self.candidates.get(self.winner?)
    }
}

/// Rows about a search.
fn about(search: &Search<'_>) -> Vec<(&'static str, String)> {
    let numbers = |of: &BTreeMap<String, i64>| of.iter().map(|(name, n)| format!("{name}={n}")).collect::<Vec<_>>().join(", ");
    let binding = search.kernel.binding();
    let types = binding.types.iter().map(|(name, elem)| format!("{name} = {}", elem.name())).collect::<Vec<_>>().join(", ");
    let machine = &search.machine;
    let machine = format!("{} multiprocessors, {} GHz, {} GB/s", machine.sms, machine.ghz, machine.gbytes_per_s);
    let times = match (search.predicted, search.from_cache) {
        (false, false) => "measured",
        (false, true) => "measured before, from the cache",
        (true, false) => "predicted by the cost model, not measured",
        (true, true) => "predicted by the cost model before, from the cache, not measured",
    };
    let rows = [
        ("device", search.device.name.clone()),
        ("architecture", search.arch.name.to_owned()),
        ("machine of the model", machine),
        ("times", times.to_owned()),
        ("shape", numbers(search.sizes)),
        ("constants", numbers(&binding.consts)),
        ("element types", types),
        ("inputs", search.data.to_string()),
    ];
    rows.into_iter().filter(|(_, value)| !value.is_empty()).collect()
}

/// Why a search ended, in words.
pub fn ended(stop: &Stop) -> String {
    match stop {
        Stop::Exhausted => "every candidate was tried".to_owned(),
        Stop::Roofline => "the roofline is reached".to_owned(),
        Stop::Budget => "the budget is spent".to_owned(),
        Stop::Cancelled => "cancelled".to_owned(),
        Stop::DeviceLost(reason) => format!("the device was lost: {reason}"),
    }
}
