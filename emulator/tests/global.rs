//! Races in global memory inside a launch: between blocks, warps and lanes, by what release and acquire, barriers, fences and
//! scopes order (PTX ISA 8, "Memory Consistency Model").

use flashtile_emulator::{Finding, FindingKind, GlobalMemory, Launch, Module, Options, Order, Swizzle, TensorMap};

/// Runs a body with `%rd1` the address of 4 KiB of zeros, `%r1` the thread, `%r2` the index of the block, `%rd3` the place of
/// the thread's word, the same in every block, behind the first 256 bytes. Word 1 is a semaphore. `%p1` is set in all threads
/// but the first.
fn run(cluster: u32, blocks: u32, threads: u32, body: &str, options: &Options) -> (Vec<Finding>, Vec<u32>) {
    let dims = if cluster > 1 { format!(".explicitcluster\n.reqnctapercluster {cluster}, 1, 1\n") } else { String::new() };
    let text = format!(
        ".version 9.0\n.target sm_90a\n.address_size 64\n.visible .entry k(.param .u64 p)\n{dims}{{\n\
         .reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<40>; .reg .b64 %rd<20>;\n.shared .align 16 .b8 s[1024];\n\
         .loc 1 1 1\nld.param.u64 %rd1, [p]; mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, s;\n\
         mul.wide.u32 %rd3, %r1, 4; add.s64 %rd3, %rd1, %rd3; add.s64 %rd3, %rd3, 256; setp.ne.s32 %p1, %r1, 0;\n\
         .loc 1 10 1\n{body}\n.loc 1 99 1\nret;\n}}\n.file 1 \"k.rs\"\n"
    );
    let module = Module::load(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let mut memory = GlobalMemory::new();
    let buffer = memory.allocate_from(&[0; 4096]);
    let parameters = vec![buffer.address.to_le_bytes().into()];
    let launch = Launch { grid: [blocks, 1, 1], block: [threads, 1, 1], shared_bytes: 0, parameters, pending: vec![] };
    let report = module.kernel("k").expect("is there").launch(&memory, &launch, options).expect("launches");
    let words = memory.read(buffer).chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    (report.findings, words)
}

/// Orders of warps, with blocks one after another and several at once.
fn schedules() -> Vec<Options> {
    let mut all: Vec<Options> = (0..4).map(Options::random).collect();
    all.extend([Order::Forward, Order::Backward, Order::Rotating].map(|order| {
        let mut options = Options::default();
        options.order = order;
        options
    }));
    let apart: Vec<Options> = all.iter().cloned().map(|mut o| (o.parallel = false, o).1).collect();
    all.extend(apart);
    all.iter_mut().for_each(|o| o.instruction_limit = 1 << 20);
    all
}

/// What a body computes, under every schedule the same and without findings.
fn clean(cluster: u32, blocks: u32, threads: u32, body: &str) -> Vec<u32> {
    let mut results = schedules().into_iter().map(|options| {
        let (findings, words) = run(cluster, blocks, threads, body, &options);
        assert!(findings.is_empty(), "{options}: {}\n{body}", findings.iter().map(|f| format!("{f}\n")).collect::<String>());
        words
    });
    let first = results.next().expect("a schedule");
    assert!(results.all(|r| r == first), "schedules differ\n{body}");
    first
}

/// The races of global memory that every schedule finds: pairs of lines, the smaller first.
fn races(cluster: u32, blocks: u32, threads: u32, body: &str) -> Vec<(u32, u32)> {
    let mut all = vec![];
    for options in schedules() {
        let (findings, _) = run(cluster, blocks, threads, body, &options);
        let races: Vec<&Finding> = findings.iter().filter(|f| f.kind == FindingKind::GlobalRace).collect();
        assert!(!races.is_empty(), "no race under {options}: {findings:?}\n{body}");
        for race in races {
            let line = |p: &flashtile_emulator::Party| p.kernel_line().map_or(0, |l| l.line);
            let (a, b) = (line(&race.party), line(race.other.as_ref().expect("a race has two parties")));
            all.push((a.min(b), a.max(b)));
        }
    }
    all.sort_unstable();
    all.dedup();
    all
}

/// Each block in turn makes `x * 3 + index` of the word of each thread. Thread 0 waits and passes the turn, and barriers order
/// the accesses of the others with it: what `fixup=semaphore` compiles to.
const TURNS: &str = "@%p1 bra MEET;\n\
    WAIT: ld.acquire.gpu.global.u32 %r6, [%rd1+4]; setp.ne.s32 %p2, %r6, %r2; @%p2 bra WAIT;\n\
    MEET:\n.loc 1 19 1\nbar.sync 0;\n\
    .loc 1 20 1\nld.global.u32 %r7, [%rd3];\nmad.lo.s32 %r7, %r7, 3, %r2;\n\
    .loc 1 21 1\nst.global.u32 [%rd3], %r7;\n\
    .loc 1 22 1\nbar.sync 0; @%p1 bra DONE;\n\
    .loc 1 23 1\nadd.s32 %r8, %r2, 1; st.release.gpu.global.u32 [%rd1+4], %r8;\nDONE:";

fn replaced(body: &str, changes: &[(&str, &str)]) -> String {
    changes.iter().fold(body.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "no `{from}`");
        text.replace(from, to)
    })
}

