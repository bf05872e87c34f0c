//! A kernel, its types and sizes, an architecture and a schedule: from a request to what the
//! compiler takes.

use std::collections::BTreeMap;

use flashtile_codegen::{
    ARCHS, Arch, Error, Facts, Instance, Machine, Reason, Schedule, as_generated, check, closest, folded_rows, rank, says_all,
};
use flashtile_dsl::analysis::lengths;
use flashtile_dsl::ir::{Binding, Kernel, SizeKind};
use flashtile_dsl::syntax;
use serde_json::{Value, json};

use crate::check::source;
use crate::request::{Asked, DTYPES};

/// Why there is no answer.
#[derive(Clone, PartialEq, Debug)]
pub struct Fault {
    /// What is wrong.
    pub message: String,
    /// The reasons against a schedule.
    pub reasons: Vec<String>,
}

impl Fault {
    /// A fault that has no reasons.
    pub fn plain(message: impl ToString) -> Self {
        Self { message: message.to_string(), reasons: Vec::new() }
    }

    /// What a page is told.
    pub fn json(&self) -> Value {
        json!({ "error": { "message": self.message, "reasons": self.reasons } })
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self { message: error.to_string(), reasons: words(&error.into_reasons()) }
    }
}

/// Reasons in words.
pub fn words(reasons: &[Reason]) -> Vec<String> {
    reasons.iter().map(ToString::to_string).collect()
}

/// What a request is about.
pub struct Subject {
    /// The kernel as written, with its generics fixed.
    pub instance: Instance,
    /// The same as code is generated for it.
    pub generated: Instance,
    /// The architecture.
    pub arch: &'static Arch,
    /// A typical machine of the architecture.
    pub machine: Machine,
    /// Run-time sizes.
    pub sizes: BTreeMap<String, i64>,
}

impl Subject {
    /// Reads a request.
    pub fn of(asked: &Asked) -> Result<Self, Fault> {
        let kernels = syntax::parse(&source(&asked.text, &asked.file)).map_err(|errors| Fault::plain(first_line(&errors)))?;
        let kernel = match &asked.kernel {
            Some(name) => kernels.into_iter().find(|kernel| kernel.name == *name),
            None => kernels.into_iter().next(),
        };
        let kernel = kernel.ok_or_else(|| match &asked.kernel {
            Some(name) => Fault::plain(format!("the text has no kernel `{name}`")),
            None => Fault::plain("the text has no kernel; write `pub fn name(...) { ... }`"),
        })?;
        let elem = DTYPES.iter().find(|(name, _)| *name == asked.dtype).map(|(_, elem)| *elem);
        let elem = elem.ok_or_else(|| one_of("an element type", &asked.dtype, DTYPES.iter().map(|(name, _)| *name)))?;
        let arch = Arch::named(&asked.arch);
        let arch = arch.ok_or_else(|| one_of("an architecture", &asked.arch, ARCHS.iter().map(|arch| arch.name)))?;
        if let Some((name, size)) = asked.sizes.iter().find(|(_, size)| !(0..1 << 31).contains(*size)) {
            return Err(Fault::plain(format!("size `{name}` cannot be {size}; expected 0 to 2^31 - 1")));
        }
        if let Some(name) = asked.sizes.keys().find(|name| kernel.size_named(name).is_none()) {
            return Err(one_of("a size", name, kernel.sizes.values().map(|size| size.name.as_str())));
        }
        let consts = lengths::typical_consts(&kernel, &asked.sizes);
        let sizes = run_time_sizes(&kernel, &asked.sizes, &consts);
        let binding = Binding::new(&kernel, elem, consts);
        let mut facts = Facts::best(&kernel);
        let rows = folded_rows(&kernel, &binding);
        facts.foldable = rows.is_some_and(|rows| rows.sizes(|name| sizes.get(name).copied()).is_some());
        let instance = Instance { kernel, binding, facts };
        let kernel = as_generated(&instance.kernel, &instance.binding);
        let generated = Instance { kernel, ..instance.clone() };
        Ok(Self { instance, generated, arch, machine: Machine::typical(arch), sizes })
    }

    /// The schedule that the text means, as `flashtile inspect --schedule` takes it.
    pub fn schedule(&self, text: &str) -> Result<Schedule, Fault> {
        let given = Schedule::default().with(text).map_err(Fault::plain)?;
        if says_all(text) {
            return Ok(given);
        }
        let ranked = rank(&self.generated, self.arch, &self.sizes, &self.machine)?;
        let legal = |schedule: &Schedule| check(&self.generated, schedule, self.arch).is_legal();
        closest(ranked.iter().map(|(schedule, _)| schedule), text, legal).map_err(Fault::plain)
    }

    /// The value of a size by name.
    pub fn size(&self, name: &str) -> Option<i64> {
        self.instance.binding.consts.get(name).or_else(|| self.sizes.get(name)).copied()
    }
}

fn run_time_sizes(kernel: &Kernel, given: &BTreeMap<String, i64>, consts: &BTreeMap<String, i64>) -> BTreeMap<String, i64> {
    let names = kernel.sizes.values().filter(|size| size.kind == SizeKind::Runtime).map(|size| &size.name);
    let value = |name: &String| given.get(name).copied().unwrap_or_else(|| lengths::typical(kernel, name, consts));
    names.map(|name| (name.clone(), value(name))).collect()
}

fn first_line(errors: &syntax::Diagnostics) -> String {
    errors.list.first().map_or_else(String::new, |error| error.message.clone())
}

fn one_of<'a>(what: &str, given: &str, known: impl Iterator<Item = &'a str>) -> Fault {
    Fault::plain(format!("`{given}` is not {what}; expected {}", known.collect::<Vec<_>>().join(", ")))
}
