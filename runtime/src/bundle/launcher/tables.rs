//! Tables of the C launcher: what a call of a kernel is checked by, and what its launches are made
//! of.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use flashtile_codegen::{Abi, Blocks, Field, FoldedRows, GridDim, Scratch, SizeTerm, TensorMap, folded_rows, wide_tensors};
use flashtile_dsl::analysis::reach::{IndexedAt, Node, Reach};
use flashtile_dsl::ir::{self, Elem, Entity, ParamKind, SizeExpr, SizeKind};

use super::super::contract::{ArchContract, KernelContract};
use super::limits::{TERMS, operation};
use super::text::{capability, quoted, symbol};
use crate::device::{Variant, eighths, strength};
use crate::error::{BundleError, Result};
use crate::kernel::BoundKernel;
use crate::launch::Signature;
use crate::lowering::CallingContract;

/// Writes tables of one kernel.
struct Writer<'a> {
    out: String,
    kernel: &'a BoundKernel,
    name: &'a str,
    /// Names of all sizes, that of folded rows last.
    sizes: Vec<String>,
}

/// All tables of a kernel; `ft_NAME` is the one that its functions name.
pub(super) fn tables(kernel: &BoundKernel, contract: &KernelContract) -> Result<String> {
    let (ir, binding) = (kernel.ir(), kernel.binding());
    let fold = folded_rows(ir, binding);
    let mut sizes: Vec<String> = ir.sizes.values().map(|s| s.name.clone()).collect();
    sizes.extend(fold.as_ref().map(|fold| fold.size.clone()));
    let mut writer = Writer { out: String::new(), kernel, name: &contract.name, sizes };
    let params = writer.params();
    let signature = Signature::new(kernel.shared_ir(), binding)?;
    let solved = writer.solved(&signature);
    let reach = writer.reach(&Reach::new(ir, binding));
    let fold = match &fold {
        Some(fold) => writer.fold(fold).map(|()| format!("&ft_{}_fold", contract.name)),
        None => Ok("NULL".to_owned()),
    };
    let fault = |reason: String| BundleError::Unsupported { kernel: ir.name.clone(), reason };
    let fold = fold.map_err(fault)?;
    let archs: Vec<String> =
        contract.architectures.iter().map(|arch| writer.arch(arch)).collect::<Result<_, String>>().map_err(fault)?;
    let archs = writer.array("ft_arch", "arch", &archs);
    let name = &contract.name;
    let (params_count, sizes_count) = (ir.params.len(), ir.sizes.len());
    let _ = writeln!(
        writer.out,
        "static const ft_kernel ft_{name} = {{\n    .name = {}, .params = {params_count}, .sizes = {sizes_count}, .param = {params},\n    \
         {solved},\n    {reach},\n    .fold = {fold}, .archs = {}, .arch = {archs},\n}};\n",
        quoted(name),
        contract.architectures.len(),
    );
    Ok(writer.out)
}