const ACQUIRE: &str = "ld.acquire.gpu.global.u32 %r6, [%rd1+4];";
const RELEASE: &str = "st.release.gpu.global.u32 [%rd1+4], %r8;";
const BEFORE: &str = ".loc 1 19 1\nbar.sync 0;";
const AFTER: &str = ".loc 1 22 1\nbar.sync 0;";

#[test]
fn a_semaphore_with_its_barriers_is_in_order() {
    let words = clean(1, 6, 64, TURNS);
    assert_eq!(words[64..128], [(0..6).fold(0, |x, n| x * 3 + n); 64]);
    // One warp needs a barrier of the warp only.
    let warp = replaced(TURNS, &[(BEFORE, "bar.warp.sync -1;"), (AFTER, "bar.warp.sync -1;")]);
    assert_eq!(clean(1, 6, 32, &warp)[64..96], words[64..96]);
    // Other ways to release and acquire: atomic operations, fences around relaxed accesses, a scope that is wide enough.
    let atomic = "atom.acquire.gpu.global.add.u32 %r6, [%rd1+4], 0;";
    for changes in [
        [(ACQUIRE, atomic), (RELEASE, "red.release.gpu.global.add.u32 [%rd1+4], 1;")],
        [(ACQUIRE, atomic), (RELEASE, "atom.acq_rel.sys.global.exch.b32 %r9, [%rd1+4], %r8;")],
        [(ACQUIRE, "ld.relaxed.gpu.global.u32 %r6, [%rd1+4]; fence.acq_rel.gpu;"), (RELEASE, RELEASE)],
        [(ACQUIRE, ACQUIRE), (RELEASE, "membar.gl; st.volatile.global.u32 [%rd1+4], %r8;")],
        [
            (ACQUIRE, "ld.volatile.global.u32 %r6, [%rd1+4]; fence.sc.sys;"),
            (RELEASE, "fence.acq_rel.gpu; red.relaxed.gpu.global.add.u32 [%rd1+4], 1;"),
        ],
    ] {
        assert_eq!(clean(1, 6, 64, &replaced(TURNS, &changes)), words, "{changes:?}");
    }
    // In a cluster the scope of the cluster is enough, and its barrier, too.
    let scope = replaced(TURNS, &[("acquire.gpu", "acquire.cluster"), ("release.gpu", "release.cluster")]);
    assert_eq!(clean(2, 2, 64, &scope)[64], 1);
}

