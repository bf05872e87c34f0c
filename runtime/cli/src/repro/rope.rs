//! Causal attention in f16 beside a naive one and SDPA; early stop; and rotary embedding fused or
//! outside.
//!
//! Source: "Writing FlashAttention in Triton (Part 2)"; B = 2, H = 16, d = 64, f16, causal.

use flashtile::Elem;

use super::experiment::{Cell, Experiment, How, Launch, Ratio, Row, Section, Sequence, Style, Table, Text, Unit, Work};
use super::peers::{Library, Peer};

pub const EXPERIMENT: Experiment = Experiment {
    name: "rope",
    post: "Writing FlashAttention in Triton (Part 2): From the Algorithm to a Real Kernel, and Fusing RoPE",
    about: "causal attention beside naive and SDPA, early stop on and off, rotary embedding fused and outside",
    sections,
};

const PUBLISHED_ON: &str = "RTX 4090";

/// A length, with what was published for it.
struct Length {
    n: i64,
    /// Milliseconds: naive, SDPA, ours.
    causal_ms: [f64; 3],
    /// TFLOP/s: naive, SDPA, ours.
    causal_rate: [f64; 3],
    /// TFLOP/s without and with early stop.
    early_stop: [f64; 2],
    /// Milliseconds: rotation outside and SDPA, rotation outside and ours, fused.
    rope: [f64; 3],
}

const LENGTHS: [Length; 5] = [
    Length {
        n: 512,
        causal_ms: [0.127, 0.032, 0.024],
        causal_rate: [8.5, 33.8, 45.6],
        early_stop: [45.6, 45.6],
        rope: [0.073, 0.071, 0.028],
    },
    Length {
        n: 1024,
        causal_ms: [0.719, 0.080, 0.054],
        causal_rate: [6.0, 53.8, 79.1],
        early_stop: [63.6, 79.1],
        rope: [0.137, 0.126, 0.062],
    },
    Length {
        n: 2048,
        causal_ms: [3.056, 0.189, 0.152],
        causal_rate: [5.6, 90.7, 113.4],
        early_stop: [74.9, 113.4],
        rope: [0.285, 0.260, 0.179],
    },
    Length {
        n: 4096,
        causal_ms: [12.104, 0.563, 0.516],
        causal_rate: [5.7, 122.0, 133.2],
        early_stop: [78.3, 133.2],
        rope: [0.770, 0.731, 0.623],
    },
    Length {
        n: 8192,
        causal_ms: [48.970, 1.946, 1.902],
        causal_rate: [5.6, 141.3, 144.6],
        early_stop: [78.8, 144.6],
        rope: [2.554, 2.486, 2.344],
    },
];

/// The tile of the post.
const TILE: &str = "block_m=64,block_n=64,warps=4,running_max=exact";
/// The tile that the post had in its fused kernel at first, beside one of 64 by 64 in the other: it
/// looked as if fusing lost. Of 2 warps, since a warp owns 16 rows or more.
const SMALL_TILE: &str = "block_m=32,block_n=32,warps=2,running_max=exact";
/// Milliseconds that were published for it: at this length alone.
const SMALL_TILE_MS: (i64, f64) = (8192, 3.19);

fn launch(kernel: &'static str, n: i64, how: How) -> Launch {
    let sizes = [("B", 2), ("H", 16), ("G", 16), ("M", n), ("N", n), ("D", 64), ("C", 32)];
    Launch::new(Text::Builtin(kernel), Elem::F16, &sizes, how)
}

fn tile(more: &str) -> How {
    How::Knobs(format!("{TILE},{more}"))
}

/// One table of angles for queries and keys.
const TABLES: [(&str, &str); 4] = [("cos_q", "cos"), ("sin_q", "sin"), ("cos_k", "cos"), ("sin_k", "sin")];

fn fused(n: i64, how: How) -> Launch {
    launch("causal_rope_attention", n, how).with(&TABLES)
}

fn outside(n: i64, how: How) -> Work {
    let rotate = |x, y| launch("rotate", n, How::Tuned).with(&[("x", x), ("y", y)]);
    let attention = launch("causal_attention", n, how).with(&[("q", "q_rotated"), ("k", "k_rotated")]);
    let launches = vec![rotate("q", "q_rotated"), rotate("k", "k_rotated"), attention];
    Work::Ours(Sequence { launches, oracle: Some(fused(n, How::Tuned)) })
}

fn peer(what: Library, n: i64) -> Work {
    Work::Peer(Peer { what, like: launch("causal_attention", n, How::Tuned), causal: true })
}

