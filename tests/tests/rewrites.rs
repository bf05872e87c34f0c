//! The rewrites keep the meaning of a kernel: in float64, where rounding hides no difference, the normal form gives what the
//! kernel as written gives, under every value of the knob that changes it and under facts that hold.

use flashtile_codegen::{Arch, Facts, Instance, KNOBS, Schedule, generate};
use flashtile_dsl::interpret::{Argument, Blocks, Exact64, Hidden, HostTensor, Interpreter};
use flashtile_dsl::ir::{Binding, Elem, Kernel, ParamKind, SourceText};
use proptest::prelude::*;

const KERNELS: &[&str] = &[
    include_str!("../../runtime/kernels/attention.rs"),
    include_str!("../../runtime/kernels/causal_attention.rs"),
    include_str!("../../runtime/kernels/matmul_gelu.rs"),
    include_str!("../../runtime/kernels/row_softmax.rs"),
    include_str!("../filetests/generated/mask_window.ft"),
    include_str!("../filetests/generated/rewrites_exponential.ft"),
    include_str!("../filetests/generated/rewrites_product.ft"),
    include_str!("../filetests/generated/softcap.ft"),
    include_str!("../filetests/generated/sinks.ft"),
    include_str!("../filetests/generated/absent.ft"),
    include_str!("../filetests/generated/used_twice.ft"),
];

const D: i64 = 8;

fn kernels() -> Vec<Kernel> {
    let parse = |text: &&str| {
        let text = text.split("; run:").next().unwrap_or_default();
        let source = SourceText { name: "kernel.rs".into(), text: text.into(), first_line: 1 };
        flashtile_dsl::syntax::parse(&source).unwrap_or_else(|errors| panic!("{errors}"))
    };
    KERNELS.iter().flat_map(parse).collect()
}

fn binding(kernel: &Kernel) -> Binding {
    let consts = kernel.size_named("D").map(|_| ("D", D));
    Binding::new(kernel, Elem::F32, consts)
}

fn normal(kernel: &Kernel, facts: &Facts, exponential: &str) -> Kernel {
    let schedule: Schedule = format!("tensor_op=ffma,exponential={exponential}").parse().expect("a schedule");
    let instance = Instance { kernel: kernel.clone(), binding: binding(kernel), facts: facts.clone() };
    let arch = Arch::named("sm_80").expect("an architecture of the table");
    generate(&instance, &schedule, arch).unwrap_or_else(|e| panic!("{}: {e}", kernel.name)).launches.remove(0).normal
}

fn exponentials() -> Vec<&'static str> {
    (KNOBS.iter().find(|k| k.name == "exponential").expect("a knob of the table").values)()
}

/// Nothing known of the scalars; alignment is none of the matter.
fn no_sign() -> Facts {
    Facts { alignment: 16, ..Facts::none() }
}

/// A launch: sizes and data for any kernel.
#[derive(Clone, Debug)]
struct Launch {
    rows: i64,
    columns: i64,
    block: usize,
    scale: f32,
    magnitude: f64,
    seed: u64,
}

/// Values in (-1, 1) times `magnitude`.
fn data(count: usize, magnitude: f64, state: &mut u64) -> Vec<f64> {
    let mut next = || {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((*state >> 11) as f64 / (1u64 << 52) as f64 - 1.0) * magnitude
    };
    (0..count).map(|_| next()).collect()
}

impl Launch {
    fn size(&self, name: &str) -> i64 {
        match name {
            "M" => self.rows,
            "N" => self.columns,
            "K" => 11,
            "H" => 2,
            "D" => D,
            _ => 1,
        }
    }