#[test]
fn a_semaphore_with_a_fault_is_told_with_both_lines() {
    // The threads beside the first are not ordered with its release, or with its acquire.
    for (threads, what) in [(64, AFTER), (64, BEFORE), (32, AFTER), (32, BEFORE)] {
        let found = races(1, 4, threads, &replaced(TURNS, &[(what, "")]));
        assert!(found.contains(&(20, 21)), "{threads} threads without {what}: {found:?}");
    }
    // A barrier of each warp orders nothing between the warps.
    assert!(races(1, 4, 64, &replaced(TURNS, &[(AFTER, "bar.warp.sync -1;")])).contains(&(20, 21)));
    for (from, to) in [
        (RELEASE, "st.relaxed.gpu.global.u32 [%rd1+4], %r8;"),
        (RELEASE, "red.relaxed.gpu.global.add.u32 [%rd1+4], 1;"),
        (RELEASE, "st.relaxed.gpu.global.u32 [%rd1+4], %r8; fence.acq_rel.gpu;"),
        (RELEASE, "fence.acq_rel.cta; st.relaxed.gpu.global.u32 [%rd1+4], %r8;"),
        (ACQUIRE, "ld.relaxed.gpu.global.u32 %r6, [%rd1+4];"),
        (ACQUIRE, "fence.acq_rel.gpu; ld.relaxed.gpu.global.u32 %r6, [%rd1+4];"),
        ("acquire.gpu", "acquire.cta"),
        ("release.gpu", "release.cta"),
        ("release.gpu", "release.cluster"),
    ] {
        let found = races(1, 4, 64, &replaced(TURNS, &[(from, to)]));
        assert!(found.contains(&(20, 21)), "{to} in place of {from}: {found:?}");
    }
    // A flag that is written plainly races with those who wait for it.
    assert!(races(1, 4, 64, &replaced(TURNS, &[("st.release.gpu.global", "st.global")])).contains(&(10, 23)));
    let (findings, _) = run(1, 4, 64, &replaced(TURNS, &[(AFTER, "")]), &Options::default());
    // Blocks run side by side: which race is found first differs from run to run. Block 1 always
    // finds this one, because the lanes beside the first of its warp 0 wait for their first lane,
    // and read after block 0 has written.
    let of_block = |race: &String| race.contains("k.rs:20: `ld.global.u32`") && race.contains("in block (1, 0, 0)");
    let mut races = findings.iter().filter(|f| f.kind == FindingKind::GlobalRace).map(ToString::to_string);
    let race = races.find(of_block).expect("a race that block 1 finds");
    assert!(race.starts_with("race in global memory at global address 0x"), "{race}");
    assert!(race.contains("k.rs:21: `st.global.u32`") && race.contains(" of block (0, 0, 0)\n"), "{race}");
    assert!(race.contains("no release and acquire of a common scope order the two accesses"), "{race}");
}

#[test]
fn atomic_operations_continue_what_was_released() {
    // Block 0 releases; the others add relaxedly; the last one acquires what block 0 released, and nothing of theirs.
    let body = |read: &str| {
        format!(
            "setp.eq.s32 %p2, %r2, 0; setp.eq.s32 %p3, %r2, 3;\n@%p1 bra DONE; @%p2 bra FIRST;\n\
             @%p3 bra LAST;\nAGAIN: ld.relaxed.gpu.global.u32 %r6, [%rd1+4]; setp.ne.s32 %p4, %r6, %r2; @%p4 bra AGAIN;\n\
             st.global.u32 [%rd1+512], %r2;\nred.relaxed.gpu.global.add.u32 [%rd1+4], 1; bra DONE;\n\
             FIRST:\n.loc 1 30 1\nst.global.u32 [%rd1+8], %r2; red.release.gpu.global.add.u32 [%rd1+4], 1; bra DONE;\n\
             LAST: ld.acquire.gpu.global.u32 %r6, [%rd1+4]; setp.ne.s32 %p4, %r6, 3; @%p4 bra LAST;\n\
             .loc 1 31 1\n{read}\nDONE:"
        )
    };
    // Blocks 1 and 2 write the same word in turn, but nothing they do orders them.
    let found = races(1, 4, 32, &body("ld.global.u32 %r9, [%rd1+8];"));
    assert_eq!(found, [(10, 10)]);
    let apart = body("ld.global.u32 %r9, [%rd1+8];").replace("[%rd1+512]", "[%rd3+512]");
    let apart = apart.replace(
        "st.global.u32 [%rd3+512], %r2;",
        "mul.wide.u32 %rd4, %r2, 4; add.s64 %rd4, %rd4, %rd1; st.global.u32 [%rd4+512], %r2;",
    );
    clean(1, 4, 32, &apart);
    let theirs = apart.replace(".loc 1 31 1\nld.global.u32 %r9, [%rd1+8];", ".loc 1 31 1\nld.global.u32 %r9, [%rd1+516];");
    assert_eq!(races(1, 4, 32, &theirs), [(10, 31)]);
    // A plain strong store ends the chain.
    let ended = apart
        .replace("red.relaxed.gpu.global.add.u32 [%rd1+4], 1;", "add.s32 %r9, %r2, 1; st.relaxed.gpu.global.u32 [%rd1+4], %r9;");
    assert_eq!(races(1, 4, 32, &ended), [(30, 31)]);
}

