//! Tensors as a program sees them: strided views that are read, and the tiles that it stores.

use arrayvec::ArrayVec;
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

use super::arithmetic::Real;
use super::tile::{Lengths, Tile};
use crate::ir::{Elem, ParamId};

/// A tensor in memory of the host that is read. Strides count elements; the last dimension is contiguous.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    /// Element type: any but a type parameter.
    pub elem: Elem,
    /// Extents, outermost first.
    pub shape: &'a [usize],
    /// Strides in elements, outermost first.
    pub strides: &'a [usize],
    /// Memory from the first element on, little-endian.
    pub bytes: &'a [u8],
}

/// One argument, in the order of the parameters.
#[derive(Clone, Copy, Debug)]
pub enum Argument<'a> {
    /// A tensor that is read. Of one that is written too, what it holds before: what is stored is returned.
    Input(TensorView<'a>),
    /// A tensor that is written: what is stored is returned, so its memory is not needed.
    Output,
    /// An f32 scalar.
    F32(f32),
    /// An i32 scalar.
    I32(i32),
}

impl Argument<'_> {
    pub(super) fn describe(&self) -> &'static str {
        match self {
            Argument::Input(_) => "an input tensor",
            Argument::Output => "an output tensor",
            Argument::F32(_) => "an f32 scalar",
            Argument::I32(_) => "an i32 scalar",
        }
    }
}

/// Consecutive elements of one dimension of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Run {
    pub start: usize,
    pub len: usize,
    /// Whether the dimension is one of the tile's; else it has one element and the tile does not have it.
    pub kept: bool,
}

/// A tile that a program stored: a box of the tensor, whose values are rounded as the arithmetic says.
#[derive(Clone, PartialEq, Debug)]
pub struct Stored<R> {
    /// The tensor parameter.
    pub param: ParamId,
    /// First element and number of elements, for every dimension of the tensor.
    pub region: Vec<(usize, usize)>,
    /// Values in row-major order. Integers are converted; they are exact in f64, and in f32 up to 2^24.
    pub values: Vec<R>,
    /// Values of an integer tensor; empty for a float one.
    pub ints: Vec<i32>,
    /// Where a sum or a difference of floats is stored, the largest finite magnitude of its terms,
    /// to which its rounding is relative; else 0.
    pub terms: f64,
}

impl<R: Real> Stored<R> {
    /// Element offsets of the region in a tensor of these strides, row by row: the offset of the first element of each
    /// run along the last dimension, with the index of its value.
    pub fn rows(&self, strides: &[usize]) -> impl Iterator<Item = (usize, usize)> + use<'_, R> {
        let row = self.region.last().map_or(1, |r| r.1);
        let outer = &self.region[..self.region.len().saturating_sub(1)];
        let empty = self.region.iter().any(|r| r.1 == 0);
        let count: usize = if empty { 0 } else { outer.iter().map(|r| r.1).product() };
        let last = self.region.last().map_or(0, |r| r.0);
        let strides = strides.to_vec();
        (0..count).map(move |n| {
            let (mut rest, mut at) = (n, last);
            for (&(start, len), stride) in outer.iter().zip(&strides).rev() {
                at += (start + rest % len) * stride;
                rest /= len;
            }
            (at, n * row)
        })
    }

    /// Length of the runs that [`Stored::rows`] gives.
    pub fn row_len(&self) -> usize {
        self.region.last().map_or(1, |r| r.1)
    }

    /// Adds the values to those in memory, of f32, that begins with the first element of a tensor of
    /// these strides: of a sum.
    ///
    /// # Panics
    /// If the memory is too short for the region.
    pub fn add(&self, strides: &[usize], memory: &mut [u8]) {
        let len = self.row_len();
        for (at, from) in self.rows(strides) {
            let (slots, _) = memory[at * 4..][..len * 4].as_chunks_mut::<4>();
            for (slot, x) in slots.iter_mut().zip(&self.values[from..]) {
                *slot = (f32::from_le_bytes(*slot) + x.to_f32()).to_le_bytes();
            }
        }
    }

    /// Writes the values as `elem` into memory that begins with the first element of a tensor of these strides.
    ///
    /// # Panics
    /// If the memory is too short for the region, or kernels do not store `elem`.
    pub fn write(&self, elem: Elem, strides: &[usize], memory: &mut [u8]) {
        let len = self.row_len();
        for (at, from) in self.rows(strides) {
            match elem {
                Elem::F32 => encode(&self.values[from..][..len], &mut memory[at * 4..], |x| x.to_f32().to_le_bytes()),
                Elem::F16 => {
                    encode(&self.values[from..][..len], &mut memory[at * 2..], |x| f16::from_f32(x.to_f32()).to_le_bytes())
                }
                Elem::Bf16 => {
                    encode(&self.values[from..][..len], &mut memory[at * 2..], |x| bf16::from_f32(x.to_f32()).to_le_bytes())
                }
                Elem::I32 => encode(&self.ints[from..][..len], &mut memory[at * 4..], i32::to_le_bytes),
                Elem::Bool | Elem::U8 | Elem::I8 | Elem::F8E4M3 | Elem::F8E5M2 | Elem::Generic(_) => {
                    panic!("verified: a tensor that is written holds f32, f16, bf16 or i32, not {elem:?}")
                }
            }
        }
    }
}

