//! What single knobs change in a plan, and where they are refused.

use flashtile::Kernel;
use flashtile_codegen::{
    Arch, Facts, Instance, Mended, RunningMax, Schedule, Summary, TileLoads, check, plans, space, with_first_maximum,
};
use flashtile_dsl::ir::{Binding, Elem, SourceText};

const CAUSAL: &str = include_str!("../../runtime/kernels/causal_attention.rs");
const WINDOW: &str = include_str!("../../runtime/kernels/sliding_window.rs");
const DOCUMENT: &str = include_str!("../../runtime/kernels/document_attention.rs");
const MATMUL: &str = include_str!("../../runtime/kernels/matmul_gelu.rs");
const WGMMA: &str =
    "tensor_op=wgmma,copy=tma,block_m=128,warps=8,block_n=64,persistent=static,min_blocks=1,producer_registers=40";

fn hopper() -> &'static Arch {
    Arch::named("sm_90a").expect("in the table")
}

fn instance(text: &str, head_dim: i64) -> Instance {
    let source = SourceText { name: "kernel.rs".into(), text: text.into(), first_line: 1 };
    let kernel = flashtile_dsl::syntax::parse(&source).unwrap_or_else(|errors| panic!("{errors}")).remove(0);
    let binding = Binding::new(&kernel, Elem::Bf16, kernel.size_named("D").map(|_| ("D", head_dim)));
    Instance { facts: Facts::best(&kernel), kernel, binding }
}

fn schedule(knobs: &str) -> Schedule {
    format!("{WGMMA},{knobs}").parse().unwrap_or_else(|error| panic!("{knobs}: {error}"))
}

/// The slots of the rings of K and of V.
fn rings(knobs: &str) -> [u32; 2] {
    let plans = plans(&instance(CAUSAL, 64), &schedule(knobs), hopper()).unwrap_or_else(|error| panic!("{knobs}: {error}"));
    ["k", "v"].map(|name| {
        let tile = plans[0].tiles.iter().find(|tile| tile.name.starts_with(name));
        tile.unwrap_or_else(|| panic!("no tile {name} in {:?}", plans[0].tiles)).slots
    })
}

#[test]
fn v_has_as_many_slots_as_v_stages_says() {
    assert_eq!(rings("stages=3"), [3, 3]);
    assert_eq!(rings("stages=3,v_stages=2"), [3, 2]);
    assert_eq!(rings("stages=2,v_stages=3"), [2, 3]);
    assert_eq!(rings("stages=2,v_stages=1"), [2, 1]);
}

#[test]
fn plans_with_two_lengths_of_rings_are_right_in_every_form_of_a_step() {
    for overlap in ["off", "on"] {
        for maximum in ["exact", "max_first", "optimistic"] {
            for (stages, v_stages) in [(1, 2), (2, 1), (3, 1), (3, 2), (2, 4)] {
                for (turns, walk) in [("off", "descending"), ("products", "last_first")] {
                    let knobs = format!(
                        "stages={stages},v_stages={v_stages},overlap={overlap},running_max={maximum},ping_pong={turns},walk={walk}"
                    );
                    let reasons = check(&instance(CAUSAL, 64), &schedule(&knobs), hopper()).reasons;
                    assert_eq!(reasons, [], "{knobs}");
                }
            }
        }
    }
}

/// The statements of the consumers, with those that they hold, as text.
fn consumers(knobs: &str) -> String {
    let plans = plans(&instance(CAUSAL, 64), &schedule(knobs), hopper()).unwrap_or_else(|error| panic!("{knobs}: {error}"));
    format!("{:?}", plans[0].roles[1].body)
}

#[test]
fn the_maximum_of_the_first_tile_needs_no_test_in_a_step() {
    let votes = |knobs: &str| consumers(knobs).matches("guard: Vote").count();
    // One in the loop of programs that are made again, none in the other.
    assert_eq!(votes("overlap=on,stages=2,running_max=first"), votes("overlap=on,stages=2,running_max=max_first"));
    assert_eq!(consumers("overlap=on,stages=2,running_max=first").matches("MakeAgain").count(), 1);
    assert_eq!(consumers("overlap=on,stages=2,running_max=max_first").matches("MakeAgain").count(), 0);
}

