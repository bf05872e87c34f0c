//! What instructions compute, lane by lane.

use flashtile_emulator::{GlobalMemory, Launch, Module, Options};
use half::f16;

/// Runs a body on one warp with `%r1` the lane, `%r2` three times the lane, `%rd1` an output of 32 words for each of
/// eight results, `%rd2` its place for this lane, `%r3` the address of 8 KiB of shared memory.
fn run(body: &str) -> Vec<[u32; 32]> {
    let text = format!(
        ".version 9.0\n.target sm_90a\n.address_size 64\n.global .align 4 .u32 seven = 7;\n.visible .entry k(.param .u64 p)\n{{\n\
         .reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<60>; .reg .f32 %f<60>; .reg .b64 %rd<20>;\n\
         .shared .align 1024 .b8 s[8192]; .local .align 16 .b8 depot[32];\n\
         ld.param.u64 %rd1, [p]; mov.u32 %r1, %tid.x; mul.lo.s32 %r2, %r1, 3; mov.u32 %r3, s; mul.wide.u32 %rd2, %r1, 4;\n\
         add.s64 %rd2, %rd1, %rd2;\n{body}\nret;\n}}"
    );
    let module = Module::load(&text).expect("loads");
    let mut memory = GlobalMemory::new();
    let out = memory.allocate_from(&[0; 8 * 128]);
    let launch = Launch {
        grid: [1, 1, 1],
        block: [32, 1, 1],
        shared_bytes: 0,
        parameters: vec![out.address.to_le_bytes().into()],
        pending: vec![],
    };
    let report = module.kernel("k").expect("is there").launch(&memory, &launch, &Options::default()).expect("launches");
    assert!(report.findings.is_empty(), "{}", report.findings.iter().map(|f| format!("{f}\n")).collect::<String>());
    let words: Vec<u32> = memory.read(out).chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    words.chunks_exact(32).map(|row| row.try_into().expect("32 lanes")).collect()
}

/// The value of `%r9` (or `%f9`, moved there) in each lane.
fn value(body: &str) -> [u32; 32] {
    run(&format!("{body}\nst.global.u32 [%rd2], %r9;"))[0]
}

fn check(body: &str, expected: impl Fn(u32) -> u32) {
    let ours = value(body);
    for (lane, ours) in ours.into_iter().enumerate() {
        assert_eq!(ours, expected(lane as u32), "`{body}` in lane {lane}: {ours:#x}");
    }
}

fn check_float(body: &str, expected: impl Fn(f32) -> f32) {
    check(&format!("cvt.rn.f32.u32 %f1, %r1; {body} mov.b32 %r9, %f9;"), |l| expected(l as f32).to_bits());
}

