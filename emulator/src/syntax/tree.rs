//! The tree that the parser makes.

/// A register file. 16- and 32-bit registers share one: a 16-bit register is a row whose upper halves are zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Class {
    /// `.pred`
    Predicate,
    /// `.b8` and `.b16` and their typed kin.
    Half,
    /// `.b32`, `.f32` and their kin.
    Word,
    /// `.b64` and its kin.
    Double,
}

/// A register: its class, and its number in the file of the class.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Register {
    pub class: Class,
    pub index: u32,
}

/// A state space (PTX ISA 5.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Space {
    Generic,
    Global,
    Shared,
    Local,
    Param,
    Const,
}

/// Where an instruction comes from: a line of a file, and what it was inlined into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Location {
    pub file: u32,
    pub line: u32,
    pub column: u32,
    /// Index of the location of the call, for a line of an inlined function.
    pub parent: Option<u32>,
}

/// An operand.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Operand<'t> {
    Register(Register),
    /// `%tid.x` and its kin, by name.
    Special(&'t str),
    Integer(u64),
    /// Bits of a float.
    Single(u32),
    /// Bits of a double.
    Real(u64),
    /// A label, variable or parameter.
    Symbol(&'t str),
    /// `[base + offset]`; of tensor copies `[base, {coordinates}]`.
    Address {
        base: Box<Operand<'t>>,
        offset: i64,
        coordinates: Vec<Operand<'t>>,
    },
    /// `{a, b}`
    Vector(Vec<Operand<'t>>),
    /// `d|p`
    Pair(Register, Register),
    /// `!p`
    Not(Register),
    /// `_`
    Sink,
}

/// An instruction.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Instruction<'t> {
    /// Line of the PTX text.
    pub line: u32,
    /// Index of the location, if a `.loc` came before.
    pub location: Option<u32>,
    /// Predicate, and whether it is negated.
    pub guard: Option<(u32, bool)>,
    /// Opcode with modifiers.
    pub opcode: &'t str,
    pub operands: Vec<Operand<'t>>,
    /// Scope of labels.
    pub scope: u32,
}

/// A variable of a module or kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Variable<'t> {
    pub name: &'t str,
    pub space: Space,
    pub align: u32,
    /// Bytes; 0 for an array without bounds, which is the dynamic shared memory.
    pub bytes: u32,
    /// Initial bytes, the rest zero.
    pub initial: Vec<u8>,
}

/// A kernel parameter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Parameter<'t> {
    pub name: &'t str,
    pub align: u32,
    pub bytes: u32,
}

/// A kernel.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct KernelTree<'t> {
    pub name: &'t str,
    pub line: u32,
    pub parameters: Vec<Parameter<'t>>,
    /// Variables declared inside.
    pub variables: Vec<Variable<'t>>,
    pub instructions: Vec<Instruction<'t>>,
    /// Target instruction of each label, by scope and name.
    pub labels: std::collections::HashMap<(u32, &'t str), u32>,
    /// Parent of each scope; the first is its own.
    pub scopes: Vec<u32>,
    /// Registers of the files: predicates, halves and words (which share one), doubles.
    pub registers: [u32; 3],
    /// `.maxntid` or `.reqntid`: most threads of a block.
    pub max_threads: Option<u32>,
    /// `.minnctapersm`: blocks that a multiprocessor is to hold; 0 if nothing is said.
    pub min_blocks: u32,
    /// `.maxnreg`: most registers of a thread.
    pub max_registers: Option<u32>,
    /// `.reqnctapercluster`: blocks of a cluster along x, y and z.
    pub cluster: [u32; 3],
}

impl KernelTree<'_> {
    /// The instruction that a label stands before, seen from a scope.
    pub fn label(&self, mut scope: u32, name: &str) -> Option<u32> {
        loop {
            if let Some(&at) = self.labels.get(&(scope, name)) {
                return Some(at);
            }
            if scope == 0 {
                return None;
            }
            scope = self.scopes[scope as usize];
        }
    }
}

/// A module.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Tree<'t> {
    pub target: &'t str,
    /// Names of `.file` directives, by number.
    pub files: Vec<(u32, &'t str)>,
    pub locations: Vec<Location>,
    pub variables: Vec<Variable<'t>>,
    pub kernels: Vec<KernelTree<'t>>,
}
