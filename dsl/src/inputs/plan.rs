//! What each parameter of a kernel holds for given sizes: what the user says of it, and else what the kernel's text says.

use crate::analysis::inputs::{Input, Inputs, inputs};
use crate::analysis::uses::Use;
use crate::ir::{Elem, Entity, Kernel, ParamId, ParamKind, SizeExpr};

use super::floats::{Floats, rotation_table, rotations};
use super::integers::{Integers, encoded};
use super::{DataError, Distribution, InputData, Random, Values};

/// What the parameters of a kernel hold.
pub struct Plan<'a> {
    kernel: &'a Kernel,
    /// Values of all sizes by [`crate::ir::SizeId`].
    sizes: &'a [i64],
    inputs: Inputs,
    data: &'a InputData,
}

/// Steep inputs make exponents so many times larger. Maxima of neighbouring tiles then differ by more than 88, beyond which
/// `exp` of f32 overflows.
const STEEP: f64 = 128.0;

/// Settings for float tensors, integer tensors, and scalars.
const FLOATS: &str = "scale, growth, normal, range, constant";
const INTEGERS: &str = "range, constant, ids, sorted-ids, even-ids, lengths, bits, permutation";

impl<'a> Plan<'a> {
    /// Checks what is said of the inputs.
    pub fn new(kernel: &'a Kernel, sizes: &'a [i64], data: &'a InputData) -> Result<Self, DataError> {
        for (name, said) in &data.0 {
            check(kernel, name, said)?;
        }
        let extent = |size: &SizeExpr| size.eval(|s| sizes.get(s.index()).copied());
        let known = |param: ParamId| known(&kernel.params[param].name, data);
        let inputs = inputs(kernel, &extent, &known);
        Ok(Self { kernel, sizes, inputs, data })
    }

    /// The same data with exponents 128 times as large; `None` if the text has no exponent that
    /// inputs scale, or the user has said what these inputs hold.
    pub fn steep(&self) -> Option<InputData> {
        let mut data = self.data.clone();
        for &param in self.inputs.exponents() {
            let steep = Distribution { scale: STEEP, ..Distribution::default() };
            data.0.entry(self.kernel.params[param].name.clone()).or_insert(steep);
        }
        (data != *self.data).then_some(data)
    }

    fn said(&self, param: ParamId) -> Distribution {
        self.data.of(&self.kernel.params[param].name)
    }

    /// The value of an f32 scalar.
    pub fn f32(&self, param: ParamId) -> f32 {
        let said = self.said(param);
        let value = match (said.values, self.inputs.of(param)) {
            (Some(Values::Constant(value)), _) => value,
            (_, Input::F32(value)) => *value,
            _ => 1.0,
        };
        (value * said.scale) as f32
    }

    /// The value of an i32 scalar.
    pub fn i32(&self, param: ParamId) -> i32 {
        match (self.said(param).values, self.inputs.of(param)) {
            (Some(Values::Constant(value)), _) => value as i32,
            (_, Input::I32(value, _)) => i32::try_from(*value).unwrap_or(i32::MAX),
            _ => 1,
        }
    }

    /// Little-endian bytes of a tensor that is read.
    pub fn bytes(&self, param: ParamId, elem: Elem, shape: &[usize], seed: u64) -> Vec<u8> {
        let name = &self.kernel.params[param].name;
        let own = seed_of(seed, param);
        match self.inputs.of(param) {
            Input::Integers(of) => encoded(elem, &self.integers(of, param, shape, own, seed)),
            _ => {
                let floats = self.floats(param);
                let table = if floats.like == Distribution::default() { rotations(name, elem, shape) } else { None };
                table.unwrap_or_else(|| floats.bytes(elem, shape, own))
            }
        }
    }

    /// Values of a tensor that is read, in row-major order. Tables of rotations are not among them.
    pub fn values(&self, param: ParamId, shape: &[usize], seed: u64) -> Vec<f64> {
        let own = seed_of(seed, param);
        match self.inputs.of(param) {
            Input::Integers(of) => self.integers(of, param, shape, own, seed).iter().map(|&x| x.into()).collect(),
            _ => {
                let (floats, mut random) = (self.floats(param), Random(own));
                (0..shape.iter().product::<usize>()).map(|_| floats.draw(&mut random, 0, 1)).collect()
            }
        }
    }

