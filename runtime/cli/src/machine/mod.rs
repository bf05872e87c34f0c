//! Machine code by what it is for: the instructions of each innermost loop, by the line of the
//! kernel that they are of and by kind.
//!
//! ```text
//! nvdisasm's text --(code.rs)--> functions --(loops.rs)--> loops --(text)--> tables
//! ```
//!
//! Counts are of the code, not of what a run executes. What every iteration passes is told by kind;
//! what stands in branches, such as masks of cut tiles or a rescaling, in a column of its own.

mod code;
mod loops;

use std::collections::BTreeMap;
use std::fmt::Write;

use code::{Function, Instruction, Kind};
use loops::Loop;

use crate::output::table;

/// Instructions of a loop that is worth a table: waits for a barrier are shorter.
const LEAST: usize = 24;

/// A program without the lines that say which line of the kernel follows, and these for each of its
/// lines. The compiler counts lines from there on, so that the second line of a statement would be
/// of the second line of the kernel behind it.
pub fn without_lines(program: &str) -> (String, Vec<Option<u32>>) {
    let (mut plain, mut lines, mut now) = (String::new(), Vec::new(), None);
    for row in program.lines() {
        match row.trim_start().strip_prefix("#line ") {
            Some(line) => now = line.split_whitespace().next().and_then(|number| number.parse().ok()),
            None => plain.push_str(row),
        }
        plain.push('\n');
        lines.push(now);
    }
    (plain, lines)
}

/// Tables of the innermost loops of a program that nvdisasm has printed with line numbers. `lines`:
/// the line of the kernel for each of its own. `source`: the kernel's text.
///
/// # Errors
/// The text has no instruction.
pub fn text(disassembly: &str, lines: &[Option<u32>], source: &str) -> Result<String, String> {
    let mut functions = code::read(disassembly);
    for instruction in functions.iter_mut().flat_map(|function| &mut function.instructions) {
        instruction.line = instruction.line.and_then(|line| *lines.get(line.checked_sub(1)? as usize)?);
    }
    if functions.iter().all(|function| function.instructions.is_empty()) {
        return Err("the disassembler printed no instruction; --emit sass shows what it prints".to_owned());
    }
    let mut out = String::new();
    for function in &functions {
        writeln!(out, "{}: {} instructions", function.name, function.instructions.len()).expect("a string takes all");
        for found in innermost(function) {
            let of = |&(place, always): &(usize, bool)| (&function.instructions[place], always);
            out.push_str(&of_loop(&found.places.iter().map(of).collect::<Vec<_>>(), source));
        }
        out.push('\n');
    }
    Ok(out.trim_end().to_owned())
}

/// The loops that have no other one inside which is worth a table, in the order of their code.
fn innermost(function: &Function) -> Vec<Loop> {
    let all: Vec<Loop> = loops::loops(function).into_iter().filter(|found| found.places.len() >= LEAST).collect();
    all.iter().filter(|outer| !all.iter().any(|inner| outer.holds(inner))).cloned().collect()
}

/// How many instructions of a line every iteration passes, by kind, and how many stand in branches.
#[derive(Default)]
struct Counts {
    always: BTreeMap<Kind, usize>,
    in_branches: usize,
}

impl Counts {
    fn add(&mut self, kind: Kind, always: bool) {
        match always {
            true => *self.always.entry(kind).or_default() += 1,
            false => self.in_branches += 1,
        }
    }

    fn sum(&self) -> usize {
        self.always.values().sum()
    }
}