#[test]
fn integers() {
    check("add.s32 %r9, %r1, -5;", |l| l.wrapping_sub(5));
    check("sub.s32 %r9, 1, %r1;", |l| 1u32.wrapping_sub(l));
    check("mad.lo.s32 %r9, %r1, %r2, 7;", |l| l * 3 * l + 7);
    check("sub.s32 %r4, %r1, 16; div.s32 %r9, %r4, 5;", |l| ((l as i32 - 16) / 5) as u32);
    check("sub.s32 %r4, %r1, 16; rem.s32 %r9, %r4, 5;", |l| ((l as i32 - 16) % 5) as u32);
    check("mul.hi.u32 %r9, %r2, 0x80000001;", |l| ((u64::from(3 * l) * 0x8000_0001) >> 32) as u32);
    check("cvt.u16.u32 %h1, %r2; mul.hi.u16 %h2, %h1, 52429; cvt.u32.u16 %r9, %h2;", |l| (3 * l * 52429) >> 16);
    check("sub.s32 %r4, %r1, 16; shr.s32 %r9, %r4, 2;", |l| ((l as i32 - 16) >> 2) as u32);
    check("mov.u32 %r4, 1; add.s32 %r5, %r1, 8; shl.b32 %r9, %r4, %r5;", |l| if l + 8 < 32 { 1 << (l + 8) } else { 0 });
    check("bfe.u32 %r9, 0xabcd1234, %r1, 4;", |l| (0xabcd_1234u32 >> l) & 15);
    check("bfi.b32 %r9, %r1, -1, 4, 5;", |l| !0x1f0 | l << 4);
    check("popc.b32 %r9, %r1;", u32::count_ones);
    check("clz.b32 %r9, %r1;", u32::leading_zeros);
    check("bfind.u32 %r9, %r1;", |x| x.checked_ilog2().unwrap_or(u32::MAX));
    check("bfind.shiftamt.u32 %r9, %r1;", |x| x.checked_ilog2().map_or(u32::MAX, |bit| 31 - bit));
    check("shf.r.wrap.b32 %r9, 0x12345678, 0x9abcdef0, %r1;", |l| (0x9abc_def0_1234_5678u64 >> l) as u32);
    // The lower half of a register of 64 bits.
    check(
        "sub.s32 %r4, %r1, 16; mov.b64 %rd4, {%r4, %r2}; cvt.s64.s32 %rd4, %rd4; shr.s64 %rd4, %rd4, 2; cvt.u32.u64 %r9, %rd4;",
        |l| ((l as i32 - 16) >> 2) as u32,
    );
    check("cvt.s64.s32 %rd4, %r2; sub.s64 %rd4, %rd4, 50; mul.lo.s64 %rd4, %rd4, %rd4; cvt.u32.u64 %r9, %rd4;", |l| {
        let x = i64::from(3 * l) - 50;
        (x * x) as u32
    });
    check("sub.s32 %r4, %r1, 9; mul.wide.s32 %rd4, %r4, -3; shr.s64 %rd4, %rd4, 1; cvt.u32.u64 %r9, %rd4;", |l| {
        ((27 - 3 * i64::from(l)) >> 1) as u32
    });
    check("cvt.u64.u32 %rd4, %r2; cvt.s64.s8 %rd5, %rd4; add.s64 %rd5, %rd5, 1; cvt.u32.u64 %r9, %rd5;", |l| (3 * l) + 1);
    check("mov.u64 %rd4, 0x1f0; cvt.s64.s8 %rd5, %rd4; cvt.u32.u64 %r9, %rd5;", |_| -16i32 as u32);
    check("cvt.u16.u32 %h1, %r1; mul.lo.s16 %h2, %h1, 3000; cvt.u32.u16 %r9, %h2;", |l| (l * 3000) & 0xffff);
    check("cvt.u16.u32 %h1, %r1; neg.s16 %h2, %h1; cvt.u32.u16 %r9, %h2;", |l| l.wrapping_neg() & 0xffff);
    check("cvt.u16.u32 %h1, %r1; sub.s16 %h1, %h1, 9; abs.s16 %h2, %h1; cvt.u32.u16 %r9, %h2;", |l| l.abs_diff(9));
    let of_halves = |operation: &str, of: fn(i32) -> i32| {
        let text = format!("cvt.u16.u32 %h1, %r1; sub.s16 %h1, %h1, 9; {operation} cvt.u32.u16 %r9, %h2;");
        check(&text, move |l| of(l as i32 - 9) as u32 & 0xffff);
    };
    of_halves("shr.s16 %h2, %h1, 1;", |x| x >> 1);
    of_halves("mad.lo.s16 %h2, %h1, -3000, %h1;", |x| -3000 * x + x);
    of_halves("div.s16 %h2, %h1, 4;", |x| x / 4);
    of_halves("rem.s16 %h2, %h1, -4;", |x| x % -4);
    of_halves("min.s16 %h2, %h1, -2;", |x| x.min(-2));
    of_halves("max.s16 %h2, %h1, -2;", |x| x.max(-2));
    check("mov.b32 {%h1, %h2}, 0xffff1234; cvt.s32.s16 %r4, %h2; add.s32 %r9, %r4, %r1;", |l| l.wrapping_sub(1));
}

