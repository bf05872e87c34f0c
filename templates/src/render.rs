//! Loads the templates into tera and renders them.

use std::sync::OnceLock;

use serde::Serialize;
use tera::{Context, Delimiters, Tera};

/// A template failed to parse or render.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[error("template {template}: {message}")]
pub struct Error {
    /// Name of the template.
    pub template: String,
    /// What tera says.
    pub message: String,
}

/// A context that knows its template.
pub trait Template: Serialize {
    /// Name of the template.
    const NAME: &'static str;
}

macro_rules! sources {
    ($($name:literal),+ $(,)?) => {
        /// Every template: its name and its text.
        pub(crate) const SOURCES: &[(&str, &str)] = &[$(($name, include_str!(concat!("../cuda/", $name, ".cu.j2")))),+];
    };
}

sources! {
    "kernel", "entry",
    "device/circle", "device/copy_cp_async", "device/copy_sync", "device/division", "device/infinite", "device/integer", "device/integer_signed", "device/integer_wide", "device/integer_wrapping", "device/list_again", "device/load_bits", "device/load_bytes", "device/load_quad", "device/load_shifted", "device/load_turned", "device/narrow", "device/part", "device/quad", "device/tile_extremes", "device/truth_bits", "device/block_extremes", "device/nonzero", "device/tiles_listed", "device/search",
    "device/select", "device/store_quad", "device/tanh", "device/tanh_absolute", "device/tile", "device/widen", "device/widen_pair",
    "device/descriptor", "ptx/elect", "ptx/mov", "ptx/red_add", "ptx/red_add_run", "ptx/tma_reduce", "ptx/bulk_group", "ptx/st_global", "ptx/rcp", "ptx/mbarrier", "ptx/named_barrier", "ptx/barrier_vote", "ptx/prefetch_map", "ptx/tma", "ptx/uniform", "ptx/warp_extremes", "ptx/wgmma", "ptx/wgmma_group",
    "ptx/cp_async", "ptx/div_full", "ptx/rcp_normal", "ptx/tanh", "ptx/ex2", "ptx/fmax", "ptx/max_of_three", "ptx/fmin", "ptx/ldmatrix_x2", "ptx/ldmatrix_x4", "ptx/stmatrix_x4", "ptx/proxy_fence", "ptx/lg2", "ptx/mma", "ptx/movmatrix",
    "ptx/narrow_bf16", "ptx/narrow_f16", "ptx/pack_bf16", "ptx/pack_f16", "ptx/shared_access", "ptx/shared_address",
    "statement/acquire", "statement/advance", "statement/release_before", "statement/barriers", "statement/exchange_phases", "statement/exchange_wait", "statement/exchange_say", "statement/dot_wgmma", "statement/fill", "statement/first_turn", "statement/loop_pairs", "statement/loop_together",
    "statement/otherwise", "statement/pass_turn", "statement/release", "statement/ring", "statement/role", "statement/settle",
    "statement/step", "statement/take_turn", "statement/work_consumers", "statement/work_producer",
    "statement/work_static", "statement/list", "statement/make_again",
    "ptx/cluster", "ptx/dependent_launch", "ptx/semaphore", "ptx/state_cluster", "ptx/state_global",
    "statement/await_part", "statement/cluster_barrier", "statement/pass_part", "statement/state",
    "statement/assign", "statement/barrier", "statement/commit", "statement/compute", "statement/copy", "statement/declare", "statement/dot_ffma",
    "statement/dot_mma", "statement/let", "statement/load_fragment", "statement/load_fragments", "statement/load_global", "statement/load_pairs", "statement/loop", "statement/map",
    "statement/pack", "statement/distribute", "statement/quad_max", "statement/quad_sum", "statement/reduce", "statement/stage", "statement/stage_packed", "statement/stage_turned", "statement/publish", "statement/merge", "statement/store_column",
    "statement/add_at", "statement/add_elements", "statement/add_rows", "statement/bulk_end", "statement/put_rows", "statement/read_rows", "statement/store_elements", "statement/store_fragment", "statement/store_pairs", "statement/store_row", "statement/vote", "statement/wait", "statement/when",
}

/// Renders contexts.
#[derive(Debug)]
pub struct Renderer {
    tera: Tera,
}

impl Renderer {
    /// The renderer of the process: templates are parsed once.
    ///
    /// # Errors
    /// A template does not parse.
    pub fn shared() -> Result<&'static Self, Error> {
        static SHARED: OnceLock<Result<Renderer, Error>> = OnceLock::new();
        SHARED.get_or_init(Self::new).as_ref().map_err(Clone::clone)
    }

    /// Parses all templates.
    fn new() -> Result<Self, Error> {
        let mut tera = Tera::default();
        // PTX operands are written `{%0, %1}`, so block tags are `<% %>`.
        let delimiters = Delimiters {
            block_start: "<%".into(),
            block_end: "%>".into(),
            comment_start: "<#".into(),
            comment_end: "#>".into(),
            ..Delimiters::default()
        };
        tera.set_delimiters(delimiters).map_err(|e| Error { template: "(delimiters)".into(), message: e.to_string() })?;
        tera.add_raw_templates(SOURCES.iter().copied())
            .map_err(|e| Error { template: "(all)".into(), message: e.to_string() })?;
        Ok(Self { tera })
    }

    /// Renders `context` with its template.
    pub fn render<T: Template>(&self, context: &T) -> Result<String, Error> {
        self.render_named(T::NAME, context)
    }

    /// Renders `context` with the template of this name.
    pub(crate) fn render_named(&self, name: &str, context: &impl Serialize) -> Result<String, Error> {
        let error = |e: tera::Error| Error { template: name.into(), message: describe(&e) };
        let context = Context::from_serialize(context).map_err(error)?;
        self.tera.render(name, &context).map_err(error)
    }
}

/// The error with its causes.
fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
