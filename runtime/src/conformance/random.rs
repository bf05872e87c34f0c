//! Cases drawn at random, for what the table does not think of.

use flashtile_dsl::ir::Elem;

use super::case::{Case, Layout, Values};
use flashtile_dsl::inputs::Random;

/// The case of this seed: any kernel of the suite with any sizes, layout and inputs, quick on a CPU.
pub fn random_case(seed: u64) -> Case {
    let mut random = Random(seed);
    let elem = random.of(&[Elem::F16, Elem::Bf16, Elem::F32]);
    let layout = random.of(&[
        Layout::Packed,
        Layout::HeadsInner,
        Layout::Padded(1),
        Layout::Padded(2),
        Layout::Padded(5),
        Layout::Padded(8),
    ]);
    let kernel = random.of(&[
        "attention",
        "causal_attention",
        "sliding_window",
        "prefix_attention",
        "split_dims",
        "matmul_gelu",
        "row_softmax",
    ]);
    // Sizes near the edges of tiles are as likely as all others together.
    let extent = |random: &mut Random, most: u64| match random.below(2) {
        0 => random.below(most) as i64 + 1,
        _ => random.of(&[16i64, 32, 64, 128, 192]) + random.below(5) as i64 - 2,
    };
    let (m, n, k) = (extent(&mut random, 300), extent(&mut random, 400), extent(&mut random, 300));
    let mut case = Case {
        kernel,
        elem,
        consts: Vec::new(),
        sizes: Vec::new(),
        scalars: Vec::new(),
        values: Values::Normal,
        layout,
        small: false,
    };
    match kernel {
        "matmul_gelu" => case.sizes = vec![("M", m), ("N", n), ("K", k)],
        "row_softmax" => case.sizes = vec![("M", m), ("N", n)],
        _ => {
            let g = random.below(3) as i64 + 1;
            let (b, h) = (random.below(2) as i64 + 1, g * (random.below(3) as i64 + 1));
            case.sizes = vec![("B", b), ("H", h), ("G", g), ("M", m), ("N", n)];
            let mut dim = || 8 * (random.below(16) as i64 + 1);
            case.consts.push(("D", dim()));
            if kernel == "split_dims" {
                case.consts.push(("E", dim()));
            }
            let usual = case.usual_scale();
            case.scalars.push(("scale", random.of(&[usual, usual, 0.0, -usual, 4.0 * usual])));
            match kernel {
                "sliding_window" => case.scalars.push(("window", random.below(200) as f32)),
                "prefix_attention" => case.scalars.push(("prefix", random.below(200) as f32)),
                _ => {}
            }
            case.values = random.of(&[Values::Normal, Values::Normal, Values::Growing(30.0), Values::SpecialQueries]);
        }
    }
    case
}
