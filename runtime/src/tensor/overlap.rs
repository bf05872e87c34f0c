//! Whether tensors share memory, from their layouts.
//!
//! Two elements meet where a sum of strides, each times a difference of indices, is the distance of the tensors. The
//! strides are tried from the largest down. A stride larger than what the smaller ones reach together leaves at most two
//! differences to try, so layouts that come from slicing, transposing and splitting tensors are decided at once and
//! exactly. A search that takes longer than [`MAX_STEPS`] is given up: then the tensors count as overlapping.

use super::AnyTensor;

/// Most dimensions of two tensors together, with one each for the bytes of an element.
const MAX_TERMS: usize = 32;
/// Differences that are tried.
const MAX_STEPS: usize = 1 << 12;

/// Differences of indices along dimensions of one stride.
#[derive(Clone, Copy, Default, Debug)]
struct Term {
    stride: i128,
    least: i128,
    most: i128,
}

/// The differences of addresses of two elements.
#[derive(Debug)]
struct Distances {
    /// Largest stride first.
    terms: [Term; MAX_TERMS],
    count: usize,
    steps: usize,
}

impl Distances {
    fn new() -> Self {
        Self { terms: [Term::default(); MAX_TERMS], count: 0, steps: 0 }
    }

    /// Adds differences of `least ..= most` along a stride of so many bytes; false if there are too many dimensions.
    fn add(&mut self, stride: usize, least: i128, most: i128) -> bool {
        let stride = stride as i128;
        if least == 0 && most == 0 {
            return true;
        }
        let at = self.terms[..self.count].iter().position(|t| t.stride <= stride).unwrap_or(self.count);
        if at < self.count && self.terms[at].stride == stride {
            self.terms[at].least += least;
            self.terms[at].most += most;
            return true;
        }
        if self.count == MAX_TERMS {
            return false;
        }
        self.terms.copy_within(at..self.count, at + 1);
        self.terms[at] = Term { stride, least, most };
        self.count += 1;
        true
    }

    /// Whether the terms from `at` on can sum to `distance`; yes if the search is given up. `nothing`: not with all of
    /// them 0.
    fn reach(&mut self, at: usize, distance: i128, nothing: bool) -> bool {
        self.steps += 1;
        if self.steps > MAX_STEPS {
            return true;
        }
        let Some(&Term { stride, least, most }) = self.terms[..self.count].get(at) else { return distance == 0 && !nothing };
        if stride == 0 {
            // Elements along it are one place.
            return distance == 0;
        }
        let rest = &self.terms[at + 1..self.count];
        let low: i128 = rest.iter().map(|t| t.stride * t.least).sum();
        let high: i128 = rest.iter().map(|t| t.stride * t.most).sum();
        // distance - factor * stride must be from low to high.
        let first = (distance - high).div_euclid(stride) + i128::from((distance - high).rem_euclid(stride) != 0);
        let last = (distance - low).div_euclid(stride);
        for factor in first.max(least)..=last.min(most) {
            if self.reach(at + 1, distance - factor * stride, nothing && factor == 0) {
                return true;
            }
        }
        false
    }
}

/// Whether two elements of a layout are the same place in memory.
pub(crate) fn overlaps_itself(shape: &[usize], strides: &[usize]) -> bool {
    if shape.contains(&0) {
        return false;
    }
    let mut distances = Distances::new();
    for (&extent, &stride) in shape.iter().zip(strides) {
        let most = extent as i128 - 1;
        if !distances.add(stride, -most, most) {
            return true;
        }
        // Two dimensions of one stride, or one of stride 0, have elements in common.
        if most > 0 && (stride == 0 || shape.iter().zip(strides).filter(|&(&n, &s)| n > 1 && s == stride).count() > 1) {
            return true;
        }
    }
    distances.reach(0, 0, true)
}

impl AnyTensor {
    /// Whether two of its elements are the same place in memory, as in a broadcast. Such a tensor can be read, not written.
    pub fn overlaps_itself(&self) -> bool {
        overlaps_itself(self.shape(), self.strides())
    }

    /// Whether it shares memory with another tensor. Tensors that lie between each other, such as the heads of a packed
    /// tensor, share none. If the strides are so irregular that an answer would take long, it is `true`.
    pub fn overlaps(&self, other: &AnyTensor) -> bool {
        self.device() == other.device() && between(&Place::of(self), &Place::of(other))
    }
}

/// Where a tensor lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    /// Of the first element.
    pub address: u64,
    /// Of an element.
    pub bytes: usize,
    pub shape: &'a [usize],
    pub strides: &'a [usize],
}

impl<'a> Place<'a> {
    fn of(tensor: &'a AnyTensor) -> Self {
        let (shape, strides) = (tensor.shape(), tensor.strides());
        Self { address: tensor.address(), bytes: tensor.elem_bytes(), shape, strides }
    }

