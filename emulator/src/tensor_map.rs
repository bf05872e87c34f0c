//! Descriptors of tensors in global memory, from which tensor copies take boxes.

use crate::memory::Buffer;

/// How the rows of a box lie in shared memory (CUDA driver API, `CUtensorMapSwizzle`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Swizzle {
    /// One after another.
    #[default]
    None,
    /// Within 256 bytes: bit 4 of the address is xored with bit 7.
    Bytes32,
    /// Within 512 bytes: bits 4 and 5 with bits 7 and 8.
    Bytes64,
    /// Within 1024 bytes: bits 4 to 6 with bits 7 to 9.
    Bytes128,
}

impl Swizzle {
    /// The address in shared memory of what would be at `address` without swizzle.
    #[inline(always)]
    pub fn apply(self, address: u32) -> u32 {
        let mask = match self {
            Swizzle::None => 0,
            Swizzle::Bytes32 => 1,
            Swizzle::Bytes64 => 3,
            Swizzle::Bytes128 => 7,
        };
        address ^ ((address >> 7 & mask) << 4)
    }

    fn span(self) -> u32 {
        match self {
            Swizzle::None => u32::MAX,
            Swizzle::Bytes32 => 32,
            Swizzle::Bytes64 => 64,
            Swizzle::Bytes128 => 128,
        }
    }
}

/// A tensor in global memory and the box that one copy moves. The emulator's own form of what `cuTensorMapEncodeTiled`
/// makes: [`TensorMap::encode`] gives the 128 bytes that a kernel takes as a `__grid_constant__` parameter. Elements outside
/// of the tensor read as zero and are not written.
///
/// ```
/// use flashtile_emulator::{GlobalMemory, Swizzle, TensorMap};
/// let mut memory = GlobalMemory::new();
/// let tensor = memory.allocate(128 * 64 * 2);
/// // 128 rows of 64 16-bit elements, 32 rows at a time.
/// let map = TensorMap::new(tensor, 2, &[64, 128], &[128], &[64, 32], Swizzle::Bytes128)?;
/// assert_eq!(TensorMap::decode(&map.encode()), Some(map));
/// # Ok::<(), flashtile_emulator::TensorMapError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorMap {
    address: u64,
    element: u32,
    extents: Vec<u64>,
    strides: Vec<u64>,
    tile: Vec<u32>,
    swizzle: Swizzle,
}

/// Why there is no such tensor map; the rules are those of `cuTensorMapEncodeTiled`.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("illegal tensor map: {0}")]
pub struct TensorMapError(String);

impl TensorMap {
    const MAGIC: [u8; 4] = *b"ftTM";

    /// A map of a buffer that begins with the tensor. `extents` in elements and `tile` (the box) are innermost first;
    /// `strides` in bytes are those of all dimensions but the innermost, which is dense.
    ///
    /// # Errors
    /// [`TensorMapError`] for what no GPU takes: more than five dimensions, strides that are no multiple of 16, a box of
    /// more than 256 elements along a dimension, or wider than the span of the swizzle.
    pub fn new(
        tensor: Buffer,
        element_bytes: u32,
        extents: &[u64],
        strides: &[u64],
        tile: &[u32],
        swizzle: Swizzle,
    ) -> Result<Self, TensorMapError> {
        Self::at(tensor.address, element_bytes, extents, strides, tile, swizzle)
    }