    /// All tiles that the programs store, in order.
    fn run(&self, kernel: &Kernel, hidden: Hidden) -> Vec<f64> {
        let binding = binding(kernel);
        let sizes: Vec<i64> = kernel.sizes.values().map(|s| self.size(&s.name)).collect();
        let mut state = self.seed;
        let tensors: Vec<Option<HostTensor>> = kernel
            .params
            .values()
            .map(|p| match &p.kind {
                ParamKind::Tensor(t) if t.direction.is_read() => {
                    let extent = |s| binding.size(kernel, s).or_else(|| s.eval(|id| Some(self.size(&kernel.sizes[id].name))));
                    let shape: Vec<usize> = t.shape.iter().map(|s| extent(s).expect("every size has a value") as usize).collect();
                    let values = data(shape.iter().product(), self.magnitude, &mut state);
                    Some(HostTensor::from_f64(Elem::F32, &shape, &values))
                }
                _ => None,
            })
            .collect();
        let arguments: Vec<Argument<'_>> = kernel
            .params
            .values()
            .zip(&tensors)
            .map(|(p, tensor)| match (&p.kind, tensor) {
                (ParamKind::Scalar(_), _) => Argument::F32(self.scale),
                (_, Some(tensor)) => Argument::Input(tensor.view()),
                (_, None) => Argument::Output,
            })
            .collect();
        let blocks = Blocks::PerAxis(vec![self.block; kernel.axes.keys().count()]);
        let interpreter =
            Interpreter::new(kernel, &binding, &sizes, &blocks, &arguments, Exact64).unwrap_or_else(|e| panic!("{e}"));
        let interpreter = interpreter.with_hidden(hidden);
        let stored = (0..interpreter.programs()).flat_map(|p| interpreter.run(p).unwrap_or_else(|e| panic!("{e}")));
        stored.flat_map(|s| s.values).collect()
    }

    /// Where the two kernels differ by more than the rewrites may: log2 e is an f32 in the IR,
    /// right to 2^-26. Of the second one whole tiles are computed, as code does, which must not
    /// show.
    fn difference(&self, a: &Kernel, b: &Kernel) -> Option<(f64, f64)> {
        let (a, b) = (self.run(a, Hidden::Absent), self.run(b, Hidden::Seen));
        assert_eq!(a.len(), b.len(), "both store the same tiles");
        let same = |x: f64, y: f64| x == y || (x.is_nan() && y.is_nan()) || (x - y).abs() <= 1e-6 * (1.0 + x.abs());
        a.into_iter().zip(b).find(|&(x, y)| !same(x, y))
    }
}

fn launches(scales: impl Strategy<Value = f32>) -> impl Strategy<Value = Launch> {
    let magnitudes = prop_oneof![Just(1.0), Just(30.0)];
    (1i64..20, 0i64..24, 1usize..9, scales, magnitudes, any::<u64>())
        .prop_map(|(rows, columns, block, scale, magnitude, seed)| Launch { rows, columns, block, scale, magnitude, seed })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn with_positive_scales_the_normal_form_means_the_same(launch in launches(0.01f32..3.0)) {
        for kernel in kernels() {
            for exponential in exponentials() {
                let normal = normal(&kernel, &Facts::best(&kernel), exponential);
                prop_assert_eq!(launch.difference(&kernel, &normal), None, "{} {}", kernel.name, exponential);
            }
        }
    }

    #[test]
    fn with_any_scale_the_normal_form_without_facts_means_the_same(
        launch in launches(prop_oneof![Just(0.0f32), Just(-0.0), -3.0f32..0.0, 0.0f32..3.0])
    ) {
        for kernel in kernels() {
            for exponential in exponentials() {
                let normal = normal(&kernel, &no_sign(), exponential);
                prop_assert_eq!(launch.difference(&kernel, &normal), None, "{} {}", kernel.name, exponential);
            }
        }
    }
}

/// The rewrite is needed: computed as they stand, hidden elements of this kernel are seen.
#[test]
fn hidden_elements_that_are_not_masked_again_show() {
    let kernel = kernels().into_iter().find(|k| k.name == "absent").expect("a kernel of the list");
    let launch = Launch { rows: 7, columns: 9, block: 4, scale: 1.0, magnitude: 1.0, seed: 1 };
    assert!(launch.difference(&kernel, &kernel).is_some());
    assert_eq!(launch.difference(&kernel, &normal(&kernel, &no_sign(), "exp")), None);
}

/// The fact is needed: folded all the same, a negative scale and zero give something else.
#[test]
fn a_scale_that_is_not_positive_is_not_served_by_the_fold() {
    let kernel = kernels().into_iter().find(|k| k.name == "causal_attention").expect("a built-in kernel");
    let folded = normal(&kernel, &Facts::best(&kernel), "exp2");
    let launch = Launch { rows: 7, columns: 9, block: 4, scale: -1.0, magnitude: 30.0, seed: 1 };
    assert!(launch.difference(&kernel, &folded).is_some());
    assert!(Launch { scale: 0.0, ..launch }.difference(&kernel, &folded).is_some());
}
