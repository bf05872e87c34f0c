//! Printed forms of the dependence analysis: a text report, and a graph in the Mermaid notation.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::dependence::{Dependences, Edge, LoopKind, carried_dependences, may_run_ahead};
use super::expression::Expressions;
use super::nest::Kind;
use super::streaming::{Form, Streaming};
use crate::ir::{Kernel, Op, OpId};

impl Dependences {
    /// The report: loops, statements, edges, components, interchanges, and what each `for` carries.
    pub fn text(&self, kernel: &Kernel) -> String {
        let mut out = String::new();
        let mut line = |text: String| writeln!(out, "{}", text.trim_end()).expect("strings take what is written");
        let s = |k: usize| format!("S{}", k + 1);
        let list = |ks: &[usize]| ks.iter().map(|&k| s(k)).collect::<Vec<_>>().join(", ");
        let loop_name = |k: usize| self.loops[k].name.as_str();

        line("loops".into());
        for (k, l) in self.loops.iter().enumerate() {
            let who = match l.kind {
                LoopKind::Grid(_) => "grid",
                LoopKind::For(_) => "for",
            };
            line(format!("  {:<4} {who:<5} {}", l.name, self.order_text(k)));
        }

        if !self.ranges.is_empty() {
            line("ranges".into());
        }
        for (range, by) in &self.ranges {
            let verdict = if by.is_empty() { "parallel".into() } else { format!("reduced by {}", list(by)) };
            line(format!("  {:<4} of {}: {verdict}", kernel.size_text(&range.length), range.members.join(", ")));
        }

        line("statements".into());
        let width = self.statements.iter().map(|s| s.loops.iter().map(|&l| loop_name(l).len() + 2).sum::<usize>()).max();
        let width = width.unwrap_or(0);
        for (k, statement) in self.statements.iter().enumerate() {
            let around: Vec<_> = statement.loops.iter().map(|&l| loop_name(l)).collect();
            line(format!("  {:<4} {:<width$} {}", s(k), format!("({})", around.join(", ")), statement.text));
        }

        line("edges".into());
        for e in &self.edges {
            line(format!("  {:<4} -> {:<4} {} {:<6} {}", s(e.source), s(e.target), e.kind, e.what, self.vector_text(e)));
        }

        line("components".into());
        for (k, c) in self.components.iter().enumerate() {
            let by: Vec<_> = c.carried_by.iter().map(|&l| loop_name(l)).collect();
            line(format!("  SCC{} {{{}}} carried by {}", k + 1, list(&c.statements), by.join(", ")));
        }
        if self.components.is_empty() {
            line("  none".into());
        }

        line("interchange".into());
        for b in 0..self.loops.len() {
            for a in 0..b {
                if !self.are_nested(a, b) {
                    continue;
                }
                line(format!("  {} <-> {}  {}", loop_name(a), loop_name(b), self.exchange_text(a, b)));
            }
        }

        for l in &self.loops {
            if let LoopKind::For(op) = l.kind {
                line(format!("carried by {}", l.name));
                for text in carried_text(kernel, op) {
                    line(format!("  {text}"));
                }
            }
        }
        out
    }

    /// Whether the iterations of a loop may run in any order, and what orders them.
    fn order_text(&self, k: usize) -> String {
        if self.is_parallel(k) {
            return "parallel".into();
        }
        let by = self.edges.iter().filter(|e| e.carried_by() == Some(k)).map(|e| format!("`{}`", e.what));
        let by: BTreeSet<String> = by.collect();
        format!("sequential: carries {}", by.into_iter().collect::<Vec<_>>().join(", "))
    }

    /// Whether two loops may change places, and an edge that forbids it.
    fn exchange_text(&self, a: usize, b: usize) -> String {
        match self.forbids_exchange(a, b).first() {
            None => "legal".into(),
            Some(e) => format!("illegal: S{} -> S{} {}", e.source + 1, e.target + 1, self.vector_text(e)),
        }
    }

