//! The gate where there is no GPU: a candidate is executed on the emulator, at a size that it can bear. One that is found at
//! fault, gives wrong results or wastes shared memory on bank conflicts is out.

use std::collections::BTreeMap;

use flashtile_codegen::{FoldedRows, Schedule, folded_rows};
use flashtile_dsl::ir::{ProgramDim, SizeKind};
use flashtile_emulator::Profile;

use super::bench::Rejection;
use super::gate::checked;
use super::judge_on;
use super::options::TuneOptions;
use crate::cache::Stage;
use crate::device::{Device, Emulation, LaunchOptions};
use crate::error::Error;
use crate::kernel::BoundKernel;
use crate::lowering::Code;

/// Length of the axes that tiles walk, at most: two tiles or more of most schedules, the last one cut.
const WALKED: i64 = 200;
/// Elements of which rows are aligned if they are a multiple of so many: 16 bytes of 16-bit ones, 8 of bytes.
const ALIGNED: i64 = 8;
/// Sizes that the grid has a program for each of, at most.
const OTHER: i64 = 2;
/// Wavefronts of shared memory, as a multiple of what they would be without bank conflicts, beyond which a candidate is out.
/// Where accesses conflict at all they do so two-way or more, in what is most of the traffic.
const CONFLICTS: f64 = 1.5;

/// Sizes no larger than these, so small that an emulated launch takes a fraction of a second.
pub(super) fn small_sizes(kernel: &BoundKernel, sizes: &BTreeMap<String, i64>) -> BTreeMap<String, i64> {
    let ir = kernel.ir();
    let walked = |name: &str| ir.axes.values().any(|axis| axis.extent.parts().0.keys().any(|&id| ir.size_name(id) == name));
    let each = |name: &str| {
        let is =
            |dim: &ProgramDim| matches!(dim, ProgramDim::Each(size) if size.parts().0.keys().any(|&id| ir.size_name(id) == name));
        ir.grid().iter().any(is)
    };
    // Rows of a walked length stay as aligned, or as little, as those that are asked for. Other sizes, such as the columns of a
    // table, stay: who knows what they must be.
    let no_larger = |name: &str, size: i64| {
        if walked(name) && size > WALKED {
            WALKED - (WALKED - size).rem_euclid(ALIGNED)
        } else if !walked(name) && each(name) {
            size.min(OTHER)
        } else {
            size
        }
    };
    let runtime = ir.sizes.values().filter(|size| size.kind == SizeKind::Runtime);
    let small = |name: &String| Some((name.clone(), no_larger(name, *sizes.get(name)?)));
    let mut found: BTreeMap<String, i64> = runtime.filter_map(|size| small(&size.name)).collect();
    if let Some(rows) = folded_rows(ir, kernel.binding()) {
        keep_groups(&rows, sizes, &mut found);
    }
    found
}

/// Makes heads share their groups in small sizes as they do in the large: fewer groups, and the fewest heads for which a group has
/// more than one, so that a candidate that folds their rows can be executed.
fn keep_groups(rows: &FoldedRows, sizes: &BTreeMap<String, i64>, small: &mut BTreeMap<String, i64>) {
    let share = |sizes: &BTreeMap<String, i64>| rows.sizes(|name| sizes.get(name).copied()).map_or(0, |found| found.share);
    let ([(heads, _)], true) = (&rows.heads.terms[..], share(sizes) > 1) else { return };
    let mut kept = small.clone();
    for (groups, _) in rows.groups.terms.iter().filter(|(name, _)| name != heads) {
        kept.insert(groups.clone(), sizes[groups].min(OTHER));
    }
    let fewest = (1..=sizes[heads]).find(|&count| {
        kept.insert(heads.clone(), count);
        share(&kept) > 1
    });
    if fewest.is_some() {
        *small = kept;
    }
}

/// Executes a candidate. Gives its largest error; a rejection says why it is out.
pub(super) fn check(
    kernel: &BoundKernel,
    sizes: &BTreeMap<String, i64>,
    schedule: &Schedule,
    code: &Code,
    options: &TuneOptions,
) -> Result<f64, Rejection> {
    let mut emulation = Emulation::default();
    emulation.options.profile = true;
    let (arch, schedule) = (flashtile_codegen::Arch::named(&code.module.key.arch), Some(schedule.clone()));
    let (toolchain, cache) = (options.toolchain.clone(), options.cache.clone());
    let options_of_launch = LaunchOptions { toolchain, cache, schedule, plans: None, arch, carried: None, emulation };
    let out = |error: Error| match error {
        Error::Emulator(_) => Rejection::new(Stage::Check, error.to_string()),
        _ => Rejection::new(Stage::Launch, error.to_string()),
    };
    let loaded = kernel.on_with(&Device::emulator(), options_of_launch).map_err(out)?;
    let verdicts = judge_on(&loaded, sizes, options.seed, &options.data).map_err(out)?;
    let max_error = checked(&verdicts)?;
    let profiles = loaded.reports().into_iter().filter_map(|report| report.profile);
    match profiles.filter_map(|profile| conflicts(&profile)).next() {
        Some(reason) => Err(Rejection { max_error: Some(max_error), ..Rejection::new(Stage::Conflicts, reason) }),
        None => Ok(max_error),
    }
}

/// What speaks against a profile's use of shared memory, in words.
fn conflicts(profile: &Profile) -> Option<String> {
    let total = profile.total();
    if total.wavefronts as f64 <= CONFLICTS * total.ideal_wavefronts as f64 {
        return None;
    }
    let worst = profile.instructions.iter().max_by_key(|i| i.work.conflicts())?;
    let line = worst.lines.last().map(|line| format!(" at {line}")).unwrap_or_default();
    Some(format!(
        "bank conflicts: shared memory takes {} wavefronts where {} would do; the most by `{}`{line}, {}-way",
        total.wavefronts, total.ideal_wavefronts, worst.instruction, worst.work.worst_conflict
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Kernel;
    use flashtile_dsl::ir::Elem;

    #[test]
    fn small_sizes_keep_what_heads_share() {
        let small = |kernel: &str, h: i64, g: i64| {
            let kernel = Kernel::builtin(kernel).expect("a built-in").bind(Elem::F16, [("D", 64)]).expect("binds");
            let sizes = [("B", 8), ("H", h), ("G", g), ("M", 1), ("N", 4096)].map(|(name, size)| (name.to_owned(), size));
            let small = small_sizes(&kernel, &BTreeMap::from(sizes));
            assert_eq!([small["B"], small["M"], small["N"]], [2, 1, 200]);
            (small["H"], small["G"])
        };
        let kernel = Kernel::builtin("bias_attention").expect("a built-in").bind(Elem::F16, [("D", 64)]).expect("binds");
        let sizes = [("B", 8), ("H", 2), ("G", 2), ("M", 4093), ("N", 4095)].map(|(name, size)| (name.to_owned(), size));
        let odd = small_sizes(&kernel, &BTreeMap::from(sizes));
        assert_eq!([odd["M"], odd["N"]], [197, 199], "rows that are not aligned stay so");
        assert_eq!(small("attention", 64, 8), (4, 2));
        assert_eq!(small("attention", 64, 1), (2, 1));
        assert_eq!(small("attention", 6, 4), (2, 4), "nothing folds, and who knows what groups must be");
        assert_eq!(small("attention", 8, 8), (2, 8));
        assert_eq!(small("causal_attention", 64, 8), (4, 2));
    }
}
