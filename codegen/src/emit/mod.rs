//! From a plan to CUDA C: every statement becomes one typed context, rendered by its template.

mod ahead;
mod compute;
mod expression;
mod file;
mod meeting;
mod memory;
mod product;
mod roles;
mod straight;
mod writer;

pub use file::fields;
pub use writer::{Emission, Head, LaunchWait};

use std::collections::BTreeSet;

use flashtile_templates::Renderer;

use crate::error::Error;
use crate::plan::Completion;
use writer::Writer;

/// The whole file.
pub fn emit(head: &Head<'_>, launches: &[Emission<'_>]) -> Result<String, Error> {
    let entries = launches.iter().map(entry).collect::<Result<Vec<_>, _>>()?;
    file::file(head, launches, entries)
}

/// The entry point of a launch, with what it needs.
fn entry(emission: &Emission<'_>) -> Result<String, Error> {
    let renderer = Renderer::shared()?;
    let (wrappers, completion) = (BTreeSet::new(), Completion::of(emission.plan));
    let mut writer = Writer { e: emission, renderer, wrappers, line: None, depth: 1, role: 0, completion };
    let mut body = String::new();
    if emission.plan.is_specialized() {
        body = writer.roles()?;
    } else {
        body.push_str(&writer.meet_launches());
        writer.names(&mut body)?;
        for role in &emission.plan.roles {
            body.push_str(&writer.block(&role.body)?);
        }
        body.push_str(&writer.wait_for_launch(LaunchWait::Last));
    }
    writer.entry(body)
}
