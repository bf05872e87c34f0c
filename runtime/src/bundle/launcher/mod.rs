//! The C header and launcher of a bundle.
//!
//! | file | subject |
//! | --- | --- |
//! | `prelude.h`, `header` | the header: what all bundles have, and the functions of kernels |
//! | `tables.c`, `tables` | limits and types of the tables; the tables of kernels |
//! | `arguments.c` | extents, strides, sizes |
//! | `reach.c`, `overlap.c` | what integers reach; shared memory |
//! | `variant.c` | facts, and the code for them |
//! | `driver.c`, `launch.c` | libcuda; what a call is launched with |
//!
//! The C files are the same in every bundle, one after the other in one file, with the tables behind them. Their limits are
//! checked here, when the bundle is made.

mod header;
#[cfg(test)]
pub(super) use header::field_name;
mod tables;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use flashtile_codegen::Arch;
use flashtile_dsl::analysis::reach::{IndexedAt, Node, Reach};
use flashtile_dsl::ir::{BinaryOp, ParamKind};

use super::contract::KernelContract;
use crate::device::MAX_MAPS;
use crate::error::{BundleError, Result};
use crate::kernel::BoundKernel;
use crate::lowering::CallingContract;

const PRELUDE: &str = include_str!("prelude.h");
/// The parts of the launcher, in order: one C file.
const LAUNCHER: [&str; 7] = [
    include_str!("tables.c"),
    include_str!("arguments.c"),
    include_str!("reach.c"),
    include_str!("overlap.c"),
    include_str!("variant.c"),
    include_str!("driver.c"),
    include_str!("launch.c"),
];
const CMAKE: &str = include_str!("CMakeLists.txt");

/// Names of the files.
pub(super) const HEADER: &str = "flashtile_bundle.h";
pub(super) const SOURCE: &str = "flashtile_bundle.c";
pub(super) const CUBINS: &str = "flashtile_cubins.c";

// The limits of tables.c, by the names that they have there without `FT_`; a test compares them.
const RANK: usize = 8;
const TERMS: usize = 6;
const SIZES: usize = 40;
const VALUES: usize = 64;
const NODES: usize = 256;
const LEAVES: usize = 8;
const STEPS: usize = 8;

/// Refuses a kernel, or code of it, that the launcher has no room for.
///
/// # Errors
/// [`BundleError::Unsupported`].
pub(super) fn check(kernel: &BoundKernel, contract: &CallingContract) -> Result<(), BundleError> {
    let ir = kernel.ir();
    let refuse = |reason: String| Err(BundleError::Unsupported { kernel: ir.name.clone(), reason });
    let most = |what: &str, found: usize, most: usize| match found <= most {
        true => Ok(()),
        false => refuse(format!("it has {found} {what}, and the C launcher has room for {most}")),
    };
    let ranks = ir.params.values().filter_map(|p| match &p.kind {
        ParamKind::Tensor(t) => Some(t.shape.len()),
        ParamKind::Scalar(_) => None,
    });
    most("dimensions of a tensor", ranks.max().unwrap_or(0), RANK)?;
    most("dimensions of a scratch tensor", contract.scratch.iter().map(|s| s.shape.len()).max().unwrap_or(0), RANK)?;
    most("sizes", ir.sizes.len() + 1, SIZES)?;
    most("tensors and scalars", ir.params.len() + contract.scratch.len(), VALUES)?;
    most("launches", contract.launches.len(), STEPS)?;
    most("tensor maps in a launch", contract.launches.iter().map(|l| l.tensor_maps.len()).max().unwrap_or(0), MAX_MAPS)?;
    let reach = Reach::new(ir, kernel.binding());
    let nodes: Vec<&Node> = reach.nodes().collect();
    most("integer values", nodes.len(), NODES)?;
    for (place, node) in nodes.iter().enumerate() {
        if let Node::Binary(op, ..) = node
            && tables::operation(*op).is_none()
        {
            return refuse(format!("the C launcher cannot check `{}`", reach.text(place)));
        }
        let leaves = reach.below(place).into_iter().filter(|&n| nodes[n].varies()).count();
        most(&format!("positions in `{}`", reach.text(place)), leaves, LEAVES)?;
    }
    let declared = ir.params.values().flat_map(|p| match &p.kind {
        ParamKind::Tensor(t) => t.shape.iter().collect::<Vec<_>>(),
        ParamKind::Scalar(_) => Vec::new(),
    });
    let ranges = reach.accesses().flat_map(|access| match access.at {
        IndexedAt::Range(start, len) => vec![access.extent, start, len],
        IndexedAt::Node(_) => vec![access.extent],
    });
    let all: Vec<_> = declared.chain(ranges).chain(reach.sizes().map(|(size, _)| size)).collect();
    most("sizes in one extent", all.iter().map(|size| size.parts().0.len()).max().unwrap_or(0), TERMS)?;
    Ok(())
}