    /// The same from an address, which must be a multiple of 16.
    ///
    /// # Errors
    /// As [`TensorMap::new`].
    pub fn at(
        address: u64,
        element_bytes: u32,
        extents: &[u64],
        strides: &[u64],
        tile: &[u32],
        swizzle: Swizzle,
    ) -> Result<Self, TensorMapError> {
        let fault = |why: String| Err(TensorMapError(why));
        let rank = extents.len();
        if !(1..=5).contains(&rank) || strides.len() + 1 != rank || tile.len() != rank {
            return fault(format!("{rank} extents, {} strides and a box of {} dimensions", strides.len(), tile.len()));
        }
        if !matches!(element_bytes, 1 | 2 | 4 | 8) {
            return fault(format!("elements of {element_bytes} bytes"));
        }
        if !address.is_multiple_of(16) {
            return fault(format!("the address {address:#x} is no multiple of 16"));
        }
        if let Some(stride) = strides.iter().find(|s| **s % 16 != 0 || **s >= 1 << 40) {
            return fault(format!("a stride of {stride} bytes"));
        }
        if let Some(extent) = extents.iter().find(|e| **e == 0 || **e > 1 << 32) {
            return fault(format!("an extent of {extent}"));
        }
        if let Some(side) = tile.iter().find(|b| **b == 0 || **b > 256) {
            return fault(format!("a box of {side} elements along a dimension"));
        }
        let bytes = tile.iter().fold(u64::from(element_bytes), |all, &side| all.saturating_mul(side.into()));
        if bytes > 227 << 10 {
            return fault(format!("a box of {bytes} bytes, which no shared memory holds"));
        }
        let inner = tile[0] * element_bytes;
        if !inner.is_multiple_of(16) || inner > swizzle.span() {
            return fault(format!("rows of {inner} bytes with swizzle {swizzle:?}"));
        }
        Ok(Self { address, element: element_bytes, extents: extents.into(), strides: strides.into(), tile: tile.into(), swizzle })
    }

    /// The 128 bytes of the kernel parameter.
    pub fn encode(&self) -> [u8; 128] {
        let mut all = Vec::with_capacity(128);
        all.extend(Self::MAGIC);
        let swizzle = match self.swizzle {
            Swizzle::None => 0,
            Swizzle::Bytes32 => 1,
            Swizzle::Bytes64 => 2,
            Swizzle::Bytes128 => 3,
        };
        all.extend([self.extents.len() as u8, self.element as u8, swizzle, 0]);
        all.extend(self.address.to_le_bytes());
        all.extend((0..5).flat_map(|d| self.extents.get(d).copied().unwrap_or(1).to_le_bytes()));
        all.extend((0..4).flat_map(|d| self.strides.get(d).copied().unwrap_or(0).to_le_bytes()));
        all.extend((0..5).flat_map(|d| self.tile.get(d).copied().unwrap_or(1).to_le_bytes()));
        all.resize(128, 0);
        let mut bytes = [0; 128];
        bytes.copy_from_slice(&all);
        bytes
    }

