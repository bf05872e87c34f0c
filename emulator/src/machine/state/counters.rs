//! What each instruction did: counts, wavefronts of shared memory, sectors of global memory.

/// Counts of one instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counters {
    /// Times executed by a warp, and lanes in sum.
    pub executed: u64,
    pub lanes: u64,
    /// Accesses of warps to shared memory, the wavefronts they took, and the fewest they could have
    /// taken.
    pub shared_requests: u64,
    pub wavefronts: u64,
    pub ideal_wavefronts: u64,
    /// Most wavefronts for each that was needed, of any access.
    pub worst: u32,
    /// Accesses of warps to global memory, their sectors, and the bytes asked for.
    pub global_requests: u64,
    pub sectors: u64,
    pub bytes: u64,
    /// Bytes moved by tensor and bulk copies.
    pub bulk_bytes: u64,
}

impl Counters {
    /// Adds another's.
    pub fn add(&mut self, other: &Counters) {
        self.executed += other.executed;
        self.lanes += other.lanes;
        self.shared_requests += other.shared_requests;
        self.wavefronts += other.wavefronts;
        self.ideal_wavefronts += other.ideal_wavefronts;
        self.worst = self.worst.max(other.worst);
        self.global_requests += other.global_requests;
        self.sectors += other.sectors;
        self.bytes += other.bytes;
        self.bulk_bytes += other.bulk_bytes;
    }

    /// Notes an access of a warp to shared memory: addresses by lane, all of the same width.
    pub fn shared(&mut self, addresses: &[(u8, u32)], bytes: u32) {
        // Accesses of 8 bytes take half a warp at a time, those of 16 a quarter; two parts go together if all lanes share their
        // address with their neighbour, or all with the next but one (seen on Hopper, see `tests/tests/conflicts.rs`).
        let (whole, together) = match bytes {
            0..=4 => (32, 32),
            8 => (32, 16),
            _ => (16, 8),
        };
        let (mut wavefronts, mut ideal) = (0, 0);
        for first in (0..32).step_by(whole) {
            let inside = |from: usize, to: usize| {
                let lanes = addresses.iter().filter(move |(lane, _)| (from..to).contains(&usize::from(*lane)));
                lanes.copied()
            };
            let shared = [1, 2].into_iter().any(|other| {
                let mut by_lane = [None; 32];
                inside(first, first + whole).for_each(|(lane, address)| by_lane[usize::from(lane)] = Some(address));
                (first..first + whole).all(|lane| match (by_lane[lane], by_lane[lane ^ other]) {
                    (Some(a), Some(b)) => a == b,
                    _ => true,
                })
            });
            let step = if shared { whole } else { together };
            for part in (first..first + whole).step_by(step) {
                let needed = conflicts(inside(part, part + step).map(|(_, address)| address), bytes);
                wavefronts += needed;
                ideal += u32::from(needed > 0);
                self.worst = self.worst.max(needed);
            }
        }
        self.shared_requests += 1;
        self.wavefronts += u64::from(wavefronts);
        self.ideal_wavefronts += u64::from(ideal);
    }

    /// Notes an access of a warp to global memory.
    pub fn global(&mut self, addresses: &[(u8, u64)], bytes: u32) {
        let mut sectors: Vec<u64> =
            addresses.iter().flat_map(|&(_, a)| a / 32..=a.saturating_add(u64::from(bytes) - 1) / 32).collect();
        sectors.sort_unstable();
        sectors.dedup();
        self.global_requests += 1;
        self.sectors += sectors.len() as u64;
        self.bytes += u64::from(bytes) * addresses.len() as u64;
    }
}

/// Wavefronts of accesses that go together: the most distinct words of one of the 32 banks; 0
/// without any access.
fn conflicts(addresses: impl Iterator<Item = u32>, bytes: u32) -> u32 {
    // 32 lanes with a word each, or fewer with several: of 32 bytes at most.
    let (mut seen, mut count, mut banks) = ([0; 64], 0, [0u32; 32]);
    for word in addresses.flat_map(|a| a / 4..=a.saturating_add(bytes.max(1) - 1) / 4) {
        if count < seen.len() && !seen[..count].contains(&word) {
            seen[count] = word;
            count += 1;
            banks[(word % 32) as usize] += 1;
        }
    }
    banks.into_iter().max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ways(bytes: u32, address: impl Fn(u32) -> u32) -> (u64, u64, u32) {
        let mut counters = Counters::default();
        let all: Vec<(u8, u32)> = (0..32).map(|l| (l as u8, address(l))).collect();
        counters.shared(&all, bytes);
        (counters.wavefronts, counters.ideal_wavefronts, counters.worst)
    }

    #[test]
    fn words_conflict_by_bank() {
        assert_eq!(ways(4, |l| 4 * l), (1, 1, 1));
        assert_eq!(ways(4, |_| 64), (1, 1, 1));
        assert_eq!(ways(4, |l| 8 * l), (2, 1, 2));
        assert_eq!(ways(4, |l| 128 * l), (32, 1, 32));
        assert_eq!(ways(4, |l| 132 * l), (1, 1, 1));
        assert_eq!(ways(2, |l| 2 * l), (1, 1, 1));
    }

    #[test]
    fn wide_accesses_go_in_parts() {
        assert_eq!(ways(16, |l| 16 * l), (4, 4, 1));
        assert_eq!(ways(8, |l| 8 * l), (2, 2, 1));
        // Pairs of lanes that share an address take half the parts; lanes that share one with others do not.
        assert_eq!(ways(16, |l| 16 * (l / 2)), (2, 2, 1));
        assert_eq!(ways(8, |l| 8 * (l / 4 * 2 + l % 2)), (1, 1, 1));
        assert_eq!(ways(16, |l| 16 * (l % 4)), (4, 4, 1));
        assert_eq!(ways(8, |l| 8 * (l % 4)), (2, 2, 1));
        // Rows of 128 bytes, plain: the eight lanes of a quarter fall on the same banks.
        assert_eq!(ways(16, |l| 128 * l), (32, 4, 8));
        // Swizzled: on all banks.
        assert_eq!(ways(16, |l| 128 * l + ((l % 8) << 4)), (4, 4, 1));
    }

    #[test]
    fn sectors_are_counted_once() {
        let mut counters = Counters::default();
        counters.global(&(0..32u8).map(|l| (l, 4 * u64::from(l))).collect::<Vec<_>>(), 4);
        counters.global(&(0..32u8).map(|l| (l, 64 * u64::from(l))).collect::<Vec<_>>(), 4);
        assert_eq!((counters.sectors, counters.bytes, counters.global_requests), (4 + 32, 256, 2));
    }
}
