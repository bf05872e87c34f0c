//! From a naive tiled kernel to batched row tiles: seven CUDA kernels, as seven schedules of one kernel.
//!
//! Source: "Flash attention from raw CUDA and PTX, one optimization at a time"; N = 8192, B = 16, H = 16, d = 128, no mask, f16.

use flashtile::Elem;

use super::experiment::{Cell, Experiment, How, Launch, Row, Section, Style, Table, Text, Unit, Work};
use super::peers::{Library, Peer};

pub const EXPERIMENT: Experiment = Experiment {
    name: "ladder",
    post: "Flash attention from raw CUDA and PTX, one optimization at a time",
    about: "seven kernels from a synchronous unswizzled one to double-buffered fragments, as seven schedules of one kernel",
    sections,
};

const PUBLISHED_ON: &str = "A100-SXM4-80GB";

/// A rung: its name, what it changes in the schedule of the one before, and the published TFLOP/s.
struct Rung(&'static str, &'static str, f64);

/// What every rung has in common, and the first one, whose products go through `mma.sync`: tiles of
/// 64 by 32 for 2 warps of 32 rows each; tiles are copied through registers into rows that follow
/// each other, each row tile loads its own fragments, and the softmax is as written. K is loaded in
/// pairs from the start, V is not.
const FIRST: &str = "operand_a=shared,running_max=exact,block_m=64,block_n=32,warps=2,copy=sync,stages=1,\
    swizzle=off,fragments=paired_k_major,batch_m=off,exponential=exp";

const RUNGS: [Rung; 7] = [
    Rung("01 base", "", 29.5),
    Rung("02 swizzle", "block_n=128,warps=4,swizzle=xor", 165.0),
    Rung("03 kvpipe", "copy=cp_async", 175.1),
    Rung("04 vpair", "fragments=paired", 175.7),
    Rung("05 exp2f", "exponential=exp2", 181.1),
    Rung("06 batched", "block_m=128,block_n=64,batch_m=on,fragments=preload", 187.3),
    Rung("07 dbuf", "fragments=double_buffer", 186.4),
];

/// Published for FlashAttention-2.
const FA2: f64 = 203.7;

fn launch(how: How) -> Launch {
    let sizes = [("B", 16), ("H", 16), ("G", 16), ("M", 8192), ("N", 8192), ("D", 128)];
    Launch::new(Text::Builtin("attention"), Elem::F16, &sizes, how)
}

fn sections() -> Vec<Section> {
    let row = |series: &'static str, work, published, over| {
        let cells = vec![Cell { series, work, published, profiled: None }];
        Row { label: series.to_owned(), x: 0.0, over, cells }
    };
    let mut knobs = FIRST.to_owned();
    let mut rows = Vec::new();
    let mut before = None;
    for Rung(name, change, published) in RUNGS {
        knobs = format!("{knobs},{change}");
        rows.push(row(name, Work::Ours(launch(How::Knobs(knobs.clone())).into()), Some(published), before));
        before = Some(name);
    }
    rows.push(row("tuned", Work::Ours(launch(How::Tuned).into()), None, before));
    let peer = Peer { what: Library::Fa2, like: launch(How::Tuned), causal: false };
    rows.push(row("FlashAttention-2", Work::Peer(peer), Some(FA2), None));
    vec![Section::Table(Table {
        name: "rate",
        caption: "Seven kernels and FlashAttention-2, N = 8192, B = 16, H = 16, d = 128, no mask, f16",
        unit: Unit::Tflops,
        published_on: Some(PUBLISHED_ON),
        style: Style::Steps,
        rows,
        ratios: &[],
    })]
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashtile::{Arch, Facts, Kernel, Schedule, lowering};

    /// What each rung is for can be seen in its code, and in no rung before.
    #[test]
    fn each_rung_does_what_its_name_says() {
        let kernel = Kernel::builtin("attention").expect("a built-in").bind(Elem::F16, [("D", 128)]).expect("binds");
        let arch = Arch::named("sm_80").expect("in the table");
        let mut knobs = FIRST.to_owned();
        let sources: Vec<String> = RUNGS
            .iter()
            .map(|Rung(name, change, _)| {
                knobs = format!("{knobs},{change}");
                let schedule = Schedule::default().with(&knobs).expect("knobs");
                let facts = Facts::best(kernel.ir());
                let generated = lowering::generate(&kernel.instance(facts), &schedule, arch);
                generated.unwrap_or_else(|e| panic!("{name}: {e}")).source
            })
            .collect();
        let first = |text: &str| sources.iter().position(|source| source.contains(text));
        assert_eq!(first("cp.async"), Some(2), "copies run beside the products");
        assert_eq!(first("ldmatrix_x2_trans(b, "), Some(0), "V in single fragments");
        assert_eq!(first("ldmatrix_x4_trans(b, "), Some(3), "V in pairs");
        assert_eq!(first("= ex2(__fmaf_rn("), Some(4), "the factor is folded");
        assert_eq!(first("u32 all["), Some(5), "V preloaded");
        assert_eq!(first("u32 next[2][4]"), Some(6), "double-buffered");
    }
}
