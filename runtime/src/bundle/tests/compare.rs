//! Calls in both launchers, and faults that are planted into what the C launcher is made of.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use flashtile_codegen::{Field, GridDim};
use flashtile_dsl::ir::{Elem, ParamKind};

use super::calls::{Given, launch, line, random};
use super::recorder::{Recorder, fnv};
use super::{Made, compile, made};
use crate::bundle::Bundle;
use crate::bundle::contract::KernelContract;
use crate::bundle::launcher;
use crate::bundle::launcher::field_names;
use crate::kernel::BoundKernel;
use flashtile_dsl::inputs::Random;

const GPUS: [((u32, u32), u32); 2] = [((9, 0), 132), ((8, 6), 84)];

/// A program that reads calls, one a line, and passes each to the function of its kernel.
fn program(kernels: &[(BoundKernel, KernelContract)]) -> String {
    let mut out = "#include \"flashtile_bundle.h\"\n#include <inttypes.h>\n#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n\
        void stub_note(const char *line);\n\
        static flashtile_tensor tensor(FILE *in, int rank) {\n    flashtile_tensor t;\n    memset(&t, 0xff, sizeof t);\n    \
        if (fscanf(in, \"%\" SCNu64, &t.address) != 1) exit(3);\n    \
        for (int d = 0; d < 2 * rank; d++) if (fscanf(in, \"%\" SCNd64, d < rank ? &t.extents[d] : &t.strides[d - rank]) != 1) exit(3);\n    \
        return t;\n}\n\
        int main(int count, char **names) {\n    FILE *in = count == 2 ? fopen(names[1], \"r\") : NULL;\n    int kernel;\n    uint64_t at;\n    \
        if (!in) return 2;\n    \
        while (fscanf(in, \"%d %\" SCNu64, &kernel, &at) == 2) {\n        flashtile_error error;\n        uint64_t bytes = 0;\n        \
        char text[400];\n        flashtile_status status = FLASHTILE_OK;\n        flashtile_workspace workspace = {at, 0};\n        \
        struct CUstream_st *stream = (struct CUstream_st *)7;\n        switch (kernel) {\n"
        .to_owned();
    for (n, (kernel, contract)) in kernels.iter().enumerate() {
        let name = &contract.name;
        let _ = write!(out, "        case {n}: {{\n            {name}_arguments a;\n");
        let parameters = contract.parameters.iter().zip(field_names(&contract.parameters));
        for (param, (parameter, field)) in kernel.ir().params.values().zip(parameters) {
            let _ = match &param.kind {
                ParamKind::Tensor(t) => writeln!(out, "            a.{field} = tensor(in, {});", t.shape.len()),
                ParamKind::Scalar(_) if parameter.elem == Elem::I32 => {
                    writeln!(out, "            if (fscanf(in, \"%\" SCNd32, &a.{field}) != 1) exit(3);")
                }
                ParamKind::Scalar(_) => writeln!(
                    out,
                    "            {{ uint32_t bits; if (fscanf(in, \"%\" SCNu32, &bits) != 1) exit(3); memcpy(&a.{field}, &bits, 4); }}"
                ),
            };
        }
        let _ = write!(
            out,
            "            status = {name}_workspace(&a, &bytes, &error);\n            workspace.bytes = bytes;\n            \
             if (!status) {{ snprintf(text, sizeof text, \"workspace %\" PRIu64, bytes); stub_note(text); }}\n            \
             if (!status) status = {name}(&a, workspace, stream, &error);\n            break; }}\n"
        );
    }
    out + "        default: exit(4);\n        }\n        snprintf(text, sizeof text, \"status %d %s\", (int)status, status ? error.text : \"\");\n        \
           stub_note(text);\n    }\n    return 0;\n}\n"
}

/// Compiles the C files of kernels with the program and the stub driver.
pub(super) fn build(dir: &Path, kernels: &[(BoundKernel, KernelContract)], bundle: &Path) {
    let contracts = kernels.iter().flat_map(|(_, contract)| &contract.architectures).flat_map(|arch| &arch.code);
    let mut files: BTreeMap<String, Vec<u8>> =
        contracts.map(|code| (code.cubin.clone(), std::fs::read(bundle.join(&code.cubin)).expect("is there"))).collect();
    let mut functions = String::new();
    for code in kernels.iter().flat_map(|(_, contract)| &contract.architectures).flat_map(|arch| &arch.code) {
        for abi in &code.contract.launches {
            let hash = fnv(&files[&code.cubin]);
            let _ = writeln!(functions, "{hash:x} {} {} {}", abi.entry, abi.tensor_maps.len(), abi.layout().1);
        }
    }
    launcher::write(kernels, &mut files).expect("fits");
    files.insert("main.c".into(), program(kernels).into_bytes());
    files.insert("functions".into(), functions.into_bytes());
    files.insert("stub_cuda.c".into(), include_bytes!("stub_cuda.c").to_vec());
    files.iter().for_each(|(name, bytes)| std::fs::write(dir.join(name), bytes).expect("writes"));
    compile(dir, &["-shared", "-fPIC", "-o", "libcuda.so.1", "stub_cuda.c"]);
    compile(dir, &["-o", "calls", "main.c", "flashtile_bundle.c", "flashtile_cubins.c", "libcuda.so.1", "-ldl"]);
}

