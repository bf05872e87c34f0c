//! Generated kernels: bytes choose among the ops that the values so far allow, so every kernel is sound.

use flashtile_dsl::ir::{
    At, AxisKind, BinaryOp, Builder, CompareOp, Dim, Direction, Elem, Fill, IndexOp, Kernel, Op, Operands, Param, ParamKind,
    ProgramDim, ReduceOp, SizeExpr, SizeKind, Span, TensorDecl, TileType, Type, UnaryOp, ValueId, broadcast,
};

/// The choices still to be made.
struct Choices<'b> {
    bytes: &'b [u8],
}

impl Choices<'_> {
    fn next(&mut self, count: usize) -> usize {
        let (&first, rest) = self.bytes.split_first().unwrap_or((&0, &[]));
        self.bytes = rest;
        first as usize % count.max(1)
    }

    fn of<T: Clone>(&mut self, items: &[T]) -> Option<T> {
        if items.is_empty() { None } else { Some(items[self.next(items.len())].clone()) }
    }
}

/// A sound kernel for any bytes: `x: (B, M, D)`, `y: (B, N, D)`, `ids: (B)`, a scalar, and an output like `x`.
pub fn kernel(bytes: &[u8]) -> Kernel {
    let mut choices = Choices { bytes };
    let mut builder = Builder::new("generated");
    builder.kernel.doc = "Line one, \"quoted\".\nLine two; \u{3b1}.".into();
    builder.kernel.type_params = vec!["T".into()];
    let d = SizeExpr::size(builder.size("D", SizeKind::Const));
    let [b, m, n] = ["B", "M", "N"].map(|name| SizeExpr::size(builder.size(name, SizeKind::Runtime)));
    let t = Elem::Generic(0);
    let mut tensor = |name: &str, elem, shape: &[&SizeExpr], output| {
        let shape = shape.iter().map(|&s| s.clone()).collect();
        let kind = ParamKind::Tensor(TensorDecl { elem, shape, direction: if output { Direction::Out } else { Direction::In } });
        builder.kernel.params.push(Param { name: name.into(), kind, span: Span::default() })
    };
    let x = tensor("x", t, &[&b, &m, &d], false);
    let y = tensor("y", t, &[&b, &n, &d], false);
    let ids = tensor("ids", Elem::I32, &[&b], false);
    let out = tensor("out", Elem::F32, &[&b, &m, &d], true);
    let scale =
        builder.kernel.params.push(Param { name: "scale".into(), kind: ParamKind::Scalar(Elem::F32), span: Span::default() });

    let i = builder.axis(if choices.next(4) == 0 { "D" } else { "i" }, m.clone(), AxisKind::Program);
    let (_, program) = builder.append(Op::Program(vec![ProgramDim::Each(b), ProgramDim::Tiles(i)]));
    builder.name(program[1], "i");
    let mut values = program.clone();
    values.push(builder.emit(Op::Scalar(scale)));
    let whole = At::Range { start: SizeExpr::constant(0), len: d.clone() };
    let at = vec![At::Index(program[0]), At::Tile(program[1]), whole.clone()];
    values.push(builder.emit(Op::Load { tensor: x, at: at.clone() }));
    let row = builder.emit(Op::Load { tensor: ids, at: vec![At::Index(program[0])] });
    values.push(builder.emit(Op::ToIndex(row)));

    for _ in 0..choices.next(4) {
        steps(&mut builder, &mut values, &mut choices);
        let init: Vec<ValueId> = (0..choices.next(3)).filter_map(|_| choices.of(&tiles(&builder, &values, |_| true))).collect();
        let j = builder.axis("j", n.clone(), AxisKind::Loop);
        let (coordinate, carried) = builder.begin_for(j, &init);
        let outside = values.len();
        values.push(coordinate);
        values.extend(&carried);
        let half = d.div(2).expect("nonzero");
        let start = if choices.next(2) == 0 { SizeExpr::constant(0) } else { half.clone() };
        let part = At::Range { start, len: half };
        let index = choices.of(&indices(&builder, &values)).expect("the program has an index");
        values.push(builder.emit(Op::Load { tensor: y, at: vec![At::Index(index), At::Tile(coordinate), part] }));
        values.push(builder.emit(Op::Load { tensor: y, at: vec![At::Index(index), At::Tile(coordinate), whole.clone()] }));
        steps(&mut builder, &mut values, &mut choices);
        let next = init.iter().map(|&v| {
            let wanted = builder.kernel.tile(v).clone();
            choices.of(&tiles(&builder, &values, |t| *t == wanted)).expect("the carried value itself")
        });
        let next = next.collect();
        values.truncate(outside);
        values.extend(builder.end_for(j, init, next));
    }
    let dims = vec![Dim::Axis(i), Dim::Range(d)];
    let stored = choices.of(&tiles(&builder, &values, |t| t.dims == dims && t.elem.is_float())).expect("x itself");
    builder.append(Op::Store { tensor: out, at, value: stored });
    builder.finish()
}

