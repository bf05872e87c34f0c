//! Judges kernels that run one after the other: inputs of a kernel come from those before it.
//!
//! What a kernel gets is what the float64 oracle of those before it has stored, rounded to the
//! elements of the tensors. So it is judged on numbers as they are, and on no error of another
//! kernel: the kernels of a gradient read the logarithm of a sum that the forward kernel has made,
//! which no random number is like.

use std::collections::{BTreeMap, BTreeSet};

use flashtile_codegen::Facts;
use flashtile_dsl::ir;

use super::gate::{Gate, host};
use super::inputs::{Earlier, Inputs};
use super::measure::{launch, steep_data};
use super::{DataError, InputData, TuneError, facts_of};
use crate::device::Device;
use crate::error::Result;
use crate::kernel::{BoundKernel, sizes_among};
use crate::launch::LoadedKernel;
use crate::verify::{Failure, HostArgument, OutputVerdict};

/// Kernels that run one after the other on tensors of the same names. An input that a kernel before
/// has read or stored holds the same; any other is drawn, as for [`super::judge_on`].
///
/// ```
/// use flashtile::tuner::{Chain, InputData};
/// use flashtile::{Device, Elem, Kernel};
/// let made = Kernel::builtin("attention")?.gradient(&["q"], &["o"])?;
/// let kernels = [&made.forward, &made.backward[0]].map(|kernel| kernel.bind(Elem::F16, [("D", 16)]));
/// let kernels = kernels.into_iter().collect::<flashtile::Result<Vec<_>>>()?;
/// let sizes = [("B", 1), ("H", 2), ("G", 1), ("M", 9), ("N", 11)].map(|(name, n)| (name.to_owned(), n));
/// let mut chain = Chain::new(kernels.clone(), &sizes.into(), 0, &InputData::default())?;
/// chain.pass()?;
/// let verdicts = chain.judge(&kernels[1].on(&Device::cpu())?)?;
/// assert!(verdicts.iter().all(|verdict| verdict.passed()));
/// # Ok::<(), flashtile::Error>(())
/// ```
pub struct Chain {
    kernels: Vec<BoundKernel>,
    sizes: BTreeMap<String, i64>,
    seed: u64,
    data: InputData,
    /// The kernel whose turn it is.
    next: usize,
    earlier: Earlier,
    /// Whether the drawn inputs so far are finite, and the first kernel stores no NaN, for what is
    /// hidden or otherwise. Then no later kernel may store one for what is hidden.
    clean: bool,
}

impl Chain {
    /// A chain of kernels for sizes by name, each of which takes those that it has, with what is
    /// said of their inputs.
    ///
    /// # Errors
    /// [`DataError::NotDrawn`] for data of what is not drawn.
    pub fn new(kernels: Vec<BoundKernel>, sizes: &BTreeMap<String, i64>, seed: u64, data: &InputData) -> Result<Self> {
        let consts: BTreeMap<String, i64> = kernels.iter().flat_map(|kernel| kernel.binding().consts.clone()).collect();
        let sizes = sizes_among(kernels.iter().map(BoundKernel::ir), sizes, &consts);
        let chain = Self { kernels, sizes, seed, data: data.clone(), next: 0, earlier: Earlier::default(), clean: true };
        chain.check_data()?;
        Ok(chain)
    }

    /// The same chain from its beginning, with exponents of the first kernel more than a hundred
    /// times as large, as for [`super::judge_steep`]; and the data that say so. `None` if no input
    /// scales one.
    ///
    /// # Errors
    /// Sizes or data that do not fit the first kernel.
    pub fn steep(&self) -> Result<Option<(InputData, Self)>> {
        let Some(first) = self.kernels.first() else { return Ok(None) };
        let Some(steep) = steep_data(first, &self.sizes_of(first), &self.data_of(first))? else { return Ok(None) };
        let mut data = self.data.clone();
        data.0.extend(steep.0);
        let chain = Self::new(self.kernels.clone(), &self.sizes, self.seed, &data)?;
        Ok(Some((data, chain)))
    }

