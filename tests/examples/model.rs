//! The cost model beside measurements.
//!
//! ```sh
//! cargo run --release -p flashtile-tests --example model -- report   # errors on the cells that it was fitted to, and on the others
//! cargo run --release -p flashtile-tests --example model -- fit      # constants that fit the first half better
//! ```
//!
//! What was measured lies in `tests/evidence`: a line of JSON for each cell, with all schedules that were timed. Cells are
//! dealt to two halves by head dim and length, so that the held-out half has head dims and lengths of its own.

use flashtile_codegen::Constants;
use flashtile_tests::evidence::{self, Cell, Half};

fn main() {
    let verb = std::env::args().nth(1).unwrap_or_default();
    let cells = evidence::cells();
    match verb.as_str() {
        "report" => report(&cells, &Constants::FITTED),
        "fit" => report(&cells, &fit(&cells)),
        _ => {
            eprintln!("expected `report` or `fit`");
            std::process::exit(2);
        }
    }
}

/// One line for each cell and the means of each half.
fn report(cells: &[Cell], constants: &Constants) {
    println!("{constants:?}");
    for half in [Half::Fitted, Half::HeldOut] {
        println!("\n{half:?}\ncell: choice over best measured; predicted over measured of the best: mean, spread");
        let mut choices = Vec::new();
        for cell in cells.iter().filter(|c| c.half == half) {
            let judged = cell.judge(constants);
            println!("{}: {:.3} {}; {:.2} {:.3}", cell.name, judged.choice, judged.chosen, judged.ratio, judged.spread);
            choices.push(judged.choice);
        }
        let mean = choices.iter().map(|c| c.ln()).sum::<f64>() / choices.len() as f64;
        println!("choice: geometric mean {:.3}, highest {:.3}", mean.exp(), choices.iter().copied().fold(0.0, f64::max));
    }
}

/// Each constant in turn, by steps that shrink, as long as the loss falls.
fn fit(cells: &[Cell]) -> Constants {
    let fitted: Vec<&Cell> = cells.iter().filter(|c| c.half == Half::Fitted).collect();
    let loss = |constants: &Constants| fitted.iter().map(|cell| cell.judge(constants).loss).sum::<f64>() / fitted.len() as f64;
    let (mut best, mut step) = (Constants::FITTED, 0.3);
    let mut lowest = loss(&best);
    while step > 0.03 {
        let before = lowest;
        for number in 0..Constants::COUNT {
            for factor in [1.0 + step, 1.0 / (1.0 + step)] {
                let mut tried = best.clone();
                *tried.value_mut(number) *= factor;
                let now = loss(&tried);
                if now < lowest {
                    (best, lowest) = (tried, now);
                    break;
                }
            }
        }
        eprintln!("step {step:.3}: loss {lowest:.5}");
        if lowest > 0.995 * before {
            step /= 2.0;
        }
    }
    best
}
