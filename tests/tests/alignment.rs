//! Alignment is known of each tensor: what one lacks costs no other its wide loads, and rows that
//! begin anywhere are read as they lie. Needs NVRTC, no GPU.

use flashtile::toolchain::Toolchain;
use flashtile::tuner::{InputData, facts_of};
use flashtile::{AnyTensor, Arch, Argument, Device, Elem, Kernel, LaunchOptions, LoadedKernel};
use flashtile_codegen::plan::PlanFile;
use flashtile_codegen::{BLayout, Facts, Instance, Schedule, TensorOp, TileLoads, check, generate, plans, space};

use crate::bytes::kernel;

fn arch(name: &str) -> &'static Arch {
    Arch::named(name).expect("in the table")
}

/// A built-in for packed tensors of these sizes.
fn instance(name: &str, head_dim: i64, sizes: &[(&str, i64)]) -> Instance {
    let bound = Kernel::builtin(name).expect("built in").bind(Elem::Bf16, [("D", head_dim)]).expect("binds");
    let sizes = sizes.iter().map(|&(name, size)| (name.to_owned(), size)).collect();
    let facts = facts_of(&bound, &sizes, &InputData::default()).expect("possible");
    bound.instance(facts)
}

fn bias_of(keys: i64) -> Instance {
    instance("bias_attention", 64, &[("B", 1), ("H", 2), ("G", 2), ("M", 333), ("N", keys)])
}

#[test]
fn a_bias_of_odd_rows_leaves_keys_their_copies() {
    let (even, odd) = (bias_of(336), bias_of(335));
    assert_eq!(even.facts.alignment, 16);
    let of = |instance: &Instance| ["q", "k", "v", "bias", "o"].map(|name| instance.alignment_of(name));
    assert_eq!((of(&even), of(&odd)), ([16; 5], [16, 16, 16, 2, 16]));
    let by_wgmma = |instance: &Instance| {
        let mut all = space(instance, arch("sm_90a"));
        all.retain(|schedule| schedule.main.tensor_op == TensorOp::Wgmma);
        all
    };
    assert!(by_wgmma(&even).iter().all(|schedule| schedule.main.tile_loads == TileLoads::Tma));
    // Of a copy of the bias by TMA, or each element from where it is.
    let found = by_wgmma(&odd);
    for copied in [true, false] {
        let is_it = |schedule: &&Schedule| (schedule.launches.b_layout == BLayout::Copied) == copied;
        let tiles: Vec<TileLoads> = found.iter().filter(is_it).map(|schedule| schedule.main.tile_loads).collect();
        assert!(tiles.len() > 20, "{} schedules", tiles.len());
        assert!(tiles.iter().all(|loads| (*loads == TileLoads::Tma) == copied));
    }
    // 16 bytes of the keys at a time, and elements of the bias from wherever they are.
    let plan = plans(&odd, &Schedule::default(), arch("sm_80")).expect("is legal").remove(0);
    assert_eq!(plan.copy_bytes, 16);
    let code = |instance: &Instance| generate(instance, &Schedule::default(), arch("sm_80")).expect("is legal").source;
    assert!(code(&odd).contains("load_shifted<") && !code(&odd).contains("load_fragment<"));
    assert!(code(&even).contains("load_fragment<") && !code(&even).contains("load_shifted<"));
}

