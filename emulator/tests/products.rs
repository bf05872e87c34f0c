//! `wgmma` on matrices that tensor copies brought with the 128-byte swizzle: both majors of both factors, and A from
//! registers, against exact products.

use flashtile_emulator::{GlobalMemory, Landing, Launch, Module, Options, Swizzle, TensorMap};
use half::f16;

/// Which side is contracted: rows of 64 elements along k (K-major), or k rows (MN-major).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Major {
    K,
    Mn,
}

/// 64 x 64 x 64 in four steps of k. `in_registers`: A is loaded by ldmatrix.
fn kernel(a: Major, b: Major, in_registers: bool) -> String {
    let d: Vec<String> = (0..32).map(|n| format!("%f{n}")).collect();
    // 16 elements along k are 32 bytes of a K-major row, or 16 rows of an MN-major one.
    let step = |major: Major| if major == Major::K { 32 >> 4 } else { 2048 >> 4 };
    let trans = |major: Major| u32::from(major == Major::Mn);
    let mut steps = String::new();
    for k in 0..4 {
        let b_operand = format!("add.s64 %rd8, %rd6, {};", k * step(b));
        if in_registers {
            // Lane l points at row l % 16, half l / 16, of its warp's 16 rows; chunks are swizzled by row.
            steps += &format!(
                "shr.u32 %r20, %r1, 5; shl.b32 %r20, %r20, 4; and.b32 %r21, %r1, 15; add.s32 %r20, %r20, %r21;\n\
                 shr.u32 %r22, %r1, 4; and.b32 %r22, %r22, 1; add.s32 %r22, %r22, {}; and.b32 %r23, %r20, 7; xor.b32 %r22, %r22, %r23;\n\
                 shl.b32 %r20, %r20, 7; shl.b32 %r22, %r22, 4; add.s32 %r20, %r20, %r22; add.s32 %r20, %r20, %r3;\n\
                 ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%r{},%r{},%r{},%r{}}}, [%r20];\n",
                2 * k,
                30 + 4 * k,
                31 + 4 * k,
                32 + 4 * k,
                33 + 4 * k
            );
        }
        steps += &b_operand;
        steps += "\n";
        steps += &if in_registers {
            format!(
                "wgmma.fence.sync.aligned;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {{{}}}, {{%r{},%r{},%r{},%r{}}}, %rd8, {}, 1, 1, {};\n",
                d.join(","),
                30 + 4 * k,
                31 + 4 * k,
                32 + 4 * k,
                33 + 4 * k,
                u32::from(k > 0),
                trans(b)
            )
        } else {
            format!(
                "add.s64 %rd7, %rd5, {};\nwgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {{{}}}, %rd7, %rd8, {}, 1, 1, {}, {};\n",
                k * step(a),
                d.join(","),
                u32::from(k > 0),
                trans(a),
                trans(b)
            )
        };
    }
    // Register 4 j + 2 h + e of lane l: row l / 4 + 8 h, column 8 j + 2 (l % 4) + e.
    let mut stores = String::new();
    for (r, d) in d.iter().enumerate() {
        let (column, row) = (8 * (r / 4) + r % 2, 8 * (r / 2 % 2));
        stores += &format!("st.global.f32 [%rd9+{}], {d};\n", 4 * (64 * row + column));
    }
    format!(
        ".version 9.0\n.target sm_90a\n.address_size 64\n\
         .visible .entry k(.param .align 64 .b8 ma[128], .param .align 64 .b8 mb[128], .param .u64 out)\n{{\n\
         .reg .pred %p<4>; .reg .b32 %r<60>; .reg .f32 %f<32>; .reg .b64 %rd<20>;\n\
         .shared .align 1024 .b8 s[16384]; .shared .align 8 .b64 bar;\n\
         mov.u32 %r1, %tid.x; mov.u32 %r3, s; mov.u32 %r4, bar; mov.u32 %r5, 0; setp.ne.u32 %p1, %r1, 0;\n\
         @%p1 bra READY;\nmbarrier.init.shared::cta.b64 [%r4], 1; fence.mbarrier_init.release.cluster;\n\
         mov.b64 %rd1, ma; cvta.param.u64 %rd1, %rd1; mov.b64 %rd2, mb; cvta.param.u64 %rd2, %rd2; add.s32 %r6, %r3, 8192;\n\
         mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], 16384;\n\
         cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%rd1, {{%r5,%r5}}], [%r4];\n\
         cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r6], [%rd2, {{%r5,%r5}}], [%r4];\n\
         READY: bar.sync 0;\nL: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r4], 0; @!%p2 bra L;\n\
         // Descriptors: 128-byte swizzle, eight rows 1024 bytes apart.\n\
         cvt.u64.u32 %rd5, %r3; shr.u64 %rd5, %rd5, 4; mov.u64 %rd4, 0x4000004000010000; or.b64 %rd5, %rd5, %rd4;\n\
         add.s64 %rd6, %rd5, 512;\n\
         wgmma.fence.sync.aligned;\n{steps}wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n\
         ld.param.u64 %rd9, [out]; shr.u32 %r7, %r1, 5; shl.b32 %r7, %r7, 4; and.b32 %r8, %r1, 31; shr.u32 %r9, %r8, 2;\n\
         add.s32 %r7, %r7, %r9; shl.b32 %r7, %r7, 6; and.b32 %r10, %r1, 3; shl.b32 %r10, %r10, 1; add.s32 %r7, %r7, %r10;\n\
         mul.wide.u32 %rd10, %r7, 4; add.s64 %rd9, %rd9, %rd10;\n{stores}ret;\n}}\n"
    )
}

