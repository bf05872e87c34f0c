//! Blocks that meet: through a semaphore in global memory, and as blocks of a cluster in each other's shared memory.

use flashtile_emulator::{Finding, FindingKind, GlobalMemory, Launch, LaunchError, Module, Options, Order};

/// Runs a body with `%rd1` the address of 1 KiB of zeros, `%r1` the thread, `%r2` the index of the block, `%r3` the address of
/// the shared array `s`, `%r4` its address for the thread's word, `%rd2` the place of the thread's word for each of 64 in a block.
fn run_with(cluster: u32, blocks: u32, threads: u32, body: &str, options: &Options) -> (Vec<Finding>, Vec<u32>) {
    let dims = if cluster > 1 { format!(".explicitcluster\n.reqnctapercluster {cluster}, 1, 1\n") } else { String::new() };
    let text = format!(
        ".version 9.0\n.target sm_90a\n.address_size 64\n.visible .entry k(.param .u64 p)\n{dims}{{\n\
         .reg .pred %p<9>; .reg .b32 %r<40>; .reg .b64 %rd<20>;\n.shared .align 16 .b8 s[1024]; .shared .align 8 .b64 bar;\n\
         .loc 1 1 1\nld.param.u64 %rd1, [p]; mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, s; shl.b32 %r4, %r1, 2;\n\
         mad.lo.s32 %r5, %r2, 64, %r1; mul.wide.u32 %rd2, %r5, 4; add.s64 %rd2, %rd1, %rd2; add.s32 %r4, %r4, %r3;\n\
         .loc 1 10 1\n{body}\n.loc 1 99 1\nret;\n}}\n.file 1 \"k.rs\"\n"
    );
    let module = Module::load(&text).expect("loads");
    let mut memory = GlobalMemory::new();
    let buffer = memory.allocate_from(&[0; 4096]);
    let parameters = vec![buffer.address.to_le_bytes().into()];
    let launch = Launch { grid: [blocks, 1, 1], block: [threads, 1, 1], shared_bytes: 0, parameters, pending: vec![] };
    let report = module.kernel("k").expect("is there").launch(&memory, &launch, options).expect("launches");
    let words = memory.read(buffer).chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    (report.findings, words)
}

/// The schedules that a kernel is run under: each order, one block after another and several at once.
fn schedules() -> Vec<Options> {
    let mut all: Vec<Options> = (0..8).map(Options::random).collect();
    for order in [Order::Forward, Order::Backward, Order::Rotating] {
        let mut options = Options::default();
        options.order = order;
        all.push(options);
    }
    let apart: Vec<Options> = all.iter().cloned().map(|mut o| (o.parallel = false, o).1).collect();
    all.extend(apart);
    all.iter_mut().for_each(|o| o.instruction_limit = 1 << 20);
    all
}

/// What a body computes under every schedule, which must be the same and without findings.
fn clean(cluster: u32, blocks: u32, threads: u32, body: &str) -> Vec<u32> {
    let mut results = schedules().into_iter().map(|options| {
        let (findings, words) = run_with(cluster, blocks, threads, body, &options);
        assert!(findings.is_empty(), "{options}: {}", findings.iter().map(|f| format!("{f}\n")).collect::<String>());
        words
    });
    let first = results.next().expect("a schedule");
    assert!(results.all(|r| r == first), "schedules differ");
    first
}

/// The kinds of findings under every schedule, and the text of the first.
fn faults(cluster: u32, blocks: u32, threads: u32, body: &str) -> (Vec<FindingKind>, String) {
    let mut kinds = vec![];
    let mut text = String::new();
    for options in schedules() {
        let (findings, _) = run_with(cluster, blocks, threads, body, &options);
        assert!(!findings.is_empty(), "nothing found under {options}");
        text = if text.is_empty() { findings[0].to_string() } else { text };
        kinds.extend(findings.iter().map(|f| f.kind));
    }
    kinds.sort_unstable();
    kinds.dedup();
    (kinds, text)
}

/// Each block in turn makes `x * 3 + index` of a word: the result tells the order. Word 1 is the semaphore.
const TURNS: &str = "setp.ne.s32 %p1, %r1, 0; @%p1 bra MEET;\n\
    WAIT: ld.acquire.gpu.global.u32 %r6, [%rd1+4]; setp.ne.s32 %p2, %r6, %r2; @%p2 bra WAIT;\n\
    MEET: bar.sync 0; @%p1 bra DONE;\n\
    ld.global.u32 %r7, [%rd1]; mad.lo.s32 %r7, %r7, 3, %r2; st.global.u32 [%rd1], %r7;\n\
    add.s32 %r8, %r2, 1; st.release.gpu.global.u32 [%rd1+4], %r8;\nDONE:";