#[test]
fn what_is_not_aligned_is_named() {
    let odd = bias_of(335);
    let why = |instance: &Instance, schedule: &str, on: &str| {
        check(instance, &schedule.parse().expect("a schedule"), arch(on))
            .reasons
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
    };
    let hopper = "tensor_op=wgmma,copy=tma,block_m=128,warps=8";
    assert_eq!(why(&odd, hopper, "sm_90a"), [""; 0]);
    let by_ring = why(&odd, &format!("{hopper},tile_loads=tma"), "sm_90a");
    assert!(by_ring.iter().any(|why| why.contains("aligned to 16 bytes, for its elementwise work")), "{by_ring:?}");
    // Its copy is aligned, and no other tensor is copied.
    let copied = format!("{hopper},tile_loads=tma,b_layout=copied");
    assert_eq!(why(&odd, &copied, "sm_90a"), [""; 0]);
    let main = plans(&odd, &copied.parse().expect("a schedule"), arch("sm_90a")).expect("is legal");
    assert_eq!(main.iter().map(|plan| &*plan.name).collect::<Vec<_>>(), ["bias_attention_copy_bias", "bias_attention"]);
    // Rows of a program without products are read once: a copy of them gains nothing.
    let norm = Kernel::builtin("rms_norm").expect("built in").bind(Elem::Bf16, [] as [(&str, i64); 0]).expect("binds");
    let norm = norm.instance(Facts::none());
    let refused = why(&norm, "b_layout=copied", "sm_80");
    assert!(refused.iter().any(|why| why.contains("nothing to copy")), "{refused:?}");
    let mut keys = odd.clone();
    keys.facts.aligned.insert("k".into(), 8);
    let refused = why(&keys, hopper, "sm_90a");
    assert_eq!(refused, ["TMA needs addresses and strides that are multiples of 16 bytes, those of k are of 8"]);
    keys.facts.aligned.insert("v".into(), 2);
    let refused = why(&keys, "copy=cp_async", "sm_80");
    assert_eq!(refused, ["cp.async copies at least 4 bytes, rows of tiles of v are aligned to 2"]);
    // Their copies are aligned, and read by TMA.
    assert_eq!(why(&keys, &format!("{hopper},b_layout=copied"), "sm_90a"), [""; 0]);
}

#[test]
fn facts_have_one_form_and_follow_from_stronger_ones() {
    let facts = |all: &[(&str, u32)]| Facts::none().with_alignments(all.iter().map(|&(name, bytes)| (name, bytes)));
    let (best, odd) = (facts(&[("q", 16), ("k", 16), ("bias", 16)]), facts(&[("q", 16), ("k", 16), ("bias", 2)]));
    assert_eq!((best.alignment, best.aligned.len()), (16, 0));
    assert_eq!((odd.alignment, odd.aligned.len()), (16, 1));
    let half = facts(&[("q", 8), ("k", 8), ("bias", 8)]);
    assert_eq!((half.alignment, half.aligned.len()), (8, 0));
    assert_eq!(best.beyond(&odd), ["addresses and strides of bias are multiples of 16 bytes"]);
    assert_eq!(odd.beyond(&best), [""; 0]);
    assert_eq!(best.beyond(&half), ["addresses and strides of matrices are multiples of 16 bytes"]);
    assert_eq!(odd.beyond(&half), ["addresses and strides of matrices are multiples of 16 bytes"]);
    assert_eq!(half.beyond(&odd), ["addresses and strides of bias are multiples of 8 bytes"]);
    let keys = facts(&[("q", 16), ("k", 4), ("bias", 16)]);
    assert_eq!(keys.beyond(&odd), ["addresses and strides of bias are multiples of 16 bytes"]);
    assert_eq!(odd.beyond(&keys), ["addresses and strides of k are multiples of 16 bytes"]);
}

#[test]
fn plans_say_which_tensors_are_aligned_otherwise() {
    let (odd, on) = (bias_of(335), arch("sm_90a"));
    let own = plans(&odd, &Schedule::default(), on).expect("is legal");
    let text = PlanFile::text(&odd, &Schedule::default(), on, &own);
    assert!(text.contains("facts aligned to 16 bytes, aligned bias 2, "), "{text}");
    assert_eq!(PlanFile::read(&text, Some(&odd.kernel.source)).expect("reads").facts, odd.facts);
}

#[test]
fn operands_that_tma_cannot_read_are_copied_on_hopper() {
    let sizes = [("B", 1), ("H", 2), ("G", 2), ("M", 4096), ("N", 4096)];
    for head_dim in [20, 50, 100, 102] {
        let narrow = instance("causal_attention", head_dim, &sizes);
        assert!(narrow.facts.alignment < 16);
        let all = space(&narrow, arch("sm_90a"));
        let by_wgmma: Vec<_> = all.iter().filter(|schedule| schedule.main.tensor_op == TensorOp::Wgmma).collect();
        assert!(by_wgmma.len() > 20, "head dim {head_dim}: {} schedules", by_wgmma.len());
        assert!(by_wgmma.iter().all(|schedule| schedule.launches.b_layout == BLayout::Copied), "head dim {head_dim}");
    }
    // Elsewhere only what would be copied by elements.
    let copies = |head_dim: i64| {
        let all = space(&instance("causal_attention", head_dim, &sizes), arch("sm_80"));
        all.iter().filter(|schedule| schedule.launches.b_layout == BLayout::Copied).count()
    };
    assert!(copies(51) > 20);
    assert_eq!([copies(50), copies(64)], [0, 0]);
}