#[test]
fn the_maximum_of_the_first_tile_is_refused_where_nothing_could_be_made_again() {
    let told = |knobs: &str| {
        let reasons = check(&instance(CAUSAL, 64), &schedule(&format!("stages=2,running_max=first,{knobs}")), hopper()).reasons;
        reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    };
    assert_eq!(told("overlap=on"), "");
    assert_eq!(told("overlap=late,persistent=dynamic"), "");
    assert!(told("overlap=off").contains("running_max=first takes overlap=on or late"), "{}", told("overlap=off"));
    assert!(told("overlap=on,persistent=off").contains("running_max=first takes persistent=static or dynamic"));
    let warps = "stages=2,running_max=first".parse::<Schedule>().expect("a schedule");
    let reasons = check(&instance(CAUSAL, 64), &warps, hopper()).reasons;
    assert!(reasons.iter().any(|reason| reason.to_string().contains("running_max=first takes tensor_op=wgmma")), "{reasons:?}");
}

/// Beside schedules with a lane-wise maximum that it goes with, and where P has room.
#[test]
fn tuners_try_the_maximum_of_the_first_tile_where_p_has_room() {
    let mut instance = instance(CAUSAL, 64);
    let tall = "block_m=192,block_n=64,warps=12,stages=2,overlap=on,producer_registers=32";
    let legal = ["max_first", "optimistic", "max_first,persistent=off", "max_first,overlap=off"]
        .map(|form| schedule(&format!("{tall},running_max={form}")));
    let found = with_first_maximum(&instance, legal.iter());
    let rows: Vec<u32> = found.iter().map(|schedule| schedule.main.block_m).collect();
    assert_eq!(rows, [192, 256], "of the first alone, and its taller tile");
    for schedule in &found {
        assert_eq!(schedule.main.running_max, RunningMax::First);
        assert_eq!(check(&instance, schedule, hopper()).reasons, [], "{schedule}");
    }
    let elem = instance.binding.types.values_mut().next().expect("a type");
    *elem = Elem::F16;
    assert_eq!(with_first_maximum(&instance, legal.iter()), []);
}

/// The first tile of a window shows the last rows of a tile nothing, and that of a document those of
/// the next one: nearly all programs would be made twice.
#[test]
fn tuners_leave_the_maximum_of_the_first_tile_where_rows_begin_at_keys_of_their_own() {
    let legal = [schedule("block_m=192,block_n=64,warps=12,stages=2,overlap=on,producer_registers=32,running_max=max_first")];
    for (text, tried) in [(CAUSAL, 2), (include_str!("../../runtime/kernels/prefix_attention.rs"), 2), (WINDOW, 0), (DOCUMENT, 0)]
    {
        let found = with_first_maximum(&instance(text, 64), legal.iter());
        assert_eq!(found.len(), tried, "{}", instance(text, 64).kernel.name);
    }
}

/// What the knob is for: at wide heads a slot of V less is what makes a schedule fit.
#[test]
fn a_shorter_ring_of_v_frees_shared_memory_at_wide_heads() {
    let of = |knobs: &str| check(&instance(CAUSAL, 256), &schedule(&format!("block_n=96,{knobs}")), hopper());
    let (all, fewer) = (of("stages=2"), of("stages=2,v_stages=1"));
    assert!(fewer.is_legal(), "{}", Summary::of(&fewer.reasons));
    assert!(!all.is_legal() && all.reasons[0].mended() == Mended::BySeveral, "{:?}", all.reasons);
}

