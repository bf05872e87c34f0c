//! Names in generated code. Kernel text may use any identifier of Rust; C++ and CUDA have names of their own, and so do the
//! templates.
//!
//! Plans have names of their own, which are made names of C where text is made ([`in_c`]).
//! A name stays as it is wherever it can. Else an underscore is appended, and letters beyond ASCII are written as their
//! code points. This module alone knows which names are taken. Names in the calling contract ([`crate::Abi`]) are those of
//! the kernel text, but for the entry point, which is a name of the generated file.

use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;

use flashtile_templates::identifiers;

use crate::plan::Plan;

/// Keywords and alternative tokens of C++20, and what CUDA adds. They can be no name at all.
const KEYWORDS: &str = "alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t class \
    compl concept const consteval constexpr constinit const_cast continue co_await co_return co_yield decltype default delete do \
    double dynamic_cast else enum explicit export extern false float for friend goto if inline int long mutable namespace new \
    noexcept not not_eq nullptr operator or or_eq private protected public register reinterpret_cast requires return short signed \
    sizeof static static_assert static_cast struct switch template this thread_local throw true try typedef typeid typename union \
    unsigned using virtual void volatile wchar_t while xor xor_eq linux unix typeof NULL INFINITY NAN assert";

/// Names that the text of generated code uses, where Rust code writes it.
const WRITTEN: &str = "mt nt kt np e r odd lane warp shared params first_row first_column column_group \
    program group leader uniform_warp THREADS WIDTH workspace \
    u32 u64 i64 f16 bf16 TensorMap Params shared_memory";

/// Names of variables and types that CUDA C++ defines.
const BUILT_IN: &str = "threadIdx blockIdx blockDim gridDim warpSize dim3 cudaStream_t size_t ptrdiff_t nullptr_t clock_t std cuda \
    nvcuda main";

/// Functions that CUDA C++, or the C library that it declares, defines. An entry point is a C function beside them.
const FUNCTIONS: &str = "abort abs acos acosh asin asinh atan atan2 atanh atof atoi atol calloc cbrt ceil clock clock64 copysign cos \
    cosh cospi cyl_bessel_i0 cyl_bessel_i1 div erf erfc erfcinv erfcx erfinv exit exp exp10 exp2 expm1 fabs fdim fdivide floor fma \
    fmax fmin fmod free frexp fpclassify getenv hypot ilogb isfinite isgreater isinf isless isnan isnormal j0 j1 jn labs ldexp \
    ldiv lgamma llabs llmax llmin llrint llround log log10 log1p log2 logb lrint lround malloc max memccpy memchr memcmp memcpy \
    memmove memset min modf nan nanosleep nearbyint nextafter norm norm3d norm4d normcdf normcdfinv pow powi printf qsort rand \
    rcbrt realloc remainder remquo rhypot rint rnorm rnorm3d rnorm4d round rsqrt scalbln scalbn select signbit sin sincos sincospi \
    sinh sinpi sqrt srand strcat strchr strcmp strcpy strlen strncmp strtod system tan tanh tgamma time trap trunc umax umin ullmax \
    ullmin vprintf y0 y1 yn surfaceReference textureReference saturate rsqrtf";

/// Where a name stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Scope {
    /// A field of the parameter block.
    Field,
    /// A variable of the kernel.
    Local,
    /// An entry point.
    Entry,
}

/// Whether the name is taken as such.
fn is_taken(name: &str, scope: Scope) -> bool {
    static SETS: OnceLock<[HashSet<&'static str>; 3]> = OnceLock::new();
    let [keywords, globals, functions] = SETS.get_or_init(|| {
        let words = |text: &'static str| text.split_whitespace().collect::<HashSet<_>>();
        let macros = identifiers().everywhere.iter().filter(|n| n.chars().all(|c| !c.is_ascii_lowercase()));
        let keywords =
            words(KEYWORDS).into_iter().chain(words("u32 u64 i64 f16 bf16 TensorMap Params workspace")).chain(macros.copied());
        let globals = words(WRITTEN).into_iter().chain(words(BUILT_IN)).chain(identifiers().everywhere.iter().copied());
        [keywords.collect(), globals.collect(), words(FUNCTIONS)]
    });
    // C++ reserves names with two underscores, or with one and a capital.
    let reserved =
        name.contains("__") || name.strip_prefix('_').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()));
    let vector = || {
        let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
        stem.len() + 1 == name.len()
            && ["char", "uchar", "short", "ushort", "int", "uint", "long", "ulong", "longlong", "ulonglong", "float", "double"]
                .contains(&stem)
    };
    let function = || {
        let float = name.strip_suffix('f').is_some_and(|stem| functions.contains(stem));
        functions.contains(name) || float || name.starts_with("atomic") || name.starts_with("cuda")
    };
    let suffix = || identifiers().suffixes.iter().any(|suffix| name.ends_with(suffix));
    let stride = || {
        let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
        stem.len() < name.len() && stem.ends_with("_stride")
    };
    keywords.contains(name)
        || reserved
        || match scope {
            Scope::Field => stride(),
            Scope::Local => globals.contains(name) || vector() || suffix() || name.starts_with("lane_"),
            Scope::Entry => globals.contains(name) || vector() || function(),
        }
}