/// Rows of run-time lengths are copied by tiles.
#[test]
fn products_of_odd_sizes_are_copied_too() {
    let bound = Kernel::builtin("matmul_gelu").expect("built in").bind(Elem::Bf16, [] as [(&str, i64); 0]).expect("binds");
    let of = |k: i64, n: i64| {
        let sizes = [("M", 333), ("K", k), ("N", n)].map(|(name, size)| (name.to_owned(), size)).into();
        bound.instance(facts_of(&bound, &sizes, &InputData::default()).expect("possible"))
    };
    let copies = |instance: &Instance| {
        let schedule = "tensor_op=wgmma,copy=tma,block_m=128,warps=8,b_layout=copied".parse().expect("a schedule");
        let names = |error: flashtile_codegen::Error| error.to_string();
        let all = plans(instance, &schedule, arch("sm_90a")).map_err(names)?;
        Ok::<_, String>(all.into_iter().map(|plan| plan.name).collect::<Vec<_>>())
    };
    assert_eq!(
        copies(&of(331, 335)),
        Ok(["matmul_gelu_copy_a", "matmul_gelu_copy_b", "matmul_gelu"].map(str::to_owned).to_vec())
    );
    assert_eq!(copies(&of(336, 335)), Ok(["matmul_gelu_copy_b", "matmul_gelu"].map(str::to_owned).to_vec()));
    assert!(copies(&of(336, 336)).is_err_and(|why| why.contains("b_layout=copied has nothing to copy")));
    assert!(space(&of(331, 335), arch("sm_90a")).iter().any(|schedule| schedule.main.tensor_op == TensorOp::Wgmma));
}

/// Rows of a matrix that lie in `memory`, whose elements of `elem` begin at `offset`.
fn view(device: &Device, elem: Elem, memory: &[u8], offset: usize, [rows, columns]: [usize; 2], stride: usize) -> AnyTensor {
    let length = memory.len() / elem.bytes().expect("whole bytes");
    let memory = AnyTensor::from_bytes(device, elem, &[length], memory).expect("fits");
    memory.view(&[rows, columns], &[stride, 1], offset).expect("within")
}

/// What a kernel of one input stores in f16.
fn launched(loaded: &LoadedKernel, x: &AnyTensor, shape: [usize; 2]) -> Vec<f32> {
    let y = AnyTensor::zeros(x.device(), Elem::F16, &shape).expect("fits");
    loaded.launch(&[Argument::from(x), Argument::Output(&y)]).expect("runs");
    y.to_f32().expect("reads")
}

const DOUBLED: &str = "pub fn doubled<T: Element>(x: &Tensor<T, (M, N)>, y: &mut Tensor<T, (M, N)>) {
    let (i, j) = program(tiles(M), tiles(N));
    store(y, [i, j], (load(x, [i, j]).to::<f32>() * 2.0).to::<T>());
}";

/// Rows that begin at each place within 16 bytes, with numbers on all sides that no element has.
#[test]
fn rows_that_begin_anywhere_are_loaded_as_they_lie() {
    let kernel = kernel(DOUBLED);
    let emulator = Device::emulator();
    let wide = Some("block_n=80".parse().expect("a schedule"));
    for (arch_name, schedule) in [("sm_75", None), ("sm_80", None), ("sm_90a", wide)] {
        let options =
            LaunchOptions { toolchain: Toolchain::shared(), arch: Arch::named(arch_name), schedule, ..LaunchOptions::default() };
        let loaded =
            kernel.bind(Elem::F16, [] as [(&str, i64); 0]).expect("binds").on_with(&emulator, options).expect("compiles");
        for offset in 0..9 {
            for (rows, columns, stride) in [(3, 1, 1), (5, 7, 7), (18, 16, 17), (9, 70, 70 + offset), (17, 83, 90), (1, 66, 66)] {
                // Exact in f16, and their doubles too.
                let value = |at: usize| ((at * 37 + offset) % 1000) as f32;
                let length = offset + (rows - 1) * stride + columns;
                let memory: Vec<u8> =
                    (0..length).flat_map(|at| flashtile::f16::from_f32(value(at)).to_bits().to_le_bytes()).collect();
                let x = view(&emulator, Elem::F16, &memory, offset, [rows, columns], stride);
                let at = |n: usize| offset + n / columns * stride + n % columns;
                let wanted: Vec<f32> = (0..rows * columns).map(|n| 2.0 * value(at(n))).collect();
                let what = format!("{rows} x {columns}, stride {stride}, offset {offset} on {arch_name}");
                assert_eq!(launched(&loaded, &x, [rows, columns]), wanted, "{what}");
            }
        }
    }
}

