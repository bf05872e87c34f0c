//! Contexts of the file template and of the instruction wrappers.

use serde::Serialize;

use crate::render::{Error, Renderer, Template};

/// A device function or instruction wrapper that generated code may use. Ordered so that each comes after what it uses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Wrapper {
    /// Integer division and friends.
    Integer,
    /// Division by integers of any sign.
    IntegerSigned,
    /// The same in 64 bits.
    IntegerWide,
    /// Integers that wrap around.
    IntegerWrapping,
    /// The constant infinity.
    Infinite,
    /// 32-bit shared addresses.
    SharedAddress,
    /// 16-bit to f32.
    Widen,
    /// Types of one byte: what loads make of them, and how they are written to shared memory.
    Narrow {
        /// Whether an instruction widens fp8.
        fp8: bool,
    },
    /// The least and the largest of the integers of a warp.
    WarpExtremes {
        /// Whether one instruction finds them.
        redux: bool,
    },
    /// The least and the largest of integers in global memory.
    TileExtremes,
    /// The least and the largest integer of a block in global memory.
    BlockExtremes,
    /// Lists of the integers that are not 0.
    Nonzero,
    /// Lengths of lists of tiles.
    TilesListed,
    /// Searches over tiles by their extremes.
    Search,
    /// f32 to f16.
    NarrowF16,
    /// f32 to bf16.
    NarrowBf16,
    /// Two f32 to a register of f16.
    PackF16 {
        /// Whether one instruction converts both.
        pair_convert: bool,
    },
    /// Two f32 to a register of bf16.
    PackBf16,
    /// `ex2`.
    Ex2,
    /// `lg2`.
    Lg2,
    /// `rcp`.
    Rcp,
    /// `max.f32`.
    Fmax,
    /// The largest of three integers.
    MaxOfThree,
    /// `min.f32`.
    Fmin,
    /// `rcp` of numbers of at least 1.
    RcpNormal,
    /// tanh.
    Tanh,
    /// `tanh.approx`.
    TanhApprox,
    /// tanh to an absolute error.
    TanhAbsolute,
    /// sin and cos.
    Circle,
    /// `div.full`.
    DivFull,
    /// `visible_or_zero`.
    VisibleOrZero,
    /// `div_or_zero`.
    DivOrZero,
    /// Reductions over the lanes of a row.
    Quad,
    /// Plain shared-memory access.
    SharedAccess,
    /// `red.global.add.f32`.
    RedAdd,
    /// The same of a warp: one addition where all lanes add to one place.
    RedAddRun,
    /// Groups of bulk copies.
    BulkGroup,
    /// `cp.reduce.async.bulk.tensor` to a tensor of so many dimensions.
    TmaReduce {
        /// Dimensions.
        rank: u32,
    },
    /// 16-byte stores to global memory.
    StGlobal,
    /// Addresses within tiles.
    Tile,
    /// `ldmatrix.x2`.
    LdmatrixX2,
    /// `ldmatrix.x4`.
    LdmatrixX4,
    /// `stmatrix.x4`, of matrices that it turns or not.
    StmatrixX4 {
        /// Whether rows become columns.
        turned: bool,
    },
    /// `movmatrix`.
    Movmatrix,
    /// `fence.proxy.async`.
    ProxyFence,
    /// `mma.sync`.
    Mma {
        /// `m16n8k8` or `m16n8k16`.
        shape: &'static str,
        /// `f16` or `bf16`.
        elem: &'static str,
        /// What its name ends with: the type, where a kernel has both.
        suffix: &'static str,
    },
    /// `cp.async` and its groups.
    CpAsync {
        /// Bytes per copy: 4, 8 or 16.
        bytes: u32,
    },
    /// Tile copy through `cp.async`.
    CopyCpAsync {
        /// Bytes per copy: 4, 8 or 16.
        bytes: u32,
    },
    /// Tile copy through registers.
    CopySync {
        /// Bytes per access: 16, or 0 for element by element.
        bytes: u32,
    },
    /// `redux`, for values that are the same in every lane.
    Uniform,
    /// `mov` that stays where it is.
    Mov,
    /// `elect.sync`.
    Elect,
    /// mbarriers.
    Mbarrier,
    /// The list of programs that are made again.
    ListAgain,
    /// Named barriers.
    NamedBarrier,
    /// A named barrier with a vote.
    BarrierVote,
    /// `prefetch.tensormap`.
    PrefetchMap,
    /// `cp.async.bulk.tensor` of a tensor of so many dimensions.
    Tma {
        /// Dimensions.
        rank: u32,
    },
    /// Matrix descriptors.
    Descriptor,
    /// Groups of asynchronous products.
    WgmmaGroup,
    /// `wgmma.mma_async`.
    Wgmma {
        /// Columns.
        n: u32,
        /// Whether A is in shared memory.
        a_shared: bool,
        /// Whether it is M-major there.
        a_turned: bool,
        /// Whether the rows of B's tile are columns of the product.
        k_major: bool,
        /// `f16` or `bf16`.
        elem: &'static str,
        /// What its name ends with: the type, where a kernel has both.
        suffix: &'static str,
    },
    /// A word that says whose turn it is.
    Semaphore,
    /// Barriers and addresses of a cluster.
    Cluster,
    /// Launches that wait for the one before them.
    DependentLaunch,
    /// States in global memory.
    StateGlobal,
    /// States in the shared memory of a cluster.
    StateCluster,
    /// Two 16-bit elements to f32.
    WidenPair,
    /// Parts of the rows of tiles.
    Part,
    /// 16-byte loads of a fragment.
    LoadQuad,
    /// 4-byte loads of a fragment whose rows begin anywhere.
    LoadShifted,
    /// 4-byte loads of a fragment whose rows lie side by side.
    LoadTurned,
    /// 8-byte loads of a fragment of one-byte elements.
    LoadBytes,
    /// The same of rows that begin anywhere.
    LoadBytesShifted,
    /// Fragments of truth values, a bit for each.
    TruthBits,
    /// 8-byte loads of a fragment of truth values, as bits.
    LoadBits,
    /// The same of rows that begin anywhere.
    LoadBitsShifted,
    /// 16-byte stores of a fragment.
    StoreQuad {
        /// Packing wrapper.
        pack: &'static str,
        /// What its name ends with: the type, where a kernel has both.
        suffix: &'static str,
    },
}

