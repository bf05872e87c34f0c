//! Functions, instructions and labels of machine code, as `nvdisasm -c -gi` prints it.

use std::collections::BTreeMap;

/// A function of a program.
pub struct Function {
    pub name: String,
    pub instructions: Vec<Instruction>,
    /// The instruction behind each label, by its number.
    pub labels: BTreeMap<String, usize>,
}

/// An instruction.
pub struct Instruction {
    pub address: u64,
    /// Its name with all modifiers.
    pub opcode: String,
    pub kind: Kind,
    /// The line of the source that it is of.
    pub line: Option<u32>,
    /// Whether it stands under a predicate, so that what follows may come next whatever it does.
    pub predicated: bool,
    /// The label that it goes to.
    pub target: Option<String>,
}

/// What an instruction does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// Multiplies matrices.
    Product,
    /// An exponential, a reciprocal and the like.
    Special,
    /// Adds, multiplies or compares numbers.
    Float,
    /// Makes numbers of another type.
    Convert,
    /// Computes integers: of a thread or of a warp.
    Integer,
    /// Chooses or copies registers.
    Move,
    /// Reads or writes memory of any kind.
    Memory,
    /// Waits, or lets others go on.
    Wait,
    /// Branches, or exchanges values between lanes.
    Control,
    /// Anything else.
    Other,
}

impl Kind {
    /// The word for it.
    pub fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    /// Of an instruction by the name without modifiers.
    fn of(name: &str) -> Self {
        match name {
            "HGMMA" | "IGMMA" | "QGMMA" | "BGMMA" | "HMMA" | "IMMA" | "DMMA" => Self::Product,
            "MUFU" => Self::Special,
            "FADD" | "FMUL" | "FFMA" | "FMNMX" | "FSETP" | "FSET" | "FCHK" | "HADD2" | "HMUL2" | "HFMA2" | "HMNMX2"
            | "HSETP2" | "FADD32I" | "FMUL32I" | "FFMA32I" | "FRND" => Self::Float,
            "F2F" | "F2FP" | "F2I" | "I2F" | "I2FP" | "I2I" | "F2IP" => Self::Convert,
            "MOV" | "MOV32I" | "SEL" | "FSEL" | "PRMT" | "R2UR" | "S2R" | "S2UR" | "CS2R" | "LDC" | "ULDC" | "P2R" | "R2P"
            | "UMOV" | "USEL" | "UPRMT" => Self::Move,
            "LDS" | "STS" | "LDSM" | "STSM" | "ATOMS" | "LDG" | "STG" | "LD" | "ST" | "RED" | "REDG" | "ATOM" | "ATOMG"
            | "LDGSTS" | "UTMALDG" | "UTMASTG" | "UTMAREDG" | "UTMAPF" | "UTMACCTL" | "UTMACMDFLUSH" | "UBLKCP" | "UBLKRED"
            | "LDL" | "STL" => Self::Memory,
            "SYNCS" | "BAR" | "DEPBAR" | "LDGDEPBAR" | "WARPSYNC" | "MEMBAR" | "FENCE" | "NANOSLEEP" | "WARPGROUP"
            | "WARPGROUPSET" | "ARRIVES" | "ERRBAR" | "CCTL" | "UCGABAR_ARV" | "UCGABAR_WAIT" | "YIELD" | "USETMAXREG"
            | "ACQBULK" => Self::Wait,
            "BRA" | "BRX" | "JMP" | "JMX" | "EXIT" | "CALL" | "RET" | "BSSY" | "BSYNC" | "BREAK" | "BMOV" | "KILL" | "BPT"
            | "NOP" | "SHFL" | "VOTE" | "VOTEU" | "REDUX" | "MATCH" | "ELECT" => Self::Control,
            "IADD3" | "IADD" | "IMAD" | "IMNMX" | "VIMNMX" | "VIMNMX3" | "VIADD" | "IABS" | "IDP" | "LEA" | "LOP3" | "LOP32I"
            | "SHF" | "SHL" | "SHR" | "ISETP" | "PLOP3" | "POPC" | "FLO" | "BREV" | "BMSK" | "SGXT" | "ISET" | "LOP" => {
                Self::Integer
            }
            name if name.starts_with('U') => Self::Integer,
            _ => Self::Other,
        }
    }
}

