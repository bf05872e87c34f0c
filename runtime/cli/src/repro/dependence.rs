//! The dependence analysis of the forward pass, and the key loop run in parts.
//!
//! Source: "FlashAttention Kernel: Forward Pass (Parallelism)". It publishes statements and dependences, no times.

use flashtile::{Elem, Kernel};
use flashtile_dsl::analysis::dependence::{Dependences, LoopKind};
use flashtile_dsl::analysis::nest::{Access, Distance, Kind, Nest, Subscript, carrier, exchanged, survives};
use flashtile_dsl::analysis::streaming::Streaming;

use super::experiment::{Cell, Claim, Claims, Experiment, Findings, How, Launch, Row, Section, Style, Table, Text, Unit, Work};
use super::judge::wrong;
use super::peers::{Library, Peer};
use super::runner::Runner;
use crate::failure::Result;

pub const EXPERIMENT: Experiment = Experiment {
    name: "dependence",
    post: "FlashAttention Kernel: Forward Pass (Parallelism)",
    about: "statements, dependences, components and interchanges of attention; its key loop on small grids",
    sections,
};

/// The kernel that is analysed.
const KERNEL: &str = "attention";

fn sections() -> Vec<Section> {
    let mut sections = vec![
        Section::Claims(Claims { caption: "What `inspect attention --emit deps` says", run: kernel_claims }),
        Section::Claims(Claims {
            caption: "The first listing as published: S1 to S13 inside the loop over d, with m, l and O in memory",
            run: listing_claims,
        }),
        Section::Claims(Claims {
            caption: "The same with S1 to S7, S12 and S13 outside of the loop over d, as the post concludes",
            run: hoisted_claims,
        }),
        Section::Claims(Claims { caption: "S10, the update of O, on tiles", run: update_claims }),
        Section::Claims(Claims { caption: "The counterexample, A[i][j] = A[i-1][j+1]", run: counterexample_claims }),
    ];
    sections.extend(SMALL_GRIDS.map(|(name, caption, m)| Section::Table(small_grid(name, caption, m))));
    sections
}

fn kernel_claims(_: &Runner<'_>) -> Result<Findings> {
    let kernel = Kernel::builtin(KERNEL)?;
    let ir = kernel.ir();
    let found = Dependences::of(ir);
    let text = found.text(ir);
    let at = |name: &str| found.loops.iter().position(|l| l.name == name).expect("the kernel has the loops i and j");
    let (rows, keys) = (at("i"), at("j"));
    let count = |kind| found.edges.iter().filter(|e| e.kind == kind).count();
    let itself = |s: usize| found.edges.iter().any(|e| e.source == s && e.target == s);
    let statements = || found.statements.iter().enumerate().filter(|(s, _)| itself(*s));
    let of_self: Vec<String> = statements().map(|(s, statement)| format!("S{} {}", s + 1, statement.name)).collect();
    let outside = statements().filter(|(_, statement)| statement.assigns.is_none());
    let outside: Vec<&str> = outside.map(|(_, statement)| statement.name.as_str()).collect();
    let components: Vec<String> = found
        .components
        .iter()
        .map(|c| {
            let names: Vec<&str> = c.statements.iter().map(|&s| found.statements[s].name.as_str()).collect();
            let by: Vec<&str> = c.carried_by.iter().map(|&l| found.loops[l].name.as_str()).collect();
            format!("{{{}}} by {}", names.join(", "), by.join(", "))
        })
        .collect();
    let columns = found.ranges.iter().find(|(range, _)| range.members.iter().any(|m| m == "o"));
    let LoopKind::For(op) = found.loops[keys].kind else { unreachable!("keys are walked by a `for`") };
    let streaming = Streaming::of(ir, op);
    let against = found.forbids_exchange(rows, keys);
    Ok(Findings {
        text,
        claims: vec![
            Claim::of(
                "statements, each with its dependences: on itself, RAW, WAR, WAW",
                format!(
                    "{} statements; {} RAW, {} WAR, {} WAW; on themselves: {}",
                    found.statements.len(),
                    count(Kind::Raw),
                    count(Kind::War),
                    count(Kind::Waw),
                    of_self.join(", ")
                ),
                [Kind::Raw, Kind::War, Kind::Waw].into_iter().all(|kind| count(kind) > 0),
            ),
            Claim::of(
                "only the updates of m, l and O depend on themselves",
                if outside.is_empty() { "no other statement does".to_owned() } else { outside.join(", ") },
                outside.is_empty() && of_self.len() == 3,
            ),
            Claim::of(
                "three strongly connected components, each carried by j",
                components.join("; "),
                found.components.len() == 3 && found.components.iter().all(|c| c.carried_by == [keys]),
            ),
            Claim::of(
                "the loop over rows, i, is parallel",
                format!("no dependence is carried by {}", found.loops[rows].name),
                found.is_parallel(rows),
            ),
            Claim::of(
                "the loop over the head dim, d, is parallel",
                columns
                    .map_or_else(String::new, |(range, _)| format!("D of {}: nothing reduces over it", range.members.join(", "))),
                columns.is_some_and(|(range, _)| range.is_parallel()),
            ),
            Claim::of(
                "i and j may be exchanged",
                if against.is_empty() { "legal".to_owned() } else { format!("{} dependences forbid it", against.len()) },
                against.is_empty(),
            ),
            Claim::of(
                "j cannot run in parallel as it stands",
                format!("{} dependences are carried by j", found.edges.iter().filter(|e| e.carried_by() == Some(keys)).count()),
                !found.is_parallel(keys),
            ),
            Claim::of(
                "parts of j can be combined: maximum, then rescaled sums",
                format!("associative: {}", streaming.combine(ir).join("; ")),
                streaming.is_associative(),
            ),
        ],
    })
}

