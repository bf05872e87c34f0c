//! Each kind of finding: a small kernel with the fault, one without it, and what is said of both parties.

use flashtile_emulator::{Finding, FindingKind, GlobalMemory, Landing, Launch, Module, Options, Swizzle, TensorMap};

/// Runs a body with `%rd1` the address of 256 initialised bytes, `%r1` the thread, `%r2` its address of 16 bytes in the
/// shared array `s`, and `%r3` the address of `s`. The tensor map `m` is of the same 256 bytes: 2 rows of 64 elements.
fn run_with(target: &str, threads: u32, body: &str, landing: Landing) -> (Vec<Finding>, Vec<u8>) {
    run_bounded(target, "", threads, body, landing)
}

/// The same with directives of the kernel, such as its bounds.
fn run_bounded(target: &str, directives: &str, threads: u32, body: &str, landing: Landing) -> (Vec<Finding>, Vec<u8>) {
    let text = format!(
        ".version 9.0\n.target {target}\n.address_size 64\n.visible .entry k(.param .u64 p, .param .align 64 .b8 m[128])\n{directives}{{\n\
         .reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<40>; .reg .f32 %f<60>; .reg .b64 %rd<20>;\n\
         .shared .align 1024 .b8 s[8192]; .shared .align 8 .b64 bar;\n.loc 1 1 1\n\
         ld.param.u64 %rd1, [p]; mov.u32 %r1, %tid.x; mov.u32 %r3, s; shl.b32 %r2, %r1, 4; add.s32 %r2, %r2, %r3;\n\
         .loc 1 10 1\n{body}\n.loc 1 99 1\nret;\n}}\n.file 1 \"k.rs\"\n"
    );
    let module = Module::load(&text).expect("loads");
    let mut memory = GlobalMemory::new();
    let buffer = memory.allocate_from(&(0..=255).collect::<Vec<u8>>());
    let map = TensorMap::new(buffer, 2, &[64, 2], &[128], &[64, 2], Swizzle::Bytes128).expect("legal");
    let parameters = vec![buffer.address.to_le_bytes().into(), map.encode().into()];
    let launch = Launch { grid: [1, 1, 1], block: [threads, 1, 1], shared_bytes: 0, parameters, pending: vec![] };
    let mut options = Options::default();
    options.landing = landing;
    options.stall_limit = 100_000;
    let report = module.kernel("k").expect("is there").launch(&memory, &launch, &options).expect("launches");
    (report.findings, memory.read(buffer))
}

fn run(threads: u32, body: &str) -> Vec<Finding> {
    let (late, _) = run_with("sm_90a", threads, body, Landing::Late);
    let (early, _) = run_with("sm_90a", threads, body, Landing::Early);
    let kinds = |all: &[Finding]| all.iter().map(|f| f.kind).collect::<Vec<_>>();
    assert_eq!(kinds(&late).is_empty(), kinds(&early).is_empty(), "late {late:?}\nearly {early:?}");
    late
}

fn clean(threads: u32, body: &str) {
    let findings = run(threads, body);
    assert!(findings.is_empty(), "{}", findings.iter().map(|f| format!("{f}\n")).collect::<String>());
}

/// The first finding: its kind, line of the kernel, and that of the other party.
fn first(threads: u32, body: &str) -> (FindingKind, u32, Option<u32>) {
    let findings = run(threads, body);
    let f = findings.first().expect("a finding");
    let line = |p: &flashtile_emulator::Party| p.kernel_line().map_or(0, |l| l.line);
    (f.kind, line(&f.party), f.other.as_ref().map(line))
}

#[test]
fn global_memory_has_bounds_and_alignment() {
    let findings = run(32, "add.s64 %rd2, %rd1, 254;\n.loc 1 11 1\nld.global.u32 %r4, [%rd2+2];");
    let f = &findings[0];
    assert_eq!((f.kind, f.party.lane, f.count), (FindingKind::OutOfBounds, Some(0), 32));
    assert_eq!(f.detail, "4 bytes, 0 bytes past the end of the nearest buffer");
    assert!(f.to_string().contains("k.rs:11: `ld.global.u32`"), "{f}");
    assert_eq!(first(1, "ld.global.u32 %r4, [%rd1+2];").0, FindingKind::Misaligned);
    clean(32, "ld.global.u32 %r4, [%rd1+252];");
}

