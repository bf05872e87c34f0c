//! Masks over what is loaded for single positions: tiles are skipped by lists of those that masks
//! leave anything of, and the result is as without, whatever is loaded. Needs NVRTC, no GPU.

use flashtile::toolchain::Toolchain;
use flashtile::{AnyTensor, Arch, Argument, Device, Elem, Kernel, LaunchOptions, Schedule};
use flashtile_codegen::{generate, why_not_list};
use flashtile_dsl::analysis::listed::listed;
use flashtile_dsl::ir::{Op, SourceText};

/// The sum of the weights of the keys that each query sees; `B` batches.
const COUNT: &str = "pub fn count(PARAMSweight: &Tensor<f32, (B, N)>, seen: &mut Tensor<f32, (B, M)>) {
    let (b, i) = program(B, tiles(M));
    let mut sum = zeros(i);
    for j in tiles(N) {
        let w = zeros((i, j)) + load(weight, [b, j]);
        SUMS
    }
    store(seen, [b, i], sum);
}";

/// What masks may read; a kernel has what its text names.
const PARAMS: [(&str, &str); 5] = [
    ("keep", "&Tensor<bool, (B, M, N)>"),
    ("blocks", "&Tensor<bool, (B, R, C)>"),
    ("keys", "&Tensor<bool, (B, N)>"),
    ("table", "&Tensor<i32, (B, T)>"),
    ("limit", "i32"),
];

fn named(sums: &str) -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    PARAMS.iter().filter(move |(name, _)| sums.contains(&format!("load({name}, ")) || *name == "limit" && sums.contains(name))
}

const ROWS: usize = 72;
/// More tiles than a warp looks at in one step, at 16 a tile.
const COLUMNS: usize = 600;
const BATCHES: usize = 2;
const BLOCK: usize = 24;
const TABLE: usize = 50;
const LIMIT: i32 = 3;

fn kernel(sums: &str) -> Kernel {
    let params: String = named(sums).map(|(name, ty)| format!("{name}: {ty}, ")).collect();
    let text = COUNT.replace("SUMS", sums).replace("PARAMS", &params);
    let source = SourceText { name: "count.rs".into(), text: text.into(), first_line: 1 };
    Kernel::from_source(&source).unwrap_or_else(|error| panic!("{error}")).remove(0)
}

/// What masks load.
struct Inputs {
    keep: Vec<bool>,
    blocks: Vec<bool>,
    keys: Vec<bool>,
    table: Vec<i32>,
}

impl Inputs {
    /// Truth values in runs of so many, of which `share` in 16 are true.
    fn new(seed: usize, run: usize, share: usize) -> Self {
        let truth = |n: usize| (n / run * 7919 + seed * 104_729 + n / run / 5 * 31) % 16 < share;
        let truths = |n: usize, from: usize| (0..n).map(|at| truth(at + from)).collect();
        Self {
            keep: truths(BATCHES * ROWS * COLUMNS, 0),
            blocks: truths(BATCHES * ROWS.div_ceil(BLOCK) * COLUMNS.div_ceil(BLOCK), 11),
            keys: truths(BATCHES * COLUMNS, 5),
            table: (0..BATCHES * TABLE).map(|at| ((at + seed) * 31 % 7) as i32).collect(),
        }
    }
}

fn sums(text: &str, schedule: &str, arch: &str, inputs: &Inputs) -> Vec<f32> {
    sums_of(text, schedule, arch, inputs, &weight)
}

/// The sums on the emulator.
fn sums_of(text: &str, schedule: &str, arch: &str, inputs: &Inputs, weight: &dyn Fn(usize) -> f32) -> Vec<f32> {
    let device = Device::emulator();
    let schedule: Schedule = format!("defaults,{schedule}").parse().expect("a schedule");
    let options = LaunchOptions {
        toolchain: Toolchain::shared(),
        arch: Arch::named(arch),
        schedule: Some(schedule),
        ..LaunchOptions::default()
    };
    let bound = kernel(text).bind(Elem::F32, Vec::<(String, i64)>::new()).expect("binds");
    let loaded = bound.on_with(&device, options).unwrap_or_else(|e| panic!("{text}: {e}"));
    let truths = |data: &[bool]| data.iter().map(|&x| u8::from(x)).collect::<Vec<u8>>();
    let tensor = |elem, shape: &[usize], bytes: &[u8]| AnyTensor::from_bytes(&device, elem, shape, bytes).expect("fits");
    let (rows, columns) = (ROWS.div_ceil(BLOCK), COLUMNS.div_ceil(BLOCK));
    let weights: Vec<u8> = (0..BATCHES * COLUMNS).flat_map(|at| weight(at).to_le_bytes()).collect();
    let table: Vec<u8> = inputs.table.iter().flat_map(|x| x.to_le_bytes()).collect();
    let given = [
        ("keep", tensor(Elem::Bool, &[BATCHES, ROWS, COLUMNS], &truths(&inputs.keep))),
        ("blocks", tensor(Elem::Bool, &[BATCHES, rows, columns], &truths(&inputs.blocks))),
        ("keys", tensor(Elem::Bool, &[BATCHES, COLUMNS], &truths(&inputs.keys))),
        ("table", tensor(Elem::I32, &[BATCHES, TABLE], &table)),
        ("weight", tensor(Elem::F32, &[BATCHES, COLUMNS], &weights)),
    ];
    let output = AnyTensor::zeros(&device, Elem::F32, &[BATCHES, ROWS]).expect("fits");
    let argument = |name: &str| match name {
        "limit" => Argument::from(LIMIT),
        name => given.iter().find(|(other, _)| *other == name).map(|(_, tensor)| Argument::from(tensor)).expect("given"),
    };
    let mut arguments: Vec<Argument<'_>> = named(text).map(|(name, _)| argument(name)).collect();
    arguments.push(argument("weight"));
    arguments.push(Argument::Output(&output));
    loaded.launch(&arguments).unwrap_or_else(|error| panic!("{text}: {error}"));
    let bytes = output.to_bytes().expect("is read");
    bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().expect("four bytes"))).collect()
}