    /// The facts of a launch of a kernel of the chain, whose tensors are packed.
    ///
    /// # Errors
    /// Sizes or data that do not fit the kernel.
    pub fn facts(&self, kernel: &BoundKernel) -> Result<Facts> {
        facts_of(kernel, &self.sizes_of(kernel), &self.data_of(kernel))
    }

    /// Runs the kernel whose turn it is in the oracle alone, and judges nothing.
    ///
    /// # Errors
    /// Sizes or data that do not fit the kernel.
    ///
    /// # Panics
    /// If every kernel had its turn.
    pub fn pass(&mut self) -> Result<()> {
        if self.next == 0 || self.is_read_later() {
            let (inputs, gate) = self.gate(&Device::cpu())?;
            self.keep(&inputs, &gate)?;
        } else {
            self.inputs(&Device::cpu())?;
        }
        self.next += 1;
        Ok(())
    }

    /// Runs a kernel made ready for a device, whose parameters are those of the kernel whose turn
    /// it is, and judges what it stores by the oracle of that.
    ///
    /// # Errors
    /// Sizes or data that do not fit the kernel; what the launch and the device say.
    ///
    /// # Panics
    /// If every kernel had its turn.
    pub fn judge(&mut self, loaded: &LoadedKernel) -> Result<Vec<OutputVerdict>> {
        let (inputs, gate) = self.gate(loaded.device())?;
        self.run(loaded, &inputs, &gate)
    }

    /// The same; `None`, and nothing is run, if the text of the kernel whose turn it is overflows
    /// in f32 where it does not in f64.
    ///
    /// # Errors
    /// As [`Chain::judge`].
    ///
    /// # Panics
    /// As [`Chain::judge`].
    pub fn judge_steady(&mut self, loaded: &LoadedKernel) -> Result<Option<Vec<OutputVerdict>>> {
        let (inputs, gate) = self.gate(loaded.device())?;
        if gate.is_steady() { self.run(loaded, &inputs, &gate).map(Some) } else { Ok(None) }
    }

    fn run(&mut self, loaded: &LoadedKernel, inputs: &Inputs, gate: &Gate) -> Result<Vec<OutputVerdict>> {
        launch(loaded, inputs)?;
        let mut verdicts = gate.verdicts(inputs)?;
        if self.next > 0 && self.clean {
            for verdict in verdicts.iter_mut().filter(|verdict| verdict.passed() && verdict.compares_nothing()) {
                verdict.failure = Some(Failure::NothingFinite);
            }
        }
        self.keep(inputs, gate)?;
        self.next += 1;
        Ok(verdicts)
    }

    /// Inputs of the kernel whose turn it is, and what it must give: of all programs if a later
    /// kernel reads that.
    fn gate(&mut self, device: &Device) -> Result<(Inputs, Gate)> {
        let inputs = self.inputs(device)?;
        let kernel = &self.kernels[self.next];
        let gate = if self.is_read_later() { Gate::whole(kernel, &inputs)? } else { Gate::new(kernel, &inputs, self.seed)? };
        Ok((inputs, if self.next > 0 && self.clean { gate.without_hidden_nan() } else { gate }))
    }

