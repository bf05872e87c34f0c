//! Machine code of Hopper, as nvdisasm or cuobjdump print it: are operands of products lost?
//!
//! A product of a warpgroup (`HGMMA` and its kin) may take A from four registers of each thread. ptxas 13.0 sometimes gives two
//! operands the same registers: one that is made before a loop and stays for all steps, and one that every step packs. The
//! first step is right, and from the second on the product of the operand that stays reads what the other one was.
//!
//! In the text that is a register of A with these three properties, for two products of one loop:
//!
//! * what some instruction of the loop writes reaches both;
//! * what an instruction before the loop writes reaches one of them, in the first step;
//! * nothing that is written before the loop reaches the other.
//!
//! Neither one product that reads its operand a step later (what precedes the loop and what the loop packs reach it), nor two
//! products of the same operand have all of these. An operand that stays is not written in the loop, or is loaded again
//! before it is read.
//!
//! Limits: a write under a predicate counts as a write; a call goes on behind itself, and what is called writes nothing; a jump
//! through a register has no target; a lost operand whose product comes after the other one in the step is not found, as what was
//! made before the loop then reaches nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::RangeInclusive;

/// Registers of a thread that hold its part of A: of 64 rows and 32 bytes of each, for every type of element.
const A_REGISTERS: u16 = 4;

/// Instructions whose first operand, where it is a register, is read.
const READERS: &[&str] = &["BAR", "BRX", "CALL", "JMX", "NANOSLEEP", "R2P", "RED", "REDG", "RET", "WARPSYNC"];

/// Instructions that may write a predicate before their register. With others a register behind a predicate is read, or is
/// not the first operand.
const PREDICATE_FIRST: &[&str] = &["ATOM", "ATOMG", "ATOMS", "LOP3", "MATCH", "SHFL"];

/// What was found in the machine code of a file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Findings {
    /// Instructions in loops that take A from registers: how much the check had to look at.
    pub products: usize,
    /// Operands that are lost, by the lines that read them.
    pub lost: Vec<LostOperand>,
}

/// An operand that stays for all steps of a loop, in registers that every step overwrites. Lines count from 1.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LostOperand {
    /// Registers of A that both products read.
    pub registers: RangeInclusive<u16>,
    /// The first line of the loop.
    pub from: usize,
    /// The last line that goes back to it.
    pub to: usize,
    /// The product whose operand stays.
    pub stays: usize,
    /// The product whose operand every step makes.
    pub packed: usize,
    /// Lines of the loop that write the registers, and whose values reach both products.
    pub writes: Vec<usize>,
}

impl fmt::Display for LostOperand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { registers, from, to, stays, packed, writes } = self;
        let writes: Vec<String> = writes.iter().map(usize::to_string).collect();
        write!(
            f,
            "R{}..R{}, in the loop of lines {from} to {to}: the product of line {stays} reads in the first step what was there before \
             the loop, and later what line {} wrote for the product of line {packed}",
            registers.start(),
            registers.end(),
            writes.join(", ")
        )
    }
}

/// Why a text could not be checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unreadable {
    /// There is no instruction in it.
    Empty,
    /// The operands of a product are written in an unknown form.
    Product {
        /// Counted from 1.
        line: usize,
        /// The instruction.
        text: String,
    },
    /// A branch leads to no instruction of its function.
    Target {
        /// Counted from 1.
        line: usize,
        /// The branch.
        text: String,
    },
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "no instruction in the disassembled text"),
            Self::Product { line, text } => write!(f, "line {line}: cannot read the product `{text}`"),
            Self::Target { line, text } => write!(f, "line {line}: no instruction is where `{text}` leads"),
        }
    }
}

impl std::error::Error for Unreadable {}