    /// The map of these bytes; `None` if they are none.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < 128 || bytes[..4] != Self::MAGIC {
            return None;
        }
        let wide = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let rank = usize::from(bytes[4]);
        let swizzle = match bytes[6] {
            0 => Swizzle::None,
            1 => Swizzle::Bytes32,
            2 => Swizzle::Bytes64,
            _ => Swizzle::Bytes128,
        };
        if !(1..=5).contains(&rank) {
            return None;
        }
        let extents: Vec<u64> = (0..rank).map(|d| wide(16 + 8 * d)).collect();
        let strides: Vec<u64> = (0..rank - 1).map(|d| wide(56 + 8 * d)).collect();
        let tile: Vec<u32> = (0..rank).map(|d| word(88 + 4 * d)).collect();
        Self::at(wide(8), bytes[5].into(), &extents, &strides, &tile, swizzle).ok()
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.extents.len()
    }

    /// Bytes of an element.
    pub fn element_bytes(&self) -> u32 {
        self.element
    }

    /// Bytes of a box in shared memory.
    pub fn box_bytes(&self) -> u32 {
        self.tile.iter().product::<u32>() * self.element
    }

    /// The 16-byte chunks of the box at some coordinates (innermost first).
    pub(crate) fn chunks(&self, coordinates: &[i32], shared: u32) -> Vec<Chunk> {
        let row_chunks = self.tile[0] * self.element / 16;
        let per_chunk = 16 / self.element;
        let rows: u32 = self.tile[1..].iter().product();
        let mut chunks = Vec::with_capacity((rows * row_chunks) as usize);
        for row in 0..rows {
            let (mut left, mut address, mut inside) = (row, self.address as i64, true);
            let outer = self.tile.iter().zip(&self.extents).zip(coordinates).skip(1).zip(&self.strides);
            for (((&side, &extent), &coordinate), &stride) in outer {
                let at = i64::from(coordinate) + i64::from(left % side);
                left /= side;
                inside &= at >= 0 && (at as u64) < extent;
                address = address.wrapping_add(at.wrapping_mul(stride as i64));
            }
            for c in 0..row_chunks {
                let first = i64::from(coordinates[0]) + i64::from(c * per_chunk);
                let extent = self.extents[0] as i64;
                let begin = (-first).clamp(0, per_chunk.into()) as u32;
                let end = (extent - first).clamp(0, per_chunk.into()) as u32;
                let (begin, end) = if inside && begin < end { (begin, end) } else { (0, 0) };
                chunks.push(Chunk {
                    shared: self.swizzle.apply(shared.wrapping_add(16 * (row * row_chunks + c))),
                    global: (address.wrapping_add(first * i64::from(self.element))) as u64,
                    begin: (begin * self.element) as u8,
                    end: (end * self.element) as u8,
                });
            }
        }
        chunks
    }
}

/// Sixteen bytes of a copy. Of these `begin..end` are in the tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Chunk {
    /// Address in shared memory.
    pub shared: u32,
    pub global: u64,
    pub begin: u8,
    pub end: u8,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(tile: &[u32], swizzle: Swizzle) -> TensorMap {
        TensorMap::at(0x1000, 2, &[64, 10, 3], &[128, 1280], tile, swizzle).expect("legal")
    }

    #[test]
    fn the_128_byte_swizzle_xors_chunk_and_row() {
        let chunks = map(&[64, 8, 1], Swizzle::Bytes128).chunks(&[0, 0, 0], 2048);
        for (n, chunk) in chunks.iter().enumerate() {
            let (row, column) = (n as u32 / 8, n as u32 % 8);
            assert_eq!(chunk.shared, 2048 + 128 * row + 16 * (column ^ row));
            assert_eq!((chunk.global, chunk.begin, chunk.end), (0x1000 + 16 * n as u64, 0, 16));
        }
    }

    #[test]
    fn what_lies_outside_is_empty() {
        let map = map(&[64, 4, 2], Swizzle::None);
        let chunks = map.chunks(&[-4, 8, 2], 0);
        assert_eq!(chunks.len(), 8 * 4 * 2);
        // Row 8 of slice 2: its first chunk begins four elements in.
        assert_eq!((chunks[0].begin, chunks[0].end), (8, 16));
        assert_eq!(chunks[0].global + 8, 0x1000 + 8 * 128 + 2 * 1280);
        assert_eq!((chunks[7].begin, chunks[7].end), (0, 16));
        // Rows 10 and 11, and slice 3, are not there.
        assert!(chunks[16..].iter().all(|c| c.begin == c.end));
        assert_eq!(map.box_bytes(), 64 * 4 * 2 * 2);
    }

    #[test]
    fn illegal_maps_are_refused() {
        assert!(TensorMap::at(8, 2, &[64], &[], &[64], Swizzle::None).is_err());
        assert!(TensorMap::at(0, 2, &[64, 8], &[100], &[64, 8], Swizzle::None).is_err());
        assert!(TensorMap::at(0, 2, &[128, 8], &[256], &[128, 8], Swizzle::Bytes128).is_err());
        assert!(TensorMap::at(0, 2, &[128, 300], &[256], &[64, 300], Swizzle::Bytes128).is_err());
        assert_eq!(TensorMap::decode(&[0; 128]), None);
    }
}
