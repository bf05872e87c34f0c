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
    let field = |p: &Parameter| match &p.shape {
        Some(shape) => {
            let output = if p.output { ", written" } else { "" };
            let elem = p.elem.name();
            format!("    flashtile_tensor {}; /* {elem} ({}){output} */\n", field_name(p), shape.join(", "))
        }
        None => format!("    {} {};\n", scalar_type(p), field_name(p)),
    };
    let fields: String = kernel.parameters.iter().map(field).collect();
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
    let argument = |p: &Parameter| {
        let field = field_name(p);
        match (&p.shape, p.elem) {
            (Some(_), _) => format!("{{&arguments->{field}, 0.0f, 0}}"),
            (None, Elem::I32) => format!("{{NULL, 0.0f, arguments->{field}}}"),
            (None, _) => format!("{{NULL, arguments->{field}, 0}}"),
        }
    };
    let arguments: Vec<String> = kernel.parameters.iter().map(argument).collect();
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

/// Words of C and C++ that a parameter may be called by.
const RESERVED: &[&str] = &[
    "alignas",
    "and",
    "auto",
    "bool",
    "break",
    "case",
    "char",
    "class",
    "const",
    "continue",
    "default",
    "delete",
    "do",
    "double",
    "else",
    "enum",
    "export",
    "extern",
    "float",
    "for",
    "goto",
    "if",
    "inline",
    "int",
    "long",
    "namespace",
    "new",
    "not",
    "operator",
    "or",
    "private",
    "protected",
    "public",
    "register",
    "restrict",
    "return",
    "short",
    "signed",
    "sizeof",
    "static",
    "struct",
    "switch",
    "template",
    "this",
    "typedef",
    "union",
    "unsigned",
    "using",
    "virtual",
    "void",
    "volatile",
    "while",
    "xor",
];

/// Name of the field of a parameter: its own, with an underscore where C or C++ has that word.
pub(in crate::bundle) fn field_name(parameter: &Parameter) -> String {
    let reserved = RESERVED.contains(&parameter.name.as_str());
    parameter.name.clone() + if reserved { "_" } else { "" }
}

fn scalar_type(parameter: &Parameter) -> &'static str {
    if parameter.elem == Elem::I32 { "int32_t" } else { "float" }
}
