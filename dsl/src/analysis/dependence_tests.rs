//! Dependence analysis of the sample attention.

use super::dependence::{Dependences, may_run_ahead};
use super::samples::{Softmax, attention, causal};
use super::streaming::{Form, Streaming};
use crate::ir::Op;

#[test]
fn attention_has_three_components_over_j() {
    let (kernel, _, _) = attention(Softmax::Named, &[&causal]);
    let found = Dependences::of(&kernel);
    println!("{}", found.text(&kernel));
    println!("{}", found.mermaid());
    let names: Vec<_> = found
        .components
        .iter()
        .map(|c| c.statements.iter().map(|&s| found.statements[s].name.as_str()).collect::<Vec<_>>())
        .collect();
    assert_eq!(names, [vec!["m_new", "m"], vec!["l"], vec!["acc"]]);
    let j = found.loops.iter().position(|l| l.name == "j").expect("the loop over keys");
    assert!(found.components.iter().all(|c| c.carried_by == [j]));
    for k in 0..found.loops.len() {
        assert_eq!(found.is_parallel(k), k != j);
        assert_eq!(found.forbids_exchange(k, j), Vec::<&super::dependence::Edge>::new());
    }
}

#[test]
fn attention_is_a_streaming_reduction() {
    for softmax in [Softmax::Named, Softmax::Plain] {
        let (kernel, loop_op, _) = attention(softmax, &[&causal]);
        let streaming = Streaming::of(&kernel, loop_op);
        assert!(matches!(streaming.forms[0], Form::RunningMaximum { .. }));
        assert!(matches!(streaming.forms[1], Form::RescaledSum { maximum: 0, .. }));
        assert!(matches!(streaming.forms[2], Form::RescaledSum { maximum: 0, .. }));
        assert!(streaming.is_associative());
    }
    let (kernel, loop_op, _) = attention(Softmax::Unscaled, &[]);
    let streaming = Streaming::of(&kernel, loop_op);
    assert!(!streaming.is_associative());
    assert_eq!(streaming.combine(&kernel), Vec::<String>::new());
}

#[test]
fn the_combine_is_derived() {
    let (kernel, loop_op, _) = attention(Softmax::Named, &[]);
    assert_eq!(
        Streaming::of(&kernel, loop_op).combine(&kernel),
        [
            "m = max(m.a, m.b)",
            "l = l.a * exp(m.a - visible_or_zero(m)) + l.b * exp(m.b - visible_or_zero(m))",
            "acc = acc.a * exp(m.a - visible_or_zero(m)) + acc.b * exp(m.b - visible_or_zero(m))",
        ]
    );
}

#[test]
fn copies_and_scores_may_run_ahead() {
    let (kernel, loop_op, _) = attention(Softmax::Named, &[&causal]);
    let ahead = may_run_ahead(&kernel, loop_op);
    let count = |f: fn(&Op) -> bool| ahead.iter().filter(|&&op| f(&kernel.ops[op].op)).count();
    assert_eq!(count(|op| matches!(op, Op::Load { .. })), 2);
    assert_eq!(count(|op| matches!(op, Op::Dot { .. })), 1);
    assert_eq!(count(|op| matches!(op, Op::Mask { .. })), 1);
    assert_eq!(count(|op| matches!(op, Op::Reduce(..))), 1, "the row maximum of the tile, not its running one");
}