/// The functions of a text.
pub fn read(text: &str) -> Vec<Function> {
    let mut functions: Vec<Function> = Vec::new();
    let mut line = None;
    for row in text.lines().map(str::trim) {
        if let Some(name) = row.strip_prefix(".text.").and_then(|name| name.strip_suffix(':')) {
            functions.push(Function { name: name.to_owned(), instructions: Vec::new(), labels: BTreeMap::new() });
            line = None;
        }
        let Some(function) = functions.last_mut() else { continue };
        if row.starts_with("//##") {
            // Of an inlined function several follow each other; the last is where it is called.
            line = line_of(row);
        } else if let Some(label) = row.strip_suffix(':').filter(|label| label.starts_with(".L_")) {
            function.labels.insert(label.to_owned(), function.instructions.len());
        } else {
            function.instructions.extend(instruction(row, line));
        }
    }
    functions
}

/// The line of a note.
fn line_of(row: &str) -> Option<u32> {
    let (_, line) = row.split_once("\", line ")?;
    line.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// `/*0010*/  @!P0 BRA `(.L_x_2) ;`
fn instruction(row: &str, line: Option<u32>) -> Option<Instruction> {
    let (address, rest) = row.strip_prefix("/*")?.split_once("*/")?;
    let address = u64::from_str_radix(address, 16).ok()?;
    let mut words = rest.split(';').next()?.split_whitespace().filter(|word| !word.starts_with('{'));
    let mut opcode = words.next()?;
    let predicate = opcode.starts_with('@').then_some(opcode);
    if predicate.is_some() {
        opcode = words.next()?;
    }
    let target = rest.split_once("`(").and_then(|(_, label)| label.split_once(')')).map(|(label, _)| label.to_owned());
    // A branch may have its condition among its operands.
    let predicated =
        predicate.is_some() || (opcode.starts_with("BRA") && words.clone().next().is_some_and(|w| !w.starts_with('`')));
    let name = opcode.split('.').next().expect("a part at least");
    Some(Instruction { address, opcode: opcode.to_owned(), kind: Kind::of(name), line, predicated, target })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_have_opcode_line_predicate_and_target() {
        let text = "        .text.g:\n.text.g:\n\t//## File \"/a/g.cu\", line 9 inlined at \"/a/g.rs\", line 17\n\
                    \t//## File \"/a/g.rs\", line 17\n.L_x_0:\n        /*0010*/               @P0 FADD.FTZ R1, R2, R3 ;\n\
                    \t//## File \"/a/g.cu\", line 3\n        /*0020*/              @!PT BRA `(.L_x_0) ;\n\
                    /*0030*/   BRA P1, `(.L_x_0) ;\n /*0040*/  UIADD3 UR1, UR2, 0x1, URZ ;\n";
        let functions = read(text);
        let g = functions.last().expect("a function");
        let all: Vec<_> = g.instructions.iter().map(|i| (i.opcode.as_str(), i.kind, i.line, i.predicated)).collect();
        let wanted = [
            ("FADD.FTZ", Kind::Float, Some(17), true),
            ("BRA", Kind::Control, Some(3), true),
            ("BRA", Kind::Control, Some(3), true),
            ("UIADD3", Kind::Integer, Some(3), false),
        ];
        assert_eq!(all, wanted);
        assert_eq!(g.labels.get(".L_x_0"), Some(&0));
        assert_eq!(g.instructions[1].target.as_deref(), Some(".L_x_0"));
    }
}