/// A small integer, so that sums are exact.
fn weight(at: usize) -> f32 {
    (at * 13 % 11) as f32
}

/// Which elements a sum takes, of `(inputs, batch, row, column)`.
type Keep = fn(&Inputs, usize, usize, usize) -> bool;

fn keep(x: &Inputs, b: usize, i: usize, j: usize) -> bool {
    x.keep[(b * ROWS + i) * COLUMNS + j]
}

fn block(x: &Inputs, b: usize, i: usize, j: usize) -> bool {
    x.blocks[(b * ROWS.div_ceil(BLOCK) + i / BLOCK) * COLUMNS.div_ceil(BLOCK) + j / BLOCK]
}

fn looked_up(x: &Inputs, b: usize, at: i64) -> i32 {
    x.table[b * TABLE + at.clamp(0, TABLE as i64 - 1) as usize]
}

const BLOCKS: &str = "load(blocks, [b, pos(i) / 24, pos(j) / 24])";

const MASKED: &str = "sum += rowsum(exp(mask(w, KEEP)));";

#[test]
fn sums_are_right_whatever_is_listed() {
    let one = |keep: &str| format!("sum += rowsum(exp(mask(zeros((i, j)), {keep})) * w);");
    let cases: [(String, Keep); 8] = [
        (one("load(keep, [b, i, j])"), keep),
        (one("load(blocks, [b, pos(i) / 24, pos(j) / 24])"), block),
        (one("load(blocks, [b, pos(i) / 24, pos(j) / 24]) && pos(i) * 8 >= pos(j)"), |x, b, i, j| {
            block(x, b, i, j) && i * 8 >= j
        }),
        // Blocks that are seen in part, and as a whole.
        (one(&format!("{BLOCKS} && (load(keys, [b, pos(j) / 24]) || pos(i) * 8 >= pos(j))")), |x, b, i, j| {
            block(x, b, i, j) && (x.keys[b * COLUMNS + j / BLOCK] || i * 8 >= j)
        }),
        // Columns alone; lists are those of a batch.
        (one("load(keys, [b, pos(j) - 7]) && pos(j) > 20"), |x, b, _, j| j > 20 && x.keys[b * COLUMNS + j - 7]),
        (one("load(table, [b, pos(j) - pos(i) - 5]) < limit"), |x, b, i, j| looked_up(x, b, j as i64 - i as i64 - 5) < LIMIT),
        (one("!load(keep, [b, i, j]) || load(blocks, [b, pos(i) / 24, pos(j) / 24])"), |x, b, i, j| {
            !keep(x, b, i, j) || block(x, b, i, j)
        }),
        // Two masks, each of which hides a tile alone.
        (
            "let s = mask(zeros((i, j)), load(keys, [b, j])); \
             sum += rowsum(exp(mask(s, load(blocks, [b, pos(i) / 24, pos(j) / 24]))) * w);"
                .to_owned(),
            |x, b, i, j| block(x, b, i, j) && x.keys[b * COLUMNS + j],
        ),
    ];
    for (n, (text, formula)) in cases.iter().enumerate() {
        for (seed, (run, share)) in [(1, 8), (70, 3), (200, 15), (1, 0), (1, 16)].into_iter().enumerate() {
            let inputs = Inputs::new(seed + n, run, share);
            let wanted: Vec<f32> = (0..BATCHES * ROWS)
                .map(|row| {
                    let (b, i) = (row / ROWS, row % ROWS);
                    (0..COLUMNS).filter(|&j| formula(&inputs, b, i, j)).map(|j| weight(b * COLUMNS + j)).sum()
                })
                .collect();
            let arch = ["sm_80", "sm_90a"][(seed + n) % 2];
            let walk = ["ascending", "descending"][seed % 2];
            for (block_n, block_m, split) in [(16, 16, 1), (64, 32, 3)] {
                let schedule = format!(
                    "tensor_op=ffma,block_m={block_m},warps=1,block_n={block_n},summaries=listed,walk={walk},split_k={split}"
                );
                let found = sums(text, &schedule, arch, &inputs);
                assert_eq!(found, wanted, "{text}, truths {seed}, {schedule} on {arch}");
            }
        }
    }
}