impl Writer<'_> {
    /// Defines an array, and gives its name; `NULL` of none.
    fn array(&mut self, ty: &str, suffix: &str, items: &[String]) -> String {
        if items.is_empty() {
            return "NULL".to_owned();
        }
        let name = format!("ft_{}_{suffix}", self.name);
        let _ = writeln!(self.out, "static const {ty} {name}[{}] = {{\n    {},\n}};", items.len(), items.join(",\n    "));
        name
    }

    fn pairs(&mut self, suffix: &str, items: &[[usize; 2]]) -> String {
        if items.is_empty() {
            return "NULL".to_owned();
        }
        let name = format!("ft_{}_{suffix}", self.name);
        let items: Vec<String> = items.iter().map(|[a, b]| format!("{{{a}, {b}}}")).collect();
        let _ = writeln!(self.out, "static const int {name}[{}][2] = {{{}}};", items.len(), items.join(", "));
        name
    }

    fn numbers(&mut self, ty: &str, suffix: &str, items: impl IntoIterator<Item = impl ToString>) -> String {
        let items: Vec<String> = items.into_iter().map(|n| n.to_string()).collect();
        self.array(ty, suffix, &items)
    }

    fn params(&mut self) -> String {
        let (ir, binding) = (self.kernel.ir(), self.kernel.binding());
        let mut rows = Vec::new();
        for (n, (param, wide)) in ir.params.values().zip(wide_tensors(ir)).enumerate() {
            let name = quoted(&param.name);
            rows.push(match &param.kind {
                ParamKind::Scalar(elem) => {
                    let kind = if binding.elem(ir, *elem) == Elem::I32 { "FT_I32" } else { "FT_F32" };
                    format!("{{{name}, {kind}, 0, 4, 0, 0, 0, NULL}}")
                }
                ParamKind::Tensor(t) => {
                    let elem = binding.elem(ir, t.elem);
                    let shape: Vec<String> = t.shape.iter().map(size_expr).collect();
                    let shape = self.array("ft_expr", &format!("shape_{n}"), &shape);
                    let (rank, bytes, output) = (t.shape.len(), elem.bytes().unwrap_or(1), u8::from(t.direction.is_written()));
                    let ty = map_type(elem);
                    format!("{{{name}, FT_TENSOR, {rank}, {bytes}, {ty}, {output}, {}, {shape}}}", u8::from(wide))
                }
            });
        }
        self.array("ft_param", "params", &rows)
    }

    fn solved(&mut self, signature: &Signature) -> String {
        let ir = self.kernel.ir();
        let consts = self.numbers("int64_t", "consts", signature.consts().iter().copied());
        let source = |s: &crate::launch::SizeSource| {
            format!("{{{}, {}, {}, {}, {}, {}}}", s.size, s.param, s.dimension, s.coefficient, s.constant, s.divisor)
        };
        let sources: Vec<String> = signature.sources().iter().map(source).collect();
        let ranges: Vec<String> = signature.ranges().iter().map(|(p, d, least)| format!("{{{p}, {d}, {least}}}")).collect();
        let runtime = ir.sizes.iter().filter(|(_, s)| s.kind == SizeKind::Runtime).map(|(id, _)| id.index());
        let runtime: Vec<usize> = runtime.collect();
        let counts = (sources.len(), ranges.len(), runtime.len());
        let sources = self.array("ft_source", "sources", &sources);
        let ranges = self.array("ft_range", "ranges", &ranges);
        let runtime = self.numbers("int", "runtime", runtime);
        format!(
            ".consts = {consts}, .sources = {}, .source = {sources}, .ranges = {}, .range = {ranges}, .runtime_sizes = {}, \
             .runtime_size = {runtime}",
            counts.0, counts.1, counts.2
        )
    }

    fn reach(&mut self, reach: &Reach) -> String {
        let nodes: Vec<String> = reach.nodes().enumerate().map(|(n, node)| row_of_node(node, &reach.text(n))).collect();
        let access = |access: flashtile_dsl::analysis::reach::Indexed<'_>| {
            let (extent, none) = (size_expr(access.extent), "{0}".to_owned());
            let (node, start, length) = match access.at {
                IndexedAt::Node(node) => (node as i64, none.clone(), none),
                IndexedAt::Range(start, len) => (-1, size_expr(start), size_expr(len)),
            };
            format!("{{{}, {}, {extent}, {node}, {start}, {length}}}", access.tensor.index(), access.dimension)
        };
        let accesses: Vec<String> = reach.accesses().map(access).collect();
        let checked: Vec<String> = reach.sizes().map(|(s, text)| format!("{{{}, {}}}", size_expr(s), quoted(text))).collect();
        let grid: Vec<String> =
            reach.grid().iter().map(|(s, each)| format!("{{{}, {}}}", size_expr(s), u8::from(*each))).collect();
        let comparisons = reach.comparisons();
        let mut parts = Vec::new();
        for (count, field, rows) in [
            ("nodes", ("ft_node", "node"), &nodes),
            ("accesses", ("ft_access", "access"), &accesses),
            ("checked_sizes", ("ft_checked", "checked"), &checked),
            ("grids", ("ft_extent", "grid"), &grid),
        ] {
            let name = self.array(field.0, &format!("reach_{}", field.1), rows);
            parts.push(format!(".{count} = {}, .{} = {name}", rows.len(), field.1));
        }
        let watched: [(&str, &str, Vec<usize>); 3] = [
            ("divisors", "divisor", reach.divisors().collect()),
            ("indices", "index", reach.indices().collect()),
            ("exacts", "exact", reach.exact().collect()),
        ];
        for (count, field, nodes) in watched {
            // A node that is watched at several places of the text is decided once.
            let nodes: BTreeSet<usize> = nodes.into_iter().collect();
            let length = nodes.len();
            let name = self.numbers("int", &format!("reach_{field}"), nodes);
            parts.push(format!(".{count} = {length}, .{field} = {name}"));
        }
        let name = self.pairs("reach_comparison", comparisons);
        parts.push(format!(".comparisons = {}, .comparison = {name}", comparisons.len()));
        parts.join(", ")
    }

    fn fold(&mut self, fold: &FoldedRows) -> Result<(), String> {
        let ir = self.kernel.ir();
        let tensors: Vec<[usize; 2]> =
            fold.tensors.iter().map(|(name, d)| Ok([self.param(ir, name)?, *d as usize])).collect::<Result<_, String>>()?;
        let pairs = self.pairs("fold_tensors", &tensors);
        let [heads, groups, rows] = [&fold.heads, &fold.groups, &fold.rows].map(|term| self.term(term, false));
        let _ = writeln!(
            self.out,
            "static const ft_fold ft_{}_fold = {{{}, {}, {}, {}, {pairs}}};",
            self.name,
            heads?,
            groups?,
            rows?,
            tensors.len()
        );
        Ok(())
    }

    fn param(&self, ir: &ir::Kernel, name: &str) -> Result<usize, String> {
        ir.param_named(name).map(Entity::index).ok_or_else(|| format!("it has no parameter `{name}`"))
    }

    /// Position of a parameter, or after them of a scratch tensor.
    fn value(&self, scratch: &[Scratch], name: &str) -> Result<usize, String> {
        let ir = self.kernel.ir();
        let after = |_| scratch.iter().position(|s| s.name == name).map(|n| ir.params.len() + n);
        self.param(ir, name).or_else(|fault| after(()).ok_or(fault))
    }

    fn size(&self, name: &str) -> Result<usize, String> {
        self.sizes.iter().position(|own| own == name).ok_or_else(|| format!("it has no size `{name}`"))
    }

    /// A term of a contract, rounded down or exact.
    fn term(&self, term: &SizeTerm, rounded: bool) -> Result<String, String> {
        let terms: Vec<(usize, i64)> =
            term.terms.iter().map(|(name, c)| Ok((self.size(name)?, *c))).collect::<Result<_, String>>()?;
        if terms.len() > TERMS {
            return Err(format!("it has an extent of {} sizes, and the C launcher has room for {TERMS}", terms.len()));
        }
        Ok(expr(&terms, term.constant, term.divisor, rounded))
    }

    fn arch(&mut self, arch: &ArchContract) -> Result<String, String> {
        let stem = arch.arch.clone();
        let mut codes = Vec::new();
        for (n, code) in arch.code.iter().enumerate() {
            let cubin = symbol(&code.cubin);
            let _ = writeln!(self.out, "extern const unsigned long long {cubin}[];");
            codes.push(self.code(&format!("{stem}_{n}"), &cubin, &code.contract)?);
        }
        let codes = self.array("ft_code", &format!("{stem}_code"), &codes);
        let ranks: BTreeSet<_> = arch.variants.iter().map(|v| strength(&v.facts)).collect();
        let ranks: Vec<_> = ranks.into_iter().rev().collect();
        let mut rows = Vec::new();
        for (n, variant) in arch.variants.iter().enumerate() {
            let rank = ranks.iter().position(|own| *own == strength(&variant.facts)).expect("it is one of them");
            rows.push(self.variant(&format!("{stem}_{n}"), variant, rank));
        }
        let variants = self.array("ft_variant", &format!("{stem}_variants"), &rows);
        let (major, minor, specific) = capability(&arch.arch);
        let specific = u8::from(specific);
        Ok(format!("{{{}, {major}, {minor}, {specific}, {}, {variants}, {codes}}}", quoted(&stem), rows.len()))
    }

    fn variant(&mut self, stem: &str, variant: &Variant, rank: usize) -> String {
        let (ir, binding) = (self.kernel.ir(), self.kernel.binding());
        let runtime = ir.sizes.values().filter(|s| s.kind == SizeKind::Runtime);
        let places: Vec<i64> = runtime.map(|s| variant.sizes.get(&s.name).map_or(0, |&size| eighths(size))).collect();
        let places = self.numbers("int", &format!("{stem}_places"), places);
        let scalars = ir.params.values().filter(|p| matches!(p.kind, ParamKind::Scalar(e) if binding.elem(ir, e) == Elem::F32));
        let positive = scalars.enumerate().filter(|(_, p)| variant.facts.positive.contains(&p.name));
        let positive = positive.fold(0u32, |bits, (bit, _)| bits | 1 << bit);
        let facts = &variant.facts;
        let (foldable, wide) = (u8::from(facts.foldable), u8::from(facts.wide));
        let alignment = ir.params.values().map(|p| facts.alignment_of(&p.name));
        let alignment = self.numbers("int", &format!("{stem}_alignment"), alignment);
        format!("{{{positive:#x}, {alignment}, {foldable}, {wide}, {rank}, {places}, {}}}", variant.code)
    }

    fn code(&mut self, stem: &str, cubin: &str, contract: &CallingContract) -> Result<String, String> {
        let mut steps = Vec::new();
        for (n, abi) in contract.launches.iter().enumerate() {
            steps.push(self.step(&format!("{stem}_{n}"), abi, &contract.scratch)?);
        }
        let mut scratches = Vec::new();
        for (n, scratch) in contract.scratch.iter().enumerate() {
            let shape: Vec<String> = scratch.shape.iter().map(|t| self.term(t, true)).collect::<Result<_, _>>()?;
            let shape = self.array("ft_expr", &format!("{stem}_scratch_{n}"), &shape);
            let (bytes, ty) = (scratch.elem.bytes().unwrap_or(1), map_type(scratch.elem));
            scratches.push(format!("{{{}, {bytes}, {ty}, {}, {shape}}}", quoted(&scratch.name), scratch.shape.len()));
        }
        let counts = (steps.len(), scratches.len());
        let steps = self.array("ft_step", &format!("{stem}_steps"), &steps);
        let scratches = self.array("ft_scratch", &format!("{stem}_scratches"), &scratches);
        let folded = u8::from(contract.folded.is_some());
        Ok(format!("{{{cubin}, {}, {}, {steps}, {scratches}, {folded}}}", counts.0, counts.1))
    }

    fn step(&mut self, stem: &str, abi: &Abi, scratch: &[Scratch]) -> Result<String, String> {
        let (offsets, block_bytes) = abi.layout();
        let mut workspace = (0, 0);
        let mut fields = Vec::new();
        for (field, offset) in abi.fields.iter().zip(offsets) {
            fields.push(match field {
                Field::Pointer(name) => format!("{{FT_POINTER, {offset}, {}, 0}}", self.value(scratch, name)?),
                Field::Stride(name, d) => format!("{{FT_STRIDE, {offset}, {}, {d}}}", self.value(scratch, name)?),
                Field::Size(name) => format!("{{FT_SIZE_FIELD, {offset}, {}, 0}}", self.size(name)?),
                Field::Scalar(name) => {
                    format!("{{FT_SCALAR_FIELD, {offset}, {}, {}}}", self.value(scratch, name)?, self.is_i32(name))
                }
                // The launcher zeroes what a launch begins with, and so forgets what would be kept.
                Field::Workspace { bytes, per_program, kept: _ } => {
                    workspace = (*bytes, *per_program);
                    format!("{{FT_WORKSPACE, {offset}, 0, 0}}")
                }
            });
        }
        let grid = |dim: &GridDim| match dim {
            GridDim::Each(t) => Ok(format!("{{{}, 1}}", self.term(t, true)?)),
            GridDim::Tiles(t, block) => Ok(format!("{{{}, {}}}", self.term(t, true)?, (*block).max(1))),
        };
        let grid: Vec<String> = abi.grid.iter().map(grid).collect::<Result<_, String>>()?;
        let maps: Vec<String> = abi.tensor_maps.iter().map(|map| self.map(map, scratch)).collect::<Result<_, String>>()?;
        let counts = (grid.len(), fields.len(), maps.len());
        let grid = self.array("ft_grid", &format!("{stem}_grid"), &grid);
        let fields = self.array("ft_field", &format!("{stem}_fields"), &fields);
        let maps = self.array("ft_map", &format!("{stem}_maps"), &maps);
        let per_sm = match abi.blocks {
            Blocks::PerProgram => 0,
            Blocks::Persistent(per_sm) => per_sm,
        };
        let (entry, threads, shared, cluster) = (quoted(&abi.entry), abi.threads, abi.shared_bytes, abi.cluster.max(1));
        Ok(format!(
            "{{{entry}, {threads}, {shared}, {cluster}, {}, {per_sm}, {block_bytes}, {}, {}, {}, {}, {}, {grid}, {fields}, {maps}}}",
            u8::from(abi.early),
            workspace.0,
            workspace.1,
            counts.0,
            counts.1,
            counts.2
        ))
    }

    fn is_i32(&self, name: &str) -> u8 {
        let (ir, binding) = (self.kernel.ir(), self.kernel.binding());
        let elem = ir.param_named(name).and_then(|id| match ir.params[id].kind {
            ParamKind::Scalar(elem) => Some(binding.elem(ir, elem)),
            ParamKind::Tensor(_) => None,
        });
        u8::from(elem == Some(Elem::I32))
    }

    fn map(&self, map: &TensorMap, scratch: &[Scratch]) -> Result<String, String> {
        let list = |numbers: &[u32]| numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        let value = self.value(scratch, &map.tensor)?;
        if !(2..=5).contains(&map.order.len()) {
            return Err(format!("`{}` has {} dimensions, and a tensor map 2 to 5", map.tensor, map.order.len()));
        }
        let (order, tile) = (list(&map.order), list(&map.tile));
        Ok(format!("{{{value}, {}, {{{order}}}, {{{tile}}}, {}}}", map.order.len(), map.row_bytes()))
    }
}