#[test]
fn atomic_operations_race_with_plain_accesses_alone() {
    let words = clean(1, 5, 64, "red.global.add.u32 [%rd1+8], 1; atom.global.max.u32 %r6, [%rd1+12], %r2;");
    assert_eq!((words[2], words[3]), (320, 4));
    let plain = "red.global.add.u32 [%rd1+8], 1;\n.loc 1 11 1\nld.global.u32 %r6, [%rd1+8];";
    assert_eq!(races(1, 5, 64, plain), [(10, 11)]);
    assert_eq!(races(1, 2, 32, "@%p1 bra DONE; red.relaxed.cta.global.add.u32 [%rd1+8], 1;\nDONE:"), [(10, 10)]);
    // 64-bit atomics are exact while races are looked for.
    let wide = "mov.u64 %rd5, 4294967296; add.s64 %rd5, %rd5, 1; red.global.add.u64 [%rd1+8], %rd5;";
    assert_eq!(clean(1, 64, 64, wide)[2..4], [4096, 4096]);
}

#[test]
fn writes_of_several_blocks_or_threads_race() {
    assert_eq!(races(1, 3, 32, "st.global.u32 [%rd3], %r2;"), [(10, 10)]);
    assert_eq!(races(1, 1, 64, "st.global.u32 [%rd1+8], %r1;"), [(10, 10)]);
    assert_eq!(races(1, 1, 32, "st.global.u32 [%rd1+8], %r1;"), [(10, 10)]);
    // Neighbouring halves of a word belong to their writers.
    let half = "mad.lo.s32 %r5, %r2, 32, %r1; mul.wide.u32 %rd4, %r5, 2; add.s64 %rd4, %rd4, %rd1; cvt.u16.u32 %h1, %r5;\n\
        st.global.u16 [%rd4+256], %h1;";
    assert_eq!(clean(1, 4, 32, half)[64..67], [0x0001_0000, 0x0003_0002, 0x0005_0004]);
    // Another block, warp or lane read it before: found whichever comes first.
    let read = "ld.global.u32 %r6, [%rd1+516]; setp.ne.s32 %p2, %r2, 1; @%p2 bra DONE; @%p1 bra DONE;\n\
        .loc 1 11 1\nst.global.u32 [%rd1+516], %r2;\nDONE:";
    assert_eq!(races(1, 3, 32, read), [(10, 11)]);
    let within = |barrier: &str| {
        format!("ld.global.u32 %r6, [%rd1+516]; {barrier} @%p1 bra DONE;\n.loc 1 11 1\nst.global.u32 [%rd1+516], %r2;\nDONE:")
    };
    assert_eq!(races(1, 1, 64, &within("")), [(10, 11)]);
    assert_eq!(races(1, 1, 64, &within("bar.warp.sync -1;")), [(10, 11)]);
    assert_eq!(races(1, 1, 32, &within("")), [(10, 11)]);
    clean(1, 1, 64, &within("bar.sync 0;"));
    clean(1, 1, 32, &within("bar.warp.sync -1;"));
}

#[test]
fn blocks_of_a_cluster_are_ordered_by_its_barrier() {
    let body = |barrier: &str| {
        format!(
            "mad.lo.s32 %r5, %r2, 64, %r1; mul.wide.u32 %rd4, %r5, 4; add.s64 %rd4, %rd4, %rd1; st.global.u32 [%rd4+256], %r5;\n\
             {barrier}\n.loc 1 20 1\nxor.b32 %r5, %r5, 64; mul.wide.u32 %rd4, %r5, 4; add.s64 %rd4, %rd4, %rd1; ld.global.u32 %r6, [%rd4+256];"
        )
    };
    clean(2, 4, 64, &body("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"));
    assert_eq!(races(2, 4, 64, &body("barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;")), [(10, 20)]);
    assert_eq!(races(2, 4, 64, &body("bar.sync 0;")), [(10, 20)]);
}