    fn integers(&self, of: &Use, param: ParamId, shape: &[usize], own: u64, shared: u64) -> Vec<i32> {
        let extent = |size: &SizeExpr| size.eval(|s| self.sizes.get(s.index()).copied()).unwrap_or(0);
        let columns = shape.last().copied().unwrap_or(1);
        let elem = match &self.kernel.params[param].kind {
            ParamKind::Tensor(t) => t.elem,
            ParamKind::Scalar(elem) => *elem,
        };
        Integers::new(of, elem, self.said(param).values, columns, extent).values(shape, own, shared)
    }

    fn floats(&self, param: ParamId) -> Floats {
        let like = self.said(param);
        match self.inputs.of(param) {
            &Input::Floats { scale, positive, truths } => Floats { scale, positive, truths, like },
            _ => Floats { like, ..Floats::normal() },
        }
    }
}

/// Typical size of an input whose values do not depend on the kernel's text: of a table of rotations, or as the user says.
fn known(name: &str, data: &InputData) -> Option<f64> {
    let said = data.of(name);
    match said.values {
        Some(Values::Constant(value)) => Some(value.abs() * said.scale.abs()),
        Some(Values::Range(from, to)) => Some(from.abs().max(to.abs()) / 2.0 * said.scale.abs()),
        Some(Values::Normal) => Some(said.scale.abs()),
        Some(_) => None,
        None => rotation_table(name, 1).map(|_| std::f64::consts::FRAC_1_SQRT_2),
    }
}

/// Each parameter has values of its own.
fn seed_of(seed: u64, param: ParamId) -> u64 {
    seed ^ ((param.index() as u64 + 1) << 48)
}

/// What a tensor of an integer type is, with the values that a narrow one holds.
fn integer_tensor(elem: Elem) -> &'static str {
    match elem {
        Elem::U8 => "a u8 tensor, of values from 0 to 255",
        Elem::I8 => "an i8 tensor, of values from -128 to 127",
        Elem::Bool => "a bool tensor, of 0 and 1",
        _ => "an integer tensor",
    }
}

