//! Inputs of a case, and memory that shows every stray access.
//!
//! Every tensor lies in memory that is larger than it and full of one NaN pattern: before it, after it, and in the gaps of
//! its strides. What a kernel reads there poisons its result; what it writes there is found. Outputs hold the pattern too,
//! so that an element that was never written is found.

use flashtile_dsl::interpret::HostTensor;
use flashtile_dsl::ir::{Elem, Kernel, Param, ParamKind, SizeExpr};

use super::case::{Case, Layout, Values};
use crate::verify::HostArgument;
use flashtile_dsl::inputs::{InputData, Plan, rotation_table};

/// Elements of guard before and after a tensor: a multiple of every alignment that a GPU asks for.
const GUARD: usize = 256;
/// The pattern, every 16 bits: a NaN of f16, bf16 and f32 that no arithmetic gives.
const POISON: [u8; 2] = [0xA5, 0xFF];

/// The arguments of a case, in order of the parameters.
///
/// # Panics
/// If the case names no value for a size or scalar of its kernel: a fault of the table.
pub(super) fn arguments(case: &Case, kernel: &Kernel) -> Vec<HostArgument> {
    let mut arguments = places(case, kernel);
    let (given, said) = (case.all_sizes(), InputData::default());
    let sizes: Vec<i64> =
        kernel.sizes.values().map(|s| *given.get(s.name.as_str()).expect("the table gives every size")).collect();
    let plan = Plan::new(kernel, &sizes, &said).expect("nothing is said of the inputs");
    for ((id, param), argument) in kernel.params.iter().zip(&mut arguments) {
        let HostArgument::Input(tensor) = argument else { continue };
        let mut values = plan.values(id, &tensor.shape, case.seed());
        shape_values(case.values, &param.name, &tensor.shape, &mut values);
        if let "k_step" | "v_step" = &*param.name {
            // Quantised numbers are about 100 steps.
            values.iter_mut().for_each(|x| *x *= 0.01);
        }
        tensor.write_f64(&values);
        if case.values == Values::EveryByte {
            every_byte(tensor);
        }
    }
    arguments
}

/// Every byte in turn, if elements have one byte.
fn every_byte(tensor: &mut HostTensor) {
    if tensor.elem.bytes() == Some(1) {
        let places: Vec<usize> = tensor.places().collect();
        places.into_iter().zip((0..=u8::MAX).cycle()).for_each(|(at, byte)| tensor.bytes[at] = byte);
    }
}

/// The arguments of a case before its inputs are drawn: scalars, and tensors that hold nothing but poison.
///
/// # Panics
/// As [`arguments`].
pub(super) fn places(case: &Case, kernel: &Kernel) -> Vec<HostArgument> {
    let sizes = case.all_sizes();
    let extent = |size: &SizeExpr| {
        let value = size.eval(|s| sizes.get(kernel.size_name(s)).copied());
        value.and_then(|n| usize::try_from(n).ok()).expect("the table gives every size")
    };
    let scalar = |name: &str| case.scalars.iter().find(|(n, _)| *n == name).expect("the table gives every scalar").1;
    let place = |param: &Param| match &param.kind {
        ParamKind::Scalar(Elem::I32) => HostArgument::I32(scalar(&param.name) as i32),
        ParamKind::Scalar(_) => HostArgument::F32(scalar(&param.name)),
        ParamKind::Tensor(declared) => {
            let shape: Vec<usize> = declared.shape.iter().map(extent).collect();
            let elem = match declared.elem {
                Elem::Generic(_) => case.elem,
                own => own,
            };
            let tensor = poisoned(elem, &shape, case.layout);
            if declared.direction.is_written() { HostArgument::Output(tensor) } else { HostArgument::Input(tensor) }
        }
    };
    kernel.params.values().map(place).collect()
}