#[test]
fn shared_memory_has_bounds_and_alignment() {
    assert_eq!(first(1, "st.shared.u32 [%r3+65536], %r1;").0, FindingKind::OutOfBounds);
    assert_eq!(first(1, "st.shared.u32 [0], %r1;").0, FindingKind::OutOfBounds);
    assert_eq!(first(1, "st.shared.v4.u32 [%r3+4], {%r1,%r1,%r1,%r1};").0, FindingKind::Misaligned);
}

#[test]
fn what_nobody_wrote_is_not_read() {
    assert_eq!(first(1, "ld.shared.u32 %r4, [%r3];").0, FindingKind::Uninitialised);
    clean(1, "st.shared.u32 [%r3], %r1; ld.shared.u32 %r4, [%r3];");
}

#[test]
fn warps_are_ordered_by_barriers() {
    let racing = "st.shared.u32 [%r2], %r1;\n.loc 1 11 1\n xor.b32 %r4, %r2, 512; ld.shared.u32 %r5, [%r4];";
    // Under the default order warp 0 reads before warp 1 writes.
    let findings = run(64, racing);
    assert!(findings.iter().any(|f| f.kind == FindingKind::Race || f.kind == FindingKind::Uninitialised), "{findings:?}");
    let race = findings.iter().find(|f| f.kind == FindingKind::Race).expect("a race");
    assert_eq!(race.party.warp, 1);
    assert_eq!(race.other.as_ref().map(|o| o.warp), Some(0));
    clean(64, &racing.replace("\n.loc 1 11", "\nbar.sync 0;\n.loc 1 11"));
    // A write over what another warp is yet to read.
    let over = "st.shared.u32 [%r2], %r1; bar.sync 0; xor.b32 %r4, %r2, 512; ld.shared.u32 %r5, [%r4];\n.loc 1 12 1\nst.shared.u32 [%r2], %r1;";
    assert_eq!(first(64, over), (FindingKind::Race, 10, Some(12)));
    clean(64, &over.replace("\n.loc", "\nbar.sync 0;\n.loc"));
}

#[test]
fn lanes_are_ordered_by_warp_barriers() {
    let racing = "st.shared.u32 [%r2], %r1;\n.loc 1 11 1\nxor.b32 %r4, %r2, 16; ld.shared.u32 %r5, [%r4];";
    assert_eq!(first(32, racing), (FindingKind::Race, 11, Some(10)));
    clean(32, &racing.replace("\n.loc", "\nbar.warp.sync -1;\n.loc"));
}

const COPY: &str = "shl.b32 %r4, %r1, 4; and.b32 %r4, %r4, 255; cvt.u64.u32 %rd2, %r4; add.s64 %rd2, %rd1, %rd2;\n\
    cp.async.cg.shared.global [%r2], [%rd2], 16;\n";

#[test]
fn copies_are_waited_for() {
    let body = |wait: &str| format!("{COPY}{wait}\n.loc 1 11 1\nld.shared.u32 %r5, [%r2];");
    assert_eq!(first(32, &body("")), (FindingKind::InFlight, 11, Some(10)));
    assert_eq!(first(32, &body("cp.async.commit_group; cp.async.wait_group 1;")).0, FindingKind::InFlight);
    // Groups that are not committed are not waited for.
    assert_eq!(first(32, &body("cp.async.wait_group 0;")).0, FindingKind::InFlight);
    clean(32, &body("cp.async.commit_group; cp.async.wait_group 0;"));
    clean(32, &body("cp.async.wait_all;"));
    assert_eq!(first(32, COPY).0, FindingKind::NeverWaited);
    // Waiting makes a copy visible to the thread itself only.
    let other = format!("{COPY}cp.async.wait_all;\n.loc 1 11 1\nxor.b32 %r4, %r2, 16; ld.shared.u32 %r5, [%r4];");
    assert_eq!(first(32, &other), (FindingKind::Race, 11, Some(10)));
}

#[test]
fn zero_bytes_of_a_copy_are_zero() {
    let body = "mov.u32 %r6, 6; cp.async.ca.shared.global [%r2], [%rd1+16], 8, %r6; cp.async.wait_all; ld.shared.v2.u32 {%r7, %r8}, [%r2];\n\
        st.global.v2.u32 [%rd1], {%r7, %r8};";
    for landing in [Landing::Late, Landing::Early] {
        let (findings, memory) = run_with("sm_80", 1, body, landing);
        assert!(findings.is_empty(), "{findings:?}");
        assert_eq!(memory[..8], [16, 17, 18, 19, 20, 21, 0, 0]);
    }
}