#[derive(Default, Serialize)]
struct WrapperContext {
    bytes: u32,
    cache: &'static str,
    shape: &'static str,
    elem: &'static str,
    suffix: &'static str,
    pack: &'static str,
    pair_convert: bool,
    fp8: bool,
    shifted: bool,
    redux: bool,
    turned: bool,
    name: String,
    n: u32,
    a_shared: bool,
    transposed_a: u32,
    transposed_b: u32,
    flag: u32,
    operands: String,
    elements: Vec<String>,
    coordinates: Vec<Coordinate>,
}

#[derive(Serialize)]
struct Coordinate {
    name: String,
    operand: u32,
}

/// Name of the function of a [`Wrapper::Wgmma`].
///
/// Of A it is said whether it is in shared memory, and M-major there.
pub fn wgmma_name(n: u32, (a_shared, a_turned): (bool, bool), k_major: bool, suffix: &str) -> String {
    let a = match (a_shared, a_turned) {
        (true, false) => "ss",
        (true, true) => "ss_turned",
        (false, _) => "rs",
    };
    format!("wgmma_{a}_n{n}_{}{suffix}", if k_major { "k" } else { "mn" })
}

impl Wrapper {
    /// The text of the wrapper.
    pub fn render(self, renderer: &Renderer) -> Result<String, Error> {
        let mut context = WrapperContext::default();
        let name = match self {
            Wrapper::Integer => "device/integer",
            Wrapper::WarpExtremes { redux } => {
                context.redux = redux;
                "ptx/warp_extremes"
            }
            Wrapper::TileExtremes => "device/tile_extremes",
            Wrapper::BlockExtremes => "device/block_extremes",
            Wrapper::Nonzero => "device/nonzero",
            Wrapper::TilesListed => "device/tiles_listed",
            Wrapper::Search => "device/search",
            Wrapper::IntegerSigned => "device/integer_signed",
            Wrapper::IntegerWide => "device/integer_wide",
            Wrapper::IntegerWrapping => "device/integer_wrapping",
            Wrapper::Infinite => "device/infinite",
            Wrapper::SharedAddress => "ptx/shared_address",
            Wrapper::Widen => "device/widen",
            Wrapper::Narrow { fp8 } => {
                context.fp8 = fp8;
                "device/narrow"
            }
            Wrapper::NarrowF16 => "ptx/narrow_f16",
            Wrapper::NarrowBf16 => "ptx/narrow_bf16",
            Wrapper::PackF16 { pair_convert } => {
                context.pair_convert = pair_convert;
                "ptx/pack_f16"
            }
            Wrapper::PackBf16 => "ptx/pack_bf16",
            Wrapper::Ex2 => "ptx/ex2",
            Wrapper::Lg2 => "ptx/lg2",
            Wrapper::Rcp => "ptx/rcp",
            Wrapper::Fmax => "ptx/fmax",
            Wrapper::MaxOfThree => "ptx/max_of_three",
            Wrapper::Fmin => "ptx/fmin",
            Wrapper::RcpNormal => "ptx/rcp_normal",
            Wrapper::Tanh => "device/tanh",
            Wrapper::TanhApprox => "ptx/tanh",
            Wrapper::TanhAbsolute => "device/tanh_absolute",
            Wrapper::Circle => "device/circle",
            Wrapper::DivFull => "ptx/div_full",
            Wrapper::VisibleOrZero => "device/select",
            Wrapper::DivOrZero => "device/division",
            Wrapper::Quad => "device/quad",
            Wrapper::SharedAccess => "ptx/shared_access",
            Wrapper::RedAdd => "ptx/red_add",
            Wrapper::RedAddRun => "ptx/red_add_run",
            Wrapper::BulkGroup => "ptx/bulk_group",
            Wrapper::TmaReduce { rank } => {
                context.coordinates = (0..rank).map(|d| Coordinate { name: format!("c{d}"), operand: d + 2 }).collect();
                "ptx/tma_reduce"
            }
            Wrapper::StGlobal => "ptx/st_global",
            Wrapper::Tile => "device/tile",
            Wrapper::LdmatrixX2 => "ptx/ldmatrix_x2",
            Wrapper::LdmatrixX4 => "ptx/ldmatrix_x4",
            Wrapper::StmatrixX4 { turned } => {
                context.turned = turned;
                "ptx/stmatrix_x4"
            }
            Wrapper::Movmatrix => "ptx/movmatrix",
            Wrapper::ProxyFence => "ptx/proxy_fence",
            Wrapper::Mma { shape, elem, suffix } => {
                context.shape = shape;
                context.suffix = suffix;
                context.elem = elem;
                "ptx/mma"
            }
            Wrapper::CpAsync { bytes } => {
                context.bytes = bytes;
                // Only 16-byte copies may bypass the first-level cache.
                context.cache = if bytes == 16 { "cg" } else { "ca" };
                "ptx/cp_async"
            }
            Wrapper::CopyCpAsync { bytes } => {
                context.bytes = bytes;
                "device/copy_cp_async"
            }
            Wrapper::CopySync { bytes } => {
                context.bytes = bytes;
                "device/copy_sync"
            }
            Wrapper::Uniform => "ptx/uniform",
            Wrapper::Mov => "ptx/mov",
            Wrapper::Elect => "ptx/elect",
            Wrapper::Mbarrier => "ptx/mbarrier",
            Wrapper::ListAgain => "device/list_again",
            Wrapper::NamedBarrier => "ptx/named_barrier",
            Wrapper::BarrierVote => "ptx/barrier_vote",
            Wrapper::PrefetchMap => "ptx/prefetch_map",
            Wrapper::Tma { rank } => {
                context.coordinates = (0..rank).map(|d| Coordinate { name: format!("c{d}"), operand: d + 3 }).collect();
                "ptx/tma"
            }
            Wrapper::Descriptor => "device/descriptor",
            Wrapper::WgmmaGroup => "ptx/wgmma_group",
            Wrapper::Wgmma { n, a_shared, a_turned, k_major, elem, suffix } => {
                let registers = n / 2;
                let (operands, last) = if a_shared {
                    (format!("%{registers}, %{}", registers + 1), registers + 2)
                } else {
                    let [a, b, c, d, e] = [0, 1, 2, 3, 4].map(|i| registers + i);
                    (format!("{{%{a},%{b},%{c},%{d}}}, %{e}"), registers + 5)
                };
                context.name = wgmma_name(n, (a_shared, a_turned), k_major, suffix);
                context.transposed_a = u32::from(a_turned);
                context.n = n;
                context.a_shared = a_shared;
                context.transposed_b = u32::from(!k_major);
                context.flag = last;
                context.operands = operands;
                context.elements = (0..registers).map(|i| format!("d[0][{}][{}]", i / 4, i % 4)).collect();
                context.elem = elem;
                "ptx/wgmma"
            }
            Wrapper::Semaphore => "ptx/semaphore",
            Wrapper::Cluster => "ptx/cluster",
            Wrapper::DependentLaunch => "ptx/dependent_launch",
            Wrapper::StateGlobal => "ptx/state_global",
            Wrapper::StateCluster => "ptx/state_cluster",
            Wrapper::WidenPair => "device/widen_pair",
            Wrapper::Part => "device/part",
            Wrapper::LoadQuad => "device/load_quad",
            Wrapper::LoadShifted => "device/load_shifted",
            Wrapper::LoadTurned => "device/load_turned",
            Wrapper::LoadBytes | Wrapper::LoadBytesShifted => {
                context.shifted = self == Wrapper::LoadBytesShifted;
                "device/load_bytes"
            }
            Wrapper::TruthBits => "device/truth_bits",
            Wrapper::LoadBits | Wrapper::LoadBitsShifted => {
                context.shifted = self == Wrapper::LoadBitsShifted;
                "device/load_bits"
            }
            Wrapper::StoreQuad { pack, suffix } => {
                context.suffix = suffix;
                context.pack = pack;
                "device/store_quad"
            }
        };
        renderer.render_named(name, &context)
    }
}