#[test]
fn blocks_take_turns_by_a_semaphore() {
    let words = clean(1, 7, 64, TURNS);
    assert_eq!(words[..2], [(0..7).fold(0, |x, n| x * 3 + n), 7]);
    // The same by atomic operations.
    let atomic = TURNS.replace("ld.acquire.gpu.global.u32 %r6, [%rd1+4]", "atom.acquire.gpu.global.add.u32 %r6, [%rd1+4], 0");
    let atomic = atomic.replace("st.release.gpu.global.u32 [%rd1+4], %r8", "red.release.gpu.global.add.u32 [%rd1+4], 1");
    assert_eq!(clean(1, 7, 64, &atomic), words);
}

#[test]
fn a_turn_that_nobody_passes_is_a_deadlock() {
    let kept = TURNS.replace("st.release.gpu.global.u32 [%rd1+4], %r8;", "");
    let (kinds, text) = faults(1, 4, 64, &kept);
    assert_eq!(kinds, [FindingKind::Deadlock]);
    assert!(text.contains("`ld.acquire.gpu.global.u32`") && text.contains("block (1, 0, 0)"), "{text}");
    assert!(text.contains("for another value than 0, which no block that runs will write"), "{text}");
    assert!(text.contains("warp 1 waits at barrier 0"), "{text}");
    // The last block begins, all others wait for it: with one thread it never does.
    let backward = TURNS.replace("setp.ne.s32 %p2, %r6, %r2", "sub.s32 %r9, 3, %r2; setp.ne.s32 %p2, %r6, %r9");
    let mut options = Options::default();
    options.parallel = false;
    let (findings, _) = run_with(1, 4, 64, &backward, &options);
    assert!(findings.iter().any(|f| f.kind == FindingKind::Deadlock), "{findings:?}");
}

#[test]
fn a_value_that_is_read_again_without_waiting_is_no_wait() {
    // The same word is read twice by one instruction; the thread then goes on by itself.
    let body = "mov.u32 %r6, 0;\nAGAIN: ld.volatile.global.u32 %r7, [%rd1+4]; add.s32 %r6, %r6, 1; st.global.u32 [%rd2+256], %r6;\n\
        setp.lt.s32 %p1, %r6, 3; @%p1 bra AGAIN;";
    assert_eq!(clean(1, 1, 32, body)[64], 3);
}