#[test]
fn floats_of_one_byte() {
    // The lane and its number with a sign, as bytes: denormals of both formats are among them.
    let pair = "shl.b32 %r4, %r1, 8; or.b32 %r4, %r4, %r1; or.b32 %r4, %r4, 0x8000; cvt.u16.u32 %h1, %r4;";
    let both = |x: f32| u32::from(f16::from_f32(x).to_bits()) | u32::from(f16::from_f32(-x).to_bits()) << 16;
    check(&format!("{pair} cvt.rn.f16x2.e4m3x2 %r9, %h1;"), |l| {
        let (e, m) = (l >> 3, (l & 7) as f32 / 8.0);
        both(if e == 0 { m / 64.0 } else { (1.0 + m) * 2f32.powi(e as i32 - 7) })
    });
    check(&format!("{pair} cvt.rn.f16x2.e5m2x2 %r9, %h1;"), |l| {
        let (e, m) = (l >> 2, (l & 3) as f32 / 4.0);
        both(if e == 0 { m / 16384.0 } else { (1.0 + m) * 2f32.powi(e as i32 - 15) })
    });
    check("mov.u16 %h1, 0xff7f; cvt.rn.f16x2.e4m3x2 %r9, %h1;", |_| 0x7fff_7fff);
    check("mov.u16 %h1, 0x7cfc; cvt.rn.f16x2.e5m2x2 %r9, %h1;", |_| 0x7c00_fc00);
}

#[test]
fn predicates_and_selections() {
    check("setp.lt.s32 %p1, %r1, 7; setp.gt.and.s32 %p2|%p3, %r1, 3, %p1; selp.b32 %r9, 1, 0, %p2;", |l| {
        u32::from((4..7).contains(&l))
    });
    check("setp.lt.s32 %p1, %r1, 7; setp.gt.and.s32 %p2|%p3, %r1, 3, %p1; selp.b32 %r9, 1, 0, %p3;", |l| u32::from(l < 4));
    check(
        "setp.eq.s32 %p1, %r1, 9; not.pred %p2, %p1; xor.pred %p3, %p2, %p1; and.pred %p3, %p3, %p1; selp.u32 %r9, 5, 6, %p3;",
        |l| if l == 9 { 5 } else { 6 },
    );
    check(
        "mov.f32 %f2, 0f7FFFFFFF; setp.lt.f32 %p1, %f2, %f2; setp.ltu.f32 %p2, %f2, %f2; selp.b32 %r4, 1, 0, %p1; selp.b32 %r5, 2, 0, %p2; or.b32 %r9, %r4, %r5;",
        |_| 2,
    );
    check("mov.u32 %r9, 0; setp.ge.u32 %p1, %r1, 30;\n@%p1 add.s32 %r9, %r9, 4;\n@!%p1 add.s32 %r9, %r9, %r1;", |l| {
        if l >= 30 { 4 } else { l }
    });
}

#[test]
fn paths_part_and_meet() {
    // Each lane loops as often as its number says; then all vote together.
    let body = "mov.u32 %r9, 0; mov.u32 %r4, 0;\nLOOP: setp.ge.u32 %p1, %r4, %r1;\n@%p1 bra DONE;\nadd.s32 %r9, %r9, %r4; add.s32 %r4, %r4, 1;\n\
        and.b32 %r5, %r4, 1; setp.eq.u32 %p2, %r5, 0;\n@%p2 bra EVEN;\nadd.s32 %r9, %r9, 100;\nEVEN: bra LOOP;\nDONE: vote.sync.ballot.b32 %r6, 1, -1; sub.s32 %r6, %r6, -1; add.s32 %r9, %r9, %r6;";
    check(body, |l| (0..l).sum::<u32>() + 100 * l.div_ceil(2));
    // Lanes that leave early are not waited for.
    let out =
        run("st.global.u32 [%rd2], %r1; setp.lt.u32 %p1, %r1, 8;\n@%p1 ret;\nactivemask.b32 %r9; st.global.u32 [%rd2+128], %r9;");
    assert_eq!((out[0][5], out[1][5], out[1][8]), (5, 0, 0xffff_ff00));
}