const BYTES: [(Elem, &str); 2] = [
    (
        Elem::Bool,
        "pub fn kept<T: Element>(x: &Tensor<bool, (M, N)>, y: &mut Tensor<T, (M, N)>) {
            let (i, j) = program(tiles(M), tiles(N));
            store(y, [i, j], select(load(x, [i, j]), 1.0, 0.0).to::<T>());
        }",
    ),
    (
        Elem::U8,
        "pub fn widened<T: Element>(x: &Tensor<u8, (M, N)>, y: &mut Tensor<T, (M, N)>) {
            let (i, j) = program(tiles(M), tiles(N));
            store(y, [i, j], load(x, [i, j]).to::<f32>().to::<T>());
        }",
    ),
];

/// The same of truth values and of other elements of one byte, which lie in pieces of 8. What is read
/// beside the elements is within the memory of the tensor, which ends with the last of them.
#[test]
fn rows_of_bytes_that_begin_anywhere_are_loaded_as_they_lie() {
    let emulator = Device::emulator();
    for (elem, text) in BYTES {
        let kernel = kernel(text);
        for (arch_name, schedule) in [("sm_80", None), ("sm_90a", Some("block_n=160"))] {
            let schedule = schedule.map(|schedule| schedule.parse().expect("a schedule"));
            let (toolchain, arch) = (Toolchain::shared(), Arch::named(arch_name));
            let options = LaunchOptions { toolchain, arch, schedule, ..LaunchOptions::default() };
            let bound = kernel.bind(Elem::F16, [] as [(&str, i64); 0]).expect("binds");
            let loaded = bound.on_with(&emulator, options).expect("compiles");
            for offset in 0..9 {
                let shapes =
                    [(3, 1, 1), (5, 7, 7), (18, 16, 24), (9, 70, 70 + offset), (7, 163, 165), (2, 136, 136), (1, 66, 66)];
                for (rows, columns, stride) in shapes {
                    // Half of them 0, the others of any byte.
                    let byte = |at: usize| if (at * 37 + offset) % 5 < 2 { 0 } else { (at * 53 + 1) as u8 | 1 << (at % 8) };
                    let length = offset + (rows - 1) * stride + columns;
                    let memory: Vec<u8> = (0..length).map(byte).collect();
                    let x = view(&emulator, elem, &memory, offset, [rows, columns], stride);
                    let at = |n: usize| byte(offset + n / columns * stride + n % columns);
                    let value = |n: usize| if elem == Elem::Bool { f32::from(at(n) != 0) } else { f32::from(at(n)) };
                    let wanted: Vec<f32> = (0..rows * columns).map(value).collect();
                    let what = format!("{elem:?}: {rows} x {columns}, stride {stride}, offset {offset} on {arch_name}");
                    assert_eq!(launched(&loaded, &x, [rows, columns]), wanted, "{what}");
                }
            }
        }
    }
}

/// Which of the two it is, is known when code is generated: code with both is slower than either.
#[test]
fn code_has_the_loads_of_bytes_that_rows_need() {
    let of = |text: &str, columns: i64| {
        let bound = kernel(text).bind(Elem::F16, [] as [(&str, i64); 0]).expect("binds");
        let sizes = [("M", 64), ("N", columns)].map(|(name, size)| (name.to_owned(), size)).into();
        let instance = bound.instance(facts_of(&bound, &sizes, &InputData::default()).expect("possible"));
        generate(&instance, &Schedule::default(), arch("sm_80")).expect("is legal").source
    };
    for ((_, text), name) in BYTES.into_iter().zip(["load_bits", "load_bytes"]) {
        let (whole, shifted) = (format!("{name}<"), format!("{name}_shifted<"));
        for (columns, is_shifted) in [(64, false), (72, false), (68, true), (70, true), (71, true)] {
            let code = of(text, columns);
            assert_eq!((code.contains(&whole), code.contains(&shifted)), (!is_shifted, is_shifted), "{name}, {columns} columns");
        }
    }
}

