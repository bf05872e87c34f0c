//! The conformance suite on a GPU.

use flashtile::conformance::{Case, cases, random_case, run, run_samples, samples};
use flashtile::{Arch, Device, LaunchOptions};

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

#[test]
#[ignore = "needs a GPU; run with --ignored"]
fn cases_pass_on_a_gpu_with_schedules_drawn_at_random() {
    let device = Device::cuda(0).expect("this test needs a GPU");
    let (major, minor) = device.info().gpu.as_ref().expect("a GPU has properties").capability;
    let arch = Arch::for_capability(major, minor).expect("the device is supported");
    let drawn = samples(&cases(), arch, 100, 0).expect("every case has a legal schedule");
    let report = run_samples(&device, &LaunchOptions::default(), &drawn, |_| {});
    assert_eq!(report.passed(), drawn.len(), "{report}");
}
