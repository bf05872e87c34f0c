//! Variables: what names mean where, and which variables a loop carries.

use std::collections::{BTreeSet, HashMap};

use syn::{BinOp, Block, Expr, Pat, Stmt};

use super::operand::Operand;
use super::position::bare;
use crate::ir::{BinaryOp, Span, ValueId};

/// The operation of a compound assignment such as `+=`.
pub(super) fn compound(op: &BinOp) -> Option<BinaryOp> {
    BinaryOp::written(quote::ToTokens::to_token_stream(op).to_string().strip_suffix('=')?)
}

/// What a variable stands for.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Meaning {
    /// The result of an expression.
    Operand(Operand),
    /// Something that had an error; uses of it are not errors again.
    Unknown,
}

/// How a variable came to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Origin {
    /// A parameter of the kernel.
    Param,
    /// A parameter of a helper.
    Argument,
    /// `let`
    Let,
    /// `let mut`
    LetMut,
    /// The coordinate of a loop over tiles.
    Coordinate,
    /// The index of a loop over single positions.
    Position,
}

/// A variable.
#[derive(Clone, Debug)]
pub(super) struct Variable {
    pub(super) name: String,
    pub(super) meaning: Meaning,
    pub(super) origin: Origin,
    /// Where it is declared.
    pub(super) span: Span,
}

/// Index of a variable, in order of declaration.
pub(super) type VariableId = usize;

/// All variables, and the names visible now.
#[derive(Default, Debug)]
pub(super) struct Scopes {
    variables: Vec<Variable>,
    /// Variables that an expression reads.
    read: BTreeSet<VariableId>,
    /// The values that each variable had.
    held: HashMap<VariableId, Vec<ValueId>>,
    /// Variables declared in a block, with the `let mut` variable of a block around that they hide.
    hides: HashMap<VariableId, VariableId>,
    open: Vec<HashMap<String, VariableId>>,
}

impl Scopes {
    /// Opens a scope.
    pub(super) fn open(&mut self) {
        self.open.push(HashMap::new());
    }

    /// Closes the innermost scope.
    pub(super) fn close(&mut self) {
        self.open.pop();
    }

    /// Hides every name, for the body of a helper; gives what [`Scopes::leave`] takes.
    pub(super) fn enter(&mut self) -> Vec<HashMap<String, VariableId>> {
        std::mem::take(&mut self.open)
    }

    /// Shows the names again that were visible before the body of a helper.
    pub(super) fn leave(&mut self, outside: Vec<HashMap<String, VariableId>>) {
        self.open = outside;
    }

    /// Declares a variable in the innermost scope; it hides others of its name.
    pub(super) fn declare(&mut self, variable: Variable) -> VariableId {
        let id = self.variables.len();
        let around = self.open.iter().rev().skip(1).find_map(|scope| scope.get(&variable.name).copied());
        if let Some(around) = around.filter(|&around| self.variables[around].origin == Origin::LetMut) {
            self.hides.insert(id, around);
        }
        self.hold(id, &variable.meaning);
        if let Some(scope) = self.open.last_mut() {
            scope.insert(variable.name.clone(), id);
        }
        self.variables.push(variable);
        id
    }

    /// The variable that a name means.
    pub(super) fn find(&self, name: &str) -> Option<VariableId> {
        self.open.iter().rev().find_map(|scope| scope.get(name).copied())
    }

    /// A variable.
    pub(super) fn get(&self, id: VariableId) -> &Variable {
        &self.variables[id]
    }

    fn hold(&mut self, id: VariableId, meaning: &Meaning) {
        if let Meaning::Operand(Operand::Value(value)) = meaning {
            self.held.entry(id).or_default().push(*value);
        }
    }

    /// All variables.
    pub(super) fn all(&self) -> impl Iterator<Item = (VariableId, &Variable)> {
        self.variables.iter().enumerate()
    }

    /// Marks a variable as read, or not.
    pub(super) fn set_read(&mut self, id: VariableId, read: bool) {
        if read {
            self.read.insert(id)
        } else {
            self.read.remove(&id)
        };
    }

    /// Whether an expression reads a variable. The left side of `x += ..` does not count.
    pub(super) fn is_read(&self, id: VariableId) -> bool {
        self.read.contains(&id)
    }

    /// The values that a variable had.
    pub(super) fn held(&self, id: VariableId) -> &[ValueId] {
        self.held.get(&id).map_or(&[], Vec::as_slice)
    }

    /// The `let mut` variable of a block around that a variable hides.
    pub(super) fn hides(&self, id: VariableId) -> Option<VariableId> {
        self.hides.get(&id).copied()
    }

    /// Gives a variable a new meaning.
    pub(super) fn set(&mut self, id: VariableId, meaning: Meaning) {
        self.hold(id, &meaning);
        self.variables[id].meaning = meaning;
    }

    /// All names visible now.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.open.iter().flat_map(|scope| scope.keys().map(String::as_str))
    }

    /// The `let mut` variables of open scopes that a block assigns, in order of declaration.
    pub(super) fn assigned_in(&self, block: &Block) -> Vec<VariableId> {
        let mut names = BTreeSet::new();
        assigned(block, &mut BTreeSet::new(), &mut names);
        let ids: BTreeSet<_> = names.iter().filter_map(|name| self.find(name)).collect();
        ids.into_iter().filter(|&id| self.get(id).origin == Origin::LetMut).collect()
    }
}

/// The names that statements of a block assign, but for those that it declares before.
fn assigned(block: &Block, hidden: &mut BTreeSet<String>, names: &mut BTreeSet<String>) {
    for statement in &block.stmts {
        match statement {
            Stmt::Local(local) => declared(&local.pat, hidden),
            Stmt::Expr(Expr::Assign(assign), _) => target(&assign.left, hidden, names),
            // Compound assignment; of other binary operators the left side is no statement's target.
            Stmt::Expr(Expr::Binary(binary), _) if compound(&binary.op).is_some() => {
                target(&binary.left, hidden, names);
            }
            Stmt::Expr(Expr::ForLoop(inner), _) => {
                let mut inner_hidden = hidden.clone();
                declared(&inner.pat, &mut inner_hidden);
                assigned(&inner.body, &mut inner_hidden, names);
            }
            _ => {}
        }
    }
}

fn declared(pattern: &Pat, hidden: &mut BTreeSet<String>) {
    match pattern {
        Pat::Ident(ident) => {
            hidden.insert(bare(&ident.ident));
        }
        Pat::Tuple(tuple) => tuple.elems.iter().for_each(|p| declared(p, hidden)),
        _ => {}
    }
}

fn target(left: &Expr, hidden: &BTreeSet<String>, names: &mut BTreeSet<String>) {
    if let Expr::Tuple(tuple) = left {
        tuple.elems.iter().for_each(|left| target(left, hidden, names));
    }
    if let Expr::Path(path) = left
        && let Some(name) = path.path.get_ident().map(bare)
        && !hidden.contains(&name)
    {
        names.insert(name);
    }
}