/// Looks for operands that are lost, in all functions of a disassembled file.
///
/// # Errors
/// [`Unreadable`], if the text is none of a disassembler, or has a form that is not known.
pub fn lost_operands(text: &str) -> Result<Findings, Unreadable> {
    let functions = functions(text)?;
    if functions.is_empty() {
        return Err(Unreadable::Empty);
    }
    let mut findings = Findings::default();
    for function in &functions {
        function.check(&mut findings);
    }
    Ok(findings)
}

/// One instruction, and what of it matters here.
struct Instruction {
    line: usize,
    /// Registers it writes.
    writes: RangeInclusive<u16>,
    /// The first register of A, if it is a product that takes A from registers.
    a: Option<u16>,
    /// Indices of the instructions that may come next.
    next: Vec<usize>,
}

impl Instruction {
    fn reads_as_a(&self, register: u16) -> bool {
        self.a.is_some_and(|a| (a..a + A_REGISTERS).contains(&register))
    }
}

/// Where a branch leads: a label (nvdisasm), or an address (cuobjdump).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Label(String),
    Address(u64),
}

/// A function, in the order of its addresses.
struct Function(Vec<Instruction>);

/// The text of an instruction, in parts.
struct Parts<'a> {
    text: &'a str,
    predicated: bool,
    /// Name and modifiers.
    name: Vec<&'a str>,
    operands: Vec<&'a str>,
}

impl<'a> Parts<'a> {
    fn of(text: &'a str) -> Self {
        let (predicated, rest) = match text.strip_prefix('@').and_then(|t| t.split_once(' ')) {
            Some((_, rest)) => (true, rest.trim_start()),
            None => (false, text),
        };
        let (name, operands) = rest.split_once(' ').unwrap_or((rest, ""));
        let operands = operands.split(',').map(str::trim).filter(|o| !o.is_empty()).collect();
        Self { text, predicated, name: name.split('.').collect(), operands }
    }

    fn has(&self, modifier: &str) -> bool {
        self.name[1..].contains(&modifier)
    }

    fn is_product(&self) -> bool {
        self.name[0].ends_with("GMMA")
    }

    /// Registers that a product accumulates in, and the first one of A if A is in registers.
    fn product(&self) -> Option<(RangeInclusive<u16>, Option<u16>)> {
        // 64xNxK: each of the 128 threads has N / 2 elements of the accumulator, two in a register if they have 16 bits.
        let [_, shape, accumulator, ..] = self.name[..] else { return None };
        let columns: u16 = shape.strip_prefix("64x")?.split_once('x')?.0.parse().ok()?;
        let count = if accumulator == "F16" { columns / 4 } else { columns / 2 };
        let first = register(self.operands.first()?)?;
        let a = *self.operands.get(1)?;
        let a = if a.starts_with("gdesc[") { None } else { Some(register(a)?) };
        Some((first..=first + count.checked_sub(1)?, a))
    }

    /// Registers that an instruction writes, if it is no product.
    fn writes(&self) -> RangeInclusive<u16> {
        let name = self.name[0];
        let predicate = self.operands.first().is_some_and(|o| o.starts_with('P')) && PREDICATE_FIRST.contains(&name);
        let first = self.operands.get(usize::from(predicate)).copied().and_then(register);
        match first {
            Some(first) if !READERS.contains(&name) => first..=first + self.width() - 1,
            _ => NONE,
        }
    }

    /// How many registers the result takes.
    fn width(&self) -> u16 {
        match self.name[0] {
            "CS2R" if !self.has("32") => 2,
            "LDSM" if self.has("4") => 4,
            "LDSM" if self.has("2") => 2,
            "DADD" | "DFMA" | "DMNMX" | "DMUL" => 2,
            "F2F" | "I2F" if self.has("F64") => 2,
            "F2I" if self.has("S64") || self.has("U64") => 2,
            "BMMA" | "DMMA" | "HMMA" | "IMMA" | "QMMA" => 4,
            "IMAD" if self.has("WIDE") => 2,
            name if name.starts_with("LD") || name.starts_with("ATOM") => match () {
                () if self.has("128") => 4,
                () if self.has("64") => 2,
                () => 1,
            },
            _ => 1,
        }
    }