    /// One past its last byte.
    fn end(&self) -> u64 {
        let last: usize = self.shape.iter().zip(self.strides).map(|(n, s)| (n - 1) * s).sum();
        self.address + ((last + 1) * self.bytes) as u64
    }
}

/// Whether two tensors share memory.
pub(crate) fn between(a: &Place<'_>, b: &Place<'_>) -> bool {
    if a.shape.contains(&0) || b.shape.contains(&0) || a.end() <= b.address || b.end() <= a.address {
        return false;
    }
    let mut distances = Distances::new();
    let mut fits = true;
    for (&extent, &stride) in a.shape.iter().zip(a.strides) {
        fits &= distances.add(stride * a.bytes, 0, extent as i128 - 1);
    }
    for (&extent, &stride) in b.shape.iter().zip(b.strides) {
        fits &= distances.add(stride * b.bytes, 1 - extent as i128, 0);
    }
    fits &= distances.add(1, 1 - b.bytes as i128, a.bytes as i128 - 1);
    !fits || distances.reach(0, i128::from(b.address) - i128::from(a.address), false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn layouts_of_slices_are_told_apart_exactly() {
        let at = |address, shape, strides| Place { address, bytes: 2, shape, strides };
        let shape = &[4usize, 8, 64][..];
        // One of three parts of each row: packed queries, keys and values.
        let packed = &[8 * 192usize, 192, 1][..];
        let of = |first: u64, second: u64| between(&at(4096 + first * 2, shape, packed), &at(4096 + second * 2, shape, packed));
        assert!(!of(0, 64) && !of(64, 128) && !of(128, 0));
        assert!(of(0, 63) && of(0, 0) && of(0, 192) && of(130, 70));
        // Neighbours, and halves that do not touch.
        let plain = &[512usize, 64, 1][..];
        assert!(!between(&at(0, shape, plain), &at(4096, shape, plain)));
        assert!(between(&at(0, shape, plain), &at(4094, shape, plain)));
        // Elements of other sizes.
        let floats = Place { address: 2, bytes: 4, shape: &[1], strides: &[1] };
        assert!(between(&floats, &at(4, &[1], &[1])) && !between(&floats, &at(6, &[1], &[1])));
        assert!(!between(&at(0, &[0], &[1]), &at(0, shape, plain)), "nothing shares nothing");
    }

    #[test]
    fn an_output_of_stride_0_or_of_interleaved_rows_overlaps_itself() {
        assert!(overlaps_itself(&[4, 8], &[0, 1]) && overlaps_itself(&[4, 8], &[7, 1]) && overlaps_itself(&[4, 4], &[4, 4]));
        assert!(
            !overlaps_itself(&[4, 8], &[8, 1])
                && !overlaps_itself(&[1, 8], &[0, 1])
                && !overlaps_itself(&[8, 4], &[1, 8])
                && !overlaps_itself(&[0, 8], &[0, 1])
        );
        assert!(!overlaps_itself(&[2, 3], &[3, 2]), "0 2 4 3 5 7");
    }

    /// Every layout of three small dimensions against the elements that it has.
    #[test]
    fn small_layouts_agree_with_a_list_of_their_elements() {
        let elements = |shape: &[usize; 3], strides: &[usize; 3]| {
            let mut all = Vec::new();
            for i in 0..shape[0] {
                for j in 0..shape[1] {
                    all.extend((0..shape[2]).map(|k| i * strides[0] + j * strides[1] + k * strides[2]));
                }
            }
            all
        };
        let mut layouts = Vec::new();
        for n in 0..27 {
            for s in 0..216 {
                let shape = [1 + n % 3, 1 + n / 3 % 3, 1 + n / 9];
                layouts.push((shape, [s % 6, s / 6 % 6, s / 36]));
            }
        }
        for (shape, strides) in &layouts {
            let all = elements(shape, strides);
            let distinct: HashSet<usize> = all.iter().copied().collect();
            assert_eq!(overlaps_itself(shape, strides), distinct.len() < all.len(), "{shape:?} {strides:?}");
        }
        for (n, (shape, strides)) in layouts.iter().enumerate().step_by(7) {
            let (other, steps) = &layouts[(n * 31 + 17) % layouts.len()];
            let all: HashSet<usize> = elements(shape, strides).into_iter().collect();
            for distance in 0..30usize {
                let share = elements(other, steps).into_iter().any(|x| all.contains(&(x + distance)));
                let a = Place { address: 0, bytes: 1, shape, strides };
                let b = Place { address: distance as u64, bytes: 1, shape: other, strides: steps };
                assert_eq!(between(&a, &b), share, "{shape:?} {strides:?} and {other:?} {steps:?} at {distance}");
            }
        }
    }
}
