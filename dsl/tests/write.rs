//! Kernels written as text, and read again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use flashtile_dsl::ir::{
    At, AxisKind, BinaryOp, Builder, Direction, Elem, Kernel, Op, Param, ParamKind, ProgramDim, SizeExpr, SizeKind, SourceText,
    Span, TensorDecl,
};
use flashtile_dsl::syntax::parse;
use flashtile_dsl::text::write;

fn read(name: &str, text: &str) -> Vec<Kernel> {
    let source = SourceText { name: name.into(), text: text.into(), first_line: 1 };
    parse(&source).unwrap_or_else(|e| panic!("{name}: {e}\n{text}"))
}

fn files() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = Vec::new();
    for folder in ["runtime/kernels", "tests/kernels", "tests/asked"] {
        for entry in std::fs::read_dir(root.join(folder)).expect("a folder of kernels") {
            let path = entry.expect("is readable").path();
            found.extend(path.extension().is_some_and(|ext| ext == "rs").then_some(path));
        }
    }
    found.sort();
    assert!(found.len() > 60, "{}", found.len());
    found
}

/// How often each op occurs, but for those that text repeats wherever they are meant.
fn ops(kernel: &Kernel) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for (_, op) in kernel.walk() {
        match &kernel.ops[op].op {
            Op::Scalar(_) | Op::Constant(..) | Op::SizeOf(_) | Op::IndexConst(_) | Op::FromIndex(_) | Op::Pos(_) => {}
            // What is made of program ids and sizes may be made as an index.
            Op::Index(..) | Op::Binary(BinaryOp::Mul, ..) => {}
            op => *counts.entry(op.mnemonic()).or_insert(0) += 1,
        }
    }
    counts
}

#[test]
fn kernels_are_read_as_they_were_written() {
    for path in files() {
        let text = std::fs::read_to_string(&path).expect("is readable");
        for kernel in read(&path.display().to_string(), &text) {
            let written = write(&kernel).unwrap_or_else(|e| panic!("{}: {e}", kernel.name));
            let again = read(&kernel.name, &written).remove(0);
            assert_eq!(ops(&again), ops(&kernel), "{written}");
            let params = |kernel: &Kernel| kernel.params.values().map(|p| (p.name.clone(), p.kind.clone())).collect::<Vec<_>>();
            assert_eq!(params(&again).len(), params(&kernel).len(), "{written}");
            assert_eq!((&again.name, &again.doc), (&kernel.name, &kernel.doc));
            assert_eq!(write(&again).expect("has a text"), written);
            assert!(written.lines().all(|line| line.len() <= 130 || line.starts_with("///")), "{written}");
        }
    }
}

#[test]
fn attention_reads_as_it_was_written_by_hand() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/kernels/dkv.rs");
    let text = std::fs::read_to_string(path).expect("is readable");
    let written = write(&read("dkv.rs", &text)[0]).expect("has a text");
    let expected = "\
pub fn dkv<T: Element, const D: usize>(
    q: &Tensor<T, (B, H, M, D)>,
    k: &Tensor<T, (B, H, N, D)>,
    v: &Tensor<T, (B, H, N, D)>,
    go: &Tensor<T, (B, H, M, D)>,
    lse: &Tensor<f32, (B, H, M)>,
    delta: &Tensor<f32, (B, H, M)>,
    scale: f32,
    gk: &mut Tensor<T, (B, H, N, D)>,
    gv: &mut Tensor<T, (B, H, N, D)>,
) {
    let (b, h, j) = program(B, H, tiles(N));
    let k_j = load(k, [b, h, j, ..]);
    let v_j = load(v, [b, h, j, ..]);
    let mut dk = zeros((j, D));
    let mut dv = zeros((j, D));
    for i in tiles(M) {
        let q_i = load(q, [b, h, i, ..]);
        let go_i = load(go, [b, h, i, ..]);
        let st = mask(dot(k_j, q_i.t()) * scale, pos(i) >= pos(j));
        let pt = exp(st - load(lse, [b, h, i]));
        let dpt = dot(v_j, go_i.t());
        let dst = pt * (dpt - load(delta, [b, h, i]));
        dk = dk + dot(dst.to::<T>(), q_i);
        dv = dv + dot(pt.to::<T>(), go_i);
    }
    store(gk, [b, h, j, ..], dk * scale);
    store(gv, [b, h, j, ..], dv);
}
";
    assert_eq!(written, expected);
}

#[test]
fn what_only_rewrites_make_has_no_text() {
    let mut b = Builder::new("tiles");
    let size = SizeExpr::size(b.size("N", SizeKind::Runtime));
    let tensor = |name: &str, direction| Param {
        name: name.into(),
        kind: ParamKind::Tensor(TensorDecl { elem: Elem::I32, shape: vec![size.clone()], direction }),
        span: Span::default(),
    };
    let [x, y] =
        [("x", Direction::In), ("y", Direction::Out)].map(|(name, direction)| b.kernel.params.push(tensor(name, direction)));
    let axis = b.axis("i", size.clone(), AxisKind::Program);
    let (_, place) = b.append(Op::Program(vec![ProgramDim::Tiles(axis)]));
    let at = vec![At::Tile(place[0])];
    let value = b.emit(Op::BlockExtreme { tensor: x, at: at.clone(), block: 16, largest: false });
    b.append(Op::Store { tensor: y, at, value });
    assert_eq!(write(&b.finish()).expect_err("no word").what, "block_min");
}

#[test]
fn names_that_are_not_free_are_changed() {
    // The coordinate is called as a size is, a value as a word of the language, another has no
    // name.
    let mut b = Builder::new("sums");
    let size = SizeExpr::size(b.size("N", SizeKind::Runtime));
    let tensor = |name: &str, direction| Param {
        name: name.into(),
        kind: ParamKind::Tensor(TensorDecl { elem: Elem::F32, shape: vec![size.clone()], direction }),
        span: Span::default(),
    };
    let [x, y] =
        [("x", Direction::In), ("y", Direction::Out)].map(|(name, direction)| b.kernel.params.push(tensor(name, direction)));
    let axis = b.axis("N", size.clone(), AxisKind::Program);
    let (_, place) = b.append(Op::Program(vec![ProgramDim::Tiles(axis)]));
    b.name(place[0], "N");
    let at = vec![At::Tile(place[0])];
    let loaded = b.emit(Op::Load { tensor: x, at: at.clone() });
    b.name(loaded, "do");
    let square = b.emit(Op::Binary(BinaryOp::Mul, loaded, loaded));
    b.name(square, "x");
    let quartic = b.emit(Op::Binary(BinaryOp::Mul, square, square));
    b.append(Op::Store { tensor: y, at, value: quartic });
    let expected = "\
pub fn sums(
    x: &Tensor<f32, (N)>,
    y: &mut Tensor<f32, (N)>,
) {
    let N2 = program(tiles(N));
    let do2 = load(x, [N2]);
    let x2 = do2 * do2;
    store(y, [N2], x2 * x2);
}
";
    let written = write(&b.finish()).expect("has a text");
    assert_eq!(written, expected);
    assert_eq!(read("sums.rs", &written).len(), 1);
}
