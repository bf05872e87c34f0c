//! Names of registers in nested scopes.

use std::collections::HashMap;

use super::tree::{Class, Register};

/// Names in the scopes that are open.
pub(super) struct Scopes<'t> {
    /// Scope number, registers by name, and families of registers (`%f<10>`) by prefix.
    pub open: Vec<Scope<'t>>,
    pub parents: Vec<u32>,
    pub counts: [u32; 3],
}

pub(super) struct Scope<'t> {
    pub id: u32,
    pub names: HashMap<&'t str, Register>,
    pub families: HashMap<&'t str, (Class, u32, u32)>,
}

impl<'t> Scopes<'t> {
    pub fn new() -> Self {
        let mut new = Self { open: vec![], parents: vec![], counts: [0; 3] };
        new.enter();
        new
    }

    pub fn enter(&mut self) {
        let id = self.parents.len() as u32;
        self.parents.push(self.open.last().map_or(0, |s| s.id));
        self.open.push(Scope { id, names: HashMap::new(), families: HashMap::new() });
    }

    pub fn take(&mut self, class: Class, count: u32) -> u32 {
        let file = match class {
            Class::Predicate => 0,
            Class::Half | Class::Word => 1,
            Class::Double => 2,
        };
        let first = self.counts[file];
        self.counts[file] = first.saturating_add(count);
        first
    }

    pub fn find(&self, name: &str) -> Option<Register> {
        let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
        let (prefix, number) = name.split_at(name.len() - digits);
        let number: Option<u32> = number.parse().ok();
        self.open.iter().rev().find_map(|scope| {
            if let Some(&register) = scope.names.get(name) {
                return Some(register);
            }
            let &(class, first, count) = scope.families.get(prefix)?;
            number.filter(|&n| n < count).map(|n| Register { class, index: first + n })
        })
    }
}
