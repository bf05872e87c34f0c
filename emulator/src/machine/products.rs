//! `wgmma`: asynchronous products of a warpgroup (PTX ISA, "Asynchronous Warpgroup Level Matrix
//! Instructions").
//!
//! Each warp of a warpgroup computes its own 16 rows, from its own registers or its own rows of A
//! in shared memory and from all of B, when its own wait comes at the latest. Sums are as for
//! `mma.sync`.

use super::fragments::element;
use super::state::{At, Block, Product, Warp};
use crate::finding::FindingKind;
use crate::memory::{ALL, MANY, windows};
use crate::numeric::{bits, float};
use crate::options::Landing;
use crate::program::{LeftFactor, Op, Step, WRITES, Wgmma};
use crate::tensor_map::Swizzle;

/// A matrix in shared memory (PTX ISA, "Matrix Descriptor Format").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Descriptor {
    start: u32,
    leading: u32,
    stride: u32,
    swizzle: Swizzle,
}

impl Descriptor {
    fn decode(bits: u64) -> Option<Self> {
        let field = |at: u32| ((bits >> at) as u32 & 0x3fff) << 4;
        let swizzle = match bits >> 62 {
            0 => Swizzle::None,
            1 => Swizzle::Bytes128,
            2 => Swizzle::Bytes64,
            _ => Swizzle::Bytes32,
        };
        // Tiles whose pattern begins elsewhere than at a multiple of their size are not supported.
        (bits >> 49 & 7 == 0).then_some(Self { start: field(0), leading: field(16), stride: field(32), swizzle })
    }

    /// Address of the 16-byte chunk with the elements `k` to `k` + 7 of row `row` of a K-major
    /// matrix.
    fn k_major(&self, row: u32, k: u32) -> u32 {
        let inner = match self.swizzle {
            // Core matrices of 8 rows of 16 bytes; `leading` leads from one to the next along k.
            Swizzle::None => (row % 8) * 16 + (k / 8) * self.leading,
            Swizzle::Bytes32 => (row % 8) * 32 + 2 * k,
            Swizzle::Bytes64 => (row % 8) * 64 + 2 * k,
            Swizzle::Bytes128 => (row % 8) * 128 + 2 * k,
        };
        self.swizzle.apply(self.start + (row / 8) * self.stride + inner)
    }

    /// Address of the 16-byte chunk with the elements `row` to `row` + 7 of column `k` of an
    /// MN-major matrix.
    fn mn_major(&self, row: u32, k: u32) -> u32 {
        let span = match self.swizzle {
            Swizzle::None => 8,
            Swizzle::Bytes32 => 16,
            Swizzle::Bytes64 => 32,
            Swizzle::Bytes128 => 64,
        };
        let inner = (k % 8) * span * 2 + (row % span) * 2;
        let place = match self.swizzle {
            // Without swizzle the two distances change places.
            Swizzle::None => (row / span) * self.stride + (k / 8) * self.leading,
            _ => (row / span) * self.leading + (k / 8) * self.stride,
        };
        self.swizzle.apply(self.start + place + inner)
    }

    /// The chunks of 16 columns along k of rows `from..from + rows`: by row and half of k, or by k
    /// and eight rows.
    fn chunks(&self, from: u32, rows: u32, transposed: bool) -> Vec<u32> {
        if transposed {
            (0..16).flat_map(|k| (0..rows / 8).map(move |c| self.mn_major(from + 8 * c, k))).collect()
        } else {
            (0..rows).flat_map(|r| (0..2).map(move |h| self.k_major(from + r, 8 * h))).collect()
        }
    }
}

