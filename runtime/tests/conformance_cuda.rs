//! The conformance suite on a GPU.

use flashtile::conformance::{Case, cases, random_case, run};
use flashtile::{Device, LaunchOptions};

fn check(cases: &[Case]) {
    let device = Device::cuda(0).expect("this test needs a GPU");
    let report = run(&device, &LaunchOptions::default(), cases);
    assert_eq!(report.passed(), cases.len(), "{report}");
}

#[test]
#[ignore = "needs a GPU; run with --ignored"]
fn all_cases_pass_on_a_gpu() {
    check(&cases());
}

#[test]
#[ignore = "needs a GPU; run with --ignored"]
fn random_cases_pass_on_a_gpu() {
    check(&(0..100).map(random_case).collect::<Vec<_>>());
}