    /// Where a branch leads, and whether it always does.
    fn branch(&self) -> Option<(Place, bool)> {
        if self.name[0] != "BRA" {
            return None;
        }
        let target = *self.operands.last()?;
        let place = match target.strip_prefix("`(").and_then(|t| t.strip_suffix(')')) {
            Some(label) => Place::Label(label.to_owned()),
            None => Place::Address(u64::from_str_radix(target.strip_prefix("0x")?, 16).ok()?),
        };
        Some((place, !self.predicated && self.operands.len() == 1))
    }

    /// Whether execution never goes on behind it.
    fn ends(&self) -> bool {
        !self.predicated && matches!(self.name[0], "BRX" | "EXIT" | "JMX" | "KILL" | "RET")
    }
}

/// No registers.
#[expect(clippy::reversed_empty_ranges, reason = "an empty range is what is meant")]
const NONE: RangeInclusive<u16> = 1..=0;

/// The number of a general register, `R12` or `R12.reuse`. Not one of `RZ`, which is read as zero and not written.
fn register(operand: &str) -> Option<u16> {
    operand.split('.').next()?.strip_prefix('R')?.parse().ok()
}

/// The address and the text of an instruction: `/*01a0*/  MOV R1, R2 ;`, and a comment behind.
fn instruction(line: &str) -> Option<(u64, &str)> {
    let (address, rest) = line.trim_start().strip_prefix("/*")?.split_once("*/")?;
    let (text, _) = rest.split_once(';')?;
    Some((u64::from_str_radix(address, 16).ok()?, text.trim()))
}

/// The functions of a text. Addresses begin anew with each.
fn functions(text: &str) -> Result<Vec<Function>, Unreadable> {
    let mut functions = Vec::new();
    let mut lines: Vec<(usize, Parts<'_>)> = Vec::new();
    let mut places = BTreeMap::new();
    let mut last = 0;
    // Labels name the instruction behind them, which may be the first one of the next function.
    let mut labels = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if let Some((address, parts)) = instruction(line) {
            if address <= last && !lines.is_empty() {
                functions.push(function(std::mem::take(&mut lines), &std::mem::take(&mut places))?);
            }
            last = address;
            places.extend(labels.drain(..).map(|l: &str| (Place::Label(l.to_owned()), lines.len())));
            places.insert(Place::Address(address), lines.len());
            lines.push((index + 1, Parts::of(parts)));
        } else if let Some(label) = line.split("//").next().and_then(|l| l.trim().strip_suffix(':')) {
            labels.push(label);
        }
    }
    if !lines.is_empty() {
        functions.push(function(lines, &places)?);
    }
    Ok(functions)
}

