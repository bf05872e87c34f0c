//! The conformance suite on the CPU device, and whether it finds what is wrong.

use flashtile::conformance::{Case, Values, cases, random_case, run, run_with};
use flashtile::verify::{self, HostArgument};
use flashtile::{BoundKernel, Device, Kernel, LaunchOptions, Result};

/// Runs every case whose number has this remainder, so that the threads of the test runner share the table.
fn part(remainder: usize) {
    let cases: Vec<_> = cases().into_iter().enumerate().filter(|(at, _)| at % 4 == remainder).map(|(_, c)| c).collect();
    let report = run(&Device::cpu(), &LaunchOptions::default(), &cases);
    assert_eq!(report.passed(), cases.len(), "{report}");
}

#[test]
fn all_cases_pass_on_the_cpu_1_of_4() {
    part(0);
}

#[test]
fn all_cases_pass_on_the_cpu_2_of_4() {
    part(1);
}

#[test]
fn all_cases_pass_on_the_cpu_3_of_4() {
    part(2);
}

#[test]
fn all_cases_pass_on_the_cpu_4_of_4() {
    part(3);
}

#[test]
fn random_cases_pass_on_the_cpu() {
    let cases: Vec<_> = (0..100).map(random_case).collect();
    let report = run(&Device::cpu(), &LaunchOptions::default(), &cases);
    assert_eq!(report.passed(), cases.len(), "{report}");
}

fn case(name: &str) -> Case {
    cases().into_iter().find(|c| c.name() == name).unwrap_or_else(|| panic!("no case {name}"))
}

fn launch(kernel: &BoundKernel, arguments: &mut [HostArgument]) -> Result<()> {
    verify::run(&kernel.on(&Device::cpu())?, arguments)
}

/// What the report says of a case whose result is spoilt.
fn spoilt(name: &str, spoil: impl Fn(&BoundKernel, &mut [HostArgument]) -> Result<()> + Sync) -> String {
    let report = run_with([&case(name)], |kernel, arguments| spoil(kernel, arguments));
    let [result] = &report.cases[..] else { panic!("one case") };
    result.failure.clone().unwrap_or_else(|| panic!("{name} passed, but is spoilt"))
}

fn output(arguments: &mut [HostArgument]) -> &mut flashtile::verify::HostTensor {
    let found = arguments.iter_mut().find_map(|a| match a {
        HostArgument::Output(tensor) => Some(tensor),
        _ => None,
    });
    found.expect("a kernel has an output")
}

/// Changes the values of the first output after a right launch.
fn changed(name: &str, change: impl Fn(&mut Vec<f64>) + Sync) -> String {
    spoilt(name, |kernel, arguments| {
        launch(kernel, arguments)?;
        let tensor = output(arguments);
        let mut values = tensor.to_f64();
        change(&mut values);
        tensor.write_f64(&values);
        Ok(())
    })
}

const CAUSAL: &str = "causal_attention/bf16/B1_H2_G1_M113_N203_D64/normal";

#[test]
fn a_launch_that_does_nothing_is_found() {
    assert!(spoilt(CAUSAL, |_, _| Ok(())).contains("never written"));
}

#[test]
fn small_errors_are_found() {
    assert!(changed(CAUSAL, |o| o.iter_mut().for_each(|x| *x *= 1.03)).contains("error"));
    assert!(changed(CAUSAL, |o| o.swap(7, 8)).contains("an error is too large"));
    assert!(changed(CAUSAL, |o| o[100] += 0.1).contains("an error is too large"));
    assert!(changed(CAUSAL, |o| o[100] = f64::NAN).contains("NaN or infinity"));
}

#[test]
fn a_missing_special_value_is_found() {
    let name = "causal_attention/f32/B1_H2_G1_M70_N203_D64/special_q";
    assert!(changed(name, |o| o.iter_mut().filter(|x| x.is_nan()).for_each(|x| *x = 0.0)).contains("NaN or infinity"));
}

#[test]
fn writes_outside_of_a_tensor_are_found() {
    for name in [CAUSAL, "attention/f16/B2_H4_G2_M37_N101_D64/normal/padded3"] {
        let failure = spoilt(name, |kernel, arguments| {
            launch(kernel, arguments)?;
            let tensor = output(arguments);
            let last = tensor.places().last().expect("not empty");
            tensor.bytes[(last + 1) * 2] = 0;
            Ok(())
        });
        assert!(failure.contains("wrote outside"), "{failure}");
    }
}

#[test]
fn a_kernel_that_forgets_the_mask_is_found() {
    let failure =
        spoilt(CAUSAL, |kernel, arguments| launch(&Kernel::builtin("attention")?.bind_to(kernel.binding().clone())?, arguments));
    assert!(failure.contains("an error is too large"), "{failure}");
}

/// The rounding that an unfused 16-bit kernel adds twice over must not pass.
#[test]
fn a_result_with_coarse_scores_is_found() {
    let failure = spoilt(CAUSAL, |kernel, arguments| {
        launch(kernel, arguments)?;
        let tensor = output(arguments);
        let coarse: Vec<f64> = tensor.to_f64().iter().map(|x| (x * 32.0).round() / 32.0).collect();
        tensor.write_f64(&coarse);
        Ok(())
    });
    assert!(failure.contains("error"), "{failure}");
}

#[test]
fn cases_do_not_depend_on_each_other() {
    let name = case(CAUSAL);
    assert_eq!(name.seed(), case(CAUSAL).seed());
    assert_ne!(name.seed(), Case { values: Values::EqualScores, ..name.clone() }.seed());
}
