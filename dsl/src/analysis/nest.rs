//! Distances of dependences in a loop nest, and the rule that decides which reorderings of loops are legal.
//!
//! A dependence runs from an earlier access to a later one; its distance vector has one entry per common loop, outermost
//! first. A reordering of loops is legal if no vector becomes lexicographically negative: the source must still come first.
//!
//! [`Nest`] finds the vectors of array accesses with affine subscripts; the dependences of a tile kernel come from its SSA
//! form ([`super::dependence`]) and obey the same rule.

use std::fmt;

/// Distance along one loop.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Distance {
    /// This many iterations.
    Exact(i64),
    /// One iteration or more.
    Positive,
    /// Any number of iterations, forwards or backwards.
    Any,
}

impl Distance {
    /// The direction: `<` forwards, `=` within one iteration, `>` backwards, `*` any.
    pub fn direction(self) -> char {
        match self {
            Distance::Exact(0) => '=',
            Distance::Exact(d) if d < 0 => '>',
            Distance::Exact(_) | Distance::Positive => '<',
            Distance::Any => '*',
        }
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Distance::Exact(d) => write!(f, "{d}"),
            Distance::Positive => f.write_str("+"),
            Distance::Any => f.write_str("*"),
        }
    }
}

/// Kind of a dependence.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// Read after write: a value flows.
    Raw,
    /// Write after read: a place is overwritten that was read.
    War,
    /// Write after write.
    Waw,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Raw => "RAW",
            Kind::War => "WAR",
            Kind::Waw => "WAW",
        })
    }
}

/// Whether a vector is known not to be lexicographically negative.
pub fn is_forward(vector: impl IntoIterator<Item = Distance>) -> bool {
    for distance in vector {
        match distance {
            Distance::Exact(0) => {}
            Distance::Exact(d) => return d > 0,
            Distance::Positive => return true,
            Distance::Any => return false,
        }
    }
    true
}

/// Whether a vector stays forward when loop `order[k]` becomes the loop at depth `k`.
pub fn survives(vector: &[Distance], order: &[usize]) -> bool {
    is_forward(order.iter().map(|&k| vector[k]))
}

/// The loop that carries a dependence: the outermost one with a distance other than 0. `None` if it stays in one iteration.
pub fn carrier(vector: &[Distance]) -> Option<usize> {
    vector.iter().position(|d| *d != Distance::Exact(0))
}

/// The order of `depth` loops with the loops `a` and `b` exchanged.
pub fn exchanged(depth: usize, a: usize, b: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..depth).collect();
    order.swap(a, b);
    order
}

/// `sum(coefficients[k] * loop k) + constant`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Subscript {
    /// One coefficient per loop of the nest.
    pub coefficients: Vec<i64>,
    /// What is added.
    pub constant: i64,
}

/// An access to an array.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Access {
    /// Number of the statement; statements run in ascending order within an iteration.
    pub statement: usize,
    /// The array.
    pub array: String,
    /// Whether it writes.
    pub write: bool,
    /// One subscript per dimension.
    pub subscripts: Vec<Subscript>,
    /// How many of the loops, from the outermost, enclose the statement.
    pub depth: usize,
}

/// A dependence between two statements.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dependence {
    /// Kind.
    pub kind: Kind,
    /// Statement that comes first.
    pub source: usize,
    /// Statement that comes later.
    pub target: usize,
    /// Distance per common loop.
    pub vector: Vec<Distance>,
}

/// A loop nest with affine array accesses, loops numbered from the outermost.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Nest {
    /// Names of the loops.
    pub loops: Vec<String>,
    /// Accesses; within a statement reads come before writes, whatever their order here.
    pub accesses: Vec<Access>,
}

impl Nest {
    /// All dependences. Subscripts of two accesses to an array that differ in more than their constants, or in which two
    /// loops meet, give [`Distance::Any`] unless a common divisor of the coefficients rules a meeting out.
    pub fn dependences(&self) -> Vec<Dependence> {
        let mut out = Vec::new();
        for (n, a) in self.accesses.iter().enumerate() {
            for b in &self.accesses[n..] {
                if a.array == b.array && (a.write || b.write) {
                    out.extend(self.between(a, b));
                    if !std::ptr::eq(a, b) {
                        out.extend(self.between(b, a).into_iter().filter(|d| carrier(&d.vector).is_some()));
                    }
                }
            }
        }
        out
    }

    /// Whether loops `a` and `b` may be exchanged.
    pub fn may_exchange(&self, a: usize, b: usize) -> bool {
        let order = exchanged(self.loops.len(), a, b);
        self.dependences().iter().all(|d| {
            let mut vector = d.vector.clone();
            vector.resize(self.loops.len(), Distance::Exact(0));
            survives(&vector, &order)
        })
    }

    /// Whether the iterations of a loop may run at the same time.
    pub fn is_parallel(&self, index: usize) -> bool {
        self.dependences().iter().all(|d| carrier(&d.vector) != Some(index))
    }