fn function(lines: Vec<(usize, Parts<'_>)>, places: &BTreeMap<Place, usize>) -> Result<Function, Unreadable> {
    let count = lines.len();
    let mut all = Vec::with_capacity(count);
    for (index, (line, parts)) in lines.into_iter().enumerate() {
        let text = || parts.text.to_owned();
        let (writes, a) = if parts.is_product() {
            parts.product().ok_or_else(|| Unreadable::Product { line, text: text() })?
        } else {
            (parts.writes(), None)
        };
        let mut next = Vec::new();
        let mut always = parts.ends();
        if parts.name[0] == "BRA" {
            let branch = parts.branch().and_then(|(place, always)| Some((*places.get(&place)?, always)));
            let (target, unconditional) = branch.ok_or_else(|| Unreadable::Target { line, text: text() })?;
            next.push(target);
            always = unconditional;
        }
        if !always && index + 1 < count {
            next.push(index + 1);
        }
        all.push(Instruction { line, writes, a, next });
    }
    Ok(Function(all))
}

impl Function {
    fn check(&self, findings: &mut Findings) {
        let mut loops: Vec<_> = self.loops().into_iter().collect();
        let in_loops: BTreeSet<usize> = loops.iter().flat_map(|(_, body)| body.iter().copied()).collect();
        findings.products += in_loops.iter().filter(|&&i| self.0[i].a.is_some()).count();
        // What an inner loop loses is reported of that one alone.
        loops.sort_by_key(|(_, body)| body.len());
        let mut reported = BTreeSet::new();
        for (head, body) in loops {
            for lost in self.lost_in(head, &body) {
                if reported.insert(lost.stays) {
                    findings.lost.push(lost);
                }
            }
        }
        findings.lost.sort_by_key(|l| l.stays);
    }

    /// Loops: what each backward branch leads to, and every instruction on a way from there to the branch. A loop that is entered in
    /// several places has all of the loop around it.
    fn loops(&self) -> BTreeMap<usize, BTreeSet<usize>> {
        let mut before = vec![Vec::new(); self.0.len()];
        for (index, instruction) in self.0.iter().enumerate() {
            instruction.next.iter().for_each(|&n| before[n].push(index));
        }
        let mut loops: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        for (branch, instruction) in self.0.iter().enumerate() {
            for &head in instruction.next.iter().filter(|&&n| n <= branch) {
                let after = reach(head, |i| &self.0[i].next);
                let to_branch = reach(branch, |i| if i == head { &[] } else { &before[i][..] });
                loops.entry(head).or_default().extend(to_branch.intersection(&after));
            }
        }
        loops
    }

    /// Products that an instruction's value of a register reaches as A.
    fn readers(&self, writer: usize, register: u16) -> BTreeSet<usize> {
        let written = |i: usize| self.0[i].writes.contains(&register);
        let first = &self.0[writer].next;
        let reached = first.iter().flat_map(|&n| reach(n, |i| if written(i) { &[] } else { &self.0[i].next[..] }));
        reached.filter(|&i| self.0[i].reads_as_a(register)).collect()
    }

    fn lost_in(&self, head: usize, body: &BTreeSet<usize>) -> Vec<LostOperand> {
        let products: Vec<usize> = body.iter().copied().filter(|&i| self.0[i].a.is_some()).collect();
        let registers: BTreeSet<u16> = products.iter().filter_map(|&i| self.0[i].a).flat_map(|a| a..a + A_REGISTERS).collect();
        // Of each product whose operand stays: registers that are lost, the other product, and what overwrites them.
        let mut lost: BTreeMap<usize, (Vec<u16>, usize, BTreeSet<usize>)> = BTreeMap::new();
        for register in registers {
            if products.iter().filter(|&&i| self.0[i].reads_as_a(register)).count() < 2 {
                continue;
            }
            let writers = (0..self.0.len()).filter(|&i| self.0[i].writes.contains(&register));
            let (inside, outside): (Vec<_>, Vec<_>) =
                writers.map(|i| (i, self.readers(i, register))).partition(|(i, _)| body.contains(i));
            let from_before = |product: usize| outside.iter().any(|(_, readers)| readers.contains(&product));
            for &stays in products.iter().filter(|&&i| from_before(i)) {
                for (writer, readers) in inside.iter().filter(|(_, readers)| readers.contains(&stays)) {
                    let other = readers.iter().copied().find(|i| body.contains(i) && !from_before(*i));
                    if let Some(packed) = other {
                        let (registers, _, writers) = lost.entry(stays).or_insert((Vec::new(), packed, BTreeSet::new()));
                        if registers.last() != Some(&register) {
                            registers.push(register);
                        }
                        writers.insert(*writer);
                    }
                }
            }
        }
        let last = body.iter().copied().filter(|&i| self.0[i].next.contains(&head)).max().unwrap_or(head);
        let line = |i: usize| self.0[i].line;
        let found = lost.into_iter().filter_map(|(stays, (registers, packed, writers))| {
            Some(LostOperand {
                registers: *registers.first()?..=*registers.last()?,
                from: line(head),
                to: line(last),
                stays: line(stays),
                packed: line(packed),
                writes: writers.into_iter().map(line).collect(),
            })
        });
        found.collect()
    }
}

/// Everything that can be reached, with where it starts.
fn reach<'a>(from: usize, next: impl Fn(usize) -> &'a [usize]) -> BTreeSet<usize> {
    let mut reached = BTreeSet::from([from]);
    let mut open = vec![from];
    while let Some(at) = open.pop() {
        open.extend(next(at).iter().copied().filter(|&n| reached.insert(n)));
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A step of attention whose queries are scaled first, cut down: keys are multiplied with R120, which is packed before the
    /// loop, and weights are packed in `P` for the product with the values.
    fn attention(packed: &str) -> String {
        let step = "
rope_attention:
.text.rope_attention:
        /*2f70*/                   F2FP.BF16.F32.PACK_AB R122, R99, R126 ;
        /*3030*/                   F2FP.BF16.F32.PACK_AB R120, R59, R120 ;
        /*3130*/                   F2FP.BF16.F32.PACK_AB R121, R42, R121 ;
        /*3170*/                   F2FP.BF16.F32.PACK_AB R123, R40, R123 ;
        /*32b0*/              @!P0 BRA `(.L_x_7) ;
.L_x_13:
        /*3440*/                   MOV R8, UR5 ;
.L_x_8:
        /*3470*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR32+0xa800], R8 ;
        /*3480*/              @!P0 BRA `(.L_x_8) ;
        /*3490*/                   WARPGROUP.ARRIVE ;
        /*34e0*/                   HGMMA.64x96x16.F32.BF16 R24, R120, gdesc[UR20], RZ, !UPT, gsb0 ;
        /*3530*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
        /*3620*/                   FMUL R24, R24, UR15 ;
        /*4d00*/                   F2FP.BF16.F32.PACK_AB P3, R27, R24 ;
        /*4d20*/                   F2FP.BF16.F32.PACK_AB P0, R33, R26 ;
        /*4d70*/                   F2FP.BF16.F32.PACK_AB P1, R12, R25 ;
        /*4d80*/                   F2FP.BF16.F32.PACK_AB P2, R30, R11 ;
.L_x_12:
        /*53d0*/              @!P0 BRA `(.L_x_12) ;
        /*5430*/                   HGMMA.64x96x16.F32.BF16 R72, P0, gdesc[UR20].tnspB, R72, gsb0 ;
        /*5540*/              @!P0 BRA `(.L_x_13) ;
.L_x_7:
        /*5550*/                   EXIT ;
";
        let first: u16 = packed.trim_start_matches('R').parse().expect("is a register");
        // Predicates have the same names: only operands are meant.
        let named = |text: String, i: u16| {
            text.replace(&format!("PACK_AB P{i},"), &format!("PACK_AB R{},", first + i))
                .replace(&format!("R72, P{i},"), &format!("R72, R{},", first + i))
        };
        (0..4).fold(step.to_owned(), named)
    }

    fn lost(text: &str) -> Vec<LostOperand> {
        lost_operands(text).unwrap_or_else(|e| panic!("{e}\n{text}")).lost
    }

    /// The line of an address.
    fn line(text: &str, address: &str) -> usize {
        let start = format!("/*{address}*/");
        1 + text.lines().position(|l| l.trim_start().starts_with(&start)).expect("is in the text")
    }

    #[test]
    fn an_operand_is_lost_whose_registers_every_step_packs() {
        let text = attention("R120");
        let at = |address| line(&text, address);
        let expected = LostOperand {
            registers: 120..=123,
            from: at("3440"),
            to: at("5540"),
            stays: at("34e0"),
            packed: at("5430"),
            writes: ["4d00", "4d20", "4d70", "4d80"].map(at).to_vec(),
        };
        assert_eq!(lost_operands(&text), Ok(Findings { products: 2, lost: vec![expected.clone()] }));
        assert!(expected.to_string().starts_with("R120..R123, in the loop of lines 10 to 25: "), "{expected}");
        // Nor does it matter that live ranges are printed behind a line, how B lies, or where the registers of the two begin.
        assert_eq!(lost(&text.replace('\n', "      // |  3 : ^ v\n")), std::slice::from_ref(&expected));
        assert_eq!(lost(&text.replace(".tnspB", "")), [expected]);
        let part = attention("R118");
        assert_eq!(lost(&part).first().map(|l| l.registers.clone()), Some(120..=121));
    }

    #[test]
    fn operands_in_registers_of_their_own_are_not_lost() {
        assert_eq!(lost_operands(&attention("R124")), Ok(Findings { products: 2, lost: vec![] }));
    }

    #[test]
    fn an_operand_that_is_loaded_again_is_not_lost() {
        let arrive = "/*3490*/                   WARPGROUP.ARRIVE ;";
        let with = |loads: &str| attention("R120").replace(arrive, loads);
        assert_eq!(lost(&with("/*3490*/    LDL.128 R120, [R1+0x10] ;")), []);
        assert_eq!(lost(&with("/*3490*/    LDSM.16.M88.4 R120, [R7] ;")), []);
        assert_eq!(lost(&with("/*3490*/    LDS.64 R120, [R7] ;\n/*34a0*/    LDL.64 R122, [R1] ;")), []);
        // Half of it is not all of it, and what is stored or compared is not written.
        assert_eq!(lost(&with("/*3490*/    LDS.64 R120, [R7] ;"))[0].registers, 122..=123);
        assert_eq!(lost(&with("/*3490*/    STL.128 [R1+0x10], R120 ;"))[0].registers, 120..=123);
        assert_eq!(lost(&with("/*3490*/    ISETP.NE.AND P1, PT, R120, RZ, PT ;"))[0].registers, 120..=123);
        assert_eq!(lost(&with("/*3490*/    SHFL.BFLY PT, R120, R7, 0x1, 0x1f ;"))[0].registers, 121..=123);
    }

    #[test]
    fn an_accumulator_is_written_in_its_whole_width() {
        // Not a sensible kernel: the accumulator of the second product takes R72 to R123, or to R97.
        let wider = attention("R120").replace("64x96x16.F32.BF16 R72", "64x104x16.F32.BF16 R72");
        assert_eq!(lost(&wider), []);
        let halves = wider.replace("64x104x16.F32.BF16", "64x104x16.F16");
        assert_eq!(lost(&halves)[0].registers, 120..=123);
    }

    /// The product of the weights of the step before, and its operand packed before the loop and at the end of the step.
    #[test]
    fn an_operand_that_is_read_a_step_later_is_not_lost() {
        let text = "
        /*0010*/                   F2FP.BF16.F32.PACK_AB R120, R59, R120 ;
.L_x_1:
        /*0020*/                   HGMMA.64x96x16.F32.BF16 R24, R140, gdesc[UR20], RZ, !UPT ;
        /*0030*/                   HGMMA.64x96x16.F32.BF16 R72, R120, gdesc[UR20].tnspB, R72, gsb0 ;
        /*0040*/                   F2FP.BF16.F32.PACK_AB R120, R33, R24 ;
        /*0050*/               @P0 BRA `(.L_x_1) ;
        /*0060*/                   HGMMA.64x96x16.F32.BF16 R72, R120, gdesc[UR20].tnspB, R72, gsb0 ;
        /*0070*/                   EXIT ;
";
        assert_eq!(lost_operands(text), Ok(Findings { products: 2, lost: vec![] }));
    }

    /// Two steps in turn, with two entries: an odd number of steps begins at the second one.
    fn unrolled(second: &str) -> String {
        format!(
            "
        /*0010*/                   F2FP.BF16.F32.PACK_AB R120, R59, R60 ;
        /*0020*/                   F2FP.BF16.F32.PACK_AB R128, R59, R61 ;
        /*0030*/               @P1 BRA `(.L_x_2) ;
.L_x_1:
        /*0040*/                   HGMMA.64x96x16.F32.BF16 R24, R128, gdesc[UR20], RZ, !UPT ;
        /*0050*/                   HGMMA.64x96x16.F32.BF16 R72, R120, gdesc[UR20].tnspB, R72, gsb0 ;
        /*0060*/                   F2FP.BF16.F32.PACK_AB R120, R33, R24 ;
.L_x_2:
        /*0070*/                   HGMMA.64x96x16.F32.BF16 R24, {second}, gdesc[UR20], RZ, !UPT ;
        /*0080*/                   HGMMA.64x96x16.F32.BF16 R72, R120, gdesc[UR20].tnspB, R72, gsb0 ;
        /*0090*/                   F2FP.BF16.F32.PACK_AB R124, R33, R24 ;
        /*00a0*/                   HGMMA.64x96x16.F32.BF16 R72, R124, gdesc[UR20].tnspB, R72, gsb0 ;
        /*00b0*/                   F2FP.BF16.F32.PACK_AB R120, R34, R24 ;
        /*00c0*/               @P0 BRA `(.L_x_1) ;
        /*00d0*/                   EXIT ;
"
        )
    }

    #[test]
    fn a_loop_with_two_entries_is_read_on_all_ways() {
        assert_eq!(lost(&unrolled("R128")), []);
        let mixed = unrolled("R124").replace("R128, R59, R61", "R124, R59, R61");
        let found = lost(&mixed);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].stays, found[0].packed), (line(&mixed, "0070"), line(&mixed, "00a0")));
    }

    #[test]
    fn one_operand_of_two_products_is_not_lost() {
        let two = "R120, gdesc[UR20].tnspB, R72 ;\n        /*5440*/    HGMMA.64x96x16.F32.BF16 R24, R120, gdesc[UR8], R24 ;";
        let text = attention("R120").replace("R120, gdesc[UR20].tnspB, R72, gsb0 ;", two);
        let text = text.replace("HGMMA.64x96x16.F32.BF16 R24, R120, gdesc[UR20], RZ, !UPT, gsb0", "NOP");
        assert_eq!(lost_operands(&text), Ok(Findings { products: 2, lost: vec![] }));
    }

    #[test]
    fn text_of_cuobjdump_is_read_as_well() {
        let mut text = attention("R120");
        for (label, address) in [(7, "5550"), (13, "3440"), (8, "3470"), (12, "53d0")] {
            text = text.replace(&format!("`(.L_x_{label})"), &format!("0x{address}")).replace(&format!(".L_x_{label}:\n"), "");
        }
        let encoded = " ;    /* 0x0000000000480947 */\n                              /* 0x000fea0003800000 */";
        let found = lost(&text.replace(" ;", encoded));
        assert_eq!(found.first().map(|l| l.registers.clone()), Some(120..=123));
        // A second function begins anew.
        assert_eq!(lost(&format!("{text}{text}")).len(), 2);
    }

    #[test]
    fn what_cannot_be_read_is_an_error() {
        assert_eq!(lost_operands("no machine code"), Err(Unreadable::Empty));
        let text = attention("R120");
        let error = lost_operands(&text.replace(".L_x_13:", ".L_x_99:")).expect_err("has no such label");
        assert_eq!(error.to_string(), "line 25: no instruction is where `@!P0 BRA `(.L_x_13)` leads");
        let error = lost_operands(&text.replace("64x96x16.F32.BF16 R24", "96.F32 R24")).expect_err("is no product");
        assert!(matches!(error, Unreadable::Product { line, .. } if line == super::tests::line(&text, "34e0")), "{error}");
    }
}
