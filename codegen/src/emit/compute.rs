//! Tiles computed in shared memory: who computes which part, and how it is read and written.

use flashtile_dsl::ir::Elem;
use flashtile_templates::{Compute, ComputedTile, PartInput, SharedValue, Wrapper};

use super::expression::Domain;
use super::file::c_type;
use super::writer::{Writer, parenthesized};
use crate::error::Error;
use crate::plan::{Cast, Computed, Expr, GlobalTile, Input, InputSource, Parts, Shared};

impl Writer<'_> {
    pub(super) fn compute(&mut self, to: &[Computed], inputs: &[Input], shared: &[Shared]) -> Result<String, Error> {
        let parts = Parts::of(self.plan(), to, inputs);
        self.wrappers.extend([Wrapper::Tile, Wrapper::SharedAccess, Wrapper::Widen, Wrapper::WidenPair, Wrapper::Part]);
        let values: Vec<&Expr> = to.iter().map(|t| &t.value).chain(shared.iter().map(|s| &s.value)).collect();
        let inputs = inputs.iter().map(|i| self.part_input(i, &values, parts.width)).collect();
        let shared = shared
            .iter()
            .map(|s| {
                let r#type = match s.elem {
                    Elem::Bool => "bool",
                    Elem::I32 => "int",
                    _ => "float",
                };
                SharedValue { r#type: r#type.into(), name: s.name.clone(), value: self.text(&s.value, Domain::Part) }
            })
            .collect();
        let tiles: Vec<ComputedTile> = to.iter().map(|t| self.computed_tile(t)).collect();
        let note: Vec<String> = tiles.iter().map(|t| t.name.clone()).collect();
        let even = parts.is_even();
        let (row, column) = if even {
            let (per_row, step) = (parts.per_row, parts.threads / parts.per_row);
            (format!("thread / {per_row} + (first + piece) * {step}"), format!("thread % {per_row} * {}", parts.width))
        } else {
            (format!("piece_at / {}", parts.per_row), format!("piece_at % {} * {}", parts.per_row, parts.width))
        };
        let batches = parts.per_thread.div_ceil(parts.batch);
        self.render(&Compute {
            note: note.join(", "),
            inputs,
            shared,
            tiles,
            width: parts.width,
            batch: parts.batch,
            per_thread: batches * parts.batch,
            unroll: batches.min(4),
            threads: parts.threads,
            total: parts.rows * parts.per_row,
            even,
            row,
            column,
        })
    }

    fn part_input(&mut self, input: &Input, values: &[&Expr], width: u32) -> PartInput {
        let mut part = PartInput { name: input.name.clone(), width, ..PartInput::default() };
        match &input.from {
            InputSource::Tile(tile, slot) => {
                let t = self.plan().tiles[*tile].clone();
                part.kind = "tile".into();
                part.elem = c_type(t.elem).into();
                part.r#type = computed_type(t.elem, &input.name, values).into();
                part.from = self.slot_address(*tile, *slot);
                (part.pitch, part.swizzle) = (t.pitch, t.swizzle());
            }
            InputSource::Matrix(from) => {
                part.kind = "matrix".into();
                part.vectors = self.e.instance.alignment_of(&from.tensor) == 16;
                part.r#type = computed_type(from.elem, &input.name, values).into();
                self.part_origin(&mut part, from);
            }
            InputSource::Row(from) => {
                part.kind = "row".into();
                part.r#type = computed_type(from.elem, &input.name, &[]).into();
                self.part_origin(&mut part, from);
            }
            InputSource::Column(from) => {
                part.kind = "column".into();
                part.r#type = computed_type(from.elem, &input.name, &[]).into();
                self.part_origin(&mut part, from);
            }
        }
        part
    }

    fn part_origin(&mut self, part: &mut PartInput, from: &GlobalTile) {
        self.wrappers.insert(Wrapper::Integer);
        part.from = parenthesized(&self.uniform(&from.origin));
        part.stride = self.uniform(&from.row_stride);
        part.rows_present = self.uniform(&from.rows_present);
        part.columns_present = self.uniform(&from.columns_present);
    }

    fn computed_tile(&mut self, t: &Computed) -> ComputedTile {
        let tile = self.plan().tiles[t.tile].clone();
        let pack = match tile.elem {
            Elem::F16 | Elem::Bf16 => self.pack_wrapper(tile.elem),
            _ => "",
        };
        ComputedTile {
            name: tile.name.clone(),
            to: self.slot_address(t.tile, t.slot),
            pitch: tile.pitch,
            swizzle: tile.swizzle(),
            pack: pack.into(),
            value: self.text(&t.value, Domain::Part),
        }
    }
}

/// What elements of an input are computed with. A byte that all `values` convert to a float is one
/// from the beginning, which takes fewer instructions.
fn computed_type(elem: Elem, name: &str, values: &[&Expr]) -> &'static str {
    let of_input = |e: &Expr| matches!(e, Expr::Element(element, _) if element == name);
    let (mut uses, mut conversions) = (0, 0);
    for value in values {
        value.visit(&mut |e| {
            uses += usize::from(of_input(e));
            conversions += usize::from(matches!(e, Expr::Cast(Cast::Float, x) if of_input(x)));
        });
    }
    let converted = elem.is_narrow() && uses > 0 && uses == conversions;
    if elem.is_float() || converted { "float" } else { "int" }
}