/// Thread 0 copies 256 bytes from shared to global memory, and thread 32 reads them.
fn stored(wait: &str) -> String {
    format!(
        "shl.b32 %r4, %r1, 2; add.s32 %r4, %r4, %r3; st.shared.u32 [%r4], %r1; fence.proxy.async.shared::cta; bar.sync 0;\n\
         @%p1 bra MEET; mov.u32 %r5, 256;\n.loc 1 15 1\ncp.async.bulk.global.shared::cta.bulk_group [%rd1+1024], [%r3], %r5;\n\
         cp.async.bulk.commit_group; {wait}\nMEET: bar.sync 0;\n.loc 1 20 1\nxor.b32 %r6, %r1, 32; mul.wide.u32 %rd4, %r6, 4; add.s64 %rd4, %rd4, %rd1;\n\
         ld.global.u32 %r7, [%rd4+1024];"
    )
}

#[test]
fn copies_to_global_memory_are_waited_for_as_far_as_they_write() {
    clean(1, 1, 64, &stored("cp.async.bulk.wait_group 0;"));
    assert_eq!(races(1, 1, 64, &stored("cp.async.bulk.wait_group.read 0;")), [(15, 20)]);
    clean(1, 1, 64, &stored("cp.async.bulk.wait_group.read 0; cp.async.bulk.wait_group 0;"));
    let text = stored("cp.async.bulk.wait_group.read 0;");
    let (findings, _) = run(1, 1, 64, &text, &Options::default());
    assert!(findings[0].detail.contains("has not waited until the writes are over"), "{}", findings[0]);
}

#[test]
fn copies_from_global_memory_read_what_is_fenced() {
    let body = |fence: &str| {
        format!(
            "mov.u32 %r5, 256; st.global.u32 [%rd3+1024], %r1; {fence} bar.sync 0; @%p1 bra DONE; add.s32 %r9, %r3, 512;\n\
             mbarrier.init.shared::cta.b64 [%r9], 1; fence.proxy.async.shared::cta; mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r9], 256;\n\
             .loc 1 20 1\ncp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%rd1+1280], %r5, [%r9];\n\
             L: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r9], 0; @!%p2 bra L;\nDONE:"
        )
    };
    clean(1, 1, 64, &body("fence.proxy.async;"));
    clean(1, 1, 64, &body("fence.proxy.async.global;"));
    for fence in ["", "fence.proxy.async.shared::cta;"] {
        let (findings, _) = run(1, 1, 64, &body(fence), &Options::default());
        assert_eq!(findings.iter().map(|f| f.kind).collect::<Vec<_>>(), [FindingKind::UnfencedProxy], "{fence}");
    }
    let unordered = body("fence.proxy.async;").replace("bar.sync 0;", "");
    assert_eq!(races(1, 1, 64, &unordered), [(10, 20)]);
}

#[test]
fn races_are_not_looked_for_if_that_is_not_asked_for() {
    let mut options = Options::default();
    options.races = false;
    let (findings, words) = run(1, 3, 32, "st.global.u32 [%rd3], %r1;", &options);
    assert_eq!((findings, words[95]), (vec![], 31));
}

#[test]
fn the_order_of_an_access_has_a_scope() {
    let fault = |instruction: &str| {
        let text = format!(
            ".version 9.0 .target sm_90a .address_size 64\n.entry k() {{ .reg .b32 %r<3>; .reg .b64 %rd<3>;\n{instruction}\n}}"
        );
        Module::load(&text).expect_err("is refused").to_string()
    };
    assert!(fault("ld.acquire.global.u32 %r1, [%rd1];").ends_with("a strong access without a scope"));
    assert!(fault("st.gpu.global.u32 [%rd1], %r1;").ends_with("a scope of a weak access"));
    assert!(fault("fence.acq_rel;").ends_with("its scope"));
    assert!(fault("st.acquire.gpu.global.u32 [%rd1], %r1;").contains("a scope of a weak access"));
}

/// 64 threads of each block add 256 bytes of shared memory, all 1.0, to the same place.
fn added(by: &str) -> String {
    format!("shl.b32 %r4, %r1, 2; add.s32 %r4, %r4, %r3; mov.u32 %r6, 0f3f800000; st.shared.u32 [%r4], %r6;\n{by}")
}

