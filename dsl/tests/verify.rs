//! The verifier on planted faults: a sound kernel, one change, one rule.

use flashtile_dsl::ir::{
    At, Axis, AxisKind, BinaryOp, BlockData, BlockId, CompareOp, Dim, Elem, Fill, IndexOp, Kernel, Op, OpData, OpId, Part,
    ProgramDim, Rule, SizeExpr, SourceText, Span, TileType, Type, UnaryOp, ValueData, ValueDef, ValueId, result_types, verify,
};
use flashtile_dsl::syntax::parse;

const TEXT: &str = "pub fn sound<T: Element, const D: usize>(
    q: &Tensor<T, (B, M, D)>,
    k: &Tensor<T, (B, N, D)>,
    page: &Tensor<i32, (B)>,
    scale: f32,
    o: &mut Tensor<T, (B, M, D)>,
    s_out: &mut Tensor<f32, (B, M, N)>,
) {
    let (b, i) = program(B, tiles(M));
    let row = load(page, [b]);
    let c = b * 2 + row;
    let q_i = load(q, [b, i, ..]);
    let mut acc = zeros((i, D));
    let mut l = full(i, 0.0);
    for j in tiles(N) {
        let k_j = load(k, [row, j, 0..4]);
        let s = dot(load(q, [b, i, 0..4]), k_j.t()) * scale;
        let t = mask(s, pos(i) >= pos(j) && !(pos(i) == c));
        let p = select(s > 0.0, t, -s);
        l = l + rowsum(p);
        acc = acc * div_or_zero(l, l + 1.0) + exp(q_i.to::<f32>()) + select(pos(i) % 2 == 0, 1.0, 2.0);
        store(s_out, [b, i, j], p);
    }
    store(o, [b, i, ..], acc / l);
}";

fn sound() -> Kernel {
    let source = SourceText { name: "sound.rs".into(), text: TEXT.into(), first_line: 1 };
    parse(&source).unwrap_or_else(|errors| panic!("{errors}")).remove(0)
}

/// The nth op of this name, in program order.
fn find(kernel: &Kernel, mnemonic: &str, n: usize) -> OpId {
    let ids = kernel.walk().into_iter().map(|(_, id)| id);
    ids.filter(|&id| kernel.ops[id].op.mnemonic() == mnemonic).nth(n).unwrap_or_else(|| panic!("no {mnemonic} {n}"))
}

fn result(kernel: &Kernel, mnemonic: &str, n: usize) -> ValueId {
    kernel.ops[find(kernel, mnemonic, n)].results[0]
}

fn replace(kernel: &mut Kernel, mnemonic: &str, n: usize, op: Op) {
    let id = find(kernel, mnemonic, n);
    kernel.ops[id].op = op;
}

/// Adds an op with one result before the last op of the kernel.
fn add(kernel: &mut Kernel, op: Op) -> ValueId {
    let (ty, body) = (result_types(kernel, &op).remove(0), kernel.body);
    let id = kernel.ops.push(OpData { op, results: vec![], span: Span::default() });
    let value = kernel.values.push(ValueData { ty, def: ValueDef::Result(id, 0), name: None });
    kernel.ops[id].results.push(value);
    let last = kernel.blocks[body].ops.len() - 1;
    kernel.blocks[body].ops.insert(last, id);
    value
}

/// Gathers elements of a tensor at what `at` makes of a program id and of the positions of rows.
fn gather(kernel: &mut Kernel, tensor: &str, at: impl Fn(ValueId, ValueId) -> Vec<ValueId>) {
    let program = kernel.ops[find(kernel, "program", 0)].results.clone();
    let rows = add(kernel, Op::Pos(program[1]));
    let tensor = kernel.param_named(tensor).expect("a parameter");
    add(kernel, Op::Gather { tensor, at: at(program[0], rows) });
}

/// Adds the positions of rows, as floats, to elements of a tensor.
fn scatter(kernel: &mut Kernel, tensor: &str, at: impl Fn(ValueId, ValueId) -> Vec<ValueId>) {
    let program = kernel.ops[find(kernel, "program", 0)].results.clone();
    let rows = add(kernel, Op::Pos(program[1]));
    let value = add(kernel, Op::Cast(Elem::F32, rows));
    let (tensor, body) = (kernel.param_named(tensor).expect("a parameter"), kernel.body);
    let op = Op::Scatter { tensor, at: at(program[0], rows), value };
    let id = kernel.ops.push(OpData { op, results: vec![], span: Span::default() });
    let last = kernel.blocks[body].ops.len() - 1;
    kernel.blocks[body].ops.insert(last, id);
}