#[test]
fn barriers_are_reached_together() {
    let body = "setp.lt.u32 %p1, %r1, 16;\n@%p1 bra SKIP;\nbar.sync 0;\nSKIP:";
    assert_eq!(first(32, body).0, FindingKind::BarrierDivergence);
    // Whole warps may leave each other out: the others are told who waits for whom.
    let findings = run(64, "setp.lt.u32 %p1, %r1, 32;\n@%p1 bra SKIP;\nbar.sync 1, 64;\nSKIP:");
    assert_eq!(findings[0].kind, FindingKind::Deadlock);
    assert!(findings[0].detail.contains("warp 1 waits at barrier 1"), "{}", findings[0].detail);
    assert!(findings[0].detail.contains("32 of 64 threads have arrived"), "{}", findings[0].detail);
    // An arrival counts, and does not wait.
    clean(64, "setp.lt.u32 %p1, %r1, 32;\n@%p1 bra ARRIVE;\nbar.sync 1, 64;\nbra DONE;\nARRIVE: bar.arrive 1, 64;\nDONE:");
    assert_eq!(
        first(64, "setp.lt.u32 %p1, %r1, 32;\n@%p1 bra A;\nbar.sync 1, 64;\nbra D;\nA: bar.sync 1, 96;\nD:").0,
        FindingKind::BarrierDivergence
    );
    assert_eq!(first(32, "bar.sync 16;").0, FindingKind::IllegalOperand);
}

#[test]
fn barriers_take_votes() {
    // Of two warps, lane 40 votes alone; every thread stores what came of it.
    let votes = |of: &str| {
        let body = format!(
            "setp.eq.u32 %p1, %r1, 40;\n{of}\nselp.u32 %r7, 1, 2, %p2;\nmul.wide.u32 %rd2, %r1, 4;\nadd.s64 %rd2, %rd2, %rd1;\nst.global.u32 [%rd2], %r7;"
        );
        let (findings, memory) = run_with("sm_80", 64, &body, Landing::Late);
        assert!(findings.is_empty(), "{of}: {findings:?}");
        memory.chunks(4).take(64).map(|word| word[0]).collect::<Vec<u8>>()
    };
    assert_eq!(votes("bar.red.or.pred %p2, 0, %p1;"), [1; 64]);
    assert_eq!(votes("barrier.cta.red.or.pred.aligned %p2, 1, 64, %p1;"), [1; 64]);
    assert_eq!(votes("bar.red.and.pred %p2, 0, %p1;"), [2; 64]);
    assert_eq!(votes("bar.red.and.pred %p2, 3, 64, !%p1;"), [2; 64]);
    assert_eq!(votes("setp.ge.u32 %p1, %r1, 0; bar.red.and.pred %p2, 3, 64, %p1;"), [1; 64]);
    assert_eq!(votes("setp.ge.u32 %p1, %r1, 64; bar.red.or.pred %p2, 0, %p1;"), [2; 64]);
    // It is a barrier, and no other barrier is at once what it is.
    let ordered = "st.shared.u32 [%r2], %r1;\nsetp.eq.u32 %p1, %r1, 0;\nbar.red.or.pred %p2, 0, %p1;\n\
        xor.b32 %r3, %r2, 512;\nld.shared.u32 %r7, [%r3];";
    clean(64, ordered);
    assert_eq!(first(64, &ordered.replace("bar.red.or.pred %p2, 0, %p1;", "")).0, FindingKind::Uninitialised);
    let mixed = "setp.lt.u32 %p1, %r1, 32;\n@%p1 bra A;\nbar.sync 1, 64;\nbra D;\nA: bar.red.or.pred %p2, 1, 64, %p1;\nD:";
    assert_eq!(first(64, mixed).0, FindingKind::BarrierDivergence);
}

/// Thread 0 makes the barrier and copies the tensor; all wait and read.
fn tensor_copy(init: &str, wait: &str, end: &str) -> String {
    format!(
        "mov.u32 %r10, bar; setp.ne.u32 %p1, %r1, 0;\n@%p1 bra READY;\n{init}\nREADY: bar.sync 0;\n\
         @%p1 bra WAIT;\nmbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], 256;\n\
         mov.b64 %rd4, m; cvta.param.u64 %rd4, %rd4; mov.u32 %r11, 0;\n.loc 1 20 1\n\
         cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%rd4, {{%r11,%r11}}], [%r10];\n\
         WAIT: {wait}\n.loc 1 30 1\nand.b32 %r12, %r1, 31; shl.b32 %r12, %r12, 3; add.s32 %r12, %r12, %r3; ld.shared.v2.u32 {{%r13,%r14}}, [%r12];\n{end}"
    )
}

