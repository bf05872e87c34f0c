//! Which kernel, with which types, constants, sizes and scalars: from flags to a bound kernel.

use std::collections::BTreeMap;
use std::path::Path;

use clap::{Args, ValueEnum};
use flashtile::kernel::sizes_among;
use flashtile::tuner::{self, Distribution, InputData};
use flashtile::{BoundKernel, Elem, Facts, Kernel, verify};
use flashtile_codegen::Arch;
use flashtile_dsl::analysis::hints::Hint;
use flashtile_dsl::analysis::lengths::{self, TYPICAL_CONST};
use flashtile_dsl::ir::{self, ParamKind, SizeKind};

use crate::failure::{Failure, Result};
use crate::hints;
use crate::output::Output;
use crate::settings::{Numbers, Sizes, only_once};

/// Element types of the command line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum DType {
    /// 16-bit brain float
    Bf16,
    /// IEEE half precision
    F16,
    /// IEEE single precision
    F32,
}

impl DType {
    /// The element type of the tile IR.
    pub fn elem(self) -> Elem {
        match self {
            DType::Bf16 => Elem::Bf16,
            DType::F16 => Elem::F16,
            DType::F32 => Elem::F32,
        }
    }
}

/// Flags that say which kernel is meant.
#[derive(Args, Clone, Debug)]
pub struct SubjectFlags {
    /// A built-in's name (see `flashtile list`), FILE, or FILE:NAME
    pub kernel: String,
    /// Element type of the kernel's type parameters
    #[arg(long, value_enum, default_value = "bf16")]
    pub dtype: DType,
    /// Constants and scalars of the kernel by name, such as D=128 or scale=0.1; may be repeated
    #[arg(long, value_name = "NAME=VALUE,..", allow_hyphen_values = true)]
    pub set: Vec<Numbers>,
    /// Sizes by name, such as B=2,H=16,G=16,M=8192,N=8192,D=128; constants may be among them
    #[arg(long, value_name = "NAME=SIZE,..")]
    pub shape: Vec<Sizes>,
}

/// A kernel with all that flags say of it.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The kernel.
    pub kernel: Kernel,
    /// Values of its type parameters.
    pub elem: Elem,
    /// Constants given.
    pub consts: BTreeMap<String, i64>,
    /// Run-time sizes given.
    pub sizes: BTreeMap<String, i64>,
    /// Scalars given.
    pub scalars: BTreeMap<String, f64>,
}

/// The file of a kernel that is named as `FILE` or `FILE:NAME`, if there is one; none of a
/// built-in.
pub fn file_of(kernel: &str) -> Option<&Path> {
    Kernel::file_of(kernel).map(|(path, _)| Path::new(path)).filter(|path| path.is_file())
}

impl SubjectFlags {
    /// Opens the kernel and sorts the names that flags give.
    pub fn open(&self) -> Result<Subject> {
        let kernel = Kernel::open(&self.kernel)?;
        let mut subject = Subject {
            kernel,
            elem: self.dtype.elem(),
            consts: BTreeMap::new(),
            sizes: BTreeMap::new(),
            scalars: BTreeMap::new(),
        };
        let sizes = || self.shape.iter().flat_map(|list| &list.0);
        // A size may be said by both flags, if they say the same of it.
        let differs = |(name, value): &&(String, f64)| !sizes().any(|(size, of)| size == name && *of as f64 == *value);
        let set = self.set.iter().flat_map(|list| &list.0).filter(differs).map(|(name, _)| name.as_str());
        only_once(sizes().map(|(name, _)| name.as_str()).chain(set))?;
        for (name, value) in self.shape.iter().flat_map(|list| &list.0) {
            subject.set_size(name, *value)?;
        }
        for (name, value) in self.set.iter().flat_map(|list| &list.0) {
            subject.set(name, *value)?;
        }
        Ok(subject)
    }
}

impl Subject {
    /// The same of another kernel, of the names that it has too.
    pub fn of_kernel(&self, kernel: Kernel) -> Self {
        let mut subject = Self { kernel, ..self.clone() };
        let ir = subject.kernel.ir();
        subject.consts.retain(|name, _| ir.size_named(name).is_some());
        subject.sizes.retain(|name, _| ir.size_named(name).is_some());
        subject.scalars.retain(|name, _| ir.param_named(name).is_some());
        subject
    }

    /// The same with the sizes of kernels that work on its tensors.
    pub fn among(&self, kernels: &[Kernel]) -> Self {
        Self { sizes: sizes_among(kernels.iter().map(Kernel::ir), &self.sizes, &self.consts), ..self.clone() }
    }