fn loop_parts(kernel: &Kernel) -> (OpId, BlockId) {
    let id = find(kernel, "for", 0);
    let Op::For { body, .. } = kernel.ops[id].op else { unreachable!("found as a loop") };
    (id, body)
}

/// Appends an op with a result at the end of the kernel.
fn append(kernel: &mut Kernel, op: Op, ty: Type) -> ValueId {
    let id = OpId(kernel.ops.len() as u32);
    let value = kernel.values.push(ValueData { ty, def: ValueDef::Result(id, 0), name: None });
    kernel.ops.push(OpData { op, results: vec![value], span: Span::default() });
    let body = kernel.body;
    kernel.blocks[body].ops.push(id);
    value
}

/// A change to a sound kernel.
type Fault = fn(&mut Kernel);

/// Faults with the rule that each violates.
const FAULTS: &[(Rule, &str, Fault)] = &[
    (Rule::Entity, "operand out of range", |k| replace(k, "transpose", 0, Op::Transpose(ValueId(9999)))),
    (Rule::Entity, "size out of range", |k| replace(k, "index.mul", 0, Op::SizeOf(flashtile_dsl::ir::SizeId(99)))),
    (Rule::Entity, "type parameter out of range", |k| k.type_params.clear()),
    (Rule::Entity, "no body", |k| k.body = BlockId(77)),
    (Rule::Nesting, "op in two blocks", |k| {
        let (id, body) = (find(k, "transpose", 0), k.body);
        k.blocks[body].ops.push(id);
    }),
    (Rule::Nesting, "loop in itself", |k| {
        let (id, body) = loop_parts(k);
        let outer = k.body;
        k.blocks[outer].ops.retain(|&op| op != id);
        k.blocks[body].ops.insert(0, id);
    }),
    (Rule::Nesting, "loop over the kernel body", |k| {
        let (id, _) = loop_parts(k);
        let outer = k.body;
        if let Op::For { body, .. } = &mut k.ops[id].op {
            *body = outer;
        }
    }),
    (Rule::Definition, "result of another op", |k| {
        let value = result(k, "transpose", 0);
        k.values[value].def = ValueDef::Result(OpId(0), 0);
    }),
    (Rule::Definition, "parameter of another block", |k| {
        let (_, body) = loop_parts(k);
        let value = k.blocks[body].params[1];
        k.values[value].def = ValueDef::BlockParam(body, 0);
    }),
    (Rule::Program, "program not first", |k| {
        let body = k.body;
        k.blocks[body].ops.swap(0, 2);
    }),
    (Rule::Program, "no program", |k| {
        let body = k.body;
        k.blocks[body].ops.clear();
    }),
    (Rule::Yield, "no yield", |k| {
        let (_, body) = loop_parts(k);
        k.blocks[body].ops.pop();
    }),
    (Rule::Yield, "yield in the kernel body", |k| {
        let id = k.ops.push(OpData { op: Op::Yield(vec![]), results: vec![], span: Span::default() });
        let body = k.body;
        k.blocks[body].ops.push(id);
    }),
    (Rule::Dominance, "use before definition", |k| {
        let (_, body) = loop_parts(k);
        k.blocks[body].ops.reverse();
    }),
    (Rule::Dominance, "value of a loop used after it", |k| {
        let inside = result(k, "rowsum", 0);
        append(k, Op::Unary(UnaryOp::Neg, inside), k.ty(inside).clone());
    }),
    (Rule::Axis, "loop over a program axis", |k| {
        let axis = k.axes.keys().next().expect("an axis");
        k.axes[axis].kind = AxisKind::Loop;
    }),
    (Rule::Axis, "axis walked twice", |k| {
        let id = find(k, "program", 0);
        if let Op::Program(dims) = &mut k.ops[id].op {
            dims[0] = ProgramDim::Tiles(k.axes.keys().next().expect("an axis"));
        }
    }),
    (Rule::Part, "a part that no program id chooses", |k| {
        let (index, id) = (result(k, "index", 0), find(k, "for", 0));
        if let Op::For { part, .. } = &mut k.ops[id].op {
            *part = Some(Part { index, count: 4 });
        }
    }),
    (Rule::Part, "more programs than parts", |k| {
        let (index, id) = (result(k, "program", 0), find(k, "for", 0));
        if let Op::For { part, .. } = &mut k.ops[id].op {
            *part = Some(Part { index, count: 4 });
        }
    }),
    (Rule::Carried, "a coordinate of single positions", |k| {
        let id = find(k, "for", 0);
        if let Op::For { axis, .. } = k.ops[id].op {
            k.axes[axis].kind = AxisKind::Each;
        }
    }),
    (Rule::Rank, "a tile of single positions", |k| {
        let id = find(k, "for", 0);
        if let Op::For { axis, body, .. } = k.ops[id].op {
            k.axes[axis].kind = AxisKind::Each;
            let coordinate = k.blocks[body].params[0];
            k.values[coordinate].ty = Type::Index;
        }
    }),
    (Rule::Name, "two sizes of one name", |k| {
        let sizes: Vec<_> = k.sizes.keys().collect();
        k.sizes[sizes[1]].name = k.sizes[sizes[0]].name.clone();
    }),
    (Rule::Name, "a parameter without a name", |k| {
        let param = k.params.keys().next().expect("a parameter");
        k.params[param].name.clear();
    }),
    (Rule::Carried, "yield of another type", |k| {
        let coordinate = k.blocks[loop_parts(k).1].params[0];
        let id = find(k, "yield", 0);
        if let Op::Yield(values) = &mut k.ops[id].op {
            values[0] = coordinate;
        }
    }),
    (Rule::Carried, "too few initial values", |k| {
        let (id, _) = loop_parts(k);
        if let Op::For { init, .. } = &mut k.ops[id].op {
            init.pop();
        }
    }),
    (Rule::Operand, "index arithmetic on a tile", |k| {
        let (tile, index) = (result(k, "load_tile", 0), result(k, "index", 0));
        let sum = append(k, Op::Index(IndexOp::Add, index, index), Type::Index);
        let ValueDef::Result(id, _) = k.values[sum].def else { unreachable!("just appended") };
        k.ops[id].op = Op::Index(IndexOp::Add, tile, index);
    }),
    (Rule::Operand, "exp of integers", |k| {
        let x = result(k, "pos", 0);
        replace(k, "exp", 0, Op::Unary(UnaryOp::Exp, x));
    }),
    (Rule::Operand, "positions of an index", |k| {
        let x = result(k, "program", 0);
        replace(k, "pos", 0, Op::Pos(x));
    }),
    (Rule::Operand, "and of numbers", |k| {
        let id = find(k, "div_or_zero", 0);
        if let Op::Binary(op, ..) = &mut k.ops[id].op {
            *op = BinaryOp::And;
        }
    }),
    (Rule::Operand, "comparison of different element types", |k| {
        let (i, s) = (result(k, "pos", 0), result(k, "const", 0));
        replace(k, "cmp.eq", 0, Op::Compare(CompareOp::Eq, i, s));
    }),
    (Rule::Operand, "cast of a float to a byte", |k| {
        let x = result(k, "load_tile", 1);
        replace(k, "cast", 0, Op::Cast(Elem::U8, x));
    }),
    (Rule::Operand, "a tile of bytes", |k| {
        let value = result(k, "load_tile", 1);
        if let Type::Tile(tile) = &mut k.values[value].ty {
            tile.elem = Elem::I8;
        }
        replace(k, "exp", 0, Op::Unary(UnaryOp::Exp, value));
    }),
    (Rule::Operand, "cast to bytes", |k| {
        let x = result(k, "load_tile", 1);
        replace(k, "cast", 0, Op::Cast(Elem::F8E4M3, x));
    }),
    (Rule::Operand, "output of bytes", |k| {
        let param = k.param_named("s_out").expect("a parameter");
        if let flashtile_dsl::ir::ParamKind::Tensor(tensor) = &mut k.params[param].kind {
            tensor.elem = Elem::F8E5M2;
        }
    }),
    (Rule::Operand, "bool tensor", |k| {
        let param = k.param_named("s_out").expect("a parameter");
        if let flashtile_dsl::ir::ParamKind::Tensor(tensor) = &mut k.params[param].kind {
            tensor.elem = Elem::Bool;
        }
    }),
    (Rule::Rank, "range of run-time length", |k| {
        let size = SizeExpr::size(k.size_named("N").expect("a size"));
        let id = find(k, "full", 0);
        if let Op::Full { dims, .. } = &mut k.ops[id].op {
            dims[1] = Dim::Range(size);
        }
    }),
    (Rule::Rank, "an axis twice", |k| {
        let id = find(k, "full", 0);
        if let Op::Full { dims, .. } = &mut k.ops[id].op {
            dims[1] = dims[0].clone();
        }
    }),
    (Rule::Rank, "three dimensions", |k| {
        let id = find(k, "full", 0);
        if let Op::Full { dims, .. } = &mut k.ops[id].op {
            dims.push(Dim::Range(SizeExpr::constant(4)));
        }
    }),
    (Rule::Broadcast, "mask with a dimension too many", |k| {
        let (x, keep) = (result(k, "rowsum", 0), result(k, "and", 0));
        replace(k, "neg", 0, Op::Mask { x, keep, fill: Fill::NegInf });
        // Dominance: the sum stands after the negation.
        let (_, body) = loop_parts(k);
        let (neg, sum) = (find(k, "mask", 1), find(k, "rowsum", 0));
        replace(k, "rowsum", 0, Op::Reduce(flashtile_dsl::ir::ReduceOp::Sum, result(k, "mask", 0)));
        k.blocks[body].ops.retain(|&op| op != sum);
        let at = k.blocks[body].ops.iter().position(|&op| op == neg).expect("in the loop");
        k.blocks[body].ops.insert(at, sum);
    }),
    (Rule::Broadcast, "accumulator of another type", |k| {
        let (id, wrong) = (find(k, "dot", 0), result(k, "load_tile", 1));
        if let Op::Dot { acc, .. } = &mut k.ops[id].op {
            *acc = Some(wrong);
        }
    }),
    (Rule::Contraction, "inner dimensions differ", |k| {
        let (id, whole) = (find(k, "dot", 0), result(k, "load_tile", 1));
        if let Op::Dot { a, .. } = &mut k.ops[id].op {
            *a = whole;
        }
    }),
    (Rule::Constant, "not a number", |k| replace(k, "const", 0, Op::Constant(Elem::F32, f64::NAN))),
    (Rule::Constant, "a fraction as an integer", |k| replace(k, "const", 0, Op::Constant(Elem::I32, 0.5))),
    (Rule::Constant, "16-bit constant", |k| replace(k, "const", 0, Op::Constant(Elem::F16, 0.5))),
    (Rule::Result, "declared result differs", |k| {
        let value = result(k, "exp", 0);
        k.values[value].ty = Type::Tile(TileType::scalar(Elem::F32));
    }),
    (Rule::Address, "too few entries", |k| {
        let id = find(k, "store_tile", 1);
        if let Op::Store { at, .. } = &mut k.ops[id].op {
            at.pop();
        }
    }),
    (Rule::Address, "coordinate of another extent", |k| {
        let id = find(k, "store_tile", 0);
        if let Op::Store { at, .. } = &mut k.ops[id].op {
            at.swap(1, 2);
        }
    }),
    (Rule::Address, "range before the start", |k| {
        let id = find(k, "load_tile", 2);
        if let Op::Load { at, .. } = &mut k.ops[id].op {
            at[2] = At::Range { start: SizeExpr::constant(-2), len: SizeExpr::constant(4) };
        }
    }),
    (Rule::Operand, "positions that are floats", |k| {
        let l = result(k, "full", 1);
        gather(k, "page", |_, _| vec![l]);
    }),
    (Rule::Address, "positions for one dimension of three", |k| gather(k, "q", |_, rows| vec![rows])),
    (Rule::Address, "elements at indices alone", |k| gather(k, "page", |b, _| vec![b])),
    (Rule::Direction, "elements of an output", |k| gather(k, "s_out", |b, rows| vec![b, rows, rows])),
    (Rule::Direction, "elements added to what is stored", |k| scatter(k, "s_out", |b, rows| vec![b, rows, rows])),
    (Rule::Direction, "elements added to an input", |k| scatter(k, "q", |b, rows| vec![b, rows, rows])),
    (Rule::Address, "places for one dimension of three", |k| scatter(k, "s_out", |_, rows| vec![rows])),
    (Rule::Address, "elements added at indices alone", |k| scatter(k, "page", |b, _| vec![b])),
    (Rule::Direction, "load of an output", |k| {
        let param = k.param_named("q").expect("a parameter");
        if let flashtile_dsl::ir::ParamKind::Tensor(tensor) = &mut k.params[param].kind {
            tensor.direction = flashtile_dsl::ir::Direction::Out;
        }
    }),
    (Rule::Direction, "store to an input", |k| {
        let param = k.param_named("o").expect("a parameter");
        if let flashtile_dsl::ir::ParamKind::Tensor(tensor) = &mut k.params[param].kind {
            tensor.direction = flashtile_dsl::ir::Direction::In;
        }
    }),
    (Rule::Direction, "load of a scalar", |k| {
        let (id, scale) = (find(k, "load_tile", 0), k.param_named("scale").expect("a parameter"));
        if let Op::Load { tensor, .. } = &mut k.ops[id].op {
            *tensor = scale;
        }
    }),
    (Rule::Stored, "a place of another shape", |k| {
        let sum = result(k, "full", 1);
        let id = find(k, "store_tile", 1);
        if let Op::Store { value, .. } = &mut k.ops[id].op {
            *value = sum;
        }
    }),
    (Rule::Output, "nothing is stored", |k| {
        let (id, body) = (find(k, "store_tile", 1), k.body);
        k.blocks[body].ops.retain(|&op| op != id);
    }),
    (Rule::Output, "a loop around the store does not address it", |k| {
        let (_, inner) = loop_parts(k);
        let axis = k.axes.push(Axis { name: "z".into(), extent: SizeExpr::constant(8), kind: AxisKind::Loop });
        let body = k.blocks.push(BlockData::default());
        let coordinate = k.values.push(ValueData { ty: Type::Coord(axis), def: ValueDef::BlockParam(body, 0), name: None });
        k.blocks[body].params.push(coordinate);
        let store = find(k, "store_tile", 0);
        k.blocks[inner].ops.retain(|&op| op != store);
        let end = k.ops.push(OpData { op: Op::Yield(vec![]), results: vec![], span: Span::default() });
        k.blocks[body].ops = vec![store, end];
        let op = Op::For { axis, part: None, body, init: vec![] };
        let id = k.ops.push(OpData { op, results: vec![], span: Span::default() });
        let last = k.blocks[inner].ops.len() - 1;
        k.blocks[inner].ops.insert(last, id);
    }),
    (Rule::Disjoint, "a store that programs share", |k| {
        let zero = result(k, "index", 0);
        let id = find(k, "store_tile", 1);
        if let Op::Store { at, .. } = &mut k.ops[id].op {
            at[0] = At::Index(zero);
        }
    }),
    (Rule::InOut, "read and written, but never loaded", |k| {
        let param = k.param_named("o").expect("a parameter");
        if let flashtile_dsl::ir::ParamKind::Tensor(tensor) = &mut k.params[param].kind {
            tensor.direction = flashtile_dsl::ir::Direction::InOut;
        }
    }),
    (Rule::Tiling, "a store at the loop's tile of what the loop carries", |k| {
        let (_, body) = loop_parts(k);
        let (coordinate, param) = (k.blocks[body].params[0], k.blocks[body].params[1]);
        let store = find(k, "store_tile", 1);
        let mut data = k.ops[store].clone();
        if let Op::Store { at, value, .. } = &mut data.op {
            *value = param;
            at[0] = At::Tile(coordinate);
        }
        let stored = k.ops.push(data);
        let last = k.blocks[body].ops.len() - 1;
        k.blocks[body].ops.insert(last, stored);
    }),
    (Rule::Stored, "a sum of 16-bit floats", |k| {
        let param = k.param_named("o").expect("a parameter");
        if let flashtile_dsl::ir::ParamKind::Tensor(tensor) = &mut k.params[param].kind {
            tensor.direction = flashtile_dsl::ir::Direction::Sum;
        }
    }),
    (Rule::Disjoint, "the same place twice", |k| {
        let id = find(k, "store_tile", 1);
        let data = k.ops[id].clone();
        let again = k.ops.push(data);
        let body = k.body;
        k.blocks[body].ops.push(again);
    }),
];

#[test]
fn a_sound_kernel_has_no_errors() {
    assert_eq!(verify(&sound()), Ok(()));
}

#[test]
fn every_planted_fault_is_found() {
    for (rule, what, plant) in FAULTS {
        let mut kernel = sound();
        plant(&mut kernel);
        let errors = verify(&kernel).expect_err(what);
        assert!(errors.iter().any(|e| e.rule == *rule), "{what}: expected {rule:?}, found {errors:?}");
        assert!(errors.iter().all(|e| !e.message.is_empty()), "{what}");
    }
}

#[test]
fn every_rule_has_a_planted_fault() {
    for rule in Rule::ALL {
        assert!(FAULTS.iter().any(|(r, ..)| *r == rule), "no fault for {rule:?}");
    }
}