#[test]
fn floats() {
    check_float("fma.rn.f32 %f9, %f1, 0f3F800001, 0fBF800000;", |x| x.mul_add(f32::from_bits(0x3f80_0001), -1.0));
    check_float("rcp.rn.f32 %f9, %f1;", |x| 1.0 / x);
    check_float("sqrt.rn.f32 %f9, %f1;", f32::sqrt);
    check_float("mul.f32 %f2, %f1, 0f3DCCCCCD; ex2.approx.ftz.f32 %f9, %f2;", |x| f64::from(x * 0.1).exp2() as f32);
    check_float("lg2.approx.f32 %f9, %f1;", |x| f64::from(x).log2() as f32);
    check_float("sub.f32 %f2, %f1, 0f41000000; abs.f32 %f3, %f2; copysign.f32 %f9, %f2, 0f3F800000;", |x| 1f32.copysign(x - 8.0));
    check_float("max.f32 %f9, %f1, 0f7FC00000;", |x| x);
    check_float(
        "sub.f32 %f2, %f1, 0f41000000; mul.f32 %f2, %f2, 0f3E000000; fma.rn.sat.f32 %f9, %f2, 0f3F800000, 0f00000000;",
        |x| ((x - 8.0) / 8.0).clamp(0.0, 1.0),
    );
    check_float("div.rn.f32 %f9, %f1, 0f40400000;", |x| x / 3.0);
}

#[test]
fn conversions() {
    check_float("mul.f32 %f2, %f1, 0f3F000000; cvt.rni.f32.f32 %f9, %f2;", |x| (x / 2.0).round_ties_even());
    check("cvt.rn.f32.u32 %f1, %r1; neg.f32 %f1, %f1; mul.f32 %f1, %f1, 0f3F000000; cvt.rzi.s32.f32 %r9, %f1;", |l| {
        (-(l as i32) / 2) as u32
    });
    check("cvt.rn.f32.u32 %f1, %r1; mul.f32 %f1, %f1, 0f45800800; cvt.rn.f16.f32 %h1, %f1; cvt.u32.u16 %r9, %h1;", |l| {
        u32::from(f16::from_f32(l as f32 * f32::from_bits(0x4580_0800)).to_bits())
    });
    check(
        "cvt.rn.f32.u32 %f1, %r1; cvt.rn.f16x2.f32 %r4, %f1, 0f3F800000; mov.b32 {%h1, %h2}, %r4; cvt.f32.f16 %f2, %h2; mov.b32 %r9, %f2;",
        |l| (l as f32).to_bits(),
    );
    check("cvt.rn.bf16x2.f32 %r9, 0f3F808000, 0f3F818000;", |_| 0x3f80_3f82);
    check("cvt.rna.tf32.f32 %r9, 0f3F801000;", |_| 0x3f80_2000);
}

#[test]
fn lanes_exchange_values() {
    check("shfl.sync.bfly.b32 %r9, %r2, 5, 31, -1;", |l| 3 * (l ^ 5));
    check("shfl.sync.up.b32 %r9|%p1, %r2, 2, 0, -1; selp.b32 %r9, %r9, 77, %p1;", |l| if l < 2 { 77 } else { 3 * (l - 2) });
    check("shfl.sync.down.b32 %r9, %r2, 1, 6175, -1;", |l| 3 * if l % 8 == 7 { l } else { l + 1 });
    check("shfl.sync.idx.b32 %r9, %r2, 4, 31, -1;", |_| 12);
    check(
        "setp.eq.s32 %p1, %r1, 20; vote.sync.any.pred %p2, %p1, -1; vote.sync.all.pred %p3, %p1, -1; selp.b32 %r4, 1, 0, %p2; selp.b32 %r5, 2, 0, %p3; add.s32 %r9, %r4, %r5;",
        |_| 1,
    );
    check("sub.s32 %r4, %r1, 40; redux.sync.max.s32 %r9, %r4, -1;", |_| (31i32 - 40) as u32);
    check("redux.sync.add.s32 %r9, %r1, -1;", |_| 496);
    check("elect.sync %r4|%p1, -1; selp.b32 %r9, 1, %r4, %p1;", |l| u32::from(l == 0));
}