impl Block<'_> {
    /// Checks the registers that an instruction touches against the products in flight, and notes
    /// that it does.
    pub(super) fn check_registers(&mut self, warp: &Warp, step: &Step, pc: u32) {
        let w = warp.index as usize;
        for &entry in &step.touched {
            let (row, writes) = (entry & !WRITES, entry & WRITES != 0);
            let state = &mut self.products[w].rows[row as usize];
            // Reads count too (PTX ISA, wgmma.fence: any access of a register that a product accesses).
            state.unfenced = true;
            let product = if state.written_by != 0 {
                state.written_by
            } else if writes {
                state.read_by
            } else {
                0
            };
            if product != 0 {
                let at = At { step: pc, warp: w as u16, lane: MANY };
                let other = self.flights[product as usize - 1];
                let what = if writes { "written" } else { "read" };
                self.record.add(FindingKind::AccumulatorInFlight, at, Some(other), None, || {
                    format!("a register of the product is {what} before wgmma.wait_group")
                });
            }
        }
    }

    pub(super) fn wgmma(&mut self, warp: &mut Warp, wgmma: &Wgmma, mask: u32, pc: u32) {
        self.whole(warp, mask, pc);
        let w = warp.index as usize;
        let at = At { step: pc, warp: w as u16, lane: MANY };
        let first = mask.trailing_zeros() as usize;
        let fragments = if let LeftFactor::Registers(rows) = &wgmma.a { rows.len() } else { 0 };
        self.check_product_registers(w, (wgmma.d.len() + fragments) as u32, pc);
        let rows = 16 * (warp.index % 4);
        let a = match &wgmma.a {
            LeftFactor::Registers(_) => Some(vec![]),
            LeftFactor::Shared { descriptor, transposed } => {
                self.descriptor(warp, *descriptor, first, at).map(|d| d.chunks(rows, 16, *transposed))
            }
        };
        let b = self.descriptor(warp, wgmma.descriptor, first, at);
        let b = b.map(|d| d.chunks(0, wgmma.n.into(), wgmma.transposed));
        let (Some(mut a), Some(mut b)) = (a, b) else { return };
        let flight = self.take_off(at);
        self.take_registers(wgmma, flight, at);
        for chunks in [&mut a, &mut b] {
            self.take_chunks(chunks, flight, at);
        }
        let accumulate = match wgmma.accumulate {
            None => wgmma.accumulate_constant,
            Some(p) => warp.predicates[p as usize] >> first & 1 != 0,
        };
        let group = self.products[w].committed;
        let mut product = Product { flight, step: pc, group, accumulate, a, b, landed: false };
        let early = match self.launched.options.landing {
            Landing::Late => false,
            Landing::Early => true,
            // Products take effect in order.
            Landing::Random => self.products[w].pending.iter().all(|p| p.landed) && self.random.next().is_multiple_of(2),
        };
        if early {
            self.multiply(warp, &mut product);
        }
        self.products[w].pending.push(product);
    }

    /// The descriptor that a row of registers holds, the same in all lanes.
    fn descriptor(&mut self, warp: &Warp, row: u32, first: usize, at: At) -> Option<Descriptor> {
        let bits = warp.doubles[row as usize];
        if bits.iter().any(|b| *b != bits[first]) {
            let detail = || "the descriptor differs between the lanes".to_owned();
            self.record.add(FindingKind::BarrierDivergence, at, None, None, detail);
        }
        let decoded = Descriptor::decode(bits[first]);
        if decoded.is_none() {
            let detail = || format!("the descriptor {:#018x}", bits[first]);
            self.record.add(FindingKind::IllegalOperand, at, None, None, detail);
        }
        decoded
    }

    /// Notes that a product reads and writes its registers from now on. Those that another product
    /// in flight uses, or that were accessed since the latest fence, are findings.
    fn take_registers(&mut self, wgmma: &Wgmma, flight: u32, at: At) {
        let state = &mut self.products[usize::from(at.warp)].rows;
        let mut faults = vec![];
        let fragment: &[u32] = if let LeftFactor::Registers(rows) = &wgmma.a { rows } else { &[] };
        for (&row, accumulator) in wgmma.d.iter().map(|r| (r, true)).chain(fragment.iter().map(|r| (r, false))) {
            let Some(s) = state.get_mut(row as usize) else { continue };
            if s.unfenced {
                s.unfenced = false;
                faults.push((FindingKind::UnfencedRegisters, None));
            }
            if accumulator {
                if s.read_by != 0 {
                    faults.push((FindingKind::AccumulatorInFlight, Some(s.read_by)));
                }
                s.written_by = flight;
            } else {
                if s.written_by != 0 {
                    faults.push((FindingKind::AccumulatorInFlight, Some(s.written_by)));
                }
                s.read_by = flight;
            }
        }
        for (kind, other) in faults {
            let other = other.map(|n: u32| self.flights[n as usize - 1]);
            self.record.add(kind, at, other, None, String::new);
        }
    }

    /// Notes that a product reads chunks of shared memory from now on, and makes offsets of their
    /// addresses. The offset of a chunk that lies outside is `u32::MAX`.
    fn take_chunks(&mut self, chunks: &mut [u32], flight: u32, at: At) {
        let w = usize::from(at.warp);
        let by = self.clocks.accessor(w, MANY, at.step);
        let fenced = self.clocks.fenced(w);
        let mut troubles = vec![];
        for chunk in chunks {
            // A descriptor holds the low bits of an address in the block's own window.
            let address = *chunk + windows::of_rank(self.rank(at.warp.into()));
            match self.shared.locate(address.into(), 16) {
                Ok(offset) => {
                    if let Err(trouble) = self.shared.may_read_asynchronously(&by, fenced, offset, 16) {
                        troubles.push((trouble, address));
                    }
                    self.shared.begin_read(flight, offset, 16);
                    *chunk = offset;
                }
                Err(trouble) => {
                    troubles.push((trouble, address));
                    *chunk = u32::MAX;
                }
            }
        }
        for (trouble, address) in troubles {
            self.trouble(trouble, at, address.into());
        }
    }

    pub(super) fn wait_products(&mut self, warp: &mut Warp, pending: u32, _pc: u32) {
        let w = warp.index as usize;
        let committed = self.products[w].committed;
        let mut all = std::mem::take(&mut self.products[w].pending);
        let due = all.iter().take_while(|p| p.group + pending < committed).count();
        for product in &mut all[..due] {
            self.multiply(warp, product);
            let by = self.clocks.accessor(w, ALL, product.step);
            for &offset in product.a.iter().chain(&product.b).filter(|o| **o != u32::MAX) {
                self.shared.end_read(&by, offset, 16);
            }
        }
        let done: Vec<Product> = all.drain(..due).collect();
        for product in done {
            for row in &mut self.products[w].rows {
                if row.written_by == product.flight {
                    row.written_by = 0;
                }
                if row.read_by == product.flight {
                    row.read_by = 0;
                }
            }
        }
        self.products[w].pending = all;
    }

    /// Computes a product.
    fn multiply(&mut self, warp: &mut Warp, product: &mut Product) {
        if std::mem::replace(&mut product.landed, true) {
            return;
        }
        let kernel = self.kernel;
        let Op::Wgmma(wgmma) = &kernel.steps[product.step as usize].op else { return };
        let n = usize::from(wgmma.n);
        let chunk = |offset: u32| -> [f32; 8] {
            if offset == u32::MAX {
                return [f32::NAN; 8];
            }
            let bytes = self.shared.bytes(offset, 16);
            std::array::from_fn(|e| element(wgmma.factor, u16::from_le_bytes([bytes[2 * e], bytes[2 * e + 1]])))
        };
        // A: 16 rows of 16; B: 16 rows (k) of n.
        let mut a = [[0f32; 16]; 16];
        match &wgmma.a {
            LeftFactor::Registers(rows) => {
                for (r, &row) in rows.iter().enumerate() {
                    for (lane, pair) in warp.words[row as usize].iter().enumerate() {
                        let (i, j) = super::fragments::a_place(lane, r, 0);
                        a[i][j] = element(wgmma.factor, *pair as u16);
                        a[i][j + 1] = element(wgmma.factor, (*pair >> 16) as u16);
                    }
                }
            }
            LeftFactor::Shared { transposed: false, .. } => {
                for (index, &offset) in product.a.iter().enumerate() {
                    a[index / 2][8 * (index % 2)..][..8].copy_from_slice(&chunk(offset));
                }
            }
            LeftFactor::Shared { transposed: true, .. } => {
                for (index, &offset) in product.a.iter().enumerate() {
                    for (e, x) in chunk(offset).into_iter().enumerate() {
                        a[8 * (index % 2) + e][index / 2] = x;
                    }
                }
            }
        }
        let mut b = vec![0f64; 16 * n];
        for (index, &offset) in product.b.iter().enumerate() {
            let values = chunk(offset);
            if wgmma.transposed {
                let (k, first) = (index / (n / 8), 8 * (index % (n / 8)));
                for (e, x) in values.into_iter().enumerate() {
                    b[k * n + first + e] = x.into();
                }
            } else {
                let (row, first) = (index / 2, 8 * (index % 2));
                for (e, x) in values.into_iter().enumerate() {
                    b[(first + e) * n + row] = x.into();
                }
            }
        }
        let sign = if wgmma.negate_a != wgmma.negate_b { -1.0 } else { 1.0 };
        let mut sums = vec![0f64; 16 * n];
        if product.accumulate {
            for (r, &row) in wgmma.d.iter().enumerate() {
                for (lane, x) in warp.words[row as usize].iter().enumerate() {
                    let (i, j) = d_place(lane, r);
                    sums[i * n + j] = float(*x).into();
                }
            }
        }
        for (row, sum) in a.iter().zip(sums.chunks_exact_mut(n)) {
            for (&x, values) in row.iter().zip(b.chunks_exact(n)) {
                let x = sign * f64::from(x);
                for (s, y) in sum.iter_mut().zip(values) {
                    *s += x * y;
                }
            }
        }
        for (r, &row) in wgmma.d.iter().enumerate() {
            let d = &mut warp.words[row as usize];
            for (lane, x) in d.iter_mut().enumerate() {
                let (i, j) = d_place(lane, r);
                *x = bits(sums[i * n + j] as f32);
            }
        }
    }
}

