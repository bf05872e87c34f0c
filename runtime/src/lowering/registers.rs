//! Of tiles that the model prefers, the first whose code keeps its values in registers. The model
//! knows what registers a plan needs, but not what the compiler makes of that.

use std::panic::resume_unwind;

use flashtile_codegen::Schedule;

/// Tiles whose code is compiled, at most, where the model's choices keep values in memory.
const TRIED: usize = 5;
/// What another tile may be predicted to take of the time of the first, at most. Columns of a
/// gradient whose threads have 52 bytes in memory take 0.29 ms, and those of the next tile,
/// predicted to take 1.23 of the time, 0.53 (H100, 28 heads of 4, N = 2222, d 128, 2026-11-25).
const WORTH_TRYING: f64 = 1.2;
/// Bytes of local memory of a thread that are no reason to try another tile.
pub(super) const SPILLED: u32 = 32;

/// Of schedules as the model ranks them, best first, the first whose code keeps its values in
/// registers; the one with the fewest bytes in memory if none does. With it the seconds that the
/// model predicts, and what `make` made: it compiles, and says how many bytes a thread has in memory.
///
/// Schedules of one tile have the same values in registers, so that one of them is tried. The first
/// tile is made alone, as it mostly is the one; the others at once.
///
/// # Errors
/// Those of `make`, for the tiles up to the one that is taken.
pub(crate) fn first_in_registers<V, E>(
    ranked: Vec<(Schedule, f64)>,
    make: impl Fn(&Schedule) -> Result<(u32, V), E> + Sync,
) -> Result<(Schedule, f64, V), E>
where
    V: Send,
    E: Send,
{
    let tile = |s: &Schedule| {
        let main = &s.main;
        (main.block_m, main.block_n, main.warps, main.overlap, main.persistent, s.launches.terms)
    };
    let mut seen = Vec::new();
    let is_new = |(schedule, _): &(Schedule, f64)| {
        let is_new = !seen.contains(&tile(schedule));
        seen.push(tile(schedule));
        is_new
    };
    let tiles = near_the_first(ranked).filter(is_new).take(TRIED).collect();
    first(tiles, |(schedule, predicted)| {
        let (bytes, made) = make(&schedule)?;
        Ok((bytes, (schedule, predicted, made)))
    })
}

/// Of a ranking, best first, those whose predicted seconds are near the first one's.
fn near_the_first<S>(ranked: Vec<(S, f64)>) -> impl Iterator<Item = (S, f64)> {
    let most = ranked.first().map_or(0.0, |(_, best)| best * WORTH_TRYING);
    ranked.into_iter().take_while(move |(_, predicted)| *predicted <= most)
}

/// Of tiles, best first, the first whose code has few bytes in memory, or the one with the fewest.
fn first<T, V, E>(tiles: Vec<T>, make: impl Fn(T) -> Result<(u32, V), E> + Sync) -> Result<V, E>
where
    T: Send,
    V: Send,
    E: Send,
{
    let mut tiles = tiles.into_iter();
    let first = tiles.next().expect("a ranking is not empty");
    let mut best = make(first)?;
    if best.0 > SPILLED {
        // Threads of their own: the caller holds a lock, for which one of a pool may wait.
        let others: Vec<Result<(u32, V), E>> = std::thread::scope(|scope| {
            let make = &make;
            let threads: Vec<_> = tiles.map(|tile| scope.spawn(move || make(tile))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
        });
        for made in others {
            let made = made?;
            if made.0 < best.0 {
                best = made;
            }
            if best.0 <= SPILLED {
                break;
            }
        }
    }
    Ok(best.1)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// What is taken of tiles whose code has so many bytes in memory, or cannot be made, and how
    /// many were made.
    fn taken(tiles: &[Option<u32>]) -> (Result<usize, usize>, usize) {
        let made = Mutex::new(0);
        let make = |tile: usize| {
            *made.lock().expect("not poisoned") += 1;
            tiles[tile].map(|bytes| (bytes, tile)).ok_or(tile)
        };
        let taken = first((0..tiles.len()).collect(), make);
        (taken, made.into_inner().expect("not poisoned"))
    }

    #[test]
    fn the_first_tile_is_taken_if_it_does_not_spill() {
        assert_eq!(taken(&[Some(0), Some(0)]), (Ok(0), 1));
        assert_eq!(taken(&[Some(SPILLED), Some(0)]), (Ok(0), 1));
        assert_eq!(taken(&[None, Some(0)]), (Err(0), 1));
    }

    #[test]
    fn a_tile_that_spills_yields_to_the_next_that_does_not() {
        assert_eq!(taken(&[Some(500), Some(40), Some(8), Some(0)]), (Ok(2), 4));
        assert_eq!(taken(&[Some(500), Some(600)]), (Ok(0), 2));
        assert_eq!(taken(&[Some(500), Some(300), Some(300)]), (Ok(1), 3));
    }

    #[test]
    fn what_stands_behind_the_one_that_is_taken_may_fail() {
        assert_eq!(taken(&[Some(500), Some(0), None]), (Ok(1), 3));
        assert_eq!(taken(&[Some(500), None, Some(0)]), (Err(1), 3));
    }

    #[test]
    fn tiles_that_are_predicted_to_be_slow_are_not_tried() {
        let near = |predicted: &[f64]| near_the_first(predicted.iter().map(|&seconds| ((), seconds)).collect()).count();
        assert_eq!(near(&[1.0, 1.1, 1.19, 1.21, 1.5]), 3);
        assert_eq!((near(&[1.0]), near(&[])), (1, 0));
    }
}
