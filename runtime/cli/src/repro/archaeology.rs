//! FlashAttention-1, whose outer loop walks keys and whose state lies in global memory; FlashAttention-2, and what happens to its bank
//! conflicts.
//!
//! Source: "I rebuilt FlashAttention in Triton to understand the performance archaeology"; B = 10, H = 64, N = 1024, d = 32.

use flashtile::Elem;

use super::experiment::{Cell, Experiment, How, Launch, Profiled, Row, Section, Style, Table, Text, Unit, Work};
use super::peers::{Library, Peer};

pub const EXPERIMENT: Experiment = Experiment {
    name: "archaeology",
    post: "I rebuilt FlashAttention in Triton to understand the performance archaeology",
    about: "FlashAttention-1 and its traffic, FlashAttention-2 with plain, padded and swizzled tiles, and with K transposed before; its bank conflicts",
    sections,
};

const PUBLISHED_ON: &str = "RTX 2070";

/// A version of the kernel.
struct Version {
    name: &'static str,
    /// Beside [`TILE`].
    knobs: &'static str,
    head_dim: i64,
    /// The version that its gain is over.
    over: Option<&'static str>,
    /// Milliseconds in the post.
    published: Option<f64>,
    profiled: Option<Profiled>,
}

/// Nothing published.
const NONE: Profiled = Profiled { bytes: None, occupancy: None, load_ways: None, store_ways: None };

/// Tiles of 32 by 32, as published; of 2 warps, since a warp owns 16 rows or more. Copies are synchronous, as on Turing.
const TILE: &str = "block_m=32,block_n=32,warps=2,copy=sync,stages=1,running_max=exact,exponential=exp";

/// FlashAttention-1, with its state in global memory.
const V1: Profiled = Profiled { bytes: Some((11.58e9, 5.54e9)), occupancy: Some((0.25, "shared")), ..NONE };
const V2: Profiled = Profiled { bytes: Some((412.18e6, 80e6)), occupancy: Some((0.63, "shared")), load_ways: Some(6.3), ..NONE };

const VERSIONS: [Version; 7] = [
    // The post counts 64 chunks of keys: tiles of 16 by 16, of one warp.
    Version {
        name: "v1",
        knobs: "swizzle=off,loop_order=interchanged,block_m=16,block_n=16,warps=1",
        head_dim: 32,
        over: None,
        published: Some(166.47),
        profiled: Some(V1),
    },
    Version {
        name: "v1, tiles of 32",
        knobs: "swizzle=off,loop_order=interchanged",
        head_dim: 32,
        over: Some("v1"),
        published: None,
        profiled: None,
    },
    // Published as 6% faster than v1, without a time.
    Version { name: "v2", knobs: "swizzle=off", head_dim: 32, over: Some("v1"), published: Some(157.0), profiled: Some(V2) },
    Version {
        name: "v2 padded head dim",
        knobs: "swizzle=off",
        head_dim: 64,
        over: Some("v2"),
        published: None,
        profiled: Some(Profiled { store_ways: Some(3.4), ..NONE }),
    },
    Version { name: "v2 padded rows", knobs: "swizzle=padded", head_dim: 32, over: Some("v2"), published: None, profiled: None },
    Version { name: "v2 swizzled", knobs: "swizzle=xor", head_dim: 32, over: Some("v2"), published: None, profiled: None },
    Version {
        name: "v2, K transposed before",
        knobs: "swizzle=off,b_layout=pretransposed",
        head_dim: 32,
        over: Some("v2"),
        published: Some(34.0),
        profiled: None,
    },
];

fn launch(elem: Elem, d: i64, how: How) -> Launch {
    let sizes = [("B", 10), ("H", 64), ("G", 64), ("M", 1024), ("N", 1024), ("D", d)];
    Launch::new(Text::Builtin("attention"), elem, &sizes, how)
}

fn table(name: &'static str, caption: &'static str, elem: Elem, product: &str) -> Section {
    // The post's figures are those of f32.
    let is_published = elem == Elem::F32;
    let row = |series: &'static str, work, over| {
        let cell = Cell { series, work, published: None, profiled: None };
        Row { label: series.to_owned(), x: 0.0, over, cells: vec![cell] }
    };
    let mut rows: Vec<Row> = VERSIONS
        .iter()
        .map(|version| {
            let how = How::Knobs(format!("{TILE}{product},{}", version.knobs));
            let mut row = row(version.name, Work::Ours(launch(elem, version.head_dim, how).into()), version.over);
            row.cells[0].published = version.published.filter(|_| is_published);
            row.cells[0].profiled = version.profiled.filter(|_| is_published);
            row
        })
        .collect();
    rows.push(row("tuned", Work::Ours(launch(elem, 32, How::Tuned).into()), Some("v2")));
    let peer = Peer { what: Library::Sdpa, like: launch(elem, 32, How::Tuned), causal: false };
    rows.push(row("SDPA", Work::Peer(peer), None));
    let published_on = is_published.then_some(PUBLISHED_ON);
    Section::Table(Table { name, caption, unit: Unit::Milliseconds, published_on, style: Style::Steps, rows, ratios: &[] })
}

fn sections() -> Vec<Section> {
    vec![
        table(
            "f32",
            "Versions of FlashAttention; B = 10, H = 64, N = 1024, d = 32, f32 on scalar units",
            Elem::F32,
            ",tensor_op=ffma",
        ),
        // Through the `mma.sync` of the architecture.
        table("f16", "Versions of FlashAttention; B = 10, H = 64, N = 1024, d = 32, f16 on tensor cores", Elem::F16, ""),
    ]
}