/// Row (of the warp's 16) and column of register `r` of a wgmma accumulator (PTX ISA, "Register
/// Fragments for wgmma.mma_async.m64nNk16").
fn d_place(lane: usize, r: usize) -> (usize, usize) {
    (lane / 4 + 8 * (r / 2 % 2), 8 * (r / 4) + 2 * (lane % 4) + r % 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accumulators_are_those_of_the_isa() {
        // Figure "WGMMA .m64nNk16 register fragment layout for accumulator matrix D": d0,d1 row lane/4; d2,d3 + 8; then + 8 columns.
        assert_eq!(d_place(0, 0), (0, 0));
        assert_eq!(d_place(3, 1), (0, 7));
        assert_eq!(d_place(4, 2), (9, 0));
        assert_eq!(d_place(31, 7), (15, 15));
    }

    #[test]
    fn k_major_tiles_of_128_bytes_are_swizzled_by_row() {
        // Rows of 64 16-bit elements at 1024, groups of eight rows 1024 bytes apart; k of 16 at 16 elements in.
        let d = Descriptor::decode(1 << 62 | 64 << 32 | 1 << 16 | (1024 + 32) >> 4).expect("legal");
        assert_eq!((d.start, d.stride, d.swizzle), (1056, 1024, Swizzle::Bytes128));
        assert_eq!(d.k_major(0, 0), 1024 + 32);
        assert_eq!(d.k_major(1, 0), 1024 + 128 + ((2 ^ 1) << 4));
        assert_eq!(d.k_major(9, 8), 1024 + 1024 + 128 + ((3 ^ 1) << 4));
    }

    #[test]
    fn mn_major_tiles_have_a_row_for_each_k() {
        // 64-element slabs 8192 bytes apart.
        let d = Descriptor::decode(1 << 62 | 64 << 32 | (8192 >> 4) << 16 | 2048 >> 4).expect("legal");
        assert_eq!(d.mn_major(0, 0), 2048);
        assert_eq!(d.mn_major(8, 3), 2048 + 3 * 128 + ((1 ^ 3) << 4));
        assert_eq!(d.mn_major(64, 8), 2048 + 8192 + 1024);
        let all = d.chunks(0, 128, true);
        assert_eq!(all.len(), 16 * 16);
        assert_eq!(Descriptor::decode(1 << 49), None);
    }

    #[test]
    fn other_swizzles_span_fewer_bytes() {
        assert_eq!(Swizzle::Bytes64.apply(128), 128 | 16);
        assert_eq!(Swizzle::Bytes32.apply(128 + 256), 384 | 16);
        assert_eq!(element(crate::program::Factor::Bf16, 0x3f80), 1.0);
    }
}
