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
//! The C files are the same in every bundle, one after the other in one file, with the tables
//! behind them. Their limits are checked here, when the bundle is made.

mod header;
#[cfg(test)]
pub(super) use header::field_names;
mod limits;
mod tables;
mod text;

use std::collections::BTreeMap;

use super::contract::KernelContract;
use crate::error::Result;
use crate::kernel::BoundKernel;
pub(super) use limits::check;
use text::{embed, symbol};

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

#[cfg(test)]
mod tests {
    use super::limits::*;
    use super::text::quoted;
    use super::*;
    use crate::device::MAX_MAPS;
    use flashtile_dsl::ir::{BinaryOp, Operands};

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
    fn the_launcher_has_every_operation_on_integers() {
        for &op in BinaryOp::ALL {
            let takes_integers = matches!(op.row().operands, Operands::Numbers | Operands::Integers);
            assert_eq!(operation(op).is_some(), takes_integers, "{op:?}");
        }
    }

    #[test]
    fn strings_are_c_strings() {
        assert_eq!(quoted("h \"x\" \\ µ"), r#""h \"x\" \\ ?""#);
        assert_eq!(symbol("a.sm_80.0.cubin"), "flashtile_a_sm_80_0_cubin");
    }
}