const INIT: &str = "mbarrier.init.shared::cta.b64 [%r10], 1; fence.proxy.async.shared::cta;";
const WAIT: &str = "L: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r10], 0; @!%p2 bra L;";

#[test]
fn tensor_copies_are_waited_for_at_their_barrier() {
    clean(64, &tensor_copy(INIT, WAIT, ""));
    let (findings, _) = run_with("sm_90a", 64, &tensor_copy(INIT, "", ""), Landing::Late);
    assert!(findings.iter().any(|f| f.kind == FindingKind::InFlight), "{findings:?}");
    let (findings, _) = run_with("sm_90a", 64, &tensor_copy(INIT, "", ""), Landing::Early);
    assert!(findings.iter().any(|f| f.kind == FindingKind::Race), "{findings:?}");
    // The other parity is that of the phase before: it has ended already.
    let (findings, _) = run_with("sm_90a", 64, &tensor_copy(INIT, &WAIT.replace("], 0;", "], 1;"), ""), Landing::Late);
    assert_eq!(findings[0].kind, FindingKind::InFlight);
    // Initialised for two arrivals of which one comes.
    let (findings, _) = run_with("sm_90a", 64, &tensor_copy(&INIT.replace("], 1;", "], 2;"), WAIT, ""), Landing::Late);
    assert!(
        findings.iter().any(|f| f.kind == FindingKind::Deadlock && f.detail.contains("1 arrivals and 0 bytes are missing")),
        "{findings:?}"
    );
    // The asynchronous proxy has not seen the initialisation.
    assert_eq!(first(64, &tensor_copy("mbarrier.init.shared::cta.b64 [%r10], 1;", WAIT, "")).0, FindingKind::UnfencedProxy);
    assert_eq!(first(64, &tensor_copy("", WAIT, "")).0, FindingKind::PhaseMisuse);
}

#[test]
fn a_barrier_takes_no_more_arrivals_than_it_expects() {
    let body = "mov.u32 %r10, bar; mbarrier.init.shared::cta.b64 [%r10], 1; mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r10], 16;\n\
        mbarrier.arrive.shared::cta.b64 _, [%r10];\n.loc 1 11 1\nmbarrier.arrive.shared::cta.b64 _, [%r10];";
    assert_eq!(first(1, body), (FindingKind::PhaseMisuse, 11, None));
}

#[test]
fn the_asynchronous_proxy_reads_what_is_fenced() {
    let body = |fence: &str, wait: &str| {
        format!(
            "st.shared.v2.u32 [%r2], {{%r1, %r1}};st.shared.v2.u32 [%r2+8], {{%r1, %r1}};\n{fence}\nbar.sync 0; setp.ne.u32 %p1, %r1, 0;\n@%p1 bra END;\n\
             mov.b64 %rd4, m; cvta.param.u64 %rd4, %rd4; mov.u32 %r11, 0;\n.loc 1 20 1\n\
             cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd4, {{%r11,%r11}}], [%r3];\ncp.async.bulk.commit_group;\n{wait}\nEND:"
        )
    };
    let wait = "cp.async.bulk.wait_group.read 0;";
    clean(32, &body("fence.proxy.async.shared::cta;", wait));
    assert_eq!(first(32, &body("", wait)), (FindingKind::UnfencedProxy, 20, Some(10)));
    assert_eq!(first(32, &body("fence.proxy.async.shared::cta;", "")).0, FindingKind::NeverWaited);
    let early = format!("{}\n.loc 1 21 1\nst.shared.v2.u32 [%r2], {{%r1, %r1}};", body("fence.proxy.async.shared::cta;", ""));
    assert_eq!(first(32, &early), (FindingKind::WriteUnderRead, 21, Some(20)));
    // Row 1 of the box, swizzled: chunk 1 of shared memory is chunk 0 of the row; thread 8 + 1 wrote it.
    let (_, memory) = run_with("sm_90a", 32, &body("fence.proxy.async.shared::cta;", wait), Landing::Late);
    assert_eq!((memory[0], memory[16], memory[128], memory[144]), (0, 1, 9, 8));
}

