//! The built-in kernels, read from their files.

use flashtile_dsl::ir::{At, Dim, Elem, Kernel, Op, ProgramDim, SourceText};
use flashtile_dsl::syntax::parse;

fn read(name: &str) -> Kernel {
    let path = format!("{}/../runtime/kernels/{name}.rs", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).expect("a built-in kernel");
    let kernels = parse(&SourceText { name: path, text: text.into(), first_line: 1 });
    let mut kernels = kernels.unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(kernels.len(), 1);
    kernels.remove(0)
}

fn ops<'k>(kernel: &'k Kernel, mnemonic: &str) -> Vec<&'k Op> {
    let all = kernel.walk().into_iter().map(|(_, id)| &kernel.ops[id].op);
    all.filter(|op| op.mnemonic() == mnemonic).collect()
}

#[test]
fn every_built_in_kernel_is_sound() {
    for name in ["attention", "causal_attention", "matmul_gelu", "row_softmax"] {
        let kernel = read(name);
        assert_eq!(kernel.name, name);
        assert!(!kernel.doc.is_empty());
    }
}

#[test]
fn causal_attention_carries_its_running_state_in_order_of_declaration() {
    let kernel = read("causal_attention");
    let loops = ops(&kernel, "for");
    let [Op::For { body, init, .. }] = loops[..] else { panic!("one loop") };
    let names: Vec<_> = kernel.blocks[*body].params.iter().map(|&v| kernel.values[v].name.as_deref()).collect();
    assert_eq!(names, [Some("j"), Some("m"), Some("l"), Some("acc")]);
    let types: Vec<_> = init.iter().map(|&v| kernel.type_text(kernel.ty(v))).collect();
    assert_eq!(types, ["tile<f32, (i)>", "tile<f32, (i)>", "tile<f32, (i, D)>"]);
    assert!(matches!(kernel.grid(), [ProgramDim::Each(_), ProgramDim::Each(_), ProgramDim::Tiles(_)]));
    assert_eq!(ops(&kernel, "mask").len(), 1);
    assert_eq!(ops(&kernel, "dot").len(), 2);
}

#[test]
fn every_op_has_its_place() {
    let kernel = read("causal_attention");
    for (_, id) in kernel.walk() {
        let data = &kernel.ops[id];
        assert!(kernel.source.line_column(data.span).is_some(), "{} has no place", data.op.mnemonic());
    }
    let (_, mask) = kernel.walk().into_iter().find(|&(_, id)| kernel.ops[id].op.mnemonic() == "mask").expect("a mask");
    let span = kernel.ops[mask].span;
    let text = &kernel.source.text[span.start as usize..span.end as usize];
    assert_eq!(text, "mask(s, pos(i) + N - M >= pos(j))");
}

#[test]
fn matmul_gelu_accumulates_and_adds_a_row_vector() {
    let kernel = read("matmul_gelu");
    let loads = ops(&kernel, "load_tile");
    let [Op::Load { at: a, .. }, ..] = loads[..] else { panic!("loads") };
    assert!(matches!(a[..], [At::Tile(_), At::Tile(_)]));
    let [Op::Store { value, .. }] = ops(&kernel, "store_tile")[..] else { panic!("one store") };
    let tile = kernel.tile(*value);
    assert_eq!(tile.elem, Elem::F32);
    assert!(matches!(tile.dims[..], [Dim::Axis(i), Dim::Axis(j)] if i < j));
}

/// The text form of the kernel of a text, without the places of its ops.
fn ir(text: &str) -> String {
    let kernels = parse(&SourceText { name: "kernel.rs".into(), text: text.into(), first_line: 1 });
    let kernel = kernels.unwrap_or_else(|errors| panic!("{errors}")).remove(0);
    kernel.to_string()
}

#[test]
fn a_tuple_of_values_is_bound_at_once() {
    let with = |middle: &str| {
        ir(&format!(
            "pub fn f(x: &Tensor<f32, (2, N)>, y: &mut Tensor<f32, (N)>) {{
                let i = program(tiles(N));
                let a = load(x, [0, i]);
                let b = load(x, [1, i]);
                {middle}
                store(y, [i], c / d);
            }}"
        ))
    };
    let exchanged = with("let (c, mut d) = (b, a); d = d * c;");
    assert_eq!(exchanged, with("let c = b; let mut d = a; d = d * c;"));
    // The second value is computed of the `a` of before.
    let shadowed = with("let (a, d) = (b, a); let c = a;");
    assert_eq!(shadowed, with("let d = a; let c = b;"));
}

#[test]
fn ranges_of_computed_dimensions_have_their_length() {
    let text = ir("pub fn f<const D: usize>(x: &Tensor<f32, (N, D + 1)>, w: &Tensor<f32, (64)>, y: &mut Tensor<f32, (N)>) {
        let i = program(tiles(N));
        store(y, [i], rowsum(load(x, [i, ..])) + rowsum(full((i, 64), 1.0) * load(w, [..])));
    }");
    assert!(text.contains("tile<f32, (i, D + 1)>") && text.contains("tile<f32, (64)>"), "{text}");
}