fn encode<T: Copy, const N: usize>(values: &[T], memory: &mut [u8], bytes: impl Fn(T) -> [u8; N]) {
    let (slots, _) = memory[..values.len() * N].as_chunks_mut::<N>();
    for (slot, &x) in slots.iter_mut().zip(values) {
        *slot = bytes(x);
    }
}

/// Reads the tile at `runs`, one per dimension, all in bounds.
pub(super) fn load<R: Real>(tensor: &TensorView<'_>, runs: &[Run]) -> Tile<R> {
    let base: usize = runs.iter().zip(tensor.strides).map(|(r, s)| r.start * s).sum();
    let kept: ArrayVec<(usize, usize), 2> =
        runs.iter().zip(tensor.strides).filter(|(r, _)| r.kept).map(|(r, &s)| (r.len, s)).collect();
    let shape: Lengths = kept.iter().map(|k| k.0).collect();
    let ((rows, row_stride), (columns, stride)) = match *kept.as_slice() {
        [] => ((1, 0), (1, 1)),
        [columns] => ((1, 0), columns),
        [rows, columns] => (rows, columns),
        _ => unreachable!("verified: tiles have rank 0 to 2"),
    };
    decoded(tensor, shape, &Places::Matrix { base, rows, row_stride, columns, stride })
}

/// The elements at these places, in elements from the first one on; all in bounds.
pub(super) fn gathered<R: Real>(tensor: &TensorView<'_>, places: &[usize], shape: Lengths) -> Tile<R> {
    decoded(tensor, shape, &Places::Each(places))
}

fn decoded<R: Real>(tensor: &TensorView<'_>, shape: Lengths, place: &Places<'_>) -> Tile<R> {
    match tensor.elem {
        Elem::F32 => Tile::float(shape, place.decode(tensor.bytes, |b| R::from_f32(f32::from_le_bytes(b)))),
        Elem::F16 => Tile::float(shape, place.decode(tensor.bytes, |b| R::from_f32(f16::from_le_bytes(b).to_f32()))),
        Elem::Bf16 => Tile::float(shape, place.decode(tensor.bytes, |b| R::from_f32(bf16::from_le_bytes(b).to_f32()))),
        Elem::I32 => Tile::int(shape, place.decode(tensor.bytes, i32::from_le_bytes)),
        Elem::Bool => Tile::bool(shape, place.decode(tensor.bytes, |[b]: [u8; 1]| b != 0)),
        Elem::U8 => Tile::int(shape, place.decode(tensor.bytes, |[b]: [u8; 1]| b.into())),
        Elem::I8 => Tile::int(shape, place.decode(tensor.bytes, |b| i8::from_le_bytes(b).into())),
        Elem::F8E4M3 => Tile::float(shape, place.decode(tensor.bytes, |[b]: [u8; 1]| R::from_f32(F8E4M3::from_bits(b).to_f32()))),
        Elem::F8E5M2 => Tile::float(shape, place.decode(tensor.bytes, |[b]: [u8; 1]| R::from_f32(F8E5M2::from_bits(b).to_f32()))),
        Elem::Generic(_) => panic!("checked: a tensor holds elements of a concrete type"),
    }
}

/// Where elements lie in memory, in elements.
enum Places<'a> {
    /// Those of a matrix.
    Matrix { base: usize, rows: usize, row_stride: usize, columns: usize, stride: usize },
    /// Each at a place of its own.
    Each(&'a [usize]),
}

impl Places<'_> {
    fn decode<T, const N: usize>(&self, bytes: &[u8], value: impl Fn([u8; N]) -> T) -> Vec<T> {
        let (base, rows, row_stride, columns, stride) = match *self {
            Places::Matrix { base, rows, row_stride, columns, stride } => (base, rows, row_stride, columns, stride),
            Places::Each(places) => {
                let (elements, _) = bytes.as_chunks::<N>();
                return places.iter().map(|&place| value(elements[place])).collect();
            }
        };
        let mut out = Vec::with_capacity(rows * columns);
        if columns == 0 {
            return out;
        }
        for row in 0..rows {
            let (elements, _) = bytes[(base + row * row_stride) * N..].as_chunks::<N>();
            match stride {
                1 => out.extend(elements[..columns].iter().map(|&b| value(b))),
                stride => out.extend((0..columns).map(|c| value(elements[c * stride]))),
            }
        }
        out
    }
}
