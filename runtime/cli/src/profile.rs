//! The profile of a launch on the emulator, as text: what each kind of instruction, each opcode and each line of the kernel
//! did.

use std::collections::BTreeMap;

use flashtile::emulator::{InstructionProfile, Profile, Work};

use crate::output::table;

/// The whole profile: kinds, shared and global accesses by opcode, and the kernel text with what its lines did.
pub fn text(profile: &Profile, file: &str, source: &str) -> String {
    let parts = [kinds(&profile.total()), shared(profile), global(profile), profile.annotate(file, source)];
    parts.iter().map(|part| part.trim_end()).filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n\n")
}

/// Instructions by kind.
fn kinds(total: &Work) -> String {
    let share = |n: u64| format!("{:.1} %", 100.0 * n as f64 / total.warp_instructions.max(1) as f64);
    let mut kinds: Vec<_> = total.kinds.iter().collect();
    kinds.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    let name = |kind| format!("{kind:?}").to_lowercase();
    let mut rows: Vec<Vec<String>> = kinds.into_iter().map(|(&k, &n)| vec![name(k), n.to_string(), share(n)]).collect();
    rows.push(vec!["all".to_owned(), total.warp_instructions.to_string(), share(total.warp_instructions)]);
    let active = total.lane_instructions as f64 / total.warp_instructions.max(1) as f64;
    format!(
        "{}\n{active:.1} lanes active in the mean; {} multiplications and additions of matrices",
        table(&["kind", "warp instructions", "share"], rows).trim_end(),
        total.tensor_operations
    )
}

/// Work by opcode, of instructions that do some.
fn by_opcode(profile: &Profile, does: impl Fn(&Work) -> bool) -> BTreeMap<&str, Work> {
    let mut all: BTreeMap<&str, Work> = BTreeMap::new();
    for InstructionProfile { instruction, work, .. } in profile.instructions.iter().filter(|i| does(&i.work)) {
        all.entry(instruction).or_default().add(work);
    }
    all
}

fn shared(profile: &Profile) -> String {
    let all = by_opcode(profile, |work| work.shared_requests > 0);
    let row = |(opcode, w): (&str, Work)| {
        let conflicts = w.wavefronts.saturating_sub(w.ideal_wavefronts).to_string();
        let numbers = [w.shared_requests, w.wavefronts, w.ideal_wavefronts].map(|n| n.to_string());
        let [requests, wavefronts, ideal] = numbers;
        vec![opcode.to_owned(), requests, wavefronts, ideal, conflicts, format!("{}-way", w.worst_conflict)]
    };
    match all.is_empty() {
        true => String::new(),
        false => {
            let header = ["shared memory", "requests", "wavefronts", "ideal", "bank conflicts", "worst"];
            table(&header, all.into_iter().map(row))
        }
    }
}

fn global(profile: &Profile) -> String {
    let all = by_opcode(profile, |work| work.global_requests > 0 || work.bulk_bytes > 0);
    let row = |(opcode, w): (&str, Work)| {
        let per_request = match w.global_requests {
            0 => "-".to_owned(),
            n => format!("{:.2}", w.sectors as f64 / n as f64),
        };
        let [requests, sectors, bytes] = [w.global_requests, w.sectors, w.global_bytes + w.bulk_bytes].map(|n| n.to_string());
        vec![opcode.to_owned(), requests, sectors, per_request, bytes]
    };
    match all.is_empty() {
        true => String::new(),
        false => table(&["global memory", "requests", "sectors", "sectors of a request", "bytes"], all.into_iter().map(row)),
    }
}