fn ours(n: i64, how: How) -> Work {
    Work::Ours(launch("causal_attention", n, how).into())
}

fn rows(cells: impl Fn(&Length) -> Vec<(&'static str, Work, Option<f64>)>) -> Vec<Row> {
    let row = |length: &Length| {
        let cell = |(series, work, published)| Cell { series, work, published, profiled: None };
        Row { label: length.n.to_string(), x: length.n as f64, over: None, cells: cells(length).into_iter().map(cell).collect() }
    };
    LENGTHS.iter().map(row).collect()
}

/// Rows of causal attention, with what was published of naive, SDPA and ours.
fn causal_rows(published: fn(&Length) -> [f64; 3]) -> Vec<Row> {
    rows(move |l| {
        let [naive, sdpa, own] = published(l);
        vec![
            ("naive, PyTorch", peer(Library::Naive, l.n), Some(naive)),
            ("SDPA", peer(Library::Sdpa, l.n), Some(sdpa)),
            ("SDPA (FA2)", peer(Library::Fa2, l.n), None),
            ("fused", ours(l.n, How::Tuned), Some(own)),
        ]
    })
}

/// Rows of attention with rotated queries and keys: all kernels under one schedule.
fn rope_rows(how: fn() -> How, published: bool) -> Vec<Row> {
    rows(move |l| {
        let [sdpa, own, fused_ms] = l.rope.map(|ms| published.then_some(ms));
        let mut cells = vec![
            ("rotated outside, SDPA", peer(Library::RotateSdpa, l.n), sdpa),
            ("rotated outside, ours", outside(l.n, how()), own),
            ("fused", Work::Ours(fused(l.n, how()).into()), fused_ms),
        ];
        match published {
            // The same tile, keys rotated by a launch ahead.
            true => {
                let ahead = fused(l.n, tile("precompute=b"));
                cells.push(("fused, keys ahead", Work::Ours(ahead.into()), None));
                let small = fused(l.n, How::Knobs(SMALL_TILE.to_owned()));
                let ms = (l.n == SMALL_TILE_MS.0).then_some(SMALL_TILE_MS.1);
                cells.push(("fused, tiles of 32", Work::Ours(small.into()), ms));
            }
            // What the post calls outside: PyTorch rotates, our kernel attends. The sum of these
            // two.
            false => {
                cells.push(("rotation alone, PyTorch", peer(Library::Rotate, l.n), None));
                cells.push(("attention alone, ours", ours(l.n, How::Tuned), None));
            }
        }
        cells
    })
}

/// Rows of causal attention without and with early stop.
fn early_stop_rows() -> Vec<Row> {
    rows(|l| {
        let [without, with] = l.early_stop;
        vec![
            ("without early stop", ours(l.n, tile("early_stop=off")), Some(without)),
            ("with early stop", ours(l.n, tile("early_stop=on")), Some(with)),
        ]
    })
}

fn sections() -> Vec<Section> {
    let table = |name, caption, unit, published: bool, rows, ratios| {
        let published_on = published.then_some(PUBLISHED_ON);
        Section::Table(Table { name, caption, unit, published_on, style: Style::Lines("N"), rows, ratios })
    };
    vec![
        table(
            "causal",
            "Causal attention; B = 2, H = 16, d = 64, f16",
            Unit::Milliseconds,
            true,
            causal_rows(|l| l.causal_ms),
            &[],
        ),
        table(
            "causal_rate",
            "Causal attention; B = 2, H = 16, d = 64, f16",
            Unit::Tflops,
            true,
            causal_rows(|l| l.causal_rate),
            &[],
        ),
        table(
            "early_stop",
            "Causal attention that walks all keys, or stops at the diagonal; tiles of 64 by 64; B = 2, H = 16, d = 64, f16",
            Unit::Tflops,
            true,
            early_stop_rows(),
            &[Ratio { of: "with early stop", over: "without early stop" }],
        ),
        table(
            "rope",
            "Rotary embedding and causal attention, tiles of 64 by 64 but where others are named; B = 2, H = 16, d = 64, f16",
            Unit::Milliseconds,
            true,
            rope_rows(|| tile(""), true),
            &[
                Ratio { of: "rotated outside, ours", over: "fused" },
                Ratio { of: "rotated outside, ours", over: "fused, tiles of 32" },
            ],
        ),
        table(
            "rope_tuned",
            "Rotary embedding and causal attention, each kernel tuned; B = 2, H = 16, d = 64, f16",
            Unit::Milliseconds,
            false,
            rope_rows(|| How::Tuned, false),
            &[Ratio { of: "rotated outside, ours", over: "fused" }],
        ),
    ]
}