#[test]
fn sums_of_several_blocks_do_not_race() {
    let vector = "shl.b32 %r7, %r1, 4; cvt.u64.u32 %rd4, %r7; add.s64 %rd4, %rd4, %rd1; setp.ge.u32 %p2, %r1, 16;\n\
                  @%p2 bra DONE; red.global.add.v4.f32 [%rd4+1024], {%r6, %r6, %r6, %r6};\nDONE:";
    let bulk = |wait: &str| {
        format!(
            "fence.proxy.async.shared::cta; bar.sync 0; @%p1 bra DONE; mov.u32 %r5, 256;\n\
             cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%rd1+1024], [%r3], %r5;\n\
             cp.async.bulk.commit_group; {wait}\nDONE:"
        )
    };
    for body in [vector.to_owned(), bulk("cp.async.bulk.wait_group 0;")] {
        let words = clean(1, 3, 64, &added(&body));
        assert_eq!(words[256..320], [3f32.to_bits(); 64], "{body}");
    }
    // What is still to be read is written again.
    let again = bulk("mov.u32 %r6, 0f40000000; st.shared.u32 [%r3], %r6; cp.async.bulk.wait_group 0;");
    let (findings, _) = run(1, 1, 64, &added(&again), &Options::default());
    assert!(!findings.is_empty(), "shared memory is written while a copy reads it");
}

/// What three blocks find and leave who each add a box of 2 rows of 16 elements, of all ones, to a
/// tensor of 3 rows of 20, from the third row and the column 16 on.
fn boxes_added(element_bytes: u32, wait: &str) -> (Vec<Finding>, Vec<f32>) {
    let text = format!(
        ".version 9.0\n.target sm_90a\n.address_size 64\n.visible .entry k(.param .align 64 .b8 m[128])\n{{\n\
         .reg .pred %p<3>; .reg .b32 %r<9>; .reg .b64 %rd<3>;\n.shared .align 1024 .b8 s[1024];\n.loc 1 1 1\n\
         mov.u32 %r1, %tid.x; mov.u32 %r3, s; shl.b32 %r4, %r1, 2; add.s32 %r4, %r4, %r3; mov.u32 %r5, 0f3f800000;\n\
         st.shared.u32 [%r4], %r5; fence.proxy.async.shared::cta; bar.sync 0; setp.ne.u32 %p1, %r1, 0;\n@%p1 bra END;\n\
         mov.b64 %rd1, m; cvta.param.u64 %rd1, %rd1; mov.u32 %r6, 16; mov.u32 %r7, 2;\n\
         cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%rd1, {{%r6,%r7}}], [%r3];\n\
         cp.async.bulk.commit_group;\n{wait}\nEND: ret;\n}}\n.file 1 \"k.rs\"\n"
    );
    let module = Module::load(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let mut memory = GlobalMemory::new();
    let buffer = memory.allocate_from(&[0; 5 * 80]);
    let (columns, tile) = (u64::from(80 / element_bytes), [64 / element_bytes, 2]);
    let map = TensorMap::new(buffer, element_bytes, &[columns, 3], &[80], &tile, Swizzle::Bytes64).expect("legal");
    let parameters = vec![map.encode().to_vec()];
    let launch = Launch { grid: [3, 1, 1], block: [32, 1, 1], shared_bytes: 0, parameters, pending: vec![] };
    let report = module.kernel("k").expect("is there").launch(&memory, &launch, &Options::default()).expect("launches");
    let sums = memory.read(buffer).as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    (report.findings, sums)
}

#[test]
fn boxes_are_added_to_tensors_and_to_nothing_beyond_them() {
    let wait = "cp.async.bulk.wait_group.read 0;";
    let (findings, sums) = boxes_added(4, wait);
    assert!(findings.is_empty(), "{findings:?}");
    let inside = |n: usize| n / 20 == 2 && n % 20 >= 16;
    assert!(sums.iter().enumerate().all(|(n, &sum)| sum == if inside(n) { 3.0 } else { 0.0 }), "{sums:?}");
    let (findings, _) = boxes_added(4, "");
    assert!(findings.iter().any(|f| f.kind == FindingKind::NeverWaited), "{findings:?}");
    let (findings, _) = boxes_added(2, wait);
    assert!(findings.iter().any(|f| f.kind == FindingKind::IllegalOperand), "{findings:?}");
}

#[test]
fn vectors_are_added_at_multiples_of_their_length() {
    let (findings, _) = run(1, 1, 1, "mov.u32 %r6, 0; red.global.add.v2.f32 [%rd1+260], {%r6, %r6};", &Options::default());
    assert_eq!(findings.iter().map(|f| f.kind).collect::<Vec<_>>(), [FindingKind::Misaligned]);
}
