//! Kernels whose names are taken in C++, in CUDA or by the templates: they compile, and mean the same.
//! Executed on the emulator; needs NVRTC, no GPU.

use flashtile::toolchain::Toolchain;
use flashtile::{Arch, Argument, Device, Elem, Kernel, LaunchOptions, Tensor, f16};
use flashtile_dsl::ir::SourceText;
use flashtile_tests::odd_names::ODD_NAMES;

fn kernels(text: &str) -> Vec<Kernel> {
    let source = SourceText { name: "names.rs".into(), text: text.into(), first_line: 1 };
    Kernel::from_source(&source).expect("well formed")
}

fn options(arch: &str, schedule: Option<&str>) -> LaunchOptions {
    let schedule = schedule.map(|s| s.parse().expect("a schedule"));
    LaunchOptions { toolchain: Toolchain::shared(), arch: Arch::named(arch), schedule, ..LaunchOptions::default() }
}

#[test]
fn names_that_are_taken_elsewhere_mean_what_they_mean_in_the_text() {
    let bound = kernels(ODD_NAMES).remove(0).bind(Elem::F16, [("D", 64)]).expect("binds");
    let run = |device: &Device, options: LaunchOptions| {
        let kernel = bound.on_with(device, options).expect("loads");
        let tensor = |rows: usize, step: usize| {
            let values: Vec<f32> = (0..rows * 64).map(|n| (n * step % 23) as f32 / 16.0 - 0.7).collect();
            Tensor::<f16>::from_f32(device, &[rows, 64], &values).expect("fits")
        };
        let (q, k, v) = (tensor(40, 3), tensor(90, 5), tensor(90, 7));
        let (mut o, mut lse) =
            (Tensor::<f16>::zeros(device, &[40, 64]).expect("fits"), Tensor::<f32>::zeros(device, &[40]).expect("fits"));
        kernel
            .launch(&[(&q).into(), (&k).into(), (&v).into(), 0.125.into(), 77.into(), (&mut o).into(), (&mut lse).into()])
            .unwrap_or_else(|error| panic!("{error}"));
        (o.to_vec().expect("is read"), lse.to_vec().expect("is read"))
    };
    let (o, lse) = run(&Device::cpu(), LaunchOptions::default());
    let ways = [
        ("sm_75", None),
        ("sm_80", None),
        ("sm_80", Some("block_m=64,block_n=32,split_k=2,fixup=semaphore")),
        ("sm_80", Some("block_m=64,block_n=32,split_k=2")),
        ("sm_90a", Some("tensor_op=wgmma,copy=tma,block_m=64,block_n=64,stages=2,persistent=dynamic")),
    ];
    for (arch, schedule) in ways {
        let (found, found_lse) = run(&Device::emulator(), options(arch, schedule));
        let far = |a: f32, b: f32| (a - b).abs() > 3e-3;
        let differ = o.iter().zip(&found).any(|(a, b)| far(a.to_f32(), b.to_f32()))
            || lse.iter().zip(&found_lse).any(|(&a, &b)| far(a, b));
        assert!(!differ, "{arch} {schedule:?}");
    }
}

/// Kernels, tensors, scalars, sizes and values of each name, compiled for one architecture.
#[test]
fn every_kind_of_name_may_be_any_word() {
    let words = [
        "int",
        "new",
        "delete",
        "class",
        "short",
        "float",
        "signed",
        "register",
        "asm",
        "xor",
        "EACH",
        "DEVICE",
        "INFINITE",
        "threadIdx",
        "blockDim",
        "float4",
        "uint2",
        "__half",
        "warpSize",
        "printf",
        "memcpy",
        "malloc",
        "main",
        "expf",
        "fmax",
        "fmaxf",
        "atomicAdd",
        "widen",
        "copy_tile",
        "st_shared",
        "u32",
        "Params",
        "params",
        "lane",
        "warp",
        "shared",
        "row",
        "column",
        "first_row",
        "workspace",
        "x_stride0",
        "std",
        "cuda",
        "isnan",
        "y0",
        "floor_div",
        "α",
        "größe",
        "u_a",
        "int_",
        "program_",
        "std_",
    ];
    let compile = |text: &str, word: &str| {
        let kernel = kernels(text).remove(0);
        let bound = kernel.bind(Elem::F32, Vec::<(String, i64)>::new()).expect("binds");
        let loaded = bound.on_with(&Device::emulator(), options("sm_80", None)).expect("loads");
        let tensor = |shape: &[usize]| Tensor::<f32>::zeros(&Device::emulator(), shape).expect("fits");
        let (x, mut y) = (
            Tensor::<f32>::from_f32(&Device::emulator(), &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).expect("fits"),
            tensor(&[2, 3]),
        );
        let arguments: [Argument<'_>; 3] = [(&x).into(), 2.0.into(), (&mut y).into()];
        loaded.launch(&arguments).unwrap_or_else(|error| panic!("{word}: {error}\n{text}"));
        assert_eq!(y.to_vec().expect("is read"), [2.0, 4.0, 6.0, 8.0, 10.0, 12.0], "{word}");
    };
    // Each word in another place of the same kernel, the places moving on from word to word.
    for (n, word) in words.iter().enumerate() {
        let other = |k: usize| words[(n + k * 7) % words.len()];
        let [kernel, x, scale, y, size, value] = [*word, other(1), other(2), other(3), other(4), other(5)];
        let text = format!(
            "pub fn {kernel}({x}: &Tensor<f32, (H, {size})>, {scale}: f32, {y}: &mut Tensor<f32, (H, {size})>) {{
                let (h, i) = program(H, tiles({size}));
                let {value} = load({x}, [h, i]) * {scale};
                store({y}, [h, i], {value});
            }}"
        );
        compile(&text, word);
    }
}

/// Loops around what is added to places have names of their own.
#[test]
fn indices_of_what_is_added_to_places_have_any_name() {
    let text = |class: &str| {
        format!(
            "pub fn counted(kind: &Tensor<i32, (M, N)>, x: &Tensor<f32, (C, M, N)>, t: &mut Tensor<f32, (C, V)>) {{
                let ({class}, i) = program(C, tiles(M));
                for j in tiles(N) {{
                    add(t, [{class}, load(kind, [i, j])], load(x, [{class}, i, j]));
                }}
            }}"
        )
    };
    let sizes = [("C", 3), ("M", 40), ("N", 50), ("V", 7)].map(|(name, size)| (name.to_owned(), size)).into();
    for name in ["c", "odd", "e", "r", "nt", "mt", "row", "column"] {
        let bound = kernels(&text(name)).remove(0).bind(Elem::F32, [("", 0); 0]).expect("binds");
        let loaded = bound.on_with(&Device::emulator(), options("sm_80", None)).expect("loads");
        let verdicts = flashtile::tuner::judge(&loaded, &sizes, 3).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(verdicts.iter().all(|verdict| verdict.passed() && !verdict.all_zero), "{name}: {verdicts:?}");
    }
}