    fn ir(&self) -> &ir::Kernel {
        self.kernel.ir()
    }

    /// What the kernel loses on an architecture.
    pub fn hints(&self, arch: &'static Arch) -> Vec<Hint> {
        hints::find(self.ir(), self.elem, &self.consts, arch)
    }

    fn names_of_sizes(&self, kind: SizeKind) -> impl Iterator<Item = &str> {
        self.ir().sizes.values().filter(move |s| s.kind == kind).map(|s| s.name.as_str())
    }

    /// Names and types of the scalar parameters.
    pub fn scalar_params(&self) -> impl Iterator<Item = (&str, Elem)> {
        self.ir().params.values().filter_map(|p| match p.kind {
            ParamKind::Scalar(elem) => Some((p.name.as_str(), elem)),
            ParamKind::Tensor(_) => None,
        })
    }

    fn set_size(&mut self, name: &str, value: i64) -> Result<()> {
        let size = self.ir().size_named(name).map(|id| self.ir().sizes[id].kind);
        let table = match size {
            Some(SizeKind::Const) => &mut self.consts,
            Some(SizeKind::Runtime) => &mut self.sizes,
            None => return Err(self.unknown(name)),
        };
        if !(0..1 << 31).contains(&value) {
            return Err(Failure::Usage(format!("size `{name}` cannot be {value}; expected 0 to 2^31 - 1")));
        }
        table.insert(name.to_owned(), value);
        Ok(())
    }

    fn set(&mut self, name: &str, value: f64) -> Result<()> {
        let scalar = self.scalar_params().find(|(n, _)| *n == name).map(|(_, elem)| elem);
        let whole = value.fract() == 0.0 && (-2f64.powi(31)..2f64.powi(31)).contains(&value);
        match scalar {
            Some(Elem::I32) if !whole => {
                let expected = "expected a whole number from -2^31 to 2^31 - 1";
                Err(Failure::Usage(format!("scalar `{name}` is an i32 and cannot be {value}; {expected}")))
            }
            Some(elem) if elem != Elem::I32 && value.is_finite() && !(value as f32).is_finite() => {
                let expected = "expected a number of f32, of which 3.4e38 is the largest";
                Err(Failure::Usage(format!("scalar `{name}` cannot be {value:e}; {expected}")))
            }
            Some(_) => {
                self.scalars.insert(name.to_owned(), value);
                Ok(())
            }
            None if value.fract() != 0.0 && self.ir().size_named(name).is_some() => {
                Err(Failure::Usage(format!("size `{name}` cannot be {value}; expected a whole number")))
            }
            None => self.set_size(name, value as i64),
        }
    }

    fn unknown(&self, name: &str) -> Failure {
        if self.scalar_params().any(|(scalar, _)| scalar == name) {
            return Failure::Usage(format!("`{name}` is a scalar of kernel `{}`: give --set {name}=..", self.kernel.name()));
        }
        let sizes = self.ir().sizes.values().map(|s| s.name.clone());
        let known: Vec<String> = sizes.chain(self.scalar_params().map(|(n, _)| n.to_owned())).collect();
        let known = if known.is_empty() { "neither sizes nor scalars".to_owned() } else { known.join(", ") };
        Failure::Usage(format!("kernel `{}` has no size or scalar `{name}`; it has {known}", self.kernel.name()))
    }

    /// Fixes the generics. Constants that no flag gives get a default, which is told.
    pub fn bind(&self, output: &Output) -> Result<BoundKernel> {
        let mut consts = self.consts.clone();
        for name in self.names_of_sizes(SizeKind::Const) {
            if !consts.contains_key(name) {
                output.note(format!("note: {name}={TYPICAL_CONST}; give --set {name}=.. for another"));
                consts.insert(name.to_owned(), TYPICAL_CONST);
            }
        }
        Ok(self.kernel.bind(self.elem, consts)?)
    }

    /// Run-time sizes, all of which must have been given.
    pub fn all_sizes(&self) -> Result<BTreeMap<String, i64>> {
        let missing: Vec<&str> = self.names_of_sizes(SizeKind::Runtime).filter(|name| !self.sizes.contains_key(*name)).collect();
        match missing.is_empty() {
            true => Ok(self.sizes.clone()),
            false => {
                let example: Vec<String> = missing.iter().map(|name| format!("{name}=..")).collect();
                let kernel = self.kernel.name();
                Err(Failure::Usage(format!(
                    "kernel `{kernel}` needs the sizes {}; give --shape {}",
                    missing.join(", "),
                    example.join(",")
                )))
            }
        }
    }

