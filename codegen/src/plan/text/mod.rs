//! The text of a plan: what `inspect --emit plan` prints, and `--plan FILE` reads.
//!
//! A plan that is printed and read again is the same plan, and gives the same code. So a person may
//! edit one, and the verifier judges it.
//!
//! ```text
//! // a comment, to the end of the line
//! kernel NAME: T = ELEM, D = N         the kernel of the text, its types and constants
//! arch NAME
//! facts aligned to N bytes[, aligned TENSOR BYTES]..[, foldable][, wide][, positive SCALAR]..
//! schedule KNOB=VALUE,..               what the plans were made under
//!
//! plan NAME                            a launch: its kernel
//!   programs E, once|static|dynamic    how many, and how blocks get them
//!   rows N a warp
//!   copies sync|cp_async|tma, N bytes
//!   blocks N a multiprocessor
//!   work ring at OFFSET
//!   map NAME of TENSOR: dims N.., box N..
//!   tile NAME: ELEM ROWS x COLUMNS, N slots, pitch BYTES, LAYOUT[, N slabs[ woven]], at OFFSET
//!        [, warp-private][, mbarriers at OFFSET | comes with TILE][, exchanged at OFFSET]
//!   var NAME: SHAPE [int|bits] M_TILES x N_TILES [across WARPS warps]
//!   loop NAME: E .. E, full E .. E, [without E at E, ]WALK from E, N slots[, single positions]
//!             where WALK is ascending, descending or last_first
//!   meeting by semaphore|cluster: N parts, part NAME, group E, memory NAME, N bytes a thread at OFFSET
//! role all|producer|consumers[ NAME]: N warps[, N registers]
//!   STATEMENT..
//! ```
//!
//! Offsets, pitches and sizes are in bytes; rows and columns in elements; tiles of a variable in 16
//! rows and 8 columns. Statements that hold others have them in the lines below, two spaces further
//! in. A line `#N` says that what follows comes from line N of the kernel text. `SLOT` is a tile,
//! with an iteration in brackets if it is streamed: `k[j]` is the slot of the iteration in
//! progress, `k[j+1]` of the next, `k[j-1]` of the one before, `k[j#0]` of the first, `k[j#last]`
//! of the last. `GLOBAL` is a tile of a tensor: `TENSOR: ELEM at E, rows E by E, columns E by E[
//! full]`, its address, the rows and columns that exist, and the elements from one to the next;
//! `full` if all columns of the padded tile exist.
//!
//! | statement | meaning |
//! | --- | --- |
//! | `let NAME: float\|int\|wide = E` | a uniform constant |
//! | `VAR = E` | elementwise |
//! | `pack VAR: ELEM = E` | to pairs of 16 bits, an A operand |
//! | `VAR = rowmax\|rowsum[.lane] VAR` | reduction of rows; `.lane`: each lane for its own columns |
//! | `VAR = rowbound.lane VAR` | what no element of the lane exceeds, and 0 does not: by integers |
//! | `distribute VAR <- VAR by TILE` | a column fragment of a vector that is spread over lanes |
//! | `quad_max VAR`, `quad_sum VAR` | completes one of lanes |
//! | `copy SLOT <- GLOBAL` | fills a slot |
//! | `compute` | makes tiles: `in NAME = tile SLOT`, `in NAME = matrix\|row\|column GLOBAL`, `shared NAME: ELEM = E`, `SLOT <- E` |
//! | `cp_async.commit`, `barrier` | ends a group of copies; barrier of the block |
//! | `wait EVENT, ..` | until all of it is done: `SLOT`, the copy into a slot; `VAR`, the products into an accumulator; `SLOT read`, the products that read a slot |
//! | `VAR = fragments SLOT [from N]` | an A operand to registers, of the tile's columns from N on |
//! | `VAR = rows_of SLOT` | rows of a ring of 16-bit numbers to a fragment of f32, for elementwise work |
//! | `VAR =\|+= dot(tile SLOT[.t]\|packed VAR, SLOT[.t] [from N]) depth N, ATOM` | a product, of the columns of B's tile from N on, `.t` reads a tile by columns; `ATOM` is `ffma`, `wgmma` or `m16n8k16 LOADS [batch_m]` |
//! | `stage SLOT <- VAR` | a fragment to a tile of its warp, or of all column groups |
//! | `stage_turned SLOT <- VAR` | the same, its rows as columns of the tile |
//! | `reserve SLOT`, `supply SLOT`, `await SLOT`, `free SLOT` | warps exchange what they stage in a slot: wait until all have freed it; the warp has written its rows; wait until all have; the warp reads it no more |
//! | `publish TILE <- VAR`, `merge max\|sum VAR <- TILE` | a value for each row to the other column groups; reduces those of all |
//! | `VAR = load GLOBAL`, `store GLOBAL <- SHAPE M x N of E` | global memory |
//! | `add GLOBAL <- VAR` | adds a fragment to global memory |
//! | `when GUARD`, `otherwise` | `ITERATION exists`, `cut LOOP, ..`, `holds E`, `any of M [together]: E [-> VAR]`, in the warp or, at a barrier, in all of the role, `flag VAR`, `one left LOOP`, `made again`, `first part`, `last part`, `own warps` |
//! | `loop NAME from N by N`, `step ITERATION`, `each program` | repetition |
//! | `fill SLOT <- MAP(E, ..)[, TILE <- MAP(E, ..)]..` | producers fill a ring, and what comes with it |
//! | `acquire SLOT`, `release TILE`, `advance TILE`, `release_before TILE` | consumers drain it |
//! | `make_again any of M: E` | has the block make the program again, when it has made all |
//! | `take_turn`, `pass_turn` | turns of warpgroups |
//! | `await_part`, `pass_part`, `save_state VAR, ..`, `load_state VAR, .. [of E]`, `cluster_barrier` | programs that meet |

mod error;
mod expression;
mod file;
mod lexer;
mod read;
mod read_expression;
mod write;

pub use error::TextError;
pub use file::PlanFile;