/// What the C launcher does with calls: for each, the lines that the stub driver wrote, and the
/// status.
pub(super) fn run(dir: &Path, calls: &[(usize, Vec<Given>)], gpu: ((u32, u32), u32)) -> Vec<(Vec<String>, String)> {
    let text: String = calls.iter().map(|(kernel, call)| line(*kernel, call)).collect();
    std::fs::write(dir.join("calls.txt"), text).expect("writes");
    let ((major, minor), sms) = gpu;
    let output = Command::new(dir.join("calls"))
        .arg("calls.txt")
        .current_dir(dir)
        .env("LD_LIBRARY_PATH", dir)
        .env("STUB_RECORD", dir.join("record.txt"))
        .env("STUB_FUNCTIONS", dir.join("functions"))
        .env("STUB_GPU", format!("{major} {minor} {sms}"))
        .output()
        .expect("it was built");
    assert!(output.status.success(), "{:?} {}", output.status, String::from_utf8_lossy(&output.stderr));
    let record = std::fs::read_to_string(dir.join("record.txt")).expect("was written");
    let mut all = vec![(Vec::new(), String::new())];
    for line in record.lines() {
        match line.strip_prefix("status ") {
            Some(status) => {
                all.last_mut().expect("one at least").1 = status.to_owned();
                all.push((Vec::new(), String::new()));
            }
            None => all.last_mut().expect("one at least").0.push(line.to_owned()),
        }
    }
    all.pop();
    assert_eq!(all.len(), calls.len(), "a status for each call");
    all
}

/// Random calls of all kernels that have code for the GPU.
fn calls(kernels: &[(BoundKernel, KernelContract)], major: u32, each: usize, seed: u64) -> Vec<(usize, Vec<Given>)> {
    let arch = format!("sm_{major}0");
    let has_code =
        |(_, contract): &(BoundKernel, KernelContract)| contract.architectures.iter().any(|a| a.arch.starts_with(&arch));
    let numbers: Vec<usize> = (0..kernels.len()).filter(|&n| has_code(&kernels[n])).collect();
    let mut source = Random(seed);
    numbers.into_iter().flat_map(|n| (0..each).map(|_| (n, random(&kernels[n].0, &mut source))).collect::<Vec<_>>()).collect()
}

/// Calls in which the launchers differ, with what each did; and how often each status came, and
/// each entry point was launched.
fn differences(made: &Made, dir: &Path, each: usize) -> (Vec<String>, BTreeMap<u32, usize>, BTreeMap<String, usize>) {
    let bundle = Bundle::load(made.bundle()).expect("loads");
    let (mut wrong, mut statuses, mut entries) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
    for (seed, gpu) in GPUS.into_iter().enumerate() {
        let recorder = Recorder::new(gpu.0, gpu.1);
        let device = recorder.device();
        let calls = calls(&made.kernels, gpu.0.0, each, seed as u64);
        let found = run(dir, &calls, gpu);
        let loaded = |(_, contract): &(BoundKernel, KernelContract)| bundle.kernel(&contract.name)?.on(&device);
        let loaded: Vec<_> = made.kernels.iter().map(loaded).collect();
        for ((kernel, call), (lines, status)) in calls.iter().zip(found) {
            let (expected, reason) = launch(loaded[*kernel].as_ref().expect("has code"), call);
            let own = recorder.take();
            let code: u32 = status.split(' ').next().and_then(|code| code.parse().ok()).expect("a number");
            *statuses.entry(code).or_default() += 1;
            for line in lines.iter().filter(|line| line.starts_with("launch")) {
                *entries.entry(line.split(' ').nth(2).expect("an entry").to_owned()).or_default() += 1;
            }
            if code != expected || (code == 0 && lines != own) {
                wrong.push(format!("{call:?}\n  C: {status} {lines:#?}\n  Rust: {expected} {reason} {own:#?}"));
            }
        }
    }
    (wrong, statuses, entries)
}