/// An access to an array whose subscripts are loops of the nest plus constants.
fn access(statement: usize, array: &str, write: bool, at: &[(usize, i64)], loops: usize, depth: usize) -> Access {
    let subscript = |&(k, constant): &(usize, i64)| {
        let mut coefficients = vec![0; loops];
        coefficients[k] = 1;
        Subscript { coefficients, constant }
    };
    Access { statement, array: array.to_owned(), write, subscripts: at.iter().map(subscript).collect(), depth }
}

/// Where statements of the post stand in the loops i, j and d.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Listing {
    /// All of them inside d, as in its first listing.
    AsPublished,
    /// Each in the loops that its conclusions are about: m and l are read and written once for a
    /// key.
    Hoisted,
    /// As in its second listing ("Improved locality"): m and l are read before the loop over j and
    /// written behind it.
    Improved,
}

impl Listing {
    /// The accesses to memory of the statements S1 to S13.
    fn nest(self) -> Nest {
        let (i, j, d) = ((0, 0), (1, 0), (2, 0));
        let of_row = match self {
            Listing::AsPublished => 3,
            Listing::Hoisted => 2,
            Listing::Improved => 1,
        };
        let (of_query, of_key) = if self == Listing::AsPublished { (3, 3) } else { (1, 2) };
        let read = |statement, array, at: &[(usize, i64)], depth| access(statement, array, false, at, 3, depth);
        let write = |statement, array, at: &[(usize, i64)], depth| access(statement, array, true, at, 3, depth);
        Nest {
            loops: ["i", "j", "d"].map(str::to_owned).to_vec(),
            accesses: vec![
                read(1, "Q", &[i], of_query),
                read(2, "K", &[j], of_key),
                read(3, "m", &[i], of_row),
                read(4, "l", &[i], of_row),
                read(8, "O", &[i, d], 3),
                read(9, "V", &[j, d], 3),
                write(11, "O", &[i, d], 3),
                write(12, "m", &[i], of_row),
                write(13, "l", &[i], of_row),
            ],
        }
    }
}

/// The dependences of a nest as text.
fn nest_text(nest: &Nest) -> String {
    let line = |d: &flashtile_dsl::analysis::nest::Dependence| {
        let vector: Vec<String> = d.vector.iter().map(ToString::to_string).collect();
        let directions: Vec<String> = d.vector.iter().map(|d| d.direction().to_string()).collect();
        let by = carrier(&d.vector).map_or_else(String::new, |k| format!(" carried by {}", nest.loops[k]));
        format!("  S{:<3} -> S{:<3} {} ({}) ({}){by}\n", d.source, d.target, d.kind, vector.join(", "), directions.join(", "))
    };
    let edges: String = nest.dependences().iter().map(line).collect();
    let parallel: Vec<&str> = (0..nest.loops.len()).filter(|&k| nest.is_parallel(k)).map(|k| nest.loops[k].as_str()).collect();
    format!("edges\n{edges}parallel: {}\n", if parallel.is_empty() { "none".to_owned() } else { parallel.join(", ") })
}