/// A field of the parameter block.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ParamField {
    /// C type.
    pub r#type: String,
    /// Name.
    pub name: String,
    /// Comment, or nothing.
    pub note: String,
}

/// A shared-memory tile, for the header comment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct TileNote {
    /// Name.
    pub name: String,
    /// Byte offset.
    pub offset: u32,
    /// Slots.
    pub slots: u32,
    /// Rows.
    pub rows: u32,
    /// Columns.
    pub columns: u32,
    /// Element type.
    pub elem: String,
    /// Bytes from row to row.
    pub pitch: u32,
    /// Layout.
    pub layout: String,
}

/// The whole file.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct KernelFile {
    /// Kernel name.
    pub name: String,
    /// `<T = bf16, D = 128>`, or nothing.
    pub generics: String,
    /// Documentation lines.
    pub doc: Vec<String>,
    /// Target, `sm_80`.
    pub arch: String,
    /// Virtual target, `compute_80`.
    pub compute: String,
    /// Schedule text.
    pub schedule: String,
    /// Assumptions in words.
    pub assumptions: Vec<String>,
    /// Why products do not go through `wgmma`, or nothing.
    pub fallback: String,
    /// The launches, in order.
    pub launches: Vec<LaunchNote>,
    /// Whether some launch takes tensor maps.
    pub maps: bool,
    /// flashtile version.
    pub version: String,
    /// The rendered entry points, each a [`KernelEntry`].
    pub entries: Vec<String>,
}