/// A bias comes through a ring in all schedules that are tried, and programs of all batches may
/// follow each other.
#[test]
fn tiles_of_elementwise_work_come_through_rings() {
    let with_bias = instance(include_str!("../../runtime/kernels/bias_attention.rs"), 128);
    let tried: Vec<Schedule> = space(&with_bias, hopper());
    let wgmma: Vec<&Schedule> = tried.iter().filter(|s| s.main.tensor_op.is_asynchronous()).collect();
    assert!(!wgmma.is_empty() && wgmma.iter().all(|s| s.main.tile_loads == TileLoads::Tma));
    assert!(wgmma.iter().any(|s| s.main.share_tiles) && wgmma.iter().any(|s| !s.main.share_tiles));
    let told =
        |text: &str, knobs: &str| Summary::all(&check(&instance(text, 64), &schedule(knobs), hopper()).reasons).to_string();
    assert_eq!(
        told(CAUSAL, "tile_loads=tma"),
        "tile_loads=tma needs a loop that loads tiles of 16-bit numbers, with the rows of the program and aligned to 16 bytes, for its elementwise work"
    );
    assert_eq!(told(CAUSAL, "share_tiles=on"), "share_tiles=on needs programs that read the same tiles of elementwise work");
    let bias = include_str!("../../runtime/kernels/bias_attention.rs");
    assert!(told(bias, "column_groups=2,tile_loads=tma,overlap=off").contains("tile_loads=tma takes column_groups=1"));
    // A number for each key is no tile, and one of 32 bits is none that TMA fills rows of.
    let of_f32 = bias.replace("bias: &Tensor<T,", "bias: &Tensor<f32,");
    assert!(told(&of_f32, "tile_loads=tma").contains("tiles of 16-bit numbers"));
    assert_eq!(told(&of_f32, "share_tiles=on"), "");
    // Columns of a gradient read the tile by its columns.
    let gradient = Kernel::builtin("bias_attention").expect("a built-in").gradient(&["q", "k", "v"], &["o"]).expect("has one");
    let [rows, columns] = &gradient.backward[..] else { panic!("rows and columns") };
    for text in [rows.text(), columns.text()] {
        assert_eq!(told(text, "tile_loads=tma"), "");
        let of_f32 = text.replace("bias: &Tensor<T,", "bias: &Tensor<f32,");
        assert!(told(&of_f32, "tile_loads=tma").contains("tiles of 16-bit numbers"));
        // TMA takes five dimensions. What has more is loaded as it lies, with `wgmma` all the same.
        let of_six = text.replace("bias: &Tensor<T, (H, M, N)>", "bias: &Tensor<T, (1, 1, 1, H, M, N)>");
        let of_six = instance(&of_six.replace("load(bias, [h, i, j])", "load(bias, [0, 0, 0, h, i, j])"), 64);
        let direct =
            |schedule: &Schedule| schedule.main.tile_loads == TileLoads::Direct && check(&of_six, schedule, hopper()).is_legal();
        assert!(space(&of_six, hopper()).iter().filter(|s| s.main.tensor_op.is_asynchronous()).any(direct));
    }
}

#[test]
fn v_stages_is_refused_where_there_is_no_such_ring() {
    let told =
        |text: &str, schedule: &Schedule| Summary::all(&check(&instance(text, 64), schedule, hopper()).reasons).to_string();
    let product = told(MATMUL, &schedule("block_k=64,v_stages=2"));
    assert_eq!(product, "v_stages needs a loop with two products or more, one of which alone reads a streamed tile");
    let warp: Schedule = "v_stages=2".parse().expect("a schedule");
    assert_eq!(told(CAUSAL, &warp), "v_stages=2 takes tensor_op=wgmma");
    assert_eq!(told(CAUSAL, &schedule("v_stages=9")), "v_stages=9 is not between 0 and 8");
}

#[test]
fn sum_lag_is_refused_where_nothing_is_added() {
    let told = |knobs: &str| Summary::all(&check(&instance(CAUSAL, 64), &schedule(knobs), hopper()).reasons).to_string();
    assert!(told("overlap=late,sum_lag=0").contains("sum_lag=0 needs an output that a product is added to"));
    assert!(told("overlap=on,sum_lag=0").contains("sum_lag=0 takes overlap=late"));
    assert!(told("overlap=late,sum_lag=2").contains("sum_lag=2 is not between 0 and 1"));
}