    /// Whether every input of the kernel whose turn it is, of those that no earlier one has, is
    /// finite.
    fn draws_finite(&self, inputs: &Inputs) -> Result<bool> {
        for (param, value) in self.kernels[self.next].ir().params.values().zip(&inputs.values) {
            if !param.kind.is_read() || self.earlier.0.contains_key(&param.name) {
                continue;
            }
            let is_finite = match host(value)? {
                HostArgument::F32(x) => x.is_finite(),
                HostArgument::Input(tensor) => tensor.to_f64().iter().all(|x| x.is_finite()),
                _ => true,
            };
            if !is_finite {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Inputs of the kernel whose turn it is: those of before, and others that are drawn.
    fn inputs(&mut self, device: &Device) -> Result<Inputs> {
        let kernel = &self.kernels[self.next];
        let mut data = self.data_of(kernel);
        data.0.retain(|name, _| !self.earlier.0.contains_key(name));
        let inputs = Inputs::after(&self.earlier, kernel, &self.sizes_of(kernel), device, self.seed, &data)?;
        self.clean = self.clean && self.draws_finite(&inputs)?;
        Ok(inputs)
    }

    fn sizes_of(&self, kernel: &BoundKernel) -> BTreeMap<String, i64> {
        let has = |kernel: &BoundKernel, name: &str| kernel.ir().size_named(name).is_some();
        // A size that no kernel has is an error of each.
        let taken = |name: &str| has(kernel, name) || !self.kernels.iter().any(|kernel| has(kernel, name));
        self.sizes.iter().filter(|(name, _)| taken(name)).map(|(name, &size)| (name.clone(), size)).collect()
    }

    /// What is said of the inputs of a kernel; of one that is alone, all that is said, so that it
    /// refuses what it has not.
    fn data_of(&self, kernel: &BoundKernel) -> InputData {
        if self.kernels.len() == 1 { self.data.clone() } else { self.data.of_inputs(kernel.ir()) }
    }

    /// Whether a later kernel reads what the kernel whose turn it is stores.
    fn is_read_later(&self) -> bool {
        let stored: BTreeSet<&str> = self.kernels[self.next].ir().outputs().collect();
        self.kernels[self.next + 1..].iter().any(|kernel| inputs(kernel.ir()).any(|name| stored.contains(name)))
    }

    /// Keeps what a kernel has read and stored for those after it.
    fn keep(&mut self, inputs: &Inputs, gate: &Gate) -> Result<()> {
        self.clean &= self.next > 0 || !gate.holds_nan();
        let last = self.next + 1 == self.kernels.len();
        if last {
            return Ok(());
        }
        let ir = self.kernels[self.next].ir();
        for (param, value) in ir.params.values().zip(&inputs.values) {
            if param.kind.is_read() {
                self.earlier.0.insert(param.name.clone(), host(value)?);
            }
        }
        for (name, tensor) in gate.stored() {
            self.earlier.0.insert(name.to_owned(), HostArgument::Input(tensor));
        }
        Ok(())
    }

    /// Refuses data of what no kernel draws. One that is alone does that itself.
    fn check_data(&self) -> Result<()> {
        if self.kernels.len() == 1 {
            return Ok(());
        }
        let (mut stored, mut drawn): (BTreeSet<&str>, Vec<&str>) = Default::default();
        for kernel in &self.kernels {
            let new: Vec<&str> = inputs(kernel.ir()).filter(|name| !stored.contains(name) && !drawn.contains(name)).collect();
            drawn.extend(new);
            stored.extend(kernel.ir().outputs());
        }
        let Some(name) = self.data.0.keys().find(|name| !drawn.contains(&name.as_str())) else { return Ok(()) };
        let what = match stored.contains(name.as_str()) {
            true => "holds what an earlier kernel stores",
            false => "is no input of these kernels",
        };
        Err(TuneError::from(DataError::NotDrawn { name: name.clone(), what, drawn: drawn.join(", ") }).into())
    }
}

fn inputs(kernel: &ir::Kernel) -> impl Iterator<Item = &str> {
    kernel.params.values().filter(|param| param.kind.is_read()).map(|param| param.name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{Gradient, Kernel};
    use flashtile_dsl::ir::{Elem, SourceText};

    fn gradient(name: &str) -> Gradient {
        Kernel::builtin(name).expect("built in").gradient(&["q", "k", "v"], &["o"]).expect("has one")
    }

    fn bound(kernel: &Kernel) -> BoundKernel {
        kernel.bind(Elem::Bf16, [("D", 16)]).expect("binds")
    }

    fn bound_all(gradient: &Gradient) -> Vec<BoundKernel> {
        [&gradient.forward].into_iter().chain(&gradient.backward).map(bound).collect()
    }

    fn chain(kernels: &[BoundKernel], data: &str) -> Result<Chain> {
        let sizes = [("B", 1), ("H", 4), ("G", 2), ("M", 67), ("N", 85)].map(|(name, n)| (name.to_owned(), n));
        Chain::new(kernels.to_vec(), &sizes.into(), 1, &data.parse().expect("data"))
    }

    /// The one kernel of a text.
    fn bound_text(text: String) -> BoundKernel {
        let source = SourceText { name: "changed.rs".into(), text: text.into(), first_line: 1 };
        bound(&Kernel::from_source(&source).unwrap_or_else(|e| panic!("{e}")).remove(0))
    }

    /// Changes the bytes of an output.
    fn change(kernel: &BoundKernel, inputs: &Inputs, output: &str, change: impl FnOnce(&mut [u8])) {
        let at = kernel.ir().param_named(output).expect("an output");
        let super::super::inputs::Value::Output(tensor) = &inputs.values[ir::Entity::index(at)] else { panic!("an output") };
        let mut bytes = tensor.to_bytes().expect("reads");
        change(&mut bytes);
        tensor.write_bytes(&bytes).expect("writes");
    }

    fn on_cpu(kernel: &BoundKernel) -> LoadedKernel {
        kernel.on(&Device::cpu()).expect("the CPU runs everything")
    }

    fn names(verdicts: &[OutputVerdict], passed: bool) -> Vec<&str> {
        verdicts.iter().filter(|verdict| verdict.passed() == passed).map(|verdict| verdict.name.as_str()).collect()
    }

    #[test]
    fn kernels_of_a_gradient_are_right_on_what_those_before_them_store() {
        let kernels = bound_all(&gradient("causal_attention"));
        let mut plain = chain(&kernels, "").expect("fits");
        let (_, mut steep) = plain.steep().expect("fits").expect("scores are exponents");
        for kernel in &kernels {
            assert_eq!(names(&plain.judge(&on_cpu(kernel)).expect("runs"), false), [""; 0]);
            let steep = steep.judge_steady(&on_cpu(kernel)).expect("runs").expect("probabilities are no more than 1");
            assert_eq!(names(&steep, false), [""; 0], "{steep:?}");
        }
        // What rows store is no random number: columns multiply by `exp(s - lse)`, of which rows
        // sum to 1.
        let lse = plain.earlier.0["lse"].tensor().expect("a tensor").to_f64();
        let q = plain.earlier.0["q"].tensor().expect("a tensor").to_f64();
        assert!(lse.iter().filter(|x| x.is_finite()).all(|&x| x > 0.0) && q.iter().any(|&x| x < 0.0));
    }

    #[test]
    fn a_wrong_kernel_of_a_gradient_is_found() {
        let made = gradient("attention");
        let kernels = bound_all(&made);
        // The kernel, its text, and that with a fault; the outputs that are wrong by it.
        let faults = [
            (1, "dp + dl", "dp - dl", &["grad_q"][..]),
            (1, "dq * scale", "dq", &["grad_q"]),
            (1, "let dl = rowsum(-(", "let dl = rowsum((", &["grad_l", "grad_q"]),
            (2, "exp(", "exp2(", &["grad_k", "grad_v"]),
        ];
        for (at, right, wrong, outputs) in faults {
            let text = made.backward[at - 1].text();
            let text = text.replacen(right, wrong, 1);
            assert_ne!(text, made.backward[at - 1].text(), "`{right}` is in the text");
            let wrong = bound_text(text);
            let mut chain = chain(&kernels, "").expect("fits");
            (0..at).for_each(|_| chain.pass().expect("runs"));
            assert_eq!(names(&chain.judge(&on_cpu(&wrong)).expect("runs"), false), outputs, "{right}");
        }
    }

    #[test]
    fn results_that_were_changed_are_found() {
        let kernels = bound_all(&gradient("attention"));
        let mut chain = chain(&kernels, "").expect("fits");
        chain.pass().expect("runs");
        let (inputs, gate) = chain.gate(&Device::cpu()).expect("fits");
        launch(&on_cpu(&kernels[1]), &inputs).expect("runs");
        assert_eq!(names(&gate.verdicts(&inputs).expect("reads"), false), [""; 0]);
        change(&kernels[1], &inputs, "grad_q", |bytes| bytes[101] ^= 0x40);
        assert_eq!(names(&gate.verdicts(&inputs).expect("reads"), false), ["grad_q"]);
    }

    /// Rows of a text whose factor is 1 for what is seen and NaN for what is hidden. Sums leave
    /// hidden elements out, and a GPU may add 0 times NaN: so NaN is right for that text by itself,
    /// and not for a gradient of a kernel that stores none.
    #[test]
    fn a_gradient_is_no_number_only_where_the_forward_kernel_is_none() {
        let made = gradient("causal_attention");
        let seen = "t2 - pos(j) + 1";
        let text = made.backward[0].text().replacen("dp2 * p", &format!("dp2 * p * sqrt({seen}) * rsqrt({seen})"), 1);
        let wild = bound_text(text);
        let mut kernels = bound_all(&made);
        kernels[1] = wild.clone();
        let with_nan = |mut chain: Chain, earlier: usize| {
            (0..earlier).for_each(|_| chain.pass().expect("runs"));
            let (inputs, gate) = chain.gate(&Device::cpu()).expect("fits");
            launch(&on_cpu(&wild), &inputs).expect("runs");
            assert_eq!(names(&gate.verdicts(&inputs).expect("reads"), false), [""; 0]);
            change(&wild, &inputs, "grad_q", |bytes| bytes[..2].copy_from_slice(&half::bf16::NAN.to_le_bytes()));
            let verdicts = gate.verdicts(&inputs).expect("reads");
            verdicts.into_iter().find(|verdict| verdict.name == "grad_q").expect("judged")
        };
        let alone = with_nan(chain(&kernels[1..2], "").expect("fits"), 0);
        assert!(alone.passed() && alone.hidden_nan == 1, "{alone}");
        let behind = with_nan(chain(&kernels, "").expect("fits"), 1);
        assert_eq!((behind.failure, behind.hidden_nan), (Some(crate::verify::Failure::NotFinite), 0), "{behind}");
        // Where the forward kernel stores NaN itself, such as `acc / l` of rows that see nothing.
        kernels[0] = bound_text(made.forward.text().replacen("div_or_zero(acc, l)", "acc / l", 1));
        let sizes = [("B", 1), ("H", 4), ("G", 2), ("M", 85), ("N", 67)].map(|(name, n)| (name.to_owned(), n));
        let short = Chain::new(kernels, &sizes.into(), 1, &InputData::default()).expect("fits");
        let behind = with_nan(short, 1);
        assert!(behind.passed() && behind.hidden_nan == 1, "{behind}");
    }

    #[test]
    fn data_are_of_what_is_drawn() {
        let kernels = bound_all(&gradient("attention"));
        let error = |data: &str| chain(&kernels, data).map(|_| ()).expect_err(data).to_string();
        assert!(chain(&kernels, "grad_o:scale=3 k:growth=3").is_ok());
        let known = "data may be given for q, k, v, scale, grad_o";
        let stored = |name: &str| format!("`{name}`, for which data are given, holds what an earlier kernel stores; {known}");
        assert_eq!(error("lse:scale=2"), stored("lse"));
        assert_eq!(error("grad_l:scale=2"), stored("grad_l"));
        assert_eq!(error("x:scale=2"), format!("`x`, for which data are given, is no input of these kernels; {known}"));
    }
}