/// Changes normal values into what the case asks for.
fn shape_values(how: Values, name: &str, shape: &[usize], values: &mut [f64]) {
    let columns = shape.last().copied().unwrap_or(1).max(1);
    let rows = match shape {
        [.., rows, _] => *rows,
        _ => 1,
    };
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    let mut each_row = |change: &mut dyn FnMut(usize, &mut [f64])| {
        for (at, row) in values.chunks_mut(columns).enumerate() {
            change(at % rows, row);
        }
    };
    // Tables of rotations are that whatever else is asked for.
    if let Some(table) = rotation_table(name, columns) {
        return each_row(&mut |row, x| x.iter_mut().enumerate().for_each(|(c, x)| *x = table(row, c)));
    }
    match (how, name) {
        (Values::Integers, _) => values.iter_mut().for_each(|x| *x = x.round().clamp(-1.0, 1.0)),
        (Values::Growing(factor), "k") => each_row(&mut |row, x| {
            let along = row as f64 / (rows.max(2) - 1) as f64;
            x.iter_mut().for_each(|x| *x *= 1.0 + (f64::from(factor) - 1.0) * along);
        }),
        (Values::EqualScores, "k") => {
            let first: Vec<f64> = values.iter().copied().take(columns).collect();
            values.chunks_mut(columns).for_each(|row| row.copy_from_slice(&first));
        }
        (Values::SpecialQueries, "q") | (Values::SpecialKeys, "k") => each_row(&mut |row, x| {
            if row == rows / 3 {
                x.fill(nan);
            } else if row == rows / 2 {
                x[0] = inf;
            }
        }),
        (Values::SpecialValues, "v") => each_row(&mut |row, x| {
            if row == rows / 3 {
                x[0] = nan;
                x[1] = inf;
                x[2] = inf;
            } else if row == rows / 2 {
                x[2] = -inf;
                x[3] = -inf;
            }
        }),
        (
            Values::WildIntegers,
            "lens" | "windows" | "begin" | "end" | "sizes" | "query_document" | "key_document" | "since" | "row_ids"
            | "column_ids",
        ) => {
            let wild = [i32::MAX, 40, i32::MIN, 0, -1, 33, 200, 1];
            let first = usize::from(name == "begin") * 2;
            values.iter_mut().zip(wild.iter().cycle().skip(first)).for_each(|(x, &wild)| *x = f64::from(wild));
        }
        (Values::NothingSeen, "lse") => {
            values.chunks_mut(columns).for_each(|row| row[..columns / 3].fill(-inf));
        }
        (Values::NothingSeen, "keep") => {
            let nothing = values.len() / columns / 3;
            values.chunks_mut(columns).take(nothing.max(1)).for_each(|row| row.fill(0.0));
        }
        (Values::HiddenKeys, "q") => values.iter_mut().for_each(|x| *x = x.abs() + 0.125),
        (Values::HiddenKeys, "k") => each_row(&mut |row, x| {
            if row < rows / 2 {
                x.fill(-inf);
            }
        }),
        (Values::SpecialSinks, "sinks") => {
            let special = [-inf, 1e3, -1e3, 1e30, inf, nan];
            values.iter_mut().zip(special.iter().cycle()).for_each(|(x, &sink)| *x = sink);
        }
        (Values::SpecialRows, "x" | "a") => each_row(&mut |row, x| {
            let last = x.len() - 1;
            match row {
                0 => x[0] = -inf,
                1 => x[last] = inf,
                2 => x[last / 2] = nan,
                3 => x.fill(-inf),
                _ => {}
            }
        }),
        _ => {}
    }
}