/// A product of what 128 threads wrote: A and B are the same 64 rows of 64 elements.
fn product(fence: &str, between: &str, wait: &str) -> String {
    let d: Vec<String> = (0..4).map(|n| format!("%f{n}")).collect();
    format!(
        "mov.u32 %r4, 0; mul.lo.s32 %r5, %r1, 64; add.s32 %r5, %r5, %r3;\n\
         st.shared.v4.u32 [%r5], {{%r4,%r4,%r4,%r4}}; st.shared.v4.u32 [%r5+16], {{%r4,%r4,%r4,%r4}};\n\
         st.shared.v4.u32 [%r5+32], {{%r4,%r4,%r4,%r4}}; st.shared.v4.u32 [%r5+48], {{%r4,%r4,%r4,%r4}};\n\
         fence.proxy.async.shared::cta; bar.sync 0;\n\
         cvt.u64.u32 %rd5, %r3; shr.u64 %rd5, %rd5, 4; mov.u64 %rd6, 4611686293305294848; or.b64 %rd5, %rd5, %rd6;\n\
         mov.f32 %f0, 0f00000000; mov.f32 %f1, %f0; mov.f32 %f2, %f0; mov.f32 %f3, %f0;\n{fence}\n.loc 1 20 1\n\
         wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {{{}}}, %rd5, %rd5, 1, 1, 1, 0, 0;\n\
         wgmma.commit_group.sync.aligned;\n.loc 1 21 1\n{between}\n{wait}\n.loc 1 22 1\nadd.f32 %f5, %f0, %f1;",
        d.join(",")
    )
}

#[test]
fn products_are_fenced_and_waited_for() {
    let (fence, wait) = ("wgmma.fence.sync.aligned;", "wgmma.wait_group.sync.aligned 0;");
    clean(128, &product(fence, "", wait));
    assert_eq!(first(128, &product("", "", wait)), (FindingKind::UnfencedRegisters, 20, None));
    assert_eq!(first(128, &product(fence, "", "")), (FindingKind::AccumulatorInFlight, 22, Some(20)));
    assert_eq!(first(128, &product(fence, "", "wgmma.wait_group.sync.aligned 1;")).0, FindingKind::AccumulatorInFlight);
    assert_eq!(first(128, &product(fence, "st.shared.u32 [%r5], %r4;", wait)), (FindingKind::WriteUnderRead, 21, Some(20)));
}

#[test]
fn endless_loops_end() {
    assert_eq!(first(32, "L: bra L;").0, FindingKind::EndlessLoop);
    assert_eq!(first(32, "trap;").0, FindingKind::Trap);
}

#[test]
fn unknown_instructions_are_named_at_load() {
    let fault = |body: &str| {
        Module::load(&format!(
            ".version 9.0 .target sm_90a .address_size 64\n.entry k() {{ .reg .b32 %r<3>; .reg .f32 %f<3>;\n{body}\n}}"
        ))
        .expect_err("is not known")
        .to_string()
    };
    assert_eq!(fault("dp4a.u32.u32 %r1, %r2, %r1, %r2;"), "line 3: the emulator does not know the instruction `dp4a.u32.u32`");
    assert_eq!(
        fault("add.rz.f32 %f1, %f2, %f2;"),
        "line 3: the emulator does not know the instruction `add.rz.f32`: this rounding"
    );
    assert_eq!(
        fault("mov.u32 %r1, %clock;"),
        "line 3: the emulator does not know the instruction `mov.u32`: special register `%clock`"
    );
    assert_eq!(fault("bra L;"), "line 3: `L` is not declared");
    assert_eq!(
        fault("mapa.u32 %r1, %r2, 1;"),
        "line 3: the emulator does not know the instruction `mapa.u32`: a generic address has 64 bits"
    );
}