fn tiles(builder: &Builder, values: &[ValueId], accept: impl Fn(&TileType) -> bool) -> Vec<ValueId> {
    values.iter().copied().filter(|&v| builder.kernel.ty(v).tile().is_some_and(&accept)).collect()
}

fn indices(builder: &Builder, values: &[ValueId]) -> Vec<ValueId> {
    values.iter().copied().filter(|&v| *builder.kernel.ty(v) == Type::Index).collect()
}

/// Appends a few ops.
fn steps(builder: &mut Builder, values: &mut Vec<ValueId>, choices: &mut Choices<'_>) {
    for _ in 0..choices.next(24) {
        if let Some(op) = step(builder, values, choices) {
            let value = builder.emit(op);
            match choices.next(5) {
                0 => builder.name(value, "s"),
                1 => builder.name(value, "x.1"),
                2 => builder.name(value, "_"),
                _ => value,
            };
            values.push(value);
        }
    }
}

/// The functions of one operand that take one of these.
fn unary(takes: &[Operands]) -> Vec<UnaryOp> {
    UnaryOp::ALL.iter().copied().filter(|op| takes.contains(&op.row().operand)).collect()
}

/// The functions of two operands that take two of these.
fn binary(takes: &[Operands]) -> Vec<BinaryOp> {
    BinaryOp::ALL.iter().copied().filter(|op| takes.contains(&op.row().operands)).collect()
}

