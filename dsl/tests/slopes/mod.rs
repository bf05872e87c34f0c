//! Gradients by finite differences of the interpreter in float64.

#![allow(dead_code, reason = "each test program uses a part")]

use std::collections::BTreeMap;

use flashtile_dsl::grad::{Form, Gradient, Request, gradient};
use flashtile_dsl::interpret::{Argument, Blocks, Exact64, HostTensor, Interpreter, Real};
use flashtile_dsl::ir::{Binding, Elem, Kernel, ParamKind, SizeKind, SourceText};
use flashtile_dsl::syntax::parse;
use flashtile_dsl::text::write;

pub fn kernel(text: &str) -> Kernel {
    let source = SourceText { name: "test.rs".into(), text: text.into(), first_line: 1 };
    parse(&source).unwrap_or_else(|e| panic!("{e}")).remove(0)
}

/// The text of a kernel of the repository: its folder, and its name.
pub fn source_of(folder: &str, name: &str) -> String {
    let path = format!("{}/../{folder}/{name}.rs", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

pub fn builtin(name: &str) -> Kernel {
    kernel(&source_of("runtime/kernels", name))
}

/// A tensor or a scalar by its name.
#[derive(Clone, Debug)]
pub enum Value {
    Tensor(Vec<usize>, Vec<f64>),
    Float(f32),
    Int(i32),
}

pub type Values = BTreeMap<String, Value>;
pub type Sizes = BTreeMap<String, i64>;

/// Multiples of 2^-10 in (-1, 1): steps of finite differences from them are exact.
pub fn numbers(count: usize, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 54) as f64 / 512.0 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Executes a kernel; its outputs join the values.
pub fn run(kernel: &Kernel, sizes: &Sizes, blocks: &Blocks, values: &Values) -> Values {
    let of = |kind: SizeKind| kernel.sizes.values().filter(move |s| s.kind == kind).map(|s| (s.name.clone(), sizes[&s.name]));
    let binding = Binding::new(kernel, Elem::F32, of(SizeKind::Const).collect::<Vec<_>>());
    let by_id: Vec<i64> = kernel.sizes.values().map(|s| sizes[&s.name]).collect();
    let tensors: Vec<Option<HostTensor>> = kernel
        .params
        .values()
        .map(|p| match (&p.kind, values.get(&p.name)) {
            (ParamKind::Tensor(decl), Some(Value::Tensor(shape, data))) if !decl.direction.is_written() => {
                let elem = if decl.elem.is_float() { Elem::F32 } else { decl.elem };
                Some(HostTensor::from_f64(elem, shape, data))
            }
            (ParamKind::Tensor(decl), found) if !decl.direction.is_written() => panic!("`{}`: {found:?}", p.name),
            _ => None,
        })
        .collect();
    let arguments: Vec<Argument<'_>> = kernel
        .params
        .values()
        .zip(&tensors)
        .map(|(p, tensor)| match (tensor, values.get(&p.name)) {
            (Some(tensor), _) => Argument::Input(tensor.view()),
            (None, Some(Value::Float(x))) => Argument::F32(*x),
            (None, Some(Value::Int(x))) => Argument::I32(*x),
            (None, _) => Argument::Output,
        })
        .collect();
    let blocks = match blocks {
        // The sizes of the first axes; further axes repeat them.
        Blocks::PerAxis(blocks) => Blocks::PerAxis((0..kernel.axes.len()).map(|n| blocks[n % blocks.len()]).collect()),
        whole => whole.clone(),
    };
    let interpreter = Interpreter::new(kernel, &binding, &by_id, &blocks, &arguments, Exact64).expect("fits");
    let mut found = Values::new();
    for (id, param) in kernel.params.iter() {
        if matches!(&param.kind, ParamKind::Tensor(decl) if decl.direction.is_written()) {
            let shape = interpreter.shape(id).to_vec();
            let count = shape.iter().product();
            let start = if param.kind.is_sum() { 0.0 } else { f64::NAN };
            // Several kernels may store parts of one output.
            let before = values.get(&param.name).filter(|_| !param.kind.is_sum()).cloned();
            found.insert(param.name.clone(), before.unwrap_or_else(|| Value::Tensor(shape, vec![start; count])));
        }
    }
    for program in 0..interpreter.programs() {
        for stored in interpreter.run(program).expect("runs") {
            let Some(Value::Tensor(shape, data)) = found.get_mut(&kernel.params[stored.param].name) else { unreachable!() };
            let strides: Vec<usize> = (0..shape.len()).map(|d| shape[d + 1..].iter().product()).collect();
            for (at, from) in stored.rows(&strides) {
                for column in 0..stored.row_len() {
                    let (place, value) = (&mut data[at + column], stored.values[from + column].to_f64());
                    *place = if kernel.params[stored.param].kind.is_sum() { *place + value } else { value };
                }
            }
        }
    }
    let mut all = values.clone();
    all.extend(found);
    all
}

/// Inputs of a kernel: floats are random, integers as given.
pub fn inputs(kernel: &Kernel, sizes: &Sizes, given: &Values) -> Values {
    let mut values = given.clone();
    for (n, param) in kernel.params.values().enumerate() {
        let ParamKind::Tensor(decl) = &param.kind else { continue };
        if decl.direction.is_written() || values.contains_key(&param.name) {
            continue;
        }
        let extent =
            |size: &flashtile_dsl::ir::SizeExpr| size.eval(|s| Some(sizes[kernel.size_name(s)])).expect("divides") as usize;
        let shape: Vec<usize> = decl.shape.iter().map(extent).collect();
        let count = shape.iter().product();
        values.insert(param.name.clone(), Value::Tensor(shape, numbers(count, 17 + n as u64)));
    }
    values
}

pub fn tensor<'v>(values: &'v Values, name: &str) -> (&'v [usize], &'v [f64]) {
    match &values[name] {
        Value::Tensor(shape, data) => (shape, data),
        other => panic!("`{name}` is {other:?}"),
    }
}

pub fn sizes(text: &str) -> Sizes {
    text.split(',')
        .map(|pair| pair.split_once('=').expect("NAME=N"))
        .map(|(n, v)| (n.to_owned(), v.parse().expect("N")))
        .collect()
}

pub fn request_in(form: Form, of: &str, from: &str) -> Request {
    let names = |text: &str| text.split(',').map(str::to_owned).collect();
    Request { of: names(of), from: names(from), form }
}

pub fn request(of: &str, from: &str) -> Request {
    request_in(Form::Plain, of, from)
}

pub fn made_in(form: Form, kernel: &Kernel, of: &str, from: &str) -> Gradient {
    gradient(kernel, &request_in(form, of, from)).unwrap_or_else(|e| panic!("{}: {e} ({})", kernel.name, e.instead))
}

pub fn made(kernel: &Kernel, of: &str, from: &str) -> Gradient {
    made_in(Form::Plain, kernel, of, from)
}

/// The gradients of `sum(weights * outputs)` by the kernels of the gradient.
pub fn by_kernels(gradient: &Gradient, sizes: &Sizes, blocks: &Blocks, values: &Values, weights: &Values) -> Values {
    let mut all = run(&gradient.forward, sizes, &Blocks::WholeLoops(16), values);
    all.extend(weights.iter().map(|(name, value)| (format!("grad_{name}"), value.clone())));
    for kernel in &gradient.backward {
        all = run(kernel, sizes, blocks, &all);
    }
    all
}

/// Compares the gradients with finite differences of the forward kernel.
pub fn check(kernel: &Kernel, size: &str, of: &str, from: &str, given: &[(&str, Value)]) {
    check_in(Form::Plain, kernel, size, of, from, given);
}

pub fn check_in(form: Form, kernel: &Kernel, size: &str, of: &str, from: &str, given: &[(&str, Value)]) {
    let call = Call::of(kernel, size, from, given);
    call.compare(kernel, &made_in(form, kernel, of, from), of, &call.slopes(kernel, of));
}

/// The same of each subset of the inputs by itself: what is not asked for changes no gradient.
pub fn check_subsets(kernel: &Kernel, size: &str, of: &str, from: &str, given: &[(&str, Value)]) {
    let call = Call::of(kernel, size, from, given);
    let slopes = call.slopes(kernel, of);
    for subset in subsets(of) {
        call.compare(kernel, &made(kernel, &subset, from), &subset, &slopes);
    }
}

/// All subsets of names but the empty one.
pub fn subsets(of: &str) -> Vec<String> {
    let names: Vec<&str> = of.split(',').collect();
    let chosen = |bits: u32| names.iter().enumerate().filter(move |(n, _)| bits >> n & 1 == 1).map(|(_, name)| *name);
    (1..1 << names.len()).map(|bits| chosen(bits).collect::<Vec<_>>().join(",")).collect()
}

/// Arguments of a kernel, and weights of its outputs, whose sum is differentiated.
pub struct Call {
    sizes: Sizes,
    values: Values,
    weights: Values,
}

/// Elements of an input, and the slopes of the weighted sum along them.
pub type Slopes = BTreeMap<String, Vec<(usize, f64)>>;

impl Call {
    /// With drawn inputs, but for those that are given.
    pub fn of(kernel: &Kernel, size: &str, from: &str, given: &[(&str, Value)]) -> Self {
        let sizes = sizes(size);
        let given: Values = given.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        let values = inputs(kernel, &sizes, &given);
        let outputs = run(kernel, &sizes, &Blocks::WholeLoops(16), &values);
        let weight = |name: &str| {
            let (shape, data) = tensor(&outputs, name);
            (name.to_owned(), Value::Tensor(shape.to_vec(), numbers(data.len(), 99)))
        };
        let weights = from.split(',').map(weight).collect();
        Self { sizes, values, weights }
    }

    fn loss(&self, kernel: &Kernel, values: &Values) -> f64 {
        let outputs = run(kernel, &self.sizes, &Blocks::WholeLoops(16), values);
        let of = |name: &String| {
            let (weights, found) = (tensor(&self.weights, name).1, tensor(&outputs, name).1);
            weights.iter().zip(found).map(|(w, x)| w * x).sum::<f64>()
        };
        self.weights.keys().map(of).sum()
    }

    /// Slopes along some elements of each input, evenly spread.
    pub fn slopes(&self, kernel: &Kernel, of: &str) -> Slopes {
        let slope = |name: &str, at: usize| {
            let moved = |by: f64| {
                let mut values = self.values.clone();
                let Some(Value::Tensor(_, data)) = values.get_mut(name) else { panic!("`{name}` is a tensor") };
                data[at] += by;
                self.loss(kernel, &values)
            };
            let h = 1.0 / 256.0;
            (8.0 * (moved(h) - moved(-h)) - (moved(2.0 * h) - moved(-2.0 * h))) / (12.0 * h)
        };
        let of_input = |name: &str| {
            let count = tensor(&self.values, name).1.len();
            let elements = (0..count).step_by((count / 24).max(1));
            (name.to_owned(), elements.map(|at| (at, slope(name, at))).collect())
        };
        of.split(',').map(of_input).collect()
    }

    /// Compares what the kernels of a gradient give, in tiles of several sizes, with slopes.
    pub fn compare(&self, kernel: &Kernel, gradient: &Gradient, of: &str, slopes: &Slopes) {
        for blocks in [Blocks::WholeLoops(16), Blocks::PerAxis(vec![5, 3, 2, 2]), Blocks::PerAxis(vec![3, 7, 1, 1])] {
            let found = by_kernels(gradient, &self.sizes, &blocks, &self.values, &self.weights);
            for name in of.split(',') {
                let gradient = tensor(&found, &format!("grad_{name}")).1;
                assert_eq!(gradient.len(), tensor(&self.values, name).1.len());
                for &(at, slope) in &slopes[name] {
                    let error = (gradient[at] - slope).abs();
                    let found = gradient[at];
                    assert!(
                        error < 2e-5 * (1.0 + slope.abs()),
                        "{}, of {of}, grad_{name}[{at}]: {found} for {slope}\n{}",
                        kernel.name,
                        write(kernel).expect("has a text")
                    );
                }
            }
        }
    }
}
