//! Masks over integers that are loaded for each key: tiles are skipped by summaries of them, and
//! the result is as without, whatever the integers are. Needs NVRTC, no GPU.

use flashtile::toolchain::Toolchain;
use flashtile::{AnyTensor, Arch, Argument, Device, Elem, Kernel, LaunchOptions, Schedule};
use flashtile_codegen::generate;
use flashtile_dsl::ir::SourceText;

/// How many keys each query sees.
const COUNT: &str = "pub fn count(
    own: &Tensor<i32, (B, M)>, of: &Tensor<i32, (B, N)>, since: &Tensor<i32, (N, B)>, seen: &mut Tensor<f32, (B, M)>,
) {
    let (b, i) = program(B, tiles(M));
    let mut sum = zeros(i);
    for j in tiles(N) {
        let s = mask(zeros((i, j)), KEEP);
        sum += rowsum(exp(s));
    }
    store(seen, [b, i], sum);
}";

const ROWS: usize = 40;
/// More than a warp looks at in one step, at 16 a tile.
const COLUMNS: usize = 1100;
const BATCHES: usize = 2;

fn kernel(keep: &str) -> Kernel {
    let source = SourceText { name: "count.rs".into(), text: COUNT.replace("KEEP", keep).into(), first_line: 1 };
    Kernel::from_source(&source).unwrap_or_else(|error| panic!("{error}")).remove(0)
}

/// The counts on the emulator.
fn counts(keep: &str, schedule: &str, arch: &str, inputs: &[(Vec<usize>, Vec<i32>)]) -> Vec<f32> {
    let device = Device::emulator();
    let schedule: Schedule = format!("defaults,{schedule}").parse().expect("a schedule");
    let options = LaunchOptions {
        toolchain: Toolchain::shared(),
        arch: Arch::named(arch),
        schedule: Some(schedule),
        ..LaunchOptions::default()
    };
    let bound = kernel(keep).bind(Elem::F32, Vec::<(String, i64)>::new()).expect("binds");
    let loaded = bound.on_with(&device, options).unwrap_or_else(|e| panic!("{keep}: {e}"));
    let bytes = |data: &[i32]| data.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let tensor = |(shape, data): &(Vec<usize>, Vec<i32>)| AnyTensor::from_bytes(&device, Elem::I32, shape, &bytes(data));
    let inputs: Vec<AnyTensor> = inputs.iter().map(|input| tensor(input).expect("fits")).collect();
    let output = AnyTensor::zeros(&device, Elem::F32, &[BATCHES, ROWS]).expect("fits");
    let mut arguments: Vec<Argument<'_>> = inputs.iter().map(Argument::from).collect();
    arguments.push(Argument::Output(&output));
    loaded.launch(&arguments).unwrap_or_else(|error| panic!("{keep}: {error}"));
    let bytes = output.to_bytes().expect("is read");
    bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().expect("four bytes"))).collect()
}

/// Integers of keys: in order, in runs that begin again, in no order, and the ends of their type.
fn integers(kind: usize, count: usize) -> Vec<i32> {
    let wild = [i32::MIN, -1, 0, 3, i32::MAX];
    let of = |at: usize| match kind {
        0 => at as i32 * 9 / count as i32,
        1 => (at / 300 % 3) as i32,
        2 => (at * 7919 % 10) as i32,
        _ => wild[at / 5 % wild.len()],
    };
    (0..count).map(of).collect()
}

#[test]
fn counts_are_right_whatever_the_integers_are() {
    type Keep = fn(i64, i64, i64, i64) -> bool;
    let cases: [(&str, Keep); 4] = [
        ("load(own, [b, i]) == load(of, [b, j]) && pos(i) >= load(since, [j, b])", |i, own, of, since| own == of && i >= since),
        ("load(own, [b, i]) == load(of, [b, j]) || load(since, [j, b]) < 2", |_, own, of, since| own == of || since < 2),
        ("load(of, [b, j]) / 2 <= load(own, [b, i]) && load(since, [j, b]) != 1", |_, own, of, since| {
            of.div_euclid(2) <= own && since != 1
        }),
        ("!(load(own, [b, i]) != load(of, [b, j])) && load(since, [j, b]) >= 0", |_, own, of, since| own == of && since >= 0),
    ];
    for (n, (keep, formula)) in cases.into_iter().enumerate() {
        for kind in 0..4 {
            let own = integers(kind, BATCHES * ROWS);
            let of: Vec<i32> = (0..BATCHES).flat_map(|b| integers((kind + b) % 4, COLUMNS)).collect();
            let since = integers((kind + n) % 4, COLUMNS * BATCHES);
            let inputs = [
                (vec![BATCHES, ROWS], own.clone()),
                (vec![BATCHES, COLUMNS], of.clone()),
                (vec![COLUMNS, BATCHES], since.clone()),
            ];
            let wanted: Vec<f32> = (0..BATCHES * ROWS)
                .map(|row| {
                    let (b, i) = (row / ROWS, row % ROWS);
                    let kept = |j: &usize| {
                        let (of, since) = (of[b * COLUMNS + j], since[j * BATCHES + b]);
                        formula(i as i64, own[row].into(), of.into(), since.into())
                    };
                    (0..COLUMNS).filter(kept).count() as f32
                })
                .collect();
            let arch = ["sm_80", "sm_90a"][kind % 2];
            for block_n in [16, 64] {
                let schedule = format!("tensor_op=ffma,block_m=16,warps=1,block_n={block_n},summaries=on");
                let found = counts(keep, &schedule, arch, &inputs);
                assert_eq!(found, wanted, "{keep}, integers {kind}, {schedule} on {arch}");
            }
        }
    }
}

#[test]
fn code_searches_summaries_where_the_schedule_has_them() {
    let bound = kernel("load(own, [b, i]) == load(of, [b, j]) && load(since, [j, b]) > 0")
        .bind(Elem::F32, Vec::<(String, i64)>::new())
        .expect("binds");
    let instance = bound.instance(flashtile::Facts::none());
    let code = |schedule: &str| {
        let schedule: Schedule = format!("defaults,tensor_op=ffma,copy=sync,{schedule}").parse().expect("a schedule");
        generate(&instance, &schedule, Arch::named("sm_80").expect("in the table")).expect("is legal")
    };
    let [with, without] = ["summaries=on", "summaries=off"].map(code);
    // A launch ahead for `of`, and one for `since`.
    assert_eq!([with.launches.len(), without.launches.len()], [3, 1]);
    assert!(with.source.contains("tiles_meeting(") && !without.source.contains("tiles_meeting("));
    // What walks no positions has nothing to summarise.
    let plain = kernel("pos(i) >= pos(j) && load(own, [b, i]) > 0 && load(of, [b, 0]) == load(since, [0, b])");
    let plain = plain.bind(Elem::F32, Vec::<(String, i64)>::new()).expect("binds").instance(flashtile::Facts::none());
    assert!(flashtile_codegen::why_not_summarise(&plain).is_some());
}