/// The name in ASCII; different names stay different.
fn ascii(name: &str) -> String {
    if name.is_ascii() && !name.starts_with("u_") {
        return name.to_owned();
    }
    let mut text = String::from("u_");
    for c in name.chars() {
        match c {
            'Z' => text.push_str("ZZ"),
            c if c.is_ascii() => text.push(c),
            c => text.push_str(&format!("Z{:x}Z", u32::from(c))),
        }
    }
    text
}

fn free(name: &str, scope: Scope) -> String {
    let mut text = ascii(name);
    // A name that is free only for an underscore gets another, so that no two names become one.
    if is_taken(&text, scope) || is_taken(text.trim_end_matches('_'), scope) {
        text.push('_');
    }
    text
}

/// A parameter or a size as a field of the parameter block.
pub(crate) fn field(name: &str) -> String {
    free(name, Scope::Field)
}

/// A kernel as an entry point.
pub(crate) fn entry(name: &str) -> String {
    free(name, Scope::Entry)
}

/// A plan with names that C takes: what text is made of.
pub(crate) fn in_c(plan: &Plan) -> Plan {
    let mut used: HashSet<String> = HashSet::new();
    let mut given: HashMap<String, String> = HashMap::new();
    let mut give = |name: &str, wanted: String| {
        if given.contains_key(name) {
            return;
        }
        let mut text = free(&wanted, Scope::Local);
        let mut number = 2;
        while !used.insert(text.clone()) {
            text = free(&format!("{wanted}_{number}"), Scope::Local);
            number += 1;
        }
        given.insert(name.to_owned(), text);
    };
    let variables = plan.variables.iter().map(|v| &v.name);
    for name in variables.chain(plan.loops.iter().map(|l| &l.coordinate)) {
        // Statements of products name their operands themselves.
        let in_products = identifiers().in_products.contains(name.as_str());
        give(name, if in_products { format!("{name}_tile") } else { name.clone() });
    }
    let mut renamed = plan.clone();
    renamed.names_mut(&mut |name| give(name, name.clone()));
    renamed.names_mut(&mut |name| name.clone_from(&given[name.as_str()]));
    renamed
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Loops that Rust code writes around expressions of the kernel's own names.
    #[test]
    fn loops_in_rust_code_have_names_that_no_kernel_has() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/emit");
        let mut seen = HashSet::new();
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let text = std::fs::read_to_string(entry.expect("readable").path()).expect("readable");
            seen.extend(text.split("EACH(").skip(1).filter_map(|rest| Some(rest.split_once(',')?.0.to_owned())));
        }
        assert!(seen.contains("nt") && seen.contains("odd"), "{seen:?}");
        let of_kernels: Vec<&String> = seen.iter().filter(|name| !is_taken(name, Scope::Local)).collect();
        assert!(of_kernels.is_empty(), "{of_kernels:?}");
    }

    #[test]
    fn names_stay_where_they_can() {
        for name in ["q", "acc", "scale", "B", "alpha", "m_new", "fmaximum", "float_scale", "u", "attention", "b", "x"] {
            assert_eq!([field(name), entry(name), free(name, Scope::Local)], [name; 3], "{name}");
        }
        assert_eq!([field("exp"), field("row"), field("threadIdx")], ["exp", "row", "threadIdx"], "a field hides nothing");
    }

    #[test]
    fn taken_names_get_an_underscore_and_stay_different() {
        for name in ["int", "new", "EACH", "DEVICE", "f16", "class", "u32"] {
            assert_eq!([field(name), entry(name), free(name, Scope::Local)], [(); 3].map(|()| format!("{name}_")), "{name}");
        }
        assert_eq!(
            [entry("expf"), entry("atomicAdd"), entry("widen"), entry("main")],
            ["expf_", "atomicAdd_", "widen_", "main_"]
        );
        assert_eq!([free("float4", Scope::Local), free("row", Scope::Local)], ["float4_", "row_"]);
        assert_eq!(
            [free("k_slot", Scope::Local), field("q_stride0"), field("workspace")],
            ["k_slot_", "q_stride0_", "workspace_"]
        );
        assert_eq!([field("α"), field("u_a"), field("überα")], ["u_Z3b1Z", "u_u_a", "u_ZfcZberZ3b1Z"]);
        let names = ["int", "int_", "int__", "new", "new_", "α", "u_α", "u_", "q_stride0", "q_stride0_", "_Q", "a__b"];
        let all: HashSet<String> = names.iter().map(|name| field(name)).collect();
        assert_eq!(all.len(), names.len(), "{all:?}");
    }
}