/// Between the launches of a call nothing is ordered but by `griddepcontrol.wait`, where one may begin early.
#[test]
fn what_an_earlier_launch_writes_is_touched_after_the_wait_only() {
    let found = |body: &str, pending: std::ops::Range<u64>| {
        let text = format!(
            ".version 9.0\n.target sm_90a\n.address_size 64\n.visible .entry k(.param .u64 p)\n{{\n.reg .b32 %r<9>; .reg .b64 %rd<9>;\n\
             .loc 1 1 1\nld.param.u64 %rd1, [p];\n{body}\nret;\n}}\n.file 1 \"k.rs\"\n"
        );
        let module = Module::load(&text).expect("loads");
        let mut memory = GlobalMemory::new();
        let buffer = memory.allocate_from(&[0; 256]);
        let pending = std::iter::once(buffer.address + pending.start..buffer.address + pending.end).collect();
        let parameters = vec![buffer.address.to_le_bytes().into()];
        let launch = Launch { grid: [1, 1, 1], block: [32, 1, 1], shared_bytes: 0, parameters, pending };
        let report = module.kernel("k").expect("is there").launch(&memory, &launch, &Options::default()).expect("launches");
        report.findings.iter().map(|f| (f.kind, f.party.kernel_line().map_or(0, |l| l.line))).collect::<Vec<_>>()
    };
    let (wait, load) = (".loc 1 10 1\ngriddepcontrol.wait;\n", ".loc 1 11 1\nld.global.u32 %r1, [%rd1+64];\n");
    let store =
        "mov.u32 %r3, %tid.x; mul.wide.u32 %rd2, %r3, 4; add.s64 %rd2, %rd2, %rd1;\n.loc 1 12 1\nst.global.u32 [%rd2+64], %r1;\n";
    assert_eq!(found(&format!("{wait}{load}"), 0..256), []);
    assert_eq!(found(&format!("{load}{wait}"), 0..256), [(FindingKind::BeforeWait, 11)]);
    assert_eq!(found(&format!("mov.u32 %r1, 0;\n{store}{wait}"), 0..256), [(FindingKind::BeforeWait, 12)]);
    // Other bytes may be touched at any time; nothing is pending for a launch that begins when the others have ended.
    assert_eq!(found(&format!("{load}{wait}"), 128..256), []);
    assert_eq!(found(load, 0..0), []);
    let half = ".reg .pred %p1; mov.u32 %r2, %tid.x; setp.lt.u32 %p1, %r2, 16;\n@%p1 griddepcontrol.wait;\n";
    assert_eq!(found(&format!("{half}{load}"), 0..256), [(FindingKind::BeforeWait, 11)]);
}

/// Runs a body by a block of three warpgroups, with `%p1` set in the first one, `%p2` in the second; what is found.
fn by_role(directives: &str, body: &str) -> Vec<Finding> {
    let text = format!(
        ".version 9.0\n.target sm_90a\n.address_size 64\n.visible .entry k()\n{directives}\n{{\n.reg .pred %p<9>; .reg .b32 %r<9>; .reg .b64 %rd<9>;\n\
         mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 128; setp.lt.u32 %p2, %r1, 256;\n{body}\nret;\n}}\n"
    );
    let module = Module::load(&text).unwrap_or_else(|e| panic!("{e}"));
    let threads = if directives.contains("256, 1") { 256 } else { 384 };
    let launch = Launch { grid: [2, 1, 1], block: [threads, 1, 1], shared_bytes: 0, parameters: vec![], pending: vec![] };
    let mut all = vec![];
    for seed in 0..4 {
        let options = if seed == 0 { Options::default() } else { Options::random(seed) };
        let report = module.kernel("k").expect("is there").launch(&GlobalMemory::new(), &launch, &options).expect("launches");
        assert!(seed == 0 || all.is_empty() == report.findings.is_empty(), "{options}: {:?}", report.findings);
        all = report.findings;
    }
    all
}

/// Of 168 registers for each of 384 threads, the producer keeps 24, and the others take 240.
const ROLES: &str = "@%p1 bra PRODUCER;\n\
    setmaxnreg.inc.sync.aligned.u32 240; bar.sync 1, 256; bra DONE;\n\
    PRODUCER:\nsetmaxnreg.dec.sync.aligned.u32 24;\nDONE:";
const BOUNDS: &str = ".maxntid 384, 1, 1\n.minnctapersm 1";