    /// Run-time sizes, with typical ones for those not given: the extent of a tile axis is long, the rest short.
    pub fn typical_sizes(&self) -> BTreeMap<String, i64> {
        let consts = self.all_consts();
        let of = |name: &str| self.sizes.get(name).copied().unwrap_or_else(|| lengths::typical(self.ir(), name, &consts));
        self.names_of_sizes(SizeKind::Runtime).map(|name| (name.to_owned(), of(name))).collect()
    }

    /// Run-time sizes for a quick check, with small ones for those not given: the extents of tile axes are taken from
    /// `lengths`, each from another place, and all move on with `round`.
    pub fn small_sizes(&self, lengths: &[i64], round: usize) -> BTreeMap<String, i64> {
        let mut walked = round;
        let mut of = |name: &str| {
            if self.is_walked(name) {
                walked += 1;
            }
            let small = if self.is_walked(name) { lengths[walked % lengths.len()] } else { 2.max(self.addressed(name)) };
            self.sizes.get(name).copied().unwrap_or(small)
        };
        self.names_of_sizes(SizeKind::Runtime).map(|name| (name.to_owned(), of(name))).collect()
    }

    /// How far the text reaches in dimensions of this size.
    fn addressed(&self, name: &str) -> i64 {
        verify::addressed(self.ir(), name, &self.all_consts())
    }

    /// Whether a tile axis walks the size.
    fn is_walked(&self, name: &str) -> bool {
        verify::is_walked(self.ir(), name)
    }

    /// Constants, those that no flag gives with their default.
    fn all_consts(&self) -> BTreeMap<String, i64> {
        lengths::typical_consts(self.ir(), &self.consts)
    }

    /// Run-time sizes of every shape that the kernel is checked on, those that flags give as they say.
    pub fn checked_shapes(&self) -> Vec<BTreeMap<String, i64>> {
        let mut shapes = verify::default_shapes(self.ir(), &self.all_consts());
        shapes.iter_mut().for_each(|shape| shape.extend(self.sizes.clone()));
        shapes.dedup();
        shapes
    }

    /// What flags say of inputs: `data`, and the values of scalars.
    ///
    /// # Errors
    /// If two flags say something of one input.
    pub fn input_data(&self, data: &[InputData]) -> Result<InputData> {
        let scalars = self.scalars.iter().map(|(name, value)| (name.clone(), Distribution::constant(*value)));
        let all: Vec<_> = scalars.chain(data.iter().flat_map(|d| d.0.clone())).collect();
        match all.iter().enumerate().find(|(n, (name, _))| all[..*n].iter().any(|(before, _)| before == name)) {
            Some((_, (name, _))) => {
                let by = if self.scalars.contains_key(name) { "by --set and by --data" } else { "by --data" };
                Err(Failure::Usage(format!("`{name}` is given twice, {by}")))
            }
            None => Ok(InputData(all.into_iter().collect())),
        }
    }