/// A tensor in guarded memory, every element of it and of the guards poisoned.
fn poisoned(elem: Elem, shape: &[usize], layout: Layout) -> HostTensor {
    let columns = shape.last().copied().unwrap_or(1);
    let (gap, offset) = match layout {
        Layout::Packed | Layout::HeadsInner => (0, GUARD),
        Layout::Padded(gap) => (gap, GUARD + gap % 2),
    };
    // Dimensions from the innermost outwards, in the order in which they lie in memory.
    let mut order: Vec<usize> = (0..shape.len()).rev().collect();
    if layout == Layout::HeadsInner && shape.len() >= 3 {
        // (batch, heads, rows, columns) lies as (batch, rows, heads, columns); an LSE has no columns.
        let rows = if shape.len() == 4 { 1 } else { 0 };
        order.swap(rows, rows + 1);
    }
    let mut strides = vec![1; shape.len()];
    let mut stride = 1;
    for (place, &dim) in order.iter().enumerate() {
        strides[dim] = stride;
        stride *= shape[dim].max(1);
        if place == 0 && shape.len() > 1 {
            stride = columns.max(1) + gap;
        }
    }
    if layout == Layout::HeadsInner && shape.len() == 3 {
        // The last dimension must be contiguous: an LSE stays as it is.
        strides = vec![shape[1] * shape[2], shape[2], 1];
    }
    let elements = offset + stride.max(1) + GUARD;
    let bytes = elements * elem.bytes().expect("a tensor holds what has a size");
    HostTensor { elem, shape: shape.to_vec(), strides, offset, bytes: POISON.iter().copied().cycle().take(bytes).collect() }
}

/// What is wrong with the memory of an output after a launch, in words.
pub(super) fn inspect(name: &str, before: &HostTensor, after: &HostTensor) -> Option<String> {
    let width = after.elem.bytes().expect("a tensor holds what has a size");
    let mut inside = vec![false; after.bytes.len() / width];
    after.places().for_each(|at| inside[at] = true);
    for (at, (old, new)) in before.bytes.chunks(width).zip(after.bytes.chunks(width)).enumerate() {
        let first = after.offset;
        match inside[at] {
            false if old != new => {
                let away = at as i64 - first as i64;
                return Some(format!("{name}: wrote outside of the tensor, {away} elements from its first"));
            }
            true if old == new && old[..2] == POISON => {
                return Some(format!("{name}: the element {} places from the first was never written", at - first));
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stray_writes_and_forgotten_elements_are_found() {
        for layout in [Layout::Packed, Layout::HeadsInner, Layout::Padded(8), Layout::Padded(3)] {
            let before = poisoned(Elem::F16, &[1, 2, 3, 4], layout);
            let mut after = before.clone();
            after.write_f64(&[1.0; 24]);
            assert_eq!(inspect("o", &before, &after), None, "{layout:?}");
            let mut forgotten = before.clone();
            forgotten.write_f64(&[1.0; 24]);
            let last = after.places().last().expect("24 elements");
            forgotten.bytes[last * 2..][..2].copy_from_slice(&POISON);
            assert!(inspect("o", &before, &forgotten).expect("found").contains("never written"));
            for stray in [after.offset - 1, last + 1] {
                let mut written = after.clone();
                written.bytes[stray * 2] = 0;
                assert!(inspect("o", &before, &written).expect("found").contains("outside"), "{layout:?} {stray}");
            }
        }
    }

    #[test]
    fn the_poison_is_a_nan_of_every_float_type() {
        for elem in [Elem::F32, Elem::F16, Elem::Bf16] {
            let tensor = poisoned(elem, &[2, 3], Layout::Padded(1));
            assert!(tensor.to_f64().iter().all(|x| x.is_nan()), "{elem:?}");
        }
    }

    #[test]
    fn layouts_keep_rows_apart() {
        let inner = poisoned(Elem::F16, &[2, 3, 5, 4], Layout::HeadsInner);
        assert_eq!(inner.strides, [60, 4, 12, 1]);
        let padded = poisoned(Elem::F16, &[2, 3, 5, 4], Layout::Padded(8));
        assert_eq!(padded.strides, [180, 60, 12, 1]);
        let lse = poisoned(Elem::F32, &[2, 3, 5], Layout::HeadsInner);
        assert_eq!(lse.strides, [15, 5, 1]);
        let rows = poisoned(Elem::F32, &[2, 3, 5], Layout::Padded(3));
        assert_eq!((rows.strides, rows.offset % 2), (vec![24, 8, 1], 1));
    }
}