#[test]
fn the_c_launcher_launches_what_rust_does() {
    let made = made();
    let dir = tempfile::tempdir().expect("a directory");
    build(dir.path(), &made.kernels, &made.bundle());
    let (wrong, statuses, entries) = differences(made, dir.path(), 400);
    assert!(wrong.is_empty(), "{} calls differ, the first: {}", wrong.len(), wrong[0]);
    // The calls reach everything: each status that arguments can have, and each launch of each
    // kernel.
    assert_eq!(statuses.keys().copied().collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6, 7], "{statuses:?}");
    assert!(statuses[&0] > 1000, "{statuses:?}");
    let all = made.kernels.iter().flat_map(|(_, c)| &c.architectures).flat_map(|a| &a.code).flat_map(|c| &c.contract.launches);
    all.for_each(|abi| assert!(entries.contains_key(&abi.entry), "{} was never launched: {entries:?}", abi.entry));
}

/// A fault in one part of what the C launcher is made of, which the comparison must see.
fn sees(plant: impl Fn(&mut KernelContract)) -> bool {
    let made = made();
    let dir = tempfile::tempdir().expect("a directory");
    let mut kernels = made.kernels.clone();
    kernels.iter_mut().for_each(|(_, contract)| plant(contract));
    assert!(kernels != made.kernels, "the fault is none");
    build(dir.path(), &kernels, &made.bundle());
    !differences(made, dir.path(), 60).0.is_empty()
}

fn each_code(contract: &mut KernelContract, change: impl Fn(&mut crate::lowering::CallingContract)) {
    contract.architectures.iter_mut().flat_map(|arch| &mut arch.code).for_each(|code| change(&mut code.contract));
}

#[test]
fn a_fault_in_any_part_of_the_contract_is_seen() {
    let grid = |contract: &mut KernelContract| {
        each_code(contract, |own| {
            own.launches[0].grid.iter_mut().for_each(|dim| {
                if let GridDim::Tiles(_, block) = dim {
                    *block *= 2;
                }
            });
        });
    };
    let order = |contract: &mut KernelContract| {
        each_code(contract, |own| {
            let fields = &mut own.launches[own.main].fields;
            let is_pointer = |&n: &usize| matches!(fields[n], Field::Pointer(_));
            if let [first, second, ..] = (0..fields.len()).filter(is_pointer).collect::<Vec<_>>()[..] {
                fields.swap(first, second);
            }
        });
    };
    let fact = |contract: &mut KernelContract| {
        let variants = contract.architectures.iter_mut().flat_map(|arch| &mut arch.variants);
        variants.for_each(|variant| variant.facts.alignment = 2);
    };
    let fact_of_one = |contract: &mut KernelContract| {
        let variants = contract.architectures.iter_mut().flat_map(|arch| &mut arch.variants);
        variants.for_each(|variant| _ = variant.facts.aligned.insert("k".into(), 1));
    };
    let positive = |contract: &mut KernelContract| {
        let variants = contract.architectures.iter_mut().flat_map(|arch| &mut arch.variants);
        variants.for_each(|variant| variant.facts.positive.clear());
    };
    let scratch = |contract: &mut KernelContract| {
        each_code(contract, |own| own.scratch.iter_mut().for_each(|scratch| scratch.shape[0].constant += 1));
    };
    let map = |contract: &mut KernelContract| {
        each_code(contract, |own| {
            own.launches.iter_mut().flat_map(|l| &mut l.tensor_maps).for_each(|map| map.order[1..].reverse());
        });
    };
    let early = |contract: &mut KernelContract| {
        each_code(contract, |own| own.launches.iter_mut().for_each(|launch| launch.early = false));
    };
    let shared = |contract: &mut KernelContract| {
        each_code(contract, |own| own.launches.iter_mut().for_each(|launch| launch.shared_bytes += 16));
    };
    assert!(sees(grid), "a grid of other blocks");
    assert!(sees(order), "two pointers in each other's place");
    assert!(sees(fact), "alignment that is not asked for");
    assert!(sees(fact_of_one), "alignment of one tensor that is not asked for");
    assert!(sees(positive), "signs that are not asked for");
    assert!(sees(scratch), "another layout of scratch");
    assert!(sees(map), "dimensions of a tensor map in another order");
    assert!(sees(early), "launches that do not begin early");
    assert!(sees(shared), "more shared memory");
}