    /// Facts that code is generated under: what the scalars given say; the best where none is
    /// given; packed tensors of the sizes given, and of typical ones else.
    pub fn facts(&self, bound: &BoundKernel) -> Result<Facts> {
        Ok(tuner::facts_of(bound, &self.typical_sizes(), &self.input_data(&[])?)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(set: &[&str], shape: &[&str]) -> Result<Subject> {
        subject_of("causal_attention", set, shape)
    }

    fn facts(kernel: &str, set: &[&str], shape: &[&str]) -> Facts {
        let subject = subject_of(kernel, set, shape).expect("known");
        let consts = subject.all_consts();
        subject.facts(&subject.kernel.bind(Elem::F16, consts).expect("binds")).expect("possible")
    }

    fn subject_of(kernel: &str, set: &[&str], shape: &[&str]) -> Result<Subject> {
        SubjectFlags {
            kernel: kernel.into(),
            dtype: DType::F16,
            set: set.iter().map(|s| s.parse().expect("numbers")).collect(),
            shape: shape.iter().map(|s| s.parse().expect("sizes")).collect(),
        }
        .open()
    }

    #[test]
    fn names_are_sorted_into_constants_sizes_and_scalars() {
        let s = subject(&["scale=-0.5,D=128"], &["B=2,M=7"]).expect("all are known");
        assert_eq!(s.consts.into_iter().collect::<Vec<_>>(), [("D".to_owned(), 128)]);
        assert_eq!(s.sizes.into_iter().collect::<Vec<_>>(), [("B".to_owned(), 2), ("M".to_owned(), 7)]);
        assert_eq!(s.scalars.into_iter().collect::<Vec<_>>(), [("scale".to_owned(), -0.5)]);
    }

    #[test]
    fn faults_say_what_there_is() {
        let error = |set: &[&str], shape: &[&str]| subject(set, shape).expect_err("a fault").to_string();
        assert_eq!(error(&["X=1"], &[]), "kernel `causal_attention` has no size or scalar `X`; it has D, B, H, M, G, N, scale");
        assert_eq!(error(&[], &["scale=1"]), "`scale` is a scalar of kernel `causal_attention`: give --set scale=..");
        assert_eq!(error(&["D=1.5"], &[]), "size `D` cannot be 1.5; expected a whole number");
        assert_eq!(error(&[], &["M=-1"]), "size `M` cannot be -1; expected 0 to 2^31 - 1");
        assert_eq!(error(&["D=99999999999"], &[]), "size `D` cannot be 99999999999; expected 0 to 2^31 - 1");
        assert!(error(&["scale=1e60"], &[]).starts_with("scalar `scale` cannot be 1e60; expected a number of f32"));
        assert_eq!(error(&["D=inf"], &[]), "size `D` cannot be inf; expected a whole number");
    }

    #[test]
    fn both_flags_may_say_the_same_size() {
        let s = subject(&["D=128"], &["B=2,D=128"]).expect("one value");
        assert_eq!(s.consts.into_iter().collect::<Vec<_>>(), [("D".to_owned(), 128)]);
        for (set, shape) in [(&["D=64"][..], &["D=128"][..]), (&["D=64,D=64"], &[]), (&["D=64"], &["D=64,D=64"])] {
            let error = subject(set, shape).expect_err("more than one value").to_string();
            assert_eq!(error, "`D` is given more than once; give it one value");
        }
    }

    #[test]
    fn an_input_is_said_once() {
        let s = subject(&["scale=-0.5"], &[]).expect("all are known");
        let of = |data: &[&str]| {
            let data: Vec<InputData> = data.iter().map(|d| d.parse().expect("data")).collect();
            s.input_data(&data).map(|all| all.0.len()).map_err(|error| error.to_string())
        };
        assert_eq!(of(&["q:scale=2", "k:scale=3"]), Ok(3));
        assert_eq!(of(&["scale:constant=2"]), Err("`scale` is given twice, by --set and by --data".to_owned()));
        assert_eq!(of(&["q:scale=2", "q:scale=3"]), Err("`q` is given twice, by --data".to_owned()));
    }

    #[test]
    fn missing_sizes_are_named_or_assumed() {
        let s = subject(&[], &["B=1,H=2,G=2,M=64"]).expect("all are known");
        assert_eq!(
            s.all_sizes().expect_err("no N").to_string(),
            "kernel `causal_attention` needs the sizes N; give --shape N=.."
        );
        let sizes = subject(&[], &["M=64"]).expect("known").typical_sizes();
        assert_eq!((sizes["M"], sizes["N"], sizes["H"]), (64, 4096, 16));
    }

    /// The tables of rotary embedding have no axis: what the kernel reads of their columns is what they need.
    #[test]
    fn assumed_sizes_are_as_long_as_ranges_reach() {
        let flags =
            SubjectFlags { kernel: "causal_rope_attention".into(), dtype: DType::F16, set: Vec::new(), shape: Vec::new() };
        let s = flags.open().expect("a built-in");
        assert_eq!((s.typical_sizes()["C"], s.small_sizes(&[100], 0)["C"]), (TYPICAL_CONST / 2, TYPICAL_CONST / 2));
        assert_eq!(s.small_sizes(&[100], 0)["H"], 2);
    }

    #[test]
    fn facts_follow_the_scalars() {
        let positive = |set: &[&str]| facts("causal_attention", set, &[]).positive.contains("scale");
        assert!(positive(&[]));
        assert!(!positive(&["scale=-1"]));
    }

    #[test]
    fn facts_follow_the_sizes() {
        let foldable = |kernel: &str, shape: &str| facts(kernel, &[], &[shape]).foldable;
        assert!(foldable("attention", "H=8,G=2") && foldable("attention", "M=1"));
        assert!(!foldable("attention", "H=6,G=4"));
        assert!(foldable("causal_attention", "H=8,G=2"));
        assert!(!foldable("rope_attention", "H=8,G=2"));
        let odd = facts("bias_attention", &[], &["N=333"]);
        assert_eq!(["q", "k", "bias"].map(|name| odd.alignment_of(name)), [16, 16, 2]);
        assert_eq!(facts("attention", &["D=36"], &[]).alignment, 8);
    }
}
