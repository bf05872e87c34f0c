//! PTX text to a tree: names of registers and labels resolved, instructions not yet understood.

mod lexer;
mod operands;
mod parser;
mod scopes;
mod tree;

pub(crate) use parser::parse;
pub(crate) use tree::{Class, Instruction, KernelTree, Operand, Register, Space, Tree, Variable};
