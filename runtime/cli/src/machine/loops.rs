//! The natural loops of a function: a branch back to an instruction that all ways to the branch
//! pass, and all instructions that lead to the branch from there.

use std::collections::{BTreeMap, BTreeSet};

use super::code::Function;

/// A loop: the places of its instructions in order, and for each whether every iteration passes it.
#[derive(Clone)]
pub struct Loop {
    pub places: Vec<(usize, bool)>,
}

impl Loop {
    /// Whether another loop is a part of this one.
    pub fn holds(&self, inner: &Self) -> bool {
        let has = |(place, _): &(usize, bool)| self.places.binary_search_by_key(place, |&(own, _)| own).is_ok();
        inner.places.len() < self.places.len() && inner.places.iter().all(has)
    }
}

/// The loops of a function. Those with one head are one loop.
pub fn loops(function: &Function) -> Vec<Loop> {
    let flow = Flow::of(function);
    let dominators = flow.dominators();
    let dominates = |head: usize, mut block: usize| loop {
        if block == head {
            return true;
        }
        match dominators[block] {
            Some(above) if above != block => block = above,
            _ => return false,
        }
    };
    // By the first block: the blocks, and those from which it begins again.
    let mut by_head: BTreeMap<usize, (BTreeSet<usize>, Vec<usize>)> = BTreeMap::new();
    for (from, next) in flow.next.iter().enumerate() {
        for &head in next.iter().filter(|&&head| dominators[from].is_some() && dominates(head, from)) {
            let (body, ends) = by_head.entry(head).or_insert_with(|| ([head].into(), Vec::new()));
            ends.push(from);
            let mut waiting = vec![from];
            while let Some(block) = waiting.pop() {
                if body.insert(block) {
                    waiting.extend(flow.before(block));
                }
            }
        }
    }
    let of_head = |(body, ends): (BTreeSet<usize>, Vec<usize>)| {
        let of_block = |block: usize| {
            let always = ends.iter().all(|&end| dominates(block, end));
            flow.range(block).map(move |place| (place, always))
        };
        Loop { places: body.into_iter().flat_map(of_block).collect() }
    };
    by_head.into_values().map(of_head).collect()
}

/// Instructions that follow each other without a branch, and what may come behind each.
struct Flow {
    /// The first instruction of each block, and the end of the last one.
    starts: Vec<usize>,
    next: Vec<Vec<usize>>,
}

impl Flow {
    fn of(function: &Function) -> Self {
        let all = &function.instructions;
        let name = |at: usize| all[at].opcode.split('.').next().unwrap_or_default().to_owned();
        let goes = |at: usize| matches!(name(at).as_str(), "BRA" | "JMP");
        let ends = |at: usize| goes(at) || matches!(name(at).as_str(), "EXIT" | "RET" | "BRX" | "JMX" | "KILL");
        let mut starts: BTreeSet<usize> = [0, all.len()].into();
        starts.extend(function.labels.values().copied());
        starts.extend((0..all.len()).filter(|&at| ends(at)).map(|at| at + 1));
        let starts: Vec<usize> = starts.into_iter().filter(|&start| start <= all.len()).collect();
        let block_at = |place: usize| starts.binary_search(&place).ok().filter(|&block| block + 1 < starts.len());
        let of_block = |block: usize| {
            let last = starts[block + 1] - 1;
            let target = all[last].target.as_ref().filter(|_| goes(last));
            let target = target.and_then(|label| function.labels.get(label)).and_then(|&place| block_at(place));
            let falls = (!ends(last) || all[last].predicated).then(|| block_at(last + 1)).flatten();
            target.into_iter().chain(falls).collect()
        };
        let next = (0..starts.len().saturating_sub(1)).map(of_block).collect();
        Self { starts, next }
    }

    fn range(&self, block: usize) -> std::ops::Range<usize> {
        self.starts[block]..self.starts[block + 1]
    }

    fn before(&self, block: usize) -> impl Iterator<Item = usize> {
        self.next.iter().enumerate().filter(move |(_, next)| next.contains(&block)).map(|(from, _)| from)
    }

    /// For each block that can be reached, the last block that all ways to it pass.
    fn dominators(&self) -> Vec<Option<usize>> {
        let (order, number) = self.in_order();
        let mut above: Vec<Option<usize>> = vec![None; self.next.len()];
        if let Some(first) = above.first_mut() {
            *first = Some(0);
        }
        let mut changed = true;
        while std::mem::take(&mut changed) {
            for &block in order.iter().filter(|&&block| block != 0) {
                let known = self.before(block).filter(|&before| above[before].is_some()).collect::<Vec<_>>();
                let common = known.into_iter().reduce(|mut a, mut b| {
                    while a != b {
                        match number[a] > number[b] {
                            true => a = above[a].expect("is known"),
                            false => b = above[b].expect("is known"),
                        }
                    }
                    a
                });
                changed |= above[block] != common;
                above[block] = common;
            }
        }
        above
    }

    /// The blocks that can be reached, each before those behind it where there is no loop, and the
    /// number of each in that order.
    fn in_order(&self) -> (Vec<usize>, Vec<usize>) {
        let mut order = Vec::new();
        let mut seen = vec![false; self.next.len()];
        let mut waiting: Vec<(usize, usize)> = Vec::new();
        if let Some(first) = seen.first_mut() {
            *first = true;
            waiting.push((0, 0));
        }
        while let Some((block, branch)) = waiting.pop() {
            match self.next[block].get(branch) {
                Some(&next) => {
                    waiting.push((block, branch + 1));
                    if !std::mem::replace(&mut seen[next], true) {
                        waiting.push((next, 0));
                    }
                }
                None => order.push(block),
            }
        }
        order.reverse();
        let mut number = vec![usize::MAX; self.next.len()];
        order.iter().enumerate().for_each(|(place, &block)| number[block] = place);
        (order, number)
    }
}