#[test]
fn products_are_exact_in_every_layout() {
    let value = |seed: usize, n: usize| ((n * 7 + n / 64 * 5 + seed) % 11) as f32 - 5.0;
    let (a, b): (Vec<f32>, Vec<f32>) = (0..4096).map(|n| (value(1, n), value(4, n))).unzip();
    let bytes = |x: &[f32]| -> Vec<u8> { x.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect() };
    for (a_major, b_major, in_registers) in [
        (Major::K, Major::K, false),
        (Major::K, Major::Mn, false),
        (Major::Mn, Major::K, false),
        (Major::Mn, Major::Mn, false),
        (Major::K, Major::K, true),
        (Major::K, Major::Mn, true),
    ] {
        let module = Module::load(&kernel(a_major, b_major, in_registers)).expect("loads");
        for landing in [Landing::Late, Landing::Early, Landing::Random] {
            let mut memory = GlobalMemory::new();
            let maps = [&a, &b].map(|x| {
                let buffer = memory.allocate_from(&bytes(x));
                TensorMap::new(buffer, 2, &[64, 64], &[128], &[64, 64], Swizzle::Bytes128).expect("legal").encode().to_vec()
            });
            let out = memory.allocate(4 * 4096);
            let [ma, mb] = maps;
            let parameters = vec![ma, mb, out.address.to_le_bytes().into()];
            let launch = Launch { grid: [1, 1, 1], block: [128, 1, 1], shared_bytes: 0, parameters, pending: vec![] };
            let mut options = Options::default();
            options.landing = landing;
            let report = module.kernel("k").expect("is there").launch(&memory, &launch, &options).expect("launches");
            let findings: String = report.findings.iter().map(|f| format!("{f}\n")).collect();
            assert!(findings.is_empty(), "{a_major:?} {b_major:?} {in_registers}: {findings}");
            for (at, word) in memory.read(out).chunks_exact(4).enumerate() {
                let (i, j) = (at / 64, at % 64);
                let left = |k: usize| if a_major == Major::K { a[64 * i + k] } else { a[64 * k + i] };
                let right = |k: usize| if b_major == Major::K { b[64 * j + k] } else { b[64 * k + j] };
                let exact: f32 = (0..64).map(|k| left(k) * right(k)).sum();
                let ours = f32::from_le_bytes([word[0], word[1], word[2], word[3]]);
                assert_eq!(ours, exact, "{a_major:?} {b_major:?} {in_registers} {landing:?}: row {i}, column {j}");
            }
        }
    }
}
