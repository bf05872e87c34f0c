//! The functions of kernels: what the header declares, and their definitions, which pass arguments
//! on.

use std::fmt::Write as _;

use flashtile_dsl::ir::Elem;

use super::super::contract::{KernelContract, Parameter};

/// How the header ends.
pub(super) const END: &str = "#ifdef __cplusplus\n}\n#endif\n\n#endif\n";

/// The arguments of a kernel as a struct, and its functions.
pub(super) fn declarations(kernel: &KernelContract) -> String {
    let name = &kernel.name;
    let field = |(p, field): (&Parameter, String)| match &p.shape {
        Some(shape) => {
            let output = if p.output { ", written" } else { "" };
            let elem = p.elem.name();
            format!("    flashtile_tensor {field}; /* {elem} ({}){output} */\n", shape.join(", "))
        }
        None => format!("    {} {field};\n", scalar_type(p)),
    };
    let fields: String = kernel.parameters.iter().zip(field_names(&kernel.parameters)).map(field).collect();
    let archs: Vec<&str> = kernel.architectures.iter().map(|arch| arch.arch.as_str()).collect();
    let mut out = format!("/* {}: code for {}. */\n", kernel.kernel, archs.join(", "));
    let _ = write!(out, "typedef struct {name}_arguments {{\n{fields}}} {name}_arguments;\n\n");
    let _ = writeln!(out, "/* Bytes of workspace that a launch with these arguments needs on the GPU of the current context. */");
    let _ = writeln!(
        out,
        "flashtile_status {name}_workspace(const {name}_arguments *arguments, uint64_t *bytes, flashtile_error *error);\n"
    );
    let _ = writeln!(out, "/* Queues a launch on a stream. `error` may be null. */");
    let _ = writeln!(
        out,
        "flashtile_status {name}(const {name}_arguments *arguments, flashtile_workspace workspace, struct CUstream_st *stream, \
         flashtile_error *error);\n"
    );
    out
}

/// The definitions of these functions.
pub(super) fn definitions(kernel: &KernelContract) -> String {
    let name = &kernel.name;
    let count = kernel.parameters.len();
    let argument = |(p, field): (&Parameter, String)| match (&p.shape, p.elem) {
        (Some(_), _) => format!("{{&arguments->{field}, 0.0f, 0}}"),
        (None, Elem::I32) => format!("{{NULL, 0.0f, arguments->{field}}}"),
        (None, _) => format!("{{NULL, arguments->{field}, 0}}"),
    };
    let arguments: Vec<String> = kernel.parameters.iter().zip(field_names(&kernel.parameters)).map(argument).collect();
    let all = format!("    const ft_argument all[{count}] = {{{}}};\n", arguments.join(", "));
    let mut out = String::new();
    let _ = write!(
        out,
        "flashtile_status {name}_workspace(const {name}_arguments *arguments, uint64_t *bytes, flashtile_error *error) {{\n{all}    \
         return ft_workspace_bytes(&ft_{name}, all, bytes, error);\n}}\n\n"
    );
    let _ = write!(
        out,
        "flashtile_status {name}(const {name}_arguments *arguments, flashtile_workspace workspace, struct CUstream_st *stream, \
         flashtile_error *error) {{\n{all}    return ft_launch(&ft_{name}, all, workspace, stream, error);\n}}\n\n"
    );
    out
}

/// Words of C and C++, and macros of compilers and of headers that programs often have.
const RESERVED: &str = "\
    alignas alignof and and_eq asm assert auto bitand bitor bool break case catch char char16_t char32_t char8_t class \
    co_await co_return co_yield compl complex concept const const_cast consteval constexpr constinit continue decltype default \
    delete do double dynamic_cast else enum errno explicit export extern false float for friend goto I i386 if imaginary \
    inline int linux long mutable namespace new noexcept noreturn not not_eq nullptr offsetof operator or or_eq private \
    protected public register reinterpret_cast requires restrict return sa_handler sa_sigaction short signed sizeof static \
    static_assert static_cast stderr stdin stdout struct switch template this thread_local throw true try typedef typeid \
    typename typeof typeof_unqual union unix unsigned using virtual void volatile wchar_t while xor xor_eq";

/// Names of the fields of parameters: their own. With an underscore where C or C++ may have the word
/// for something else: a word, a name of capitals, by which macros are called, or a name that begins
/// with an underscore, which implementations keep for themselves (C11, 7.1.3).
pub(in crate::bundle) fn field_names(parameters: &[Parameter]) -> Vec<String> {
    let is_macro = |name: &str| name.len() > 1 && !name.contains(|c: char| c.is_ascii_lowercase());
    let is_taken = |name: &str| name.starts_with('_') || is_macro(name) || RESERVED.split_whitespace().any(|word| word == name);
    let mut names: Vec<String> = parameters.iter().map(|parameter| parameter.name.clone()).collect();
    for at in 0..names.len() {
        if !is_taken(&names[at]) {
            continue;
        }
        let mut name = names[at].clone() + "_";
        while names.contains(&name) {
            name += "_";
        }
        names[at] = name;
    }
    names
}

fn scalar_type(parameter: &Parameter) -> &'static str {
    if parameter.elem == Elem::I32 { "int32_t" } else { "float" }
}