/// Refuses data for what is no input, and data that it cannot hold.
fn check(kernel: &Kernel, name: &str, said: &Distribution) -> Result<(), DataError> {
    let Some(param) = kernel.params.values().find(|p| p.name == name && p.kind.is_read()) else {
        let inputs = kernel.params.values().filter(|p| p.kind.is_read()).map(|p| p.name.as_str());
        let known = inputs.collect::<Vec<_>>().join(", ");
        return Err(DataError::Unknown { kernel: kernel.name.clone(), name: name.to_owned(), known });
    };
    let whole = |x: f64| x.fract() == 0.0 && (-2f64.powi(31)..2f64.powi(31)).contains(&x);
    let shaped = said.scale != 1.0 || said.growth.is_some();
    let (what, allowed, right) = match &param.kind {
        ParamKind::Scalar(Elem::I32) => (
            "an i32 scalar",
            "constant=C with a whole number",
            !shaped && matches!(said.values, Some(Values::Constant(c)) if whole(c)),
        ),
        ParamKind::Scalar(_) => {
            let right = said.growth.is_none() && matches!(said.values, None | Some(Values::Constant(_)));
            ("an f32 scalar", "scale=S, constant=C", right)
        }
        ParamKind::Tensor(t) if !t.elem.is_float() => {
            let [least, most] = t.elem.integers().unwrap_or([0, 1]).map(|end| end as f64);
            let holds = |x: f64| x.fract() == 0.0 && (least..=most).contains(&x);
            let right = match said.values {
                Some(Values::Normal) => false,
                Some(Values::Constant(c)) => holds(c),
                // The end of a range is not in it.
                Some(Values::Range(from, to)) => holds(from) && holds(to - 1.0),
                Some(Values::Ids(count) | Values::SortedIds(count) | Values::EvenIds(count)) => holds(f64::from(count) - 1.0),
                Some(Values::Lengths(Some(longest))) => holds(longest.into()),
                _ => true,
            };
            (integer_tensor(t.elem), INTEGERS, !shaped && right)
        }
        ParamKind::Tensor(_) => {
            let right = matches!(said.values, None | Some(Values::Normal | Values::Constant(_) | Values::Range(..)));
            ("a float tensor", FLOATS, right)
        }
    };
    if right {
        return Ok(());
    }
    let given = InputData([(name.to_owned(), *said)].into()).to_string();
    let given = given.split_once(':').map_or(String::new(), |(_, settings)| settings.to_owned());
    Err(DataError::Kind { kernel: kernel.name.clone(), name: name.to_owned(), what, given, allowed })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::SourceText;
    use crate::syntax;

    const TEXT: &str = "
pub fn masked<T: Element, const D: usize>(
    q: &Tensor<T, (M, D)>, k: &Tensor<T, (N, D)>, lens: &Tensor<i32, (M)>, window: i32, o: &mut Tensor<f32, (M, N)>,
) {
    let (i, j) = program(tiles(M), tiles(N));
    let s = dot(load(q, [i, ..]), load(k, [j, ..]).t());
    store(o, [i, j], tanh(mask(s, pos(j) < load(lens, [i]) && pos(i) < pos(j) + window)));
}";

    fn kernel() -> Kernel {
        let source = SourceText { name: "masked.rs".into(), text: TEXT.into(), first_line: 1 };
        syntax::parse(&source).expect("a kernel").remove(0)
    }

    #[test]
    fn data_are_checked_by_name_and_by_type() {
        let kernel = kernel();
        let plan = |text: &str| {
            let data: InputData = text.parse().expect("data");
            Plan::new(&kernel, &[3, 64, 5], &data).map(|_| ()).map_err(|e| e.to_string())
        };
        assert_eq!(plan("q:scale=2,growth=3 lens:lengths window:constant=3 k:range=-1..1"), Ok(()));
        let error = |text: &str| plan(text).expect_err(text);
        assert_eq!(
            error("o:scale=2"),
            "`o`, for which data are given, is no input of kernel `masked`, which has q, k, lens, window"
        );
        assert_eq!(
            error("lens:scale=2"),
            "`lens` of kernel `masked` is an integer tensor, which cannot hold `scale=2`; allowed are \
             range, constant, ids, sorted-ids, even-ids, lengths, bits, permutation"
        );
        assert_eq!(
            error("q:permutation"),
            "`q` of kernel `masked` is a float tensor, which cannot hold `permutation`; allowed are scale, growth, normal, \
             range, constant"
        );
        assert_eq!(
            error("window:constant=1.5"),
            "`window` of kernel `masked` is an i32 scalar, which cannot hold `constant=1.5`; allowed are constant=C with a \
             whole number"
        );
    }

    /// The state of a delta rule: what a product is made of holds its own result of the step
    /// before.
    #[test]
    fn a_product_may_be_made_of_itself() {
        let text = "pub fn f<T: Element, const D: usize, const S: usize>(
    k: &Tensor<T, (B, C, S, D)>, w: &Tensor<T, (B, C, S, D)>, u: &Tensor<T, (B, C, S, D)>, o: &mut Tensor<T, (B, C, S, D)>,
) {
    let b = program(B);
    let mut state = zeros((D, D));
    for c in 0..C {
        let u_c = (load(u, [b, c, .., ..]) - dot(load(w, [b, c, .., ..]), state.to::<T>())).to::<T>();
        store(o, [b, c, .., ..], u_c);
        state += dot(load(k, [b, c, .., ..]).t(), u_c);
    }
}";
        let source = SourceText { name: "delta.rs".into(), text: text.into(), first_line: 1 };
        let kernel = syntax::parse(&source).expect("a kernel").remove(0);
        assert!(Plan::new(&kernel, &vec![4; kernel.sizes.len()], &InputData::default()).is_ok());
    }

    #[test]
    fn narrow_integers_hold_what_their_type_holds() {
        let text = "pub fn f(a: &Tensor<u8, (N)>, b: &Tensor<i8, (N)>, keep: &Tensor<bool, (N)>, y: &mut Tensor<f32, (N)>) {
    let i = program(tiles(N));
    store(y, [i], select(load(keep, [i]), load(a, [i]).to::<f32>(), load(b, [i]).to::<f32>()));
}";
        let source = SourceText { name: "narrow.rs".into(), text: text.into(), first_line: 1 };
        let kernel = syntax::parse(&source).expect("a kernel").remove(0);
        let plan = |data: &str| Plan::new(&kernel, &[8], &data.parse().expect("data")).map(|_| ()).map_err(|e| e.to_string());
        assert_eq!(plan("a:constant=255 b:range=-128..128 keep:constant=1"), Ok(()));
        assert_eq!(plan("a:ids=256 b:lengths=127"), Ok(()));
        for (data, given) in [("a:constant=300", "constant=300"), ("a:ids=257", "ids=257"), ("a:range=-1..5", "range=-1..5")] {
            let error = plan(data).expect_err(data);
            let expected = format!("`a` of kernel `f` is a u8 tensor, of values from 0 to 255, which cannot hold `{given}`; ");
            assert!(error.starts_with(&expected), "{error}");
        }
        for data in ["b:constant=-129", "b:lengths=128", "keep:constant=2"] {
            assert!(plan(data).is_err(), "{data}");
        }
    }

    #[test]
    fn steep_inputs_scale_exponents_alone() {
        let steep = |text: &str, data: &str| {
            let source = SourceText { name: "steep.rs".into(), text: text.into(), first_line: 1 };
            let kernel = syntax::parse(&source).expect("a kernel").remove(0);
            let data = data.parse().expect("data");
            let sizes = vec![64; kernel.sizes.len()];
            let plan = Plan::new(&kernel, &sizes, &data).expect("fits");
            plan.steep().map(|steep| {
                let plan = Plan::new(&kernel, &sizes, &steep).expect("fits");
                let scale = kernel.param_named("scale").map(|scale| plan.f32(scale));
                (steep.to_string(), scale)
            })
        };
        let text = "pub fn f<const D: usize>(
            q: &Tensor<f32, (M, D)>, k: &Tensor<f32, (N, D)>, bias: &Tensor<f32, (N)>, scale: f32, o: &mut Tensor<f32, (M, N)>,
        ) {
            let (i, j) = program(tiles(M), tiles(N));
            store(o, [i, j], EXP(dot(load(q, [i, ..]), load(k, [j, ..]).t()) * scale + load(bias, [j])));
        }";
        // The other inputs do not become smaller for it: `scale` is 128 times 64^-1/2.
        let exp = text.replace("EXP", "exp");
        assert_eq!(steep(&exp, ""), Some(("bias:scale=128 scale:scale=128".into(), Some(16.0))));
        assert_eq!(steep(&exp, "bias:normal").map(|s| s.0), Some("bias:normal scale:scale=128".into()), "the user knows better");
        assert_eq!(steep(&text.replace("EXP", "tanh"), ""), None);
    }

    #[test]
    fn the_text_says_what_is_not_said() {
        let kernel = kernel();
        let (ir, sizes) = (&kernel, [60, 64, 90]);
        let sizes: Vec<i64> =
            ir.sizes.values().map(|s| sizes[["M", "D", "N"].iter().position(|n| *n == s.name).expect("known")]).collect();
        let data = InputData::default();
        let plan = Plan::new(ir, &sizes, &data).expect("nothing is said");
        let param = |name| ir.param_named(name).expect("a parameter");
        assert_eq!(plan.i32(param("window")), 20);
        let lens = plan.values(param("lens"), &[60], 1);
        assert!(lens.contains(&0.0) && lens.contains(&90.0) && lens[0] == 54.0, "{lens:?}");
        // Scores of 64 terms behind a tanh: both operands are smaller by the root of 8.
        let q = plan.values(param("q"), &[60, 64], 1);
        let deviation = (q.iter().map(|x| x * x).sum::<f64>() / q.len() as f64).sqrt();
        assert!((deviation - 8f64.powf(-0.5)).abs() < 0.02, "{deviation}");
        let bytes = plan.bytes(param("lens"), Elem::I32, &[60], 1);
        assert_eq!(i32::from_le_bytes(bytes[..4].try_into().expect("four")), 54);
    }
}