#[test]
fn registers_move_from_warp_to_warp() {
    for bounds in [BOUNDS, ".maxnreg 168", ".reqntid 384\n.maxnreg 255"] {
        assert_eq!(by_role(bounds, ROLES), [], "{bounds}");
    }
    let kinds = |bounds: &str, body: &str| {
        let mut kinds: Vec<FindingKind> = by_role(bounds, body).iter().map(|f| f.kind).collect();
        kinds.dedup();
        kinds
    };
    // The producer keeps what it has, keeps too much, or the others ask for more than there is.
    for (from, to) in [
        ("setmaxnreg.dec.sync.aligned.u32 24;", ""),
        ("u32 24;", "u32 32;"),
        ("u32 240;", "u32 248;"),
        (BOUNDS, ".maxntid 384, 1, 1\n.minnctapersm 2"),
    ] {
        let found = by_role(&BOUNDS.replace(from, to), &ROLES.replace(from, to));
        assert_eq!(found[0].kind, FindingKind::Deadlock, "{to} in place of {from}: {found:?}");
    }
    let found = &by_role(BOUNDS, &ROLES.replace("u32 24;", "u32 32;"))[0];
    assert!(
        found.detail.contains("warp 11 waits for 240 registers per thread (PTX line 11): its block has 1280 that nobody has"),
        "{found}"
    );
    // The values exchanged, or the instructions.
    let exchanged = ROLES.replace("u32 24;", "u32 x;").replace("u32 240;", "u32 24;").replace("u32 x;", "u32 240;");
    assert_eq!(kinds(BOUNDS, &exchanged), [FindingKind::RegisterBudget]);
    let actions = ROLES.replace(".inc", ".x").replace(".dec", ".inc").replace(".x", ".dec");
    assert_eq!(kinds(BOUNDS, &actions), [FindingKind::RegisterBudget]);
    // One warp of the four alone, or lanes of it.
    let one = "setp.lt.u32 %p3, %r1, 32; @%p3 setmaxnreg.dec.sync.aligned.u32 24;";
    assert!(kinds(BOUNDS, one).contains(&FindingKind::RegisterBudget));
    assert!(kinds(BOUNDS, &one.replace("%r1, 32", "%r1, 16")).contains(&FindingKind::BarrierDivergence));
    assert_eq!(kinds(BOUNDS, &one.replace("%r1, 32", "%r1, 128")), []);
    // Another instruction in another warp of the group; once more before the warps have met.
    let two = "setp.lt.u32 %p3, %r1, 32; @%p3 bra A; setmaxnreg.dec.sync.aligned.u32 24; bra B;\nA: setmaxnreg.dec.sync.aligned.u32 24;\nB:";
    assert!(kinds(BOUNDS, two).contains(&FindingKind::RegisterBudget));
    let again = |between: &str| format!("setmaxnreg.dec.sync.aligned.u32 64; {between} setmaxnreg.dec.sync.aligned.u32 24;");
    assert_eq!(kinds(BOUNDS, &again("")), [FindingKind::RegisterBudget]);
    assert_eq!(kinds(BOUNDS, &again("bar.sync 0;")), []);
    // Two warpgroups may have more at launch than either asks for: the compiler takes what fits.
    let pair = ".maxntid 256, 1, 1\n.minnctapersm 1";
    assert_eq!(kinds(pair, &ROLES.replace("u32 24;", "u32 32;").replace("bar.sync 1, 256;", "")), []);
    // What a launch gives is not known without directives.
    assert_eq!(kinds("", ROLES), []);
    let fault = |count: u32| {
        Module::load(&format!(
            ".version 9.0 .target sm_90a .address_size 64\n.entry k() {{ setmaxnreg.inc.sync.aligned.u32 {count}; }}"
        ))
    };
    assert!(fault(256).is_ok() && fault(24).is_ok());
    for count in [16, 20, 100, 264] {
        assert!(fault(count).expect_err("is refused").to_string().contains("no multiple of 8 from 24 to 256"), "{count}");
    }
}

#[test]
fn a_product_needs_its_registers() {
    let body = |count: u32| {
        product("wgmma.fence.sync.aligned;", "", "wgmma.wait_group.sync.aligned 0;").replacen(
            "mov.u32 %r4, 0;",
            &format!("setmaxnreg.dec.sync.aligned.u32 {count}; mov.u32 %r4, 0;"),
            1,
        )
    };
    let large = |count: u32| {
        let d: Vec<String> = (0..32).map(|n| format!("%f{n}")).collect();
        let zeros: String = (0..32).map(|n| format!("mov.f32 %f{n}, 0f00000000; ")).collect();
        body(count)
            .replace("m64n8k16", "m64n64k16")
            .replace("{%f0,%f1,%f2,%f3}", &format!("{{{}}}", d.join(",")))
            .replace("mov.f32 %f0, 0f00000000; mov.f32 %f1, %f0; mov.f32 %f2, %f0; mov.f32 %f3, %f0;", &zeros)
    };
    let found = |body: &str| {
        let (all, _) = run_bounded("sm_90a", ".maxntid 128, 1, 1\n", 128, body, Landing::Late);
        all.iter().map(|f| (f.kind, f.detail.clone())).collect::<Vec<_>>()
    };
    assert_eq!(found(&large(40)), []);
    let few = found(&large(24));
    assert_eq!(few[0].0, FindingKind::RegisterBudget);
    assert_eq!(few[0].1, "the product alone names 32 registers of a thread, and the warp has 24");
}

