//! From instructions to lines of the PTX and of the kernel text.

use crate::finding::SourceLine;
use crate::syntax::Tree;

/// Lines of a module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lines {
    /// Innermost line first, the outermost last, of each location.
    chains: Vec<Vec<SourceLine>>,
}

impl Lines {
    pub fn new(tree: &Tree<'_>) -> Self {
        let name = |number: u32| {
            tree.files.iter().find(|f| f.0 == number).map_or_else(|| format!("file {number}"), |f| f.1.replace("\\\"", "\""))
        };
        let names: Vec<(u32, std::sync::Arc<str>)> = {
            let mut numbers: Vec<u32> = tree.locations.iter().map(|l| l.file).collect();
            numbers.sort_unstable();
            numbers.dedup();
            numbers.into_iter().map(|n| (n, name(n).into())).collect()
        };
        let chain = |start: u32| {
            let (mut chain, mut next) = (vec![], Some(start));
            while let Some(index) = next
                && chain.len() < 64
            {
                let location = tree.locations[index as usize];
                let file = names.iter().find(|n| n.0 == location.file).expect("every file has a name").1.clone();
                chain.push(SourceLine { file, line: location.line, column: location.column });
                next = location.parent;
            }
            chain
        };
        Self { chains: (0..tree.locations.len() as u32).map(chain).collect() }
    }

    /// The lines of a location, innermost first; empty without one.
    pub fn chain(&self, location: Option<u32>) -> &[SourceLine] {
        location.map_or(&[], |l| &self.chains[l as usize])
    }
}
