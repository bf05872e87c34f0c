//! Kernels up to what does not matter: places in the text, and the numbers of entities.

use std::collections::HashMap;

use super::entity::{Arena, BlockId, Entity, OpId, ValueId};
use super::kernel::{BlockData, Kernel, OpData, SourceText, Span, ValueData, ValueDef};
use super::op::Op;

impl Kernel {
    /// The kernel without its source and every place in it.
    pub fn without_spans(&self) -> Self {
        let mut kernel = self.clone();
        kernel.source = SourceText::default();
        kernel.name_span = Span::default();
        for id in self.params.keys() {
            kernel.params[id].span = Span::default();
        }
        for id in self.ops.keys() {
            kernel.ops[id].span = Span::default();
        }
        kernel
    }

    /// The kernel with values, ops and blocks numbered as [`super::Builder`] would, and without what no block reaches.
    ///
    /// Two kernels are structurally equal if their renumbered forms are, spans aside. The kernel is a verified one: an
    /// operand that is defined nowhere would have no number.
    pub fn renumbered(&self) -> Self {
        let mut walk = Renumber {
            old: self,
            ops: Arena::default(),
            values: Arena::default(),
            blocks: Arena::default(),
            map: HashMap::new(),
        };
        let body = walk.blocks.push(BlockData::default());
        walk.block(self.body, body);
        let (ops, values, blocks) = (walk.ops, walk.values, walk.blocks);
        Self { ops, values, blocks, body, ..self.clone() }
    }
}

struct Renumber<'k> {
    old: &'k Kernel,
    ops: Arena<OpId, OpData>,
    values: Arena<ValueId, ValueData>,
    blocks: Arena<BlockId, BlockData>,
    map: HashMap<ValueId, ValueId>,
}

impl Renumber<'_> {
    fn value(&mut self, old: ValueId, def: ValueDef) -> ValueId {
        let new = self.values.push(ValueData { def, ..self.old.values[old].clone() });
        self.map.insert(old, new);
        new
    }

    fn block(&mut self, old: BlockId, new: BlockId) {
        let data = &self.old.blocks[old];
        for (n, &param) in data.params.iter().enumerate() {
            let value = self.value(param, ValueDef::BlockParam(new, n as u32));
            self.blocks[new].params.push(value);
        }
        for &id in &data.ops {
            let op = self.old.ops[id].op.map_operands(|v| self.map.get(&v).copied().unwrap_or(v));
            let op = match op {
                Op::For { axis, part, body, init } => {
                    let new_body = self.blocks.push(BlockData::default());
                    self.block(body, new_body);
                    Op::For { axis, part, body: new_body, init }
                }
                other => other,
            };
            let new_id = OpId::from_index(self.ops.len());
            self.ops.push(OpData { op, results: Vec::new(), span: self.old.ops[id].span });
            for (n, &result) in self.old.ops[id].results.iter().enumerate() {
                let value = self.value(result, ValueDef::Result(new_id, n as u32));
                self.ops[new_id].results.push(value);
            }
            self.blocks[new].ops.push(new_id);
        }
    }
}