    /// `(0, 0, 0, 1) carried by j`.
    fn vector_text(&self, e: &Edge) -> String {
        let vector: Vec<_> = e.vector.iter().map(ToString::to_string).collect();
        let directions: Vec<_> = e.vector.iter().map(|d| d.direction().to_string()).collect();
        let by = e.carried_by().map_or(String::new(), |l| format!(" carried by {}", self.loops[l].name));
        format!("({}) ({}){by}", vector.join(", "), directions.join(", "))
    }

    /// The flow as a Mermaid graph: components as groups, carried flow dotted.
    pub fn mermaid(&self) -> String {
        let mut out = String::from("graph TD\n");
        let mut line = |text: String| writeln!(out, "    {text}").expect("strings take what is written");
        for (k, statement) in self.statements.iter().enumerate() {
            line(format!("S{0}[\"S{0}: {1}\"]", k + 1, statement.text.replace('"', "'")));
        }
        for (k, c) in self.components.iter().enumerate() {
            line(format!("subgraph SCC{}", k + 1));
            for s in &c.statements {
                line(format!("    S{}", s + 1));
            }
            line("end".into());
        }
        for e in self.edges.iter().filter(|e| e.kind == Kind::Raw) {
            let arrow = e.carried_by().map_or("-->".into(), |l| format!("-.->|LC-{}|", self.loops[l].name));
            line(format!("S{} {arrow} S{}", e.source + 1, e.target + 1));
        }
        out
    }
}

/// What a loop carries, how its parts combine, and which ops may run ahead.
fn carried_text(kernel: &Kernel, loop_op: OpId) -> Vec<String> {
    let Op::For { body, .. } = kernel.ops[loop_op].op else { unreachable!("the loop of a `for`") };
    let expressions = Expressions::new(kernel);
    let streaming = Streaming::of(kernel, loop_op);
    let mut out = Vec::new();
    for (k, form) in streaming.forms.iter().enumerate() {
        let name = expressions.operand(kernel.blocks[body].params[1 + k]);
        let text = match form {
            Form::Constant => "never changes".into(),
            Form::RunningMaximum { scores } => {
                let scores: Vec<_> = scores.iter().map(|&v| expressions.operand(v)).collect();
                format!("running maximum of {}", scores.join(", "))
            }
            Form::Sum { .. } => "sum".into(),
            Form::RescaledSum { factor, .. } => format!("sum rescaled by {}", expressions.operand(*factor)),
            Form::Other(why) => format!("not recognised: {why}"),
        };
        out.push(format!("{name}: {text}"));
    }
    if streaming.is_associative() {
        out.push("associative; states a and b combine to".into());
        out.extend(streaming.combine(kernel).into_iter().map(|l| format!("  {l}")));
    } else if streaming.stores {
        out.push("not a reduction: the body stores".into());
    }
    let of_op = carried_dependences(kernel, loop_op);
    let worth = |op: &&OpId| matches!(kernel.ops[**op].op, Op::Load { .. } | Op::Dot { .. } | Op::Mask { .. } | Op::For { .. });
    let name = |op: OpId| match kernel.ops[op].results.first() {
        Some(&r) if kernel.values[r].name.is_some() => expressions.operand(r),
        Some(&r) => expressions.operand(r),
        None => expressions.statement(op).1,
    };
    let ahead: Vec<_> = may_run_ahead(kernel, loop_op).iter().filter(worth).map(|&op| name(op)).collect();
    if !ahead.is_empty() {
        out.push(format!("may run ahead: {}", ahead.join("; ")));
    }
    let bound: Vec<_> = of_op.iter().filter(|(_, set)| !set.is_empty()).map(|(op, _)| op).filter(worth).collect();
    for op in bound {
        let on: Vec<_> = of_op[op].iter().map(|&k| expressions.operand(kernel.blocks[body].params[1 + k])).collect();
        out.push(format!("waits: {} on {}", name(*op), on.join(", ")));
    }
    out
}