    /// The dependences from `source` to `target`, where `source` may come first.
    fn between(&self, source: &Access, target: &Access) -> Vec<Dependence> {
        let depth = source.depth.min(target.depth);
        let mut vector = vec![Distance::Any; depth];
        for (from, to) in source.subscripts.iter().zip(&target.subscripts) {
            // from(I) = to(I + distance).
            let gap = from.constant - to.constant;
            let all: Vec<i64> = from.coefficients.iter().chain(&to.coefficients).copied().collect();
            let divisor = all.iter().fold(0, |a, &b| gcd(a, b));
            if if divisor == 0 { gap != 0 } else { gap % divisor != 0 } {
                return Vec::new();
            }
            let mut loops = from.coefficients.iter().enumerate().filter(|(_, c)| **c != 0);
            if let (true, Some((k, &c)), None) = (from.coefficients == to.coefficients, loops.next(), loops.next()) {
                let distance = Distance::Exact(gap / c);
                if k >= depth {
                    continue;
                }
                match vector[k] {
                    Distance::Any => vector[k] = distance,
                    known if known != distance => return Vec::new(),
                    _ => {}
                }
            }
        }
        let later = (target.statement, target.write) > (source.statement, source.write);
        let kind = match (source.write, target.write) {
            (true, true) => Kind::Waw,
            (true, false) => Kind::Raw,
            (false, _) => Kind::War,
        };
        let found = |vector| Dependence { kind, source: source.statement, target: target.statement, vector };
        // An open distance at the front is 0, and the next one decides, or positive.
        let mut out = Vec::new();
        for k in 0..depth {
            match vector[k] {
                Distance::Exact(0) => {}
                Distance::Exact(d) if d < 0 => return out,
                Distance::Exact(_) | Distance::Positive => {
                    out.push(found(vector));
                    return out;
                }
                Distance::Any => {
                    let mut forward = vector.clone();
                    forward[k] = Distance::Positive;
                    out.push(found(forward));
                    vector[k] = Distance::Exact(0);
                }
            }
        }
        if later {
            out.push(found(vector));
        }
        out
    }
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a.abs() } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An access at `depth` loops of three (`i`, `j`, `d`), with subscripts that are one loop plus a constant.
    fn access(statement: usize, array: &str, write: bool, at: &[(usize, i64)], depth: usize) -> Access {
        let subscript = |&(k, constant): &(usize, i64)| {
            let mut coefficients = vec![0; 3];
            coefficients[k] = 1;
            Subscript { coefficients, constant }
        };
        Access { statement, array: array.into(), write, subscripts: at.iter().map(subscript).collect(), depth }
    }

    fn nest(accesses: Vec<Access>) -> Nest {
        Nest { loops: ["i", "j", "d"].map(String::from).to_vec(), accesses }
    }

    /// `A[i][j] = A[i-1][j+1]`: the vector (1, -1) becomes (-1, 1).
    #[test]
    fn a_lexicographically_negative_vector_forbids_interchange() {
        let n = nest(vec![access(1, "A", false, &[(0, -1), (1, 1)], 2), access(1, "A", true, &[(0, 0), (1, 0)], 2)]);
        let dependences = n.dependences();
        assert_eq!(dependences.len(), 1);
        assert_eq!(dependences[0].kind, Kind::Raw);
        assert_eq!(dependences[0].vector, [Distance::Exact(1), Distance::Exact(-1)]);
        assert!(!n.may_exchange(0, 1));
        assert!(!n.is_parallel(0) && n.is_parallel(1));
    }

    /// `A[i][j] = A[i-1][j-1]`: (1, 1) stays forward.
    #[test]
    fn a_forward_vector_allows_interchange() {
        let n = nest(vec![access(1, "A", false, &[(0, -1), (1, -1)], 2), access(1, "A", true, &[(0, 0), (1, 0)], 2)]);
        assert!(n.may_exchange(0, 1));
    }

    /// The published statements S1 to S13 of the forward pass, with m, l and O in memory.
    #[test]
    fn the_forward_pass_is_parallel_over_rows_and_columns() {
        let (i, j, d) = ((0, 0), (1, 0), (2, 0));
        let n = nest(vec![
            access(1, "Q", false, &[i], 1),
            access(2, "K", false, &[j], 2),
            access(3, "m", false, &[i], 2),
            access(4, "l", false, &[i], 2),
            access(8, "O", false, &[i, d], 3),
            access(9, "V", false, &[j, d], 3),
            access(11, "O", true, &[i, d], 3),
            access(12, "m", true, &[i], 2),
            access(13, "l", true, &[i], 2),
        ]);
        assert!(n.is_parallel(0) && !n.is_parallel(1) && n.is_parallel(2));
        let read_inside = nest(vec![access(3, "m", false, &[i], 3), access(12, "m", true, &[i], 3)]);
        assert!(!read_inside.is_parallel(2), "m must be read and written outside of the loop over d");
        for (a, b) in [(0, 1), (0, 2), (1, 2)] {
            assert!(n.may_exchange(a, b), "every order of the loops is legal");
        }
        let carried: Vec<_> =
            n.dependences().into_iter().filter(|d| d.kind == Kind::Raw && carrier(&d.vector) == Some(1)).collect();
        let pairs: Vec<_> = carried.iter().map(|d| (d.source, d.target)).collect();
        assert_eq!(pairs, [(12, 3), (13, 4), (11, 8)], "the back edges of the three components");
    }

    #[test]
    fn a_common_divisor_rules_a_meeting_out() {
        let even = Subscript { coefficients: vec![2, 0, 0], constant: 0 };
        let odd = Subscript { coefficients: vec![2, 0, 0], constant: 1 };
        let at = |s: Subscript, write| Access { statement: 1, array: "A".into(), write, subscripts: vec![s], depth: 1 };
        assert_eq!(nest(vec![at(even.clone(), true), at(odd, false)]).dependences(), []);
        let coupled = Subscript { coefficients: vec![1, 1, 0], constant: 0 };
        let n = nest(vec![at(even, true), at(coupled, false)]);
        assert!(!n.is_parallel(0), "what is not understood is assumed");
    }
}
