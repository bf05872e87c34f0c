//! Analyses of the tile IR, each with its own printed form. `docs/analyses.md` shows what they say.
//!
//! | module | subject |
//! | --- | --- |
//! | [`mask`], `picture` | tiles of a loop: skipped, full, cut; their picture |
//! | [`predicate`], `apart`, `divisor`, [`followed`] | where along a loop a predicate holds; minima and maxima taken apart; divisors that are known at launch; why that is not known |
//! | [`listed`] | loops whose tiles launches ahead can list, where masks read what is loaded for single positions |
//! | [`hidden`] | which elements of a value masks hide, and what these hold |
//! | [`unchanged`], [`classes`] | proof that a hidden tile changes nothing; its domain |
//! | `onward` | loops within loops that carry the same values on |
//! | [`hints`] | what a kernel loses, why, and what to write instead |
//! | [`index`], [`simplify`] | closed-form expressions; their canonical form |
//! | [`positions`] | integers as sums of positions |
//! | [`dependence`], [`nest`] | statements, edges, components; the rule of interchange |
//! | [`ranges`] | compile-time ranges of tiles: elements along them that are computed by themselves |
//! | [`lengths`] | sizes that tiles walk, the least value of a size, typical values |
//! | [`live`] | the values that stores need; a kernel without all others |
//! | [`addends`] | the programs and iterations that add to a part of a sum |
//! | [`reach`] | what integer arithmetic reaches in a call: widths, divisors, indices |
//! | [`streaming`] | reductions that split, and their combine |
//! | [`inputs`], [`uses`], [`magnitude`] | what inputs should hold for a check: what integers mean; sizes of floats |
//! | [`cost`], [`visible`], `sum` | FLOPs, bytes, special functions, roofline; exact counts of what masks keep; sums in closed form |

pub mod addends;
mod apart;
pub mod classes;
pub mod cost;
pub mod dependence;
mod dependence_text;
mod divisor;
pub(crate) mod expression;
pub mod followed;
pub mod hidden;
pub mod hints;
pub mod index;
pub mod inputs;
pub mod lengths;
pub mod listed;
pub mod live;
pub mod magnitude;
pub mod mask;
pub mod nest;
pub mod onward;
pub mod picture;
pub mod positions;
pub mod predicate;
pub mod ranges;
pub mod reach;
pub mod simplify;
pub mod streaming;
mod sum;
pub mod unchanged;
mod unmasked;
pub mod uses;
pub mod visible;

#[cfg(test)]
mod dependence_tests;
#[cfg(test)]
mod mask_tests;
#[cfg(test)]
mod samples;