/// Adds the C files to those of a bundle.
///
/// # Errors
/// [`BundleError::Unsupported`].
pub(super) fn write(kernels: &[(BoundKernel, KernelContract)], files: &mut BTreeMap<String, Vec<u8>>) -> Result<()> {
    let mut header = PRELUDE.to_owned();
    let mut source = LAUNCHER.concat();
    let mut cubins = "/* Machine code, as little-endian words. */\n".to_owned();
    for (kernel, contract) in kernels {
        header.push_str(&header::declarations(contract));
        source.push_str(&tables::tables(kernel, contract)?);
        source.push_str(&header::definitions(contract));
        for code in contract.architectures.iter().flat_map(|arch| &arch.code) {
            embed(&mut cubins, &symbol(&code.cubin), &files[&code.cubin]);
        }
    }
    header.push_str(header::END);
    files.insert(HEADER.to_owned(), header.into_bytes());
    files.insert(SOURCE.to_owned(), source.into_bytes());
    files.insert(CUBINS.to_owned(), cubins.into_bytes());
    files.insert("CMakeLists.txt".to_owned(), CMAKE.as_bytes().to_vec());
    Ok(())
}

/// Name of the array that holds a file.
fn symbol(file: &str) -> String {
    let name: String = file.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    format!("flashtile_{name}")
}

/// Bytes as an array of words, which compiles faster than one of bytes.
fn embed(out: &mut String, symbol: &str, bytes: &[u8]) {
    let words = bytes.len().div_ceil(8);
    let _ = writeln!(out, "extern const unsigned long long {symbol}[{words}];\nconst unsigned long long {symbol}[{words}] = {{");
    for line in bytes.chunks(64) {
        for word in line.chunks(8) {
            let mut padded = [0; 8];
            padded[..word.len()].copy_from_slice(word);
            let _ = write!(out, "{:#x},", u64::from_le_bytes(padded));
        }
        out.push('\n');
    }
    out.push_str("};\n");
}

/// Major and minor compute capability, and whether code runs on that only.
fn capability(arch: &str) -> (u32, u32, bool) {
    let arch = Arch::named(arch).expect("a bundle is made for architectures of the table");
    (arch.capability.0, arch.capability.1, arch.name.ends_with('a'))
}

/// A C string of a text.
fn quoted(text: &str) -> String {
    let mut out = "\"".to_owned();
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            ' '..='~' => out.push(c),
            _ => out.push('?'),
        }
    }
    out + "\""
}

/// What an operation on integers is called in `tables.c`.
fn name_of(op: BinaryOp) -> Option<&'static str> {
    Some(match op {
        BinaryOp::Add => "FT_ADD",
        BinaryOp::Sub => "FT_SUB",
        BinaryOp::Mul => "FT_MUL",
        BinaryOp::Min => "FT_MIN",
        BinaryOp::Max => "FT_MAX",
        BinaryOp::Div => "FT_DIV",
        BinaryOp::Rem => "FT_REM",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_those_of_the_launcher() {
        let defines = PRELUDE.to_owned() + &LAUNCHER.concat();
        let of = |name: &str| {
            let line = defines.lines().find_map(|line| line.strip_prefix(&format!("#define {name} ")));
            line.expect(name).parse::<usize>().expect("a number")
        };
        let own = [("FLASHTILE_RANK", RANK), ("FT_TERMS", TERMS), ("FT_SIZES", SIZES), ("FT_VALUES", VALUES)];
        let more = [("FT_NODES", NODES), ("FT_LEAVES", LEAVES), ("FT_STEPS", STEPS), ("FT_MAPS", MAX_MAPS)];
        own.into_iter().chain(more).for_each(|(name, value)| assert_eq!(of(name), value, "{name}"));
        assert_eq!(of("FT_BLOCK"), crate::device::MAX_BYTES);
        assert!(defines.contains("#define FT_MAX_SIZE (((int64_t)1 << 31) - ((int64_t)1 << 16))"));
        assert_eq!(flashtile_dsl::analysis::reach::MAX_SIZE, (1 << 31) - (1 << 16));
        assert!(defines.contains("#define FT_BISECTIONS (1 << 16)"));
        assert_eq!(flashtile_dsl::analysis::reach::MAX_STEPS, 1 << 16);
    }

    #[test]
    fn strings_are_c_strings() {
        assert_eq!(quoted("h \"x\" \\ µ"), r#""h \"x\" \\ ?""#);
        assert_eq!(symbol("a.sm_80.0.cubin"), "flashtile_a_sm_80_0_cubin");
    }
}