#[test]
fn spins_end_and_name_what_they_wait_for() {
    let spin = |body: &str| {
        let (findings, _) = run_with("sm_90a", 64, body, Landing::Late);
        let f = findings.first().unwrap_or_else(|| panic!("nothing found in {body}")).clone();
        (f.kind, f.party.kernel_line().map_or(0, |l| l.line), f.detail)
    };
    // A flag in shared memory that nobody sets.
    let flag = "st.shared.u32 [%r3], 0; bar.sync 0;\n.loc 1 20 1\nL: ld.volatile.shared.u32 %r4, [%r3]; setp.eq.u32 %p1, %r4, 0;\n.loc 1 21 1\n@%p1 bra L;";
    let flag =
        flag.replace("st.shared.u32 [%r3], 0;", "setp.ne.u32 %p2, %r1, 0; mov.u32 %r4, 0; @!%p2 st.shared.u32 [%r3], %r4;");
    let (kind, line, detail) = spin(&flag);
    assert_eq!((kind, line), (FindingKind::EndlessLoop, 20));
    assert!(detail.starts_with("it waits for another value than 0 here; no warp has written memory"), "{detail}");
    assert!(detail.contains("--max-steps"), "{detail}");
    // Two flags in turn, in global memory: no single load gives the same twice.
    let two = ".loc 1 30 1\nL: ld.relaxed.gpu.global.u32 %r4, [%rd1]; ld.relaxed.gpu.global.u32 %r5, [%rd1+4]; add.u32 %r6, %r4, %r5; setp.ne.u32 %p1, %r6, 1;\n@%p1 bra L;";
    assert_eq!((spin(two).0, spin(two).1), (FindingKind::EndlessLoop, 30));
    // An mbarrier that is tested and not waited for.
    let tested = "mov.u32 %r10, bar; setp.ne.u32 %p2, %r1, 0; @%p2 bra READY; mbarrier.init.shared::cta.b64 [%r10], 1;\nREADY: bar.sync 0;\n\
        .loc 1 40 1\nL: mbarrier.test_wait.parity.shared::cta.b64 %p1, [%r10], 0; @!%p1 bra L;";
    let (kind, line, detail) = spin(tested);
    assert_eq!((kind, line), (FindingKind::EndlessLoop, 40));
    assert!(detail.starts_with("it waits for the end of a phase of this mbarrier"), "{detail}");
    // No memory at all, and a loop that passes barriers and writes what it wrote before.
    assert_eq!((spin("\n.loc 1 50 1\nL: bra L;").0, spin("\n.loc 1 50 1\nL: bra L;").1), (FindingKind::EndlessLoop, 50));
    let round =
        ".loc 1 60 1\nL: st.shared.u32 [%r2], %r1; bar.sync 0; ld.shared.u32 %r4, [%r2]; setp.eq.u32 %p1, %r4, %r1; @%p1 bra L;";
    let (kind, line, detail) = spin(round);
    assert_eq!((kind, line), (FindingKind::EndlessLoop, 60));
    assert!(detail.contains("none that touches memory it has not touched before"), "{detail}");
}

#[test]
fn spins_that_end_are_no_fault() {
    // Warp 0 waits for what warp 1 sets, and comes first: it leaves the turn to warp 1.
    let body = "setp.ne.u32 %p2, %r1, 0; mov.u32 %r4, 0; @!%p2 st.shared.u32 [%r3], %r4; bar.sync 0; setp.ge.u32 %p1, %r1, 32; @%p1 bra SET;\n\
        L: atom.shared.or.b32 %r4, [%r3], 0; setp.eq.u32 %p1, %r4, 0; @%p1 bra L; bra DONE;\nSET: mov.u32 %r5, 1; atom.shared.or.b32 %r6, [%r3], 1;\nDONE:";
    clean(64, body);
    // A copy lands while its mbarrier is tested in a loop.
    clean(64, &tensor_copy(INIT, &WAIT.replace("try_wait", "test_wait"), ""));
    // Many instructions without an event.
    let count = "mov.u32 %r4, 0;\nL: add.u32 %r4, %r4, 1; setp.lt.u32 %p1, %r4, 5000; @%p1 bra L;";
    clean(64, count);
}
