//! Reads what `ptxas -v` reports: registers, spills, stack, shared memory, and remarks on performance.

use super::PtxasReport;

/// `C7519` says that `setmaxnreg` was kept, which is good news.
const HARMLESS: &[&str] = &["C7519"];

/// The report of the entry functions of a log; `None` if it has none. Where a log has several, the largest numbers.
pub(super) fn parse(log: &str) -> Option<PtxasReport> {
    let mut report = PtxasReport::default();
    let mut seen = false;
    let mut entry = "";
    for line in log.lines() {
        if let Some((_, name)) = line.split_once("Compiling entry function '") {
            entry = name.split('\'').next().unwrap_or_default();
        }
        if let Some(registers) = before(line, " registers") {
            seen = true;
            report.entries.insert(entry.to_owned(), registers);
            report.registers = report.registers.max(registers);
            report.shared = report.shared.max(before(line, " bytes smem").unwrap_or(0));
        }
        if let Some(stack) = before(line, " bytes stack frame") {
            report.stack = report.stack.max(stack);
            report.spill_stores = report.spill_stores.max(before(line, " bytes spill stores").unwrap_or(0));
            report.spill_loads = report.spill_loads.max(before(line, " bytes spill loads").unwrap_or(0));
        }
        if let Some(code) = remark(line)
            && !HARMLESS.contains(&code)
            && !report.remarks.iter().any(|r| r == line.trim())
        {
            report.remarks.push(line.trim().to_owned());
        }
    }
    seen.then_some(report)
}

/// The number that stands directly before `unit`.
fn before(line: &str, unit: &str) -> Option<u32> {
    let end = line.find(unit)?;
    let digits = line[..end].rfind(|c: char| !c.is_ascii_digit()).map_or(0, |i| i + 1);
    line[digits..end].parse().ok()
}

/// The code of a remark on performance: `C75` and two digits.
fn remark(line: &str) -> Option<&str> {
    let start = line.find("C75")?;
    let code = line.get(start..start + 5)?;
    code[3..].bytes().all(|b| b.is_ascii_digit()).then_some(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'attention' for 'sm_90a'
ptxas info    : Function properties for attention
    16 bytes stack frame, 24 bytes spill stores, 32 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers, 16 bytes cumulative stack size, 1024 bytes smem
";

    #[test]
    fn numbers_are_read() {
        let report = parse(LOG).expect("a report");
        assert_eq!(
            report,
            PtxasReport {
                registers: 168,
                spill_stores: 24,
                spill_loads: 32,
                stack: 16,
                shared: 1024,
                entries: [("attention".to_owned(), 168)].into(),
                remarks: vec![],
            }
        );
    }

    #[test]
    fn every_entry_has_its_registers() {
        let other = LOG.replace("'attention'", "'combine'").replace("168 registers", "40 registers");
        let report = parse(&format!("{LOG}{other}")).expect("a report");
        assert_eq!(report.registers, 168);
        assert_eq!(report.entries, [("attention".to_owned(), 168), ("combine".to_owned(), 40)].into());
    }

    #[test]
    fn remarks_count_but_for_harmless_ones() {
        let serialised = "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized";
        let log = format!("{LOG}{serialised}\nptxas info    : (C7519) 'setmaxnreg' kept\n{serialised}\n");
        assert_eq!(parse(&log).expect("a report").remarks, [serialised]);
    }

    #[test]
    fn a_log_without_numbers_is_no_report() {
        assert_eq!(parse(""), None);
        assert_eq!(parse("warning: variable declared but never used"), None);
    }
}
