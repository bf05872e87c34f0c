//! Where diverged lanes meet again: the immediate post-dominator of each branch in the graph of basic blocks.
//!
//! Only the last exit of the text counts as the end. Lanes that leave earlier are waited for by nobody, as on a GPU, so that
//! the others meet where they would have met without them.

/// How an instruction passes control on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flow {
    /// To the next instruction.
    Next,
    /// To the target; to the next one too if guarded.
    Branch { target: u32, guarded: bool },
    /// To the end; to the next one too if guarded.
    Exit { guarded: bool },
}

/// The end of the kernel as a place to meet.
pub(crate) const END: u32 = u32::MAX;

/// For each instruction the one where lanes that part there meet again, [`END`] if only at the end of the kernel.
/// Meaningful for guarded branches.
pub(crate) fn reconvergence(flow: &[Flow]) -> Vec<u32> {
    let count = flow.len();
    let mut leader = vec![false; count + 1];
    leader[0] = true;
    for (at, f) in flow.iter().enumerate() {
        match *f {
            Flow::Next => {}
            Flow::Branch { target, .. } => {
                leader[target as usize] = true;
                leader[at + 1] = true;
            }
            Flow::Exit { .. } => leader[at + 1] = true,
        }
    }
    let starts: Vec<usize> = (0..count).filter(|&at| leader[at]).collect();
    let block_of = {
        let mut of = vec![0; count];
        let mut block = 0;
        for at in 0..count {
            if leader[at] && at > 0 {
                block += 1;
            }
            of[at] = block;
        }
        of
    };
    let blocks = starts.len();
    let exit = blocks;
    let at_or_exit = |at: usize| if at < count { block_of[at] } else { exit };
    let last_of = |b: usize| starts.get(b + 1).copied().unwrap_or(count) - 1;
    let mut successors: Vec<Vec<usize>> = (0..blocks)
        .map(|b| {
            let last = last_of(b);
            match flow[last] {
                Flow::Next | Flow::Exit { guarded: true } => vec![at_or_exit(last + 1)],
                Flow::Branch { target, guarded: false } => vec![at_or_exit(target as usize)],
                Flow::Branch { target, guarded: true } => vec![at_or_exit(target as usize), at_or_exit(last + 1)],
                Flow::Exit { guarded: false } => vec![],
            }
        })
        .collect();
    let reached = reachable(&successors, exit);
    if let Some(end) = (0..blocks).rev().find(|&b| reached[b] && flow[last_of(b)] == Flow::Exit { guarded: false }) {
        successors[end].push(exit);
    }
    let parents = post_dominators(&successors, exit);
    (0..count)
        .map(|at| match parents[block_of[at]] {
            Some(b) if b != exit => starts[b] as u32,
            _ => END,
        })
        .collect()
}

/// The blocks that control can reach from the first.
fn reachable(successors: &[Vec<usize>], exit: usize) -> Vec<bool> {
    let mut reached = vec![false; exit + 1];
    let mut stack = vec![0];
    while let Some(block) = stack.pop() {
        if !std::mem::replace(&mut reached[block], true)
            && let Some(next) = successors.get(block)
        {
            stack.extend(next);
        }
    }
    reached
}

/// Immediate post-dominators (Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm", on the reversed graph).
/// `None` for the exit itself and for blocks that never reach it.
fn post_dominators(successors: &[Vec<usize>], exit: usize) -> Vec<Option<usize>> {
    let mut predecessors = vec![vec![]; exit + 1];
    for (block, next) in successors.iter().enumerate() {
        for &s in next {
            predecessors[s].push(block);
        }
    }
    // Post-order of a walk from the exit against the edges.
    let mut order = Vec::with_capacity(exit + 1);
    let mut seen = vec![false; exit + 1];
    let mut stack = vec![(exit, 0)];
    seen[exit] = true;
    while let Some((block, child)) = stack.last_mut() {
        if let Some(&next) = predecessors[*block].get(*child) {
            *child += 1;
            if !seen[next] {
                seen[next] = true;
                stack.push((next, 0));
            }
        } else {
            order.push(*block);
            stack.pop();
        }
    }
    let mut number = vec![usize::MAX; exit + 1];
    for (n, &block) in order.iter().enumerate() {
        number[block] = n;
    }
    let mut parent: Vec<Option<usize>> = vec![None; exit + 1];
    parent[exit] = Some(exit);
    let mut changed = true;
    while changed {
        changed = false;
        for &block in order.iter().rev().filter(|&&b| b != exit) {
            let mut new: Option<usize> = None;
            for &s in &successors[block] {
                if parent[s].is_none() {
                    continue;
                }
                new = Some(match new {
                    None => s,
                    Some(mut a) => {
                        let mut b = s;
                        while a != b {
                            while number[a] < number[b] {
                                a = parent[a].expect("numbered blocks before it have parents");
                            }
                            while number[b] < number[a] {
                                b = parent[b].expect("numbered blocks before it have parents");
                            }
                        }
                        a
                    }
                });
            }
            if new.is_some() && parent[block] != new {
                parent[block] = new;
                changed = true;
            }
        }
    }
    parent[exit] = None;
    parent
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACK: Flow = Flow::Branch { target: 0, guarded: true };

    #[test]
    fn branches_meet_behind_both_sides() {
        // 0: @p bra 3; 1: x; 2: bra 4; 3: y; 4: z; 5: exit
        let flow = [
            Flow::Branch { target: 3, guarded: true },
            Flow::Next,
            Flow::Branch { target: 4, guarded: false },
            Flow::Next,
            Flow::Next,
            Flow::Exit { guarded: false },
        ];
        assert_eq!(reconvergence(&flow)[0], 4);
    }

    #[test]
    fn loops_meet_behind_the_loop() {
        let flow = [Flow::Next, BACK, Flow::Next, Flow::Exit { guarded: false }];
        assert_eq!(reconvergence(&flow)[1], 2);
    }

    #[test]
    fn lanes_that_leave_are_not_waited_for() {
        // 0: @p bra 2; 1: exit; 2: exit
        let flow = [Flow::Branch { target: 2, guarded: true }, Flow::Exit { guarded: false }, Flow::Exit { guarded: false }];
        assert_eq!(reconvergence(&flow)[0], 2);
        // 0: @p bra 5; 1: @q bra 3; 2: x; 3: @r bra 5; 4: exit; 5: y; 6: exit
        let flow = [
            Flow::Branch { target: 5, guarded: true },
            Flow::Branch { target: 3, guarded: true },
            Flow::Next,
            Flow::Branch { target: 5, guarded: true },
            Flow::Exit { guarded: false },
            Flow::Next,
            Flow::Exit { guarded: false },
        ];
        let meet = reconvergence(&flow);
        assert_eq!((meet[0], meet[1], meet[3]), (5, 3, 5));
    }

    #[test]
    fn an_endless_loop_is_no_fault() {
        let flow = [
            Flow::Branch { target: 3, guarded: true },
            Flow::Next,
            Flow::Branch { target: 1, guarded: false },
            Flow::Exit { guarded: false },
        ];
        assert_eq!(reconvergence(&flow)[0], 3);
        assert_eq!(reconvergence(&flow)[2], END);
    }
}