fn step(builder: &Builder, values: &[ValueId], choices: &mut Choices<'_>) -> Option<Op> {
    let float = |t: &TileType| t.elem.is_float();
    let truth = |t: &TileType| t.elem == Elem::Bool;
    let floats = tiles(builder, values, float);
    let dims = |v: ValueId| builder.kernel.tile(v).dims.clone();
    let partner = |of: ValueId, accept: &dyn Fn(&TileType) -> bool| {
        let all = tiles(builder, values, accept);
        all.into_iter().filter(|&v| broadcast(&dims(of), &dims(v)).is_some()).collect::<Vec<_>>()
    };
    let op = match choices.next(18) {
        0 => Op::IndexConst(choices.next(256) as i64 - 128),
        1 => {
            let all = indices(builder, values);
            let ops = [IndexOp::Add, IndexOp::Sub, IndexOp::Mul, IndexOp::Div, IndexOp::Rem, IndexOp::Min, IndexOp::Max];
            Op::Index(choices.of(&ops)?, choices.of(&all)?, choices.of(&all)?)
        }
        2 => Op::FromIndex(choices.of(&indices(builder, values))?),
        3 => {
            let coordinates = values.iter().copied().filter(|&v| matches!(builder.kernel.ty(v), Type::Coord(_)));
            Op::Pos(choices.of(&coordinates.collect::<Vec<_>>())?)
        }
        4 => Op::Constant(Elem::F32, choices.of(&[0.0, -0.0, 1.0, 0.7978845608, 1e-30, f64::INFINITY, f64::NEG_INFINITY, 1e38])?),
        5 => Op::Constant(Elem::I32, choices.next(256) as f64 - 128.0),
        6 => {
            let of = choices.of(&tiles(builder, values, |t| t.rank() > 0))?;
            Op::Full { value: choices.of(&tiles(builder, values, |t| t.rank() == 0))?, dims: dims(of) }
        }
        7 => Op::Unary(choices.of(&unary(&[Operands::Numbers, Operands::Floats]))?, choices.of(&floats)?),
        8 | 9 => {
            let a = choices.of(&floats)?;
            Op::Binary(choices.of(&binary(&[Operands::Numbers, Operands::Floats]))?, a, choices.of(&partner(a, &float))?)
        }
        10 => {
            let integer = |t: &TileType| t.elem == Elem::I32;
            let a = choices.of(&tiles(builder, values, integer))?;
            let b = choices.of(&partner(a, &integer))?;
            match choices.next(4) {
                0 => Op::Binary(choices.of(&binary(&[Operands::Numbers, Operands::Integers]))?, a, b),
                _ => {
                    let ops = [CompareOp::Eq, CompareOp::Ne, CompareOp::Lt, CompareOp::Le, CompareOp::Gt, CompareOp::Ge];
                    Op::Compare(choices.of(&ops)?, a, b)
                }
            }
        }
        11 => {
            let a = choices.of(&tiles(builder, values, truth))?;
            match choices.next(3) {
                0 => Op::Unary(UnaryOp::Not, a),
                _ => Op::Binary(choices.of(&binary(&[Operands::Truths]))?, a, choices.of(&partner(a, &truth))?),
            }
        }
        12 => {
            let x = choices.of(&floats)?;
            let keep = partner(x, &truth).into_iter().filter(|&v| broadcast(&dims(x), &dims(v)) == Some(dims(x)));
            let fill = if choices.next(4) == 0 { Fill::Zero } else { Fill::NegInf };
            Op::Mask { x, keep: choices.of(&keep.collect::<Vec<_>>())?, fill }
        }
        13 => {
            let cond = choices.of(&tiles(builder, values, truth))?;
            let a = choices.of(&partner(cond, &float))?;
            let elem = builder.kernel.tile(a).elem;
            let b = partner(a, &|t| t.elem == elem);
            let fits = |v: &ValueId| broadcast(&dims(a), &dims(*v)).is_some_and(|d| broadcast(&d, &dims(cond)).is_some());
            Op::Select { cond, on_true: a, on_false: choices.of(&b.into_iter().filter(fits).collect::<Vec<_>>())? }
        }
        14 => Op::Cast(choices.of(&[Elem::F32, Elem::F16, Elem::Bf16, Elem::Generic(0)])?, choices.of(&floats)?),
        15 => {
            let matrices = tiles(builder, values, |t| t.rank() == 2 && t.elem.is_float());
            let a = choices.of(&matrices)?;
            match choices.next(4) {
                0 => Op::Transpose(a),
                1 => Op::Reduce(choices.of(&[ReduceOp::Max, ReduceOp::Sum])?, a),
                _ => {
                    let left = builder.kernel.tile(a).clone();
                    let fits = |t: &TileType| {
                        t.rank() == 2 && t.elem == left.elem && t.dims[0] == left.dims[1] && {
                            matches!(t.dims[1], Dim::Range(_)) || t.dims[1] != left.dims[0]
                        }
                    };
                    let b = choices.of(&tiles(builder, values, fits))?;
                    let product = TileType::new(Elem::F32, [left.dims[0].clone(), builder.kernel.tile(b).dims[1].clone()]);
                    let acc = tiles(builder, values, |t| *t == product);
                    Op::Dot { a, b, acc: if choices.next(2) == 0 { None } else { choices.of(&acc) } }
                }
            }
        }
        16 => {
            let integer = |t: &TileType| t.elem == Elem::I32;
            let a = choices.of(&tiles(builder, values, integer))?;
            let b = choices.of(&partner(a, &integer))?;
            let tensor = builder.kernel.param_named("y").expect("a parameter");
            Op::Gather { tensor, at: vec![choices.of(&indices(builder, values))?, a, b] }
        }
        _ => {
            let sizes: Vec<_> = builder.kernel.sizes.keys().collect();
            Op::SizeOf(choices.of(&sizes)?)
        }
    };
    Some(op)
}