const TURNED: [(Elem, &str); 2] = [
    (
        Elem::F16,
        "pub fn turned<T: Element>(x: &Tensor<T, (M, N)>, y: &mut Tensor<T, (N, M)>) {
            let (j, i) = program(tiles(N), tiles(M));
            store(y, [j, i], (load(x, [i, j]).t().to::<f32>() * 2.0).to::<T>());
        }",
    ),
    (
        Elem::Bool,
        "pub fn turned<T: Element>(x: &Tensor<bool, (M, N)>, y: &mut Tensor<T, (N, M)>) {
            let (j, i) = program(tiles(N), tiles(M));
            store(y, [j, i], select(load(x, [i, j]).t(), 2.0, 0.0).to::<T>());
        }",
    ),
];

/// Matrices that a program has the other way round: two rows of 16-bit elements are a word where words
/// are aligned, and each element is read from its own place elsewhere. Lengths may be odd all the same.
#[test]
fn matrices_are_turned_by_words_where_these_are_aligned() {
    let emulator = Device::emulator();
    for (elem, text) in TURNED {
        let kernel = kernel(text);
        for (arch_name, schedule) in [("sm_75", None), ("sm_80", None), ("sm_90a", Some("block_n=80"))] {
            let schedule = schedule.map(|schedule| schedule.parse().expect("a schedule"));
            let (toolchain, arch) = (Toolchain::shared(), Arch::named(arch_name));
            let options = LaunchOptions { toolchain, arch, schedule, ..LaunchOptions::default() };
            let bound = kernel.bind(Elem::F16, [] as [(&str, i64); 0]).expect("binds");
            let loaded = bound.on_with(&emulator, options).expect("compiles");
            for offset in 0..4 {
                for (rows, columns, stride) in
                    [(3, 1, 2), (5, 7, 7), (18, 16, 18), (9, 70, 70 + offset), (83, 17, 20), (70, 66, 66)]
                {
                    // Exact in f16, and their doubles too; of truth values none, or any byte.
                    let value = |at: usize| ((at * 37 + offset) % 1000) as u16;
                    let held = |at: usize| match elem {
                        Elem::Bool => vec![if value(at) % 5 < 2 { 0 } else { value(at) as u8 | 1 << (at % 8) }],
                        _ => flashtile::f16::from_f32(value(at).into()).to_bits().to_le_bytes().to_vec(),
                    };
                    let length = offset + (rows - 1) * stride + columns;
                    let memory: Vec<u8> = (0..length).flat_map(held).collect();
                    let x = view(&emulator, elem, &memory, offset, [rows, columns], stride);
                    let wanted = |n: usize| {
                        let value = value(offset + n % rows * stride + n / rows);
                        if elem == Elem::Bool { f32::from(2 * u8::from(value % 5 >= 2)) } else { 2.0 * f32::from(value) }
                    };
                    let what = format!("{elem:?}: {rows} x {columns}, stride {stride}, offset {offset} on {arch_name}");
                    let wanted: Vec<f32> = (0..rows * columns).map(wanted).collect();
                    assert_eq!(launched(&loaded, &x, [columns, rows]), wanted, "{what}");
                }
            }
        }
        let of = |columns: i64| {
            let bound = kernel.bind(Elem::F16, [] as [(&str, i64); 0]).expect("binds");
            let sizes = [("M", 64), ("N", columns)].map(|(name, size)| (name.to_owned(), size)).into();
            let instance = bound.instance(facts_of(&bound, &sizes, &InputData::default()).expect("possible"));
            generate(&instance, &Schedule::default(), arch("sm_80")).expect("is legal").source
        };
        // By what rows are aligned to.
        for (columns, by_words) in [(64, true), (66, true), (70, true), (65, false), (7, false)] {
            let by_words = by_words && elem == Elem::F16;
            assert_eq!(of(columns).contains("_turned<"), by_words, "{elem:?}, {columns} columns");
        }
    }
}
