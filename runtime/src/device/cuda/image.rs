//! Which form of a compiled kernel a GPU runs: its own machine code, or PTX of an older architecture.

use flashtile_codegen::Arch;

use crate::cache::ModuleRecord;
use crate::device::DeviceError;

/// Code to load.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Image<'a> {
    /// Machine code.
    Cubin(&'a [u8]),
    /// PTX, which the driver compiles.
    Ptx(&'a str),
}

/// How code for `arch` gets onto a GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    /// As machine code.
    Native,
    /// Through PTX.
    Ptx,
}

impl Form {
    /// The form in which code for `arch` runs on a GPU of this capability (CUDA C++ Programming Guide, "Binary
    /// Compatibility" and "PTX Compatibility"): machine code runs on the same major version with the same or a higher
    /// minor one, PTX on anything newer; architecture-specific code (`a`) on its own capability only.
    pub fn choose(arch: &Arch, name: &str, capability: (u32, u32)) -> Result<Self, DeviceError> {
        if runs_native(arch, capability) {
            Ok(Form::Native)
        } else if runs_ptx(arch, capability) {
            Ok(Form::Ptx)
        } else {
            let (arch, name) = (arch.name.to_owned(), name.to_owned());
            Err(DeviceError::Incompatible { arch, name, capability })
        }
    }

    /// The code in this form.
    pub fn of(self, module: &ModuleRecord) -> Image<'_> {
        match self {
            Form::Native => Image::Cubin(&module.cubin),
            Form::Ptx => Image::Ptx(&module.ptx),
        }
    }
}

/// Whether machine code for `arch` runs on a GPU of this capability.
pub(crate) fn runs_native(arch: &Arch, capability: (u32, u32)) -> bool {
    let same_major = arch.capability.0 == capability.0 && arch.capability < capability;
    arch.capability == capability || (!is_specific(arch) && same_major)
}

/// Whether PTX for `arch` is compiled for a newer GPU of this capability.
pub(crate) fn runs_ptx(arch: &Arch, capability: (u32, u32)) -> bool {
    !is_specific(arch) && arch.capability < capability
}

/// Whether code for it runs on its own capability only.
fn is_specific(arch: &Arch) -> bool {
    arch.name.ends_with('a')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_runs_where_the_programming_guide_says() {
        let form = |arch: &str, capability| {
            Form::choose(Arch::named(arch).expect("in the table"), "a GPU", capability).map_err(|e| e.to_string())
        };
        assert_eq!(form("sm_90a", (9, 0)), Ok(Form::Native));
        assert_eq!(form("sm_86", (8, 9)), Ok(Form::Native));
        assert_eq!(form("sm_80", (9, 0)), Ok(Form::Ptx));
        assert_eq!(form("sm_75", (9, 0)), Ok(Form::Ptx));
        assert_eq!(form("sm_100", (12, 0)), Ok(Form::Ptx));
        assert_eq!(
            form("sm_89", (8, 0)),
            Err("code for sm_89 does not run on a GPU (compute capability 8.0); choose an older architecture".to_owned())
        );
        assert!(form("sm_90a", (10, 0)).is_err(), "architecture-specific code runs nowhere else");
    }
}