#[test]
fn memories() {
    // Local memory is each thread's own; so is what a generic address of it means.
    check("mov.u64 %rd4, depot; cvta.local.u64 %rd5, %rd4; st.local.u32 [depot+4], %r2; ld.u32 %r9, [%rd5+4];", |l| 3 * l);
    check(
        "cvt.u64.u32 %rd4, %r3; cvta.shared.u64 %rd4, %rd4; mul.wide.u32 %rd5, %r1, 4; add.s64 %rd4, %rd4, %rd5; st.u32 [%rd4], %r2; ld.u32 %r9, [%rd4];",
        |l| 3 * l,
    );
    check("mov.u64 %rd4, seven; ld.global.u32 %r4, [%rd4]; ld.global.u32 %r5, [seven]; mad.lo.s32 %r9, %r4, %r5, %r1;", |l| {
        49 + l
    });
    check(
        "atom.global.add.u32 %r4, [%rd1+512], 2; bar.warp.sync -1; ld.global.u32 %r5, [%rd1+512]; add.s32 %r9, %r5, %r4;",
        |l| 64 + 2 * l,
    );
    check(
        "shl.b32 %r4, %r1, 3; add.s32 %r4, %r4, %r3; st.shared.v2.u32 [%r4], {%r1, %r2}; ld.shared.v4.u16 {%h1, %h2, %h3, %h4}, [%r4]; cvt.u32.u16 %r9, %h3;",
        |l| 3 * l,
    );
    check(
        "shl.b32 %r4, %r1, 3; add.s32 %r4, %r4, %r3; sub.s32 %r5, 0, %r1; st.shared.u8 [%r4], %r5; ld.shared.s8 %r9, [%r4];",
        |l| 0u32.wrapping_sub(l),
    );
}

/// Two 16 x 16 and 8 x 16 matrices of f16 in shared memory, row by row, that lane l fills: element (i, j) of A is
/// (5 i + 3 j) % 7 - 3, of B (rows are columns of the product) (2 i + j) % 5 - 2.
const MATRICES: &str = "
    mov.u32 %r4, 0;
    FILL: mad.lo.s32 %r5, %r4, 32, %r1;  // 0..384: 16 rows of A, 8 of B
    shr.u32 %r6, %r5, 4; and.b32 %r7, %r5, 15;
    setp.lt.u32 %p1, %r6, 16;
    mul.lo.s32 %r8, %r6, 5; mad.lo.s32 %r8, %r7, 3, %r8; rem.u32 %r8, %r8, 7; sub.s32 %r8, %r8, 3;
    sub.s32 %r10, %r6, 16; mad.lo.s32 %r11, %r10, 2, %r7; rem.u32 %r11, %r11, 5; sub.s32 %r11, %r11, 2;
    selp.b32 %r8, %r8, %r11, %p1;
    cvt.rn.f32.s32 %f1, %r8; cvt.rn.f16.f32 %h1, %f1;
    shl.b32 %r12, %r5, 1; add.s32 %r12, %r12, %r3; st.shared.b16 [%r12], %h1;
    add.s32 %r4, %r4, 1; setp.lt.u32 %p1, %r4, 12;
    @%p1 bra FILL;
    bar.warp.sync -1;
    // Lane l points at row l % 16, half l / 16 of A; row l % 8, half l / 8 of B.
    and.b32 %r13, %r1, 15; shr.u32 %r14, %r1, 4; shl.b32 %r13, %r13, 5; shl.b32 %r14, %r14, 4; add.s32 %r13, %r13, %r14; add.s32 %r13, %r13, %r3;
    and.b32 %r15, %r1, 7; shr.u32 %r16, %r1, 3; and.b32 %r16, %r16, 1; shl.b32 %r15, %r15, 5; shl.b32 %r16, %r16, 4; add.s32 %r15, %r15, %r16; add.s32 %r15, %r15, %r3;
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r20,%r21,%r22,%r23}, [%r13];
    ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r24,%r25}, [%r15+512];
";

fn a(i: usize, j: usize) -> f32 {
    ((5 * i + 3 * j) % 7) as f32 - 3.0
}

fn b(k: usize, n: usize) -> f32 {
    ((2 * n + k) % 5) as f32 - 2.0
}

