//! Memory between the launches of a schedule, as it is counted where nothing runs. The emulator's
//! memory is that of the process: nothing else may run beside. Needs NVRTC.

use std::collections::BTreeMap;

use flashtile::tuner::{MeasureOptions, Part, count_memory, count_scratch, measure_sequence};
use flashtile::{Arch, Device, Elem, Facts, Kernel, LaunchOptions, Schedule, lowering};

#[test]
fn memory_between_launches_is_counted_as_a_device_allocates_it() {
    let kernel = Kernel::builtin("attention").expect("a built-in").bind(Elem::F16, [("D", 64)]).expect("binds");
    let sizes = [("B", 1), ("H", 1), ("G", 1), ("M", 70), ("N", 256)].map(|(name, size)| (name.to_owned(), size));
    let part = Part { kernel: kernel.clone(), sizes: sizes.into(), tensors: BTreeMap::new() };
    let arch = Arch::named("sm_80").expect("in the table");
    for knobs in ["split_k=1", "split_k=3", "split_k=4,fixup=tree"] {
        let schedule = Schedule::default().with(knobs).expect("knobs");
        let generated = lowering::generate(&kernel.instance(Facts::best(kernel.ir())), &schedule, arch).expect("legal");
        let scratch = count_scratch(&generated, &part.sizes).expect("small");
        assert_eq!(scratch > 0, knobs != "split_k=1", "{knobs}");
        let tensors = count_memory(&Device::cpu(), std::slice::from_ref(&part)).expect("counts");
        let options = LaunchOptions { arch: Some(arch), schedule: Some(schedule), ..LaunchOptions::default() };
        let loaded = kernel.on_with(&Device::emulator(), options).expect("compiles");
        let measure = MeasureOptions { repetitions: 0, warm_ups: 0, ..MeasureOptions::default() };
        let measured = measure_sequence(&[(part.clone(), loaded)], &part, &measure).expect("runs");
        assert_eq!(tensors + scratch, measured.memory.counted, "{knobs}");
    }
}