/// `CUtensorMapDataType` of elements that a map can have; 0 of others.
fn map_type(elem: Elem) -> u32 {
    match elem {
        Elem::F16 => 6,
        Elem::F32 => 7,
        Elem::Bf16 => 9,
        _ => 0,
    }
}

fn row_of_node(node: &Node, text: &str) -> String {
    let text = quoted(text);
    let row = |op: &str, a: usize, b: usize, value: i64, extent: &str| format!("{{{op}, {a}, {b}, {value}LL, {extent}, {text}}}");
    match node {
        Node::Constant(c) => row("FT_CONSTANT", 0, 0, *c, "{0}"),
        Node::Size(id, _) => row("FT_SIZE", id.index(), 0, 0, "{0}"),
        Node::Scalar(id, _) => row("FT_SCALAR", id.index(), 0, 0, "{0}"),
        Node::Below(extent, _) => row("FT_BELOW", 0, 0, 0, &size_expr(extent)),
        Node::Negated(x) => row("FT_NEGATED", *x, 0, 0, "{0}"),
        Node::Absolute(x) => row("FT_ABSOLUTE", *x, 0, 0, "{0}"),
        Node::Binary(op, a, b) => row(operation(*op).expect("an operation on integers"), *a, *b, 0, "{0}"),
        Node::Either(a, b) => row("FT_EITHER", *a, *b, 0, "{0}"),
        Node::Widened(x) => row("FT_WIDENED", *x, 0, 0, "{0}"),
        Node::Unknown => row("FT_UNKNOWN", 0, 0, 0, "{0}"),
    }
}

/// A size expression of the kernel.
fn size_expr(size: &SizeExpr) -> String {
    let (terms, constant, divisor) = size.parts();
    let terms: Vec<(usize, i64)> = terms.iter().map(|(id, c)| (id.index(), *c)).collect();
    expr(&terms, constant, divisor, size.is_rounded())
}

fn expr(terms: &[(usize, i64)], constant: i64, divisor: i64, rounded: bool) -> String {
    let list = |numbers: Vec<String>| if numbers.is_empty() { "0".to_owned() } else { numbers.join(", ") };
    let sizes = list(terms.iter().map(|(size, _)| size.to_string()).collect());
    let coefficients = list(terms.iter().map(|(_, c)| c.to_string()).collect());
    format!("{{{}, {{{sizes}}}, {{{coefficients}}}, {constant}, {divisor}, {}}}", terms.len(), u8::from(rounded))
}
