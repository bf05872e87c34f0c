//! FlashAttention-2, and what happens to its bank conflicts. FlashAttention-1, whose outer loop walks keys and whose state lies in
//! global memory, is not among them: no schedule exchanges the loops yet.
//!
//! Source: "I rebuilt FlashAttention in Triton to understand the performance archaeology"; B = 10, H = 64, N = 1024, d = 32.

use flashtile::Elem;

use super::experiment::{Cell, Experiment, How, Launch, Row, Section, Style, Table, Text, Unit, Work};
use super::peers::{Library, Peer};

pub const EXPERIMENT: Experiment = Experiment {
    name: "archaeology",
    post: "I rebuilt FlashAttention in Triton to understand the performance archaeology",
    about: "FlashAttention-2 with plain, padded and swizzled tiles, and with K transposed before; its bank conflicts",
    sections,
};

const PUBLISHED_ON: &str = "RTX 2070";

/// A version: its name, its knobs, its head dim, and the published milliseconds.
struct Version(&'static str, &'static str, i64, Option<f64>);

/// Tiles of 32 by 32, as published; of 2 warps, since a warp owns 16 rows or more. Copies are synchronous, as on Turing.
const TILE: &str = "block_m=32,block_n=32,warps=2,copy=sync,stages=1,running_max=exact,exponential=exp";

const VERSIONS: [Version; 5] = [
    // Published as 6% faster than v1, which takes 166.47 ms.
    Version("v2", "shared=plain", 32, Some(157.0)),
    Version("v2 padded head dim", "shared=plain", 64, None),
    Version("v2 padded rows", "shared=padded", 32, None),
    Version("v2 swizzled", "shared=xor", 32, None),
    Version("v2, K transposed before", "shared=plain,b_layout=pretransposed", 32, None),
];

fn launch(elem: Elem, d: i64, how: How) -> Launch {
    let sizes = [("B", 10), ("H", 64), ("G", 64), ("M", 1024), ("N", 1024), ("D", d)];
    Launch::new(Text::Builtin("attention"), elem, &sizes, how)
}

fn table(name: &'static str, caption: &'static str, elem: Elem, tensor_op: &str) -> Section {
    let row = |series: &'static str, work, published| Row {
        label: series.to_owned(),
        x: 0.0,
        cells: vec![Cell { series, work, published }],
    };
    // The post's figures are those of f32.
    let published = |ms: Option<f64>| ms.filter(|_| elem == Elem::F32);
    let mut rows: Vec<Row> = VERSIONS
        .iter()
        .map(|Version(name, knobs, d, ms)| {
            let how = How::Knobs(format!("{TILE},tensor_op={tensor_op},{knobs}"));
            row(name, Work::Ours(launch(elem, *d, how).into()), published(*ms))
        })
        .collect();
    rows.push(row("tuned", Work::Ours(launch(elem, 32, How::Tuned).into()), None));
    let peer = Peer { what: Library::Sdpa, like: launch(elem, 32, How::Tuned), causal: false };
    rows.push(row("SDPA", Work::Peer(peer), None));
    let published_on = (elem == Elem::F32).then_some(PUBLISHED_ON);
    Section::Table(Table { name, caption, unit: Unit::Milliseconds, published_on, style: Style::Steps, rows })
}

fn sections() -> Vec<Section> {
    vec![
        table("f32", "Versions of FlashAttention; B = 10, H = 64, N = 1024, d = 32, f32 on scalar units", Elem::F32, "ffma"),
        table(
            "f16",
            "Versions of FlashAttention; B = 10, H = 64, N = 1024, d = 32, f16 on tensor cores",
            Elem::F16,
            "mma_m16n8k16",
        ),
    ]
}