/// The table of a loop: its instructions, each with whether every iteration passes it.
fn of_loop(instructions: &[(&Instruction, bool)], source: &str) -> String {
    let (mut by_line, mut all): (BTreeMap<Option<u32>, Counts>, Counts) = Default::default();
    for (instruction, always) in instructions {
        by_line.entry(instruction.line).or_default().add(instruction.kind, *always);
        all.add(instruction.kind, *always);
    }
    let kinds: Vec<Kind> = all.always.keys().copied().collect();
    let lines: Vec<&str> = source.lines().collect();
    let numbers = |counts: &Counts| {
        let each = kinds.iter().map(|kind| counts.always.get(kind).copied().unwrap_or(0));
        let each = each.chain([counts.sum(), counts.in_branches]);
        each.map(|n| if n == 0 { String::new() } else { n.to_string() }).collect::<Vec<_>>()
    };
    let row = |(line, counts): (&Option<u32>, &Counts)| {
        let text = line.and_then(|line| lines.get(line as usize - 1)).map_or("(no line)", |text| text.trim());
        let number = line.map_or_else(String::new, |line| line.to_string());
        let mut cells = vec![number, shortened(text)];
        cells.extend(numbers(counts));
        cells
    };
    let mut rows: Vec<Vec<String>> = by_line.iter().map(row).collect();
    let mut last = vec![String::new(), "all".to_owned()];
    last.extend(numbers(&all));
    rows.push(last);
    let names: Vec<String> = kinds.iter().map(|kind| kind.name()).collect();
    let names = names.iter().map(String::as_str);
    let header: Vec<&str> = ["line", "text"].into_iter().chain(names).chain(["all", "in branches"]).collect();
    let first = instructions.first().expect("a loop has instructions").0.address;
    let mut out = format!("\nloop at {first:#x}: {} instructions, and {} in branches", all.sum(), all.in_branches);
    let is_exponential = |(instruction, always): &&(&Instruction, bool)| *always && instruction.opcode.starts_with("MUFU.EX2");
    let exponentials = instructions.iter().filter(is_exponential).count();
    if exponentials > 0 {
        let each = all.sum() as f64 / exponentials as f64;
        write!(out, "; {exponentials} are exponentials, {each:.2} instructions for each").expect("a string takes all");
    }
    format!("{out}\n{}\n", table(&header, rows).trim_end())
}

/// Characters of a line of the text that are shown.
const SHOWN: usize = 20;

fn shortened(text: &str) -> String {
    match text.chars().count() > SHOWN {
        true => text.chars().take(SHOWN - 2).chain("..".chars()).collect(),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A loop with an exponential, a spin wait inside it, and a rare branch whose code stands
    /// behind the loop.
    const CODE: &str = r#"
.text.f:
        /*0000*/                   MOV R1, R2 ;
.L_x_1:
	//## File "/tmp/k.cu", line 1 inlined at "/tmp/k.cu", line 3
	//## File "/tmp/k.cu", line 3
        /*0010*/                   MUFU.EX2 R3, R3 ;
.L_x_2:
        /*0020*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R4], R5 ;
        /*0030*/              @!P0 BRA `(.L_x_2) ;
	//## File "/tmp/k.cu", line 6
        /*0040*/               @P1 BRA `(.L_x_4) ;
.L_x_3:
FILL
        /*0200*/               @P2 BRA `(.L_x_1) ;
        /*0210*/                   EXIT ;
.L_x_4:
	//## File "/tmp/k.cu", line 8
        /*0220*/                   FMUL R3, R3, R3 ;
        /*0230*/                   BRA `(.L_x_3) ;
        /*0240*/                   EXIT ;
"#;

    fn code() -> String {
        let fill: String = (0x50..0x200).step_by(16).map(|at| format!("        /*{at:04x}*/   FADD R1, R1, R2 ;\n")).collect();
        CODE.replace("FILL\n", &fill)
    }

    #[test]
    fn a_loop_has_its_rare_branches_and_not_what_is_outside() {
        let program = "exp2\n#line 2 \"f.rs\"\np = exp2(s);\n#line 3 \"f.rs\"\nl = l +\n p;\n#line 4 \"f.rs\"\nrescale();\n";
        let (plain, lines) = without_lines(program);
        assert_eq!(plain, "exp2\n\np = exp2(s);\n\nl = l +\n p;\n\nrescale();\n");
        let found =
            text(&code(), &lines, "fn f() {\n    p = exp2(s);\n    l = l + p;\n    rescale();\n}").expect("has instructions");
        // 4 before the fill, 27 of it, and the branch back; 2 of the rare branch.
        let wanted = "loop at 0x10: 32 instructions, and 2 in branches; 1 are exponentials, 32.00 instructions for each";
        assert!(found.contains(wanted), "{found}");
        assert_eq!(found.matches("loop at").count(), 1, "{found}");
        for (line, kinds) in [("p = exp2(s);", 3), ("l = l + p;", 29), ("rescale();", 2)] {
            let row = found.lines().find(|row| row.contains(line)).unwrap_or_else(|| panic!("no {line} in {found}"));
            assert!(row.trim_end_matches([' ', '│']).ends_with(&kinds.to_string()), "{row}");
        }
    }

    #[test]
    fn what_is_no_machine_code_is_refused() {
        assert!(text("fatal: no such file", &[], "").is_err());
    }
}