/// What the head of a file says of a launch.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct LaunchNote {
    /// Entry point; nothing if the file has only one.
    pub entry: String,
    /// Shared-memory map.
    pub tiles: Vec<TileNote>,
    /// Threads of a block.
    pub threads: u32,
    /// Dynamic shared memory.
    pub shared_bytes: u32,
    /// Number of blocks, in words.
    pub blocks: String,
}

/// An entry point with what it needs.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct KernelEntry {
    /// Namespace that it stands in; nothing if the file has only one.
    pub space: String,
    /// Threads of a block.
    pub threads: u32,
    /// Blocks of a cluster along x; 1 for none.
    pub cluster: u32,
    /// Blocks per multiprocessor promised, or 0.
    pub min_blocks: u32,
    /// Dynamic shared memory.
    pub shared_bytes: u32,
    /// Rendered wrappers.
    pub wrappers: Vec<String>,
    /// Names of the tensor maps.
    pub maps: Vec<String>,
    /// Warps before those that compute.
    pub first_warp: u32,
    /// Parameter block.
    pub fields: Vec<ParamField>,
    /// Entry point.
    pub entry: String,
    /// Rendered body.
    pub body: String,
}

impl Template for KernelEntry {
    const NAME: &'static str = "entry";
}

impl Template for KernelFile {
    const NAME: &'static str = "kernel";
}