/// Flow from one iteration of a loop to a later one, as text.
fn back_edges(nest: &Nest, index: usize) -> Vec<String> {
    let carried = |d: &&flashtile_dsl::analysis::nest::Dependence| d.kind == Kind::Raw && carrier(&d.vector) == Some(index);
    nest.dependences().iter().filter(carried).map(|d| format!("S{} -> S{}", d.source, d.target)).collect()
}

/// Which loops run in parallel, and which carry dependences.
fn loops_text(nest: &Nest) -> String {
    let names = |wanted| {
        let named = (0..nest.loops.len()).filter(|&k| nest.is_parallel(k) == wanted).map(|k| nest.loops[k].as_str());
        named.collect::<Vec<_>>().join(", ")
    };
    format!("parallel: {}; carries: {}", names(true), names(false))
}

/// Which pairs of loops may be exchanged, and whether all may.
fn exchanges(nest: &Nest) -> (String, bool) {
    let pairs = [(0, 1), (0, 2), (1, 2)];
    let verdict = |&(a, b): &(usize, usize)| if nest.may_exchange(a, b) { "legal" } else { "illegal" };
    let text = |pair: &(usize, usize)| format!("{} <-> {} {}", nest.loops[pair.0], nest.loops[pair.1], verdict(pair));
    (pairs.iter().map(text).collect::<Vec<_>>().join(", "), pairs.iter().all(|&(a, b)| nest.may_exchange(a, b)))
}

/// The back edges of the three components in the post's graph.
const BACK_EDGES: [&str; 3] = ["S12 -> S3", "S13 -> S4", "S11 -> S8"];

fn listing_claims(_: &Runner<'_>) -> Result<Findings> {
    let nest = Listing::AsPublished.nest();
    let (by_j, by_d) = (back_edges(&nest, 1), back_edges(&nest, 2));
    let (exchanged, all_legal) = exchanges(&nest);
    let parallel: Vec<bool> = (0..3).map(|k| nest.is_parallel(k)).collect();
    let why = "m and l do not depend on d, and yet S3, S4, S12 and S13 stand inside the loop over d: every d updates them again";
    Ok(Findings {
        text: nest_text(&nest),
        claims: vec![
            Claim::of(
                "back edges S12 -> S3, S13 -> S4 and S11 -> S8, carried by j",
                format!("carried by j: {}; carried by d: {}", by_j.join(", "), by_d.join(", ")),
                by_j == BACK_EDGES,
            ),
            Claim::departs("i and d carry nothing, j does", loops_text(&nest), parallel == [true, false, true], why),
            Claim::departs("every order of i, j and d is legal", exchanged, all_legal, why),
        ],
    })
}

fn hoisted_claims(_: &Runner<'_>) -> Result<Findings> {
    let nest = Listing::Hoisted.nest();
    let by_j = back_edges(&nest, 1);
    let (exchanged, all_legal) = exchanges(&nest);
    let parallel: Vec<bool> = (0..3).map(|k| nest.is_parallel(k)).collect();
    let improved = back_edges(&Listing::Improved.nest(), 1);
    Ok(Findings {
        text: nest_text(&nest),
        claims: vec![
            Claim::of("back edges S12 -> S3, S13 -> S4 and S11 -> S8, carried by j", by_j.join(", "), by_j == BACK_EDGES),
            Claim::of("i and d carry nothing, j does", loops_text(&nest), parallel == [true, false, true]),
            Claim::of("every order of i, j and d is legal", exchanged, all_legal),
            Claim::departs(
                "the second listing (#1, improved locality) keeps these back edges",
                improved.join(", "),
                improved == BACK_EDGES,
                "it reads m and l before the loop over j and writes them behind it, and no statement of the loop updates m_i and l_i",
            ),
        ],
    })
}

fn update_claims(_: &Runner<'_>) -> Result<Findings> {
    let text = |name| Text::Own { file: "published.rs", text: include_str!("kernels/published.rs"), name };
    let (published, all) = wrong(KERNEL, text("update_as_published"))?;
    let (with_factor, _) = wrong(KERNEL, text("update_with_factor"))?;
    let found = |wrong| format!("{wrong} of {all} cases of `{KERNEL}` are wrong");
    Ok(Findings {
        text: String::new(),
        claims: vec![
            Claim::departs(
                "S10: o_ijd = o_id * l_i / l_ij + exp(S_ij - m_ij) * v_jd / l_ij",
                found(published),
                published == 0,
                "O so far is relative to the maximum so far; S10 lacks the factor exp(m_i - m_ij) that S7 has",
            ),
            Claim::of("S10 with l_i * exp(m_i - m_ij) in place of l_i", found(with_factor), with_factor == 0),
        ],
    })
}