#[test]
fn what_is_not_listed_is_not_read() {
    // Columns that no row of some blocks sees hold NaN.
    let text = "sum += rowsum(exp(mask(zeros((i, j)), load(blocks, [b, pos(i) / 24, pos(j) / 24]))) * w);";
    let inputs = Inputs { blocks: vec![false; BATCHES * ROWS.div_ceil(BLOCK) * COLUMNS.div_ceil(BLOCK)], ..Inputs::new(1, 1, 8) };
    let of = |summaries: &str, poisoned: bool| {
        let schedule = format!("tensor_op=ffma,block_m=16,warps=1,block_n=16,summaries={summaries}");
        sums_of(text, &schedule, "sm_80", &inputs, &|at| if poisoned { f32::NAN } else { weight(at) })
    };
    assert!(of("listed", true).iter().all(|&sum| sum == 0.0), "tiles that are not listed are not read");
    assert!(of("off", false).iter().all(|&sum| sum == 0.0));
}

#[test]
fn lists_are_made_where_masks_read_what_positions_of_the_loop_have() {
    let instance = |sums: &str| {
        let bound = kernel(sums).bind(Elem::F32, Vec::<(String, i64)>::new()).expect("binds");
        bound.instance(flashtile::Facts::none())
    };
    let code = |schedule: &str| {
        let schedule: Schedule = format!("defaults,tensor_op=ffma,copy=sync,{schedule}").parse().expect("a schedule");
        let sums = MASKED.replace("KEEP", "load(keep, [b, i, j])");
        generate(&instance(&sums), &schedule, Arch::named("sm_80").expect("in the table")).expect("is legal")
    };
    let [with, without] = ["summaries=listed", "summaries=off"].map(code);
    // A launch that looks at tiles, and one that lists them.
    assert_eq!([with.launches.len(), without.launches.len()], [3, 1]);
    assert!(with.source.contains("tiles_listed(") && !without.source.contains("tiles_listed("));
    for (keep, reason) in [
        ("pos(i) >= pos(j)", "reads what is loaded"),
        ("load(keep, [b, i, 0]) && pos(i) >= pos(j)", "reads what is loaded"),
        // Of what is loaded for each key the least and the largest of each tile are known.
        ("load(keys, [b, j])", "reads what is loaded"),
        ("load(keep, [b, i, j]) && w > 3.0", ""),
        ("w > 3.0 && load(keys, [b, pos(j) / 2])", ""),
        ("sum > 3.0 && load(keep, [b, i, j])", "carries"),
    ] {
        let why = why_not_list(&instance(&MASKED.replace("KEEP", keep)));
        match reason {
            "" => assert_eq!(why, None, "{keep}"),
            reason => assert!(why.as_ref().is_some_and(|why| why.contains(reason)), "{keep}: {why:?}"),
        }
    }
}

#[test]
fn blocks_are_looked_at_once_where_they_say_enough() {
    let alike = |keep: &str| {
        let kernel = kernel(&MASKED.replace("KEEP", keep));
        let ir = kernel.ir();
        let (_, walk) = ir.walk().into_iter().find(|&(_, op)| matches!(ir.ops[op].op, Op::For { .. })).expect("a loop");
        listed(ir, walk, &|_| 48, &|_| None)
            .expect("is listed")
            .map(|found| (found.alike, found.groups.len(), found.all.is_some()))
    };
    assert_eq!(alike(BLOCKS), Some(((24, 24), 1, true)));
    let whole = "load(keys, [b, pos(j) / 24])";
    for cut in ["pos(i) >= pos(j)", "load(keep, [b, i, j])", "pos(i) >= pos(j) && load(keys, [b, j])"] {
        assert_eq!(alike(&format!("{BLOCKS} && ({whole} || {cut})")), Some(((24, 24), 1, true)), "{cut}");
        // Of blocks it is known that they hide, not that they keep all: positions say more.
        assert_eq!(alike(&format!("{BLOCKS} && {cut}")), Some(((1, 1), 1, true)), "{cut}");
    }
    assert_eq!(alike(&format!("{BLOCKS} || load(keep, [b, i, j])")), Some(((1, 1), 1, true)));
}
