//! Of tiles that the model prefers, the one that is the fastest with what its code keeps in memory.
//! The model knows what registers a plan needs, but not what the compiler makes of that.

use std::panic::resume_unwind;

use flashtile_codegen::Schedule;

/// Tiles whose code is compiled, at most, where the model's choices keep values in memory.
const TRIED: usize = 5;
/// What another tile may be predicted to take of the time of the first, at most. Columns of a
/// gradient whose threads have 52 bytes in memory take 0.29 ms, and those of the next tile,
/// predicted to take 1.23 of the time, 0.53 (H100, 28 heads of 4, N = 2222, d 128, 2026-11-25).
const WORTH_TRYING: f64 = 1.2;
/// Share of a tile's predicted time that each byte in memory takes. Columns of a gradient with a
/// softcap take 0.391 ms with 172 bytes of spills, and 0.529 with the tile that is predicted to take
/// up to 1.2 of the time and spills nothing (d 104); 0.197 with 68 bytes, and 0.243 without (d 128,
/// predicted 1.07; H200, 2026-12-01). With 1.6 KB a kernel took 1.5 of another tile's time.
const PER_BYTE: f64 = 1.0 / 5000.0;
/// Bytes of local memory of a thread that are no reason to try another tile.
pub(super) const SPILLED: u32 = 32;

/// Of schedules as the model ranks them, best first, the first whose code keeps its values in
/// registers, unless one with a few bytes in memory is faster all the same. With it the seconds that
/// the model predicts, and what `make` made: it compiles, and says how many bytes a thread has in
/// memory.
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
    fastest(tiles, |(schedule, predicted)| {
        let (bytes, made) = make(&schedule)?;
        Ok((bytes, (schedule, predicted, made)))
    })
}

/// Of a ranking, best first, those whose predicted seconds are near the first one's.
fn near_the_first<S>(ranked: Vec<(S, f64)>) -> impl Iterator<Item = (S, f64)> {
    let most = ranked.first().map_or(0.0, |(_, best)| best * WORTH_TRYING);
    ranked.into_iter().take_while(move |(_, predicted)| *predicted <= most)
}

/// A tile, and the seconds that it is predicted to take.
type Tile<S> = (S, f64);

/// Predicted seconds with so many bytes in memory.
fn with_memory(predicted: f64, bytes: u32) -> f64 {
    let counted = if bytes > SPILLED { f64::from(bytes) } else { 0.0 };
    predicted * (1.0 + PER_BYTE * counted)
}

/// Of tiles, best first, the fastest with what its code has in memory. Those behind the first one
/// are made if they could be faster.
fn fastest<S, V, E>(tiles: Vec<Tile<S>>, make: impl Fn(Tile<S>) -> Result<(u32, V), E> + Sync) -> Result<V, E>
where
    S: Send,
    V: Send,
    E: Send,
{
    let mut tiles = tiles.into_iter();
    let first = tiles.next().expect("a ranking is not empty");
    let predicted = first.1;
    let (bytes, made) = make(first)?;
    let mut best = (with_memory(predicted, bytes), made);
    let others: Vec<Tile<S>> = tiles.take_while(|&(_, predicted)| predicted < best.0).collect();
    let seconds: Vec<f64> = others.iter().map(|&(_, predicted)| predicted).collect();
    // Threads of their own: the caller holds a lock, for which one of a pool may wait.
    let others: Vec<Result<(u32, V), E>> = std::thread::scope(|scope| {
        let make = &make;
        let threads: Vec<_> = others.into_iter().map(|tile| scope.spawn(move || make(tile))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    });
    for (made, predicted) in others.into_iter().zip(seconds) {
        // What stands behind one that is faster without memory may fail.
        if predicted >= best.0 {
            break;
        }
        let (bytes, made) = made?;
        let seconds = with_memory(predicted, bytes);
        if seconds < best.0 {
            best = (seconds, made);
        }
    }
    Ok(best.1)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// What is taken of tiles that are predicted to take so long and have so many bytes in memory, or
    /// cannot be made, and how many were made.
    fn taken(tiles: &[(f64, Option<u32>)]) -> (Result<usize, usize>, usize) {
        let made = Mutex::new(0);
        let make = |(tile, _): (usize, f64)| {
            *made.lock().expect("not poisoned") += 1;
            tiles[tile].1.map(|bytes| (bytes, tile)).ok_or(tile)
        };
        let taken = fastest(tiles.iter().map(|&(seconds, _)| seconds).enumerate().collect(), make);
        (taken, made.into_inner().expect("not poisoned"))
    }

    #[test]
    fn the_first_tile_is_taken_if_it_does_not_spill() {
        assert_eq!(taken(&[(1.0, Some(0)), (1.0, Some(0))]), (Ok(0), 1));
        assert_eq!(taken(&[(1.0, Some(SPILLED)), (1.0, Some(0))]), (Ok(0), 1));
        assert_eq!(taken(&[(1.0, None), (1.0, Some(0))]), (Err(0), 1));
    }

    #[test]
    fn a_tile_that_spills_yields_to_one_that_is_faster_without() {
        assert_eq!(taken(&[(1.0, Some(1000)), (1.1, Some(400)), (1.12, Some(8)), (1.2, Some(0))]), (Ok(2), 3));
        assert_eq!(taken(&[(1.0, Some(1000)), (1.1, Some(1500))]), (Ok(0), 2));
        assert_eq!(taken(&[(1.0, Some(1000)), (1.01, Some(600)), (1.02, Some(600))]), (Ok(1), 3));
    }

    #[test]
    fn a_few_bytes_are_worth_less_than_a_slower_tile() {
        assert_eq!(taken(&[(1.0, Some(200)), (1.06, Some(0))]), (Ok(0), 1));
        assert_eq!(taken(&[(1.0, Some(200)), (1.03, Some(0)), (1.06, Some(0))]), (Ok(1), 2));
    }

    #[test]
    fn what_stands_behind_the_one_that_is_taken_may_fail() {
        assert_eq!(taken(&[(1.0, Some(1000)), (1.1, Some(0)), (1.15, None)]), (Ok(1), 3));
        assert_eq!(taken(&[(1.0, Some(1000)), (1.1, None), (1.15, Some(0))]), (Err(1), 3));
    }

    #[test]
    fn tiles_that_are_predicted_to_be_slow_are_not_tried() {
        let near = |predicted: &[f64]| near_the_first(predicted.iter().map(|&seconds| ((), seconds)).collect()).count();
        assert_eq!(near(&[1.0, 1.1, 1.19, 1.21, 1.5]), 3);
        assert_eq!((near(&[1.0]), near(&[])), (1, 0));
    }
}