fn counterexample_claims(_: &Runner<'_>) -> Result<Findings> {
    let nest = Nest {
        loops: ["i", "j"].map(str::to_owned).to_vec(),
        accesses: vec![access(1, "A", false, &[(0, -1), (1, 1)], 2, 2), access(1, "A", true, &[(0, 0), (1, 0)], 2, 2)],
    };
    let dependences = nest.dependences();
    let vectors: Vec<Vec<Distance>> = dependences.iter().map(|d| d.vector.clone()).collect();
    let show = |vector: &[Distance]| format!("({})", vector.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "));
    let all = |vectors: &[Vec<Distance>]| vectors.iter().map(|v| show(v)).collect::<Vec<_>>().join(", ");
    let order = exchanged(2, 0, 1);
    let turned: Vec<Vec<Distance>> = vectors.iter().map(|v| order.iter().map(|&k| v[k]).collect()).collect();
    Ok(Findings {
        text: nest_text(&nest),
        claims: vec![
            Claim::of("the distance vector is (1, -1)", all(&vectors), vectors == [[Distance::Exact(1), Distance::Exact(-1)]]),
            Claim::of(
                "exchanged it is (-1, 1), lexicographically negative",
                all(&turned),
                vectors.iter().all(|v| !survives(v, &order)),
            ),
            Claim::of(
                "i and j may not be exchanged",
                if nest.may_exchange(0, 1) { "legal" } else { "illegal" },
                !nest.may_exchange(0, 1),
            ),
        ],
    })
}

/// Rows of queries whose grids are small: one, one tile, some tiles.
const SMALL_GRIDS: [(&str, &str, i64); 3] = [
    ("one_query", "The key loop on small grids: B = 1, M = 1, d = 128, f16, no mask", 1),
    ("one_tile", "The key loop on small grids: B = 1, M = 64, d = 128, f16, no mask", 64),
    ("some_tiles", "The key loop on small grids: B = 1, M = 512, d = 128, f16, no mask", 512),
];

fn small_grid(name: &'static str, caption: &'static str, m: i64) -> Table {
    let row = |(place, (h, n)): (usize, (i64, i64))| {
        let like = |how| {
            let sizes = [("B", 1), ("H", h), ("G", h), ("M", m), ("N", n), ("D", 128)];
            Launch::new(Text::Builtin(KERNEL), Elem::F16, &sizes, how)
        };
        let fixed = |knobs: &str| like(How::Knobs(format!("block_m=64,block_n=64,warps=4,running_max=max_first,{knobs}")));
        let ours = |series, launch: Launch| Cell { series, work: Work::Ours(launch.into()), published: None, profiled: None };
        let peer = Peer { what: Library::Sdpa, like: like(How::Tuned), causal: false };
        let cells = vec![
            ours("in order", fixed("split_k=1")),
            ours("8, kernel", fixed("split_k=8,fixup=kernel")),
            ours("8, semaphore", fixed("split_k=8,fixup=semaphore")),
            ours("8, cluster", fixed("split_k=8,fixup=cluster")),
            ours("32, kernel", fixed("split_k=32,fixup=kernel")),
            ours("32, semaphore", fixed("split_k=32,fixup=semaphore")),
            ours("32, tree", fixed("split_k=32,fixup=tree")),
            ours("tuned", like(How::Tuned)),
            Cell { series: "SDPA", work: Work::Peer(peer), published: None, profiled: None },
        ];
        Row { label: format!("H={h}, N={}k", n >> 10), x: f64::from(1u32 << place), over: None, cells }
    };
    let shapes = [1, 16].into_iter().flat_map(|h| [8 << 10, 32 << 10, 128 << 10].map(|n| (h, n)));
    Table {
        name,
        caption,
        unit: Unit::Milliseconds,
        published_on: None,
        style: Style::Lines("H and N"),
        rows: shapes.enumerate().map(row).collect(),
        ratios: &[],
    }
}