#[test]
fn special_registers_of_clusters() {
    let body = |name: &str| format!("mov.u32 %r9, {name}; st.global.u32 [%rd2], %r9;");
    let by_block = |name: &str| -> Vec<u32> { clean(4, 8, 32, &body(name)).chunks(64).take(8).map(|b| b[0]).collect() };
    assert_eq!(by_block("%cluster_ctarank"), [0, 1, 2, 3, 0, 1, 2, 3]);
    assert_eq!(by_block("%cluster_ctaid.x"), [0, 1, 2, 3, 0, 1, 2, 3]);
    assert_eq!(by_block("%cluster_nctarank"), [4; 8]);
    assert_eq!(by_block("%cluster_nctaid.x"), [4; 8]);
    assert_eq!(by_block("%cluster_nctaid.y"), [1; 8]);
    assert_eq!(by_block("%clusterid.x"), [0, 0, 0, 0, 1, 1, 1, 1]);
    assert_eq!(by_block("%nclusterid.x"), [2; 8]);
    assert_eq!(by_block("%ctaid.x"), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(by_block("%warpid"), [0; 8]);
    // One block by itself is a cluster of one.
    assert_eq!(clean(1, 2, 32, &body("%cluster_nctarank"))[64], 1);
}

/// Every thread writes its word of shared memory, and reads that of the next block.
const NEIGHBOUR: &str = "mov.u32 %r6, %cluster_ctarank; mad.lo.s32 %r7, %r6, 100, %r1; st.shared.u32 [%r4], %r7;\n\
    barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n.loc 1 20 1\n\
    add.s32 %r6, %r6, 1; rem.u32 %r6, %r6, 4; mapa.shared::cluster.u32 %r8, %r4, %r6;\n\
    ld.shared::cluster.u32 %r9, [%r8]; st.global.u32 [%rd2], %r9;\n.loc 1 30 1\n\
    barrier.cluster.arrive; barrier.cluster.wait;";

fn neighbours() -> Vec<u32> {
    (0..8).flat_map(|block| (0..64).map(move |thread| (block + 1) % 4 * 100 + thread)).collect()
}

#[test]
fn blocks_of_a_cluster_read_each_other() {
    assert_eq!(clean(4, 8, 64, NEIGHBOUR)[..512], neighbours());
    // Through generic addresses, and the rank of an address.
    let generic = NEIGHBOUR
        .replace(
            "mapa.shared::cluster.u32 %r8, %r4, %r6;",
            "cvt.u64.u32 %rd4, %r4; cvta.shared.u64 %rd4, %rd4; mapa.u64 %rd5, %rd4, %r6;",
        )
        .replace("ld.shared::cluster.u32 %r9, [%r8];", "ld.u32 %r9, [%rd5]; getctarank.u64 %r10, %rd5; sub.s32 %r9, %r9, %r10;");
    let less: Vec<u32> = neighbours().iter().map(|n| n - n / 100).collect();
    assert_eq!(clean(4, 8, 64, &generic)[..512], less);
    let rank = NEIGHBOUR.replace("ld.shared::cluster.u32 %r9, [%r8];", "getctarank.shared::cluster.u32 %r9, %r8;");
    let ranks: Vec<u32> = neighbours().iter().map(|n| n / 100).collect();
    assert_eq!(clean(4, 8, 64, &rank)[..512], ranks);
}

#[test]
fn blocks_of_a_cluster_write_to_each_other() {
    let body = "mov.u32 %r6, %cluster_ctarank; xor.b32 %r7, %r6, 1; mapa.shared::cluster.u32 %r8, %r4, %r7;\n\
        mad.lo.s32 %r9, %r6, 100, %r1; st.shared::cluster.u32 [%r8], %r9;\n\
        barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned; ld.shared.u32 %r9, [%r4]; st.global.u32 [%rd2], %r9;";
    let words = clean(2, 4, 32, body);
    assert_eq!([words[0], words[31], words[64], words[128]], [100, 131, 0, 100]);
}

#[test]
fn a_read_of_another_block_without_a_barrier_is_a_race() {
    let first = "barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n.loc 1 20 1";
    let (kinds, text) = faults(4, 4, 32, &NEIGHBOUR.replace(first, ".loc 1 20 1"));
    // Whoever is first reads what is not there yet.
    assert!(kinds.contains(&FindingKind::Race) || kinds.contains(&FindingKind::Uninitialised), "{kinds:?} {text}");
    let (kinds, text) = faults(4, 4, 32, &NEIGHBOUR.replace(first, "bar.sync 0;\n.loc 1 20 1"));
    assert!(kinds.contains(&FindingKind::Race), "{kinds:?} {text}");
    assert!(text.contains("of rank"), "{text}");
    // An arrival that releases nothing orders nothing.
    let (kinds, _) = faults(4, 4, 32, &NEIGHBOUR.replace("arrive.release.aligned", "arrive.relaxed.aligned"));
    assert_eq!(kinds, [FindingKind::Race]);
    // Written again while the others may still read.
    let last = "barrier.cluster.arrive; barrier.cluster.wait;";
    let (kinds, _) = faults(4, 4, 32, &NEIGHBOUR.replace(last, &format!("st.shared.u32 [%r4], %r1; {last}")));
    assert_eq!(kinds, [FindingKind::Race]);
}

#[test]
fn a_block_that_has_ended_has_no_shared_memory() {
    let mut options = Options::default();
    options.order = Order::Forward;
    let (findings, _) = run_with(4, 4, 32, &NEIGHBOUR.replace("barrier.cluster.arrive; barrier.cluster.wait;", ""), &options);
    let ended = findings.iter().find(|f| f.kind == FindingKind::OutOfBounds).expect("block 2 reads block 3");
    assert!(ended.detail.contains("the block of rank 3 has ended"), "{ended}");
    assert_eq!((ended.block, ended.party.rank), ([2, 0, 0], Some(2)));
}

#[test]
fn barriers_of_clusters_are_used_in_turn() {
    let (kinds, text) = faults(2, 2, 32, "barrier.cluster.arrive; barrier.cluster.arrive; barrier.cluster.wait;");
    assert_eq!(kinds, [FindingKind::PhaseMisuse]);
    assert!(text.contains("arrives again before it has waited"), "{text}");
    assert_eq!(faults(2, 2, 32, "barrier.cluster.wait;").0, [FindingKind::PhaseMisuse]);
    // A block that ends is waited for by nobody; one that waits for something else is.
    clean(2, 2, 32, "setp.eq.s32 %p1, %r2, 0; @%p1 bra DONE; barrier.cluster.arrive; barrier.cluster.wait;\nDONE:");
    let stuck = "setp.eq.s32 %p1, %r2, 0; @%p1 bra A; barrier.cluster.arrive; barrier.cluster.wait; bra DONE;\n\
        A: bar.sync 1, 64;\nDONE:";
    let (kinds, text) = faults(2, 2, 32, stuck);
    assert_eq!(kinds, [FindingKind::Deadlock]);
    assert!(text.contains("waits at the barrier of the cluster"), "{text}");
    assert_eq!(faults(2, 2, 32, "mapa.shared::cluster.u32 %r8, %r4, 2;").0, [FindingKind::IllegalOperand]);
}

#[test]
fn a_grid_is_a_whole_number_of_clusters() {
    let text = ".version 9.0\n.target sm_90a\n.address_size 64\n.visible .entry k()\n.reqnctapercluster 4\n{ ret; }";
    let module = Module::load(text).expect("loads");
    let launch = Launch { grid: [6, 1, 1], block: [32, 1, 1], shared_bytes: 0, parameters: vec![], pending: vec![] };
    let error = module.kernel("k").expect("is there").launch(&GlobalMemory::new(), &launch, &Options::default());
    let Err(LaunchError::Shape(why)) = error else { panic!("{error:?}") };
    assert!(why.starts_with("clusters of [4, 1, 1] blocks in a grid of [6, 1, 1]"), "{why}");
}