#[test]
fn matrices_move() {
    // Element j of row i is 256 i + j.
    let body = "shr.u32 %r4, %r1, 2; and.b32 %r5, %r1, 3; shl.b32 %r4, %r4, 8; shl.b32 %r5, %r5, 1; add.s32 %r4, %r4, %r5;\n\
        add.s32 %r5, %r4, 1; shl.b32 %r5, %r5, 16; or.b32 %r4, %r4, %r5; movmatrix.sync.aligned.m8n8.trans.b16 %r9, %r4;";
    let element = |i: u32, j: u32| 256 * i + j;
    check(body, |lane| {
        let (row, column) = (lane / 4, 2 * (lane % 4));
        element(column, row) | element(column + 1, row) << 16
    });
}

#[test]
fn matrices_multiply() {
    let four = "st.global.f32 [%rd2], %f10; st.global.f32 [%rd2+128], %f11; st.global.f32 [%rd2+256], %f12; st.global.f32 [%rd2+384], %f13;";
    let whole = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f10,%f11,%f12,%f13}, {%r20,%r21,%r22,%r23}, {%r24,%r25}, {0f3F000000,0f3F000000,0f3F000000,0f3F000000};";
    let halves = "mov.f32 %f10, 0f3F000000; mov.f32 %f11, %f10; mov.f32 %f12, %f10; mov.f32 %f13, %f10;
        mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%f10,%f11,%f12,%f13}, {%r20,%r21}, {%r24}, {%f10,%f11,%f12,%f13};
        mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%f10,%f11,%f12,%f13}, {%r22,%r23}, {%r25}, {%f10,%f11,%f12,%f13};";
    for body in [whole, halves] {
        let out = run(&format!("{MATRICES}{body}{four}"));
        for (lane, r) in (0..32).flat_map(|l| (0..4).map(move |r| (l, r))) {
            let (row, column) = (lane / 4 + 8 * (r / 2), 2 * (lane % 4) + r % 2);
            let exact: f32 = (0..16).map(|k| a(row, k) * b(k, column)).sum::<f32>() + 0.5;
            assert_eq!(f32::from_bits(out[r][lane]), exact, "lane {lane} register {r}");
        }
    }
}

#[test]
fn matrices_move_between_registers_and_memory() {
    let pair = |x: f32, y: f32| u32::from(f16::from_f32(x).to_bits()) | u32::from(f16::from_f32(y).to_bits()) << 16;
    let out = run(&format!(
        "{MATRICES} st.global.u32 [%rd2], %r22;\n\
        ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {{%r26,%r27,%r28,%r29}}, [%r13]; st.global.u32 [%rd2+128], %r27;\n\
        bar.warp.sync -1; stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r13+1024], {{%r20,%r21,%r22,%r23}}; bar.warp.sync -1;\n\
        shl.b32 %r30, %r1, 4; add.s32 %r30, %r30, %r3; ld.shared.u32 %r31, [%r30+1028]; st.global.u32 [%rd2+256], %r31;\n\
        bar.warp.sync -1; stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%r13+1024], {{%r26,%r27,%r28,%r29}}; bar.warp.sync -1;\n\
        ld.shared.u32 %r31, [%r30+1028]; st.global.u32 [%rd2+384], %r31;"
    ));
    for (lane, first) in out[0].iter().enumerate() {
        let (i, j) = (lane / 4, 2 * (lane % 4));
        // Matrix 2: rows 0 to 7, columns 8 to 15. Matrix 1 (rows 8 to 15, columns 0 to 7), transposed.
        assert_eq!(*first, pair(a(i, 8 + j), a(i, 9 + j)));
        assert_eq!(out[1][lane], pair(a(8 + j, i), a(9 + j, i)));
        // Stored as loaded, and transposed back: 16 bytes of lane l are half l % 2 of row l / 2.
        let place = pair(a(lane / 2, 8 * (lane % 2) + 2), a(lane / 2, 8 * (lane % 2) + 3));
        assert_eq!((out[2][lane], out[3][lane]), (place, place));
    }
}
