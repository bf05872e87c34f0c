//! The compiler behind a page: a request and its answer are JSON, and the three functions of
//! [`wasm`] carry them.
//!
//! | file | subject |
//! | --- | --- |
//! | `request` | what a page asks for |
//! | `check` | diagnostics of a text, and what its kernels are called with |
//! | `subject` | a kernel, types, sizes, an architecture and a schedule |
//! | `compile` | every stage from kernel text to CUDA C |
//! | `masks` | tiles of loops as pictures |
//! | `knob` | the values of a knob, with the reasons against each |
//! | `run` | a kernel on small random tensors |
//! | `place` | places in a text as a browser counts them |
//! | `wasm` | the functions that a page calls |
//!
//! Nothing is decided here: the crates `flashtile-dsl` and `flashtile-codegen` do all work, as they
//! do for `flashtile inspect`. No GPU is known, so that the machine of the cost model is the
//! typical one of the architecture.

mod check;
mod compile;
mod knob;
mod masks;
mod place;
mod request;
mod run;
mod subject;
pub mod wasm;

use flashtile_codegen::{ARCHS, KNOBS};
use serde_json::{Value, json};

use request::Request;
pub use subject::Fault;

/// The answer to a request; both are JSON texts. A fault is an answer too:
/// `{"error": {"message", "reasons"}}`.
pub fn answer(request: &str) -> String {
    let answer = serde_json::from_str(request).map_err(|error| Fault::plain(format!("not a request: {error}"))).and_then(of);
    answer.unwrap_or_else(|fault| fault.json()).to_string()
}

fn of(request: Request) -> Result<Value, Fault> {
    match request {
        Request::About => Ok(about()),
        Request::Check { text } => Ok(check::check(&text)),
        Request::Compile(asked) => compile::compile(&asked),
        Request::Run(asked) => run::run(&asked),
        Request::Knob { asked, knob } => knob::values(&asked, &knob),
    }
}

/// What there is to choose from.
fn about() -> Value {
    let knobs = KNOBS.iter().map(|k| json!({ "name": k.name, "doc": k.doc, "values": (k.values)() }));
    json!({
        "archs": ARCHS.iter().map(|arch| arch.name).collect::<Vec<_>>(),
        "dtypes": request::DTYPES.map(|(name, _)| name),
        "knobs": knobs.collect::<Vec<_>>(),
    })
}
