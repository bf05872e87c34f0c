//! Dependence analysis of the sample attention.

use super::dependence::{Dependences, may_run_ahead};
use super::samples::{Softmax, attention, causal};
use super::streaming::{Form, NotStreaming, Streaming};
use crate::ir::{BinaryOp, Op};

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

/// Two sums, of which the second adds the first, which the accumulator of its product carries: a
/// term that is a product on top of another sum is not free.
#[test]
fn a_product_on_top_of_another_sum_is_no_free_term() {
    let text = "pub fn f<T: Element, const D: usize>(
        q: &Tensor<T, (M, N)>, w: &Tensor<T, (N, D)>, o: &mut Tensor<f32, (M, D)>, p: &mut Tensor<f32, (M, D)>,
    ) {
        let i = program(tiles(M));
        let mut z = zeros((i, D));
        let mut x = zeros((i, D));
        for j in tiles(N) {
            z = z + dot(load(q, [i, j]), load(w, [j, ..]));
            x = x + z;
        }
        store(o, [i, ..], x);
        store(p, [i, ..], z);
    }";
    let source = crate::ir::SourceText { name: "f.rs".into(), text: text.into(), first_line: 1 };
    let mut kernel = crate::syntax::parse(&source).expect("a kernel").remove(0);
    let loop_op = kernel.ops.keys().find(|&op| matches!(kernel.ops[op].op, Op::For { .. })).expect("one");
    let forms = |kernel: &crate::ir::Kernel| Streaming::of(kernel, loop_op).forms;
    let carried = Form::Other(NotStreaming::TermIsCarried);
    assert!(matches!(&forms(&kernel)[..], [Form::Sum { .. }, other] if *other == carried));
    // The product takes the sum in.
    let add = kernel.ops.keys().find(|&op| matches!(kernel.ops[op].op, Op::Binary(BinaryOp::Add, ..))).expect("`z + ..`");
    let Op::Binary(_, z, product) = kernel.ops[add].op else { unreachable!("found above") };
    let (dot, _) = kernel.def(product).map(|(op, data)| (op, data.clone())).expect("a product");
    if let Op::Dot { acc, .. } = &mut kernel.ops[dot].op {
        *acc = Some(z);
    }
    let sum = kernel.ops[add].results[0];
    crate::ir::edit::replace_uses(&mut kernel, sum, product, &[]);
    assert!(matches!(&forms(&kernel)[..], [Form::Sum { .. }, other] if *other == carried), "{:?}", forms(&kernel));
}

/// Doublings ahead of a sum are looked at once each.
#[test]
fn terms_of_many_doublings_take_no_time() {
    let doublings = "let t = t + t;\n".repeat(60);
    let text = format!(
        "pub fn f(x: &Tensor<f32, (M, N)>, y: &mut Tensor<f32, (M)>) {{
            let i = program(tiles(M));
            let mut a = zeros(i);
            for j in tiles(N) {{
                let t = rowsum(load(x, [i, j]));
                {doublings}
                a = a + t;
            }}
            store(y, [i], a);
        }}"
    );
    let source = crate::ir::SourceText { name: "f.rs".into(), text: text.into(), first_line: 1 };
    let kernel = crate::syntax::parse(&source).expect("a kernel").remove(0);
    let loop_op = kernel.ops.keys().find(|&op| matches!(kernel.ops[op].op, Op::For { .. })).expect("one");
    assert!(matches!(&Streaming::of(&kernel, loop_op).forms[..], [Form::Sum { .. }]));
}
