//! Asynchronous products (`wgmma`) that have begun, and the registers that they read and write.

use crate::program::Kernel;

/// The products of a warp.
#[derive(Debug)]
pub(crate) struct Products {
    pub committed: u32,
    pub pending: Vec<Product>,
    /// Of the rows that wgmmas use: what is in flight, and whether it was accessed since the latest
    /// fence.
    pub rows: Vec<RowState>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RowState {
    /// Number of the product that is going to write it, or 0.
    pub written_by: u32,
    /// Number of the product that reads it, or 0.
    pub read_by: u32,
    pub unfenced: bool,
}

#[derive(Debug)]
pub(crate) struct Product {
    pub flight: u32,
    /// Index of the instruction.
    pub step: u32,
    pub group: u32,
    pub accumulate: bool,
    /// Offsets in shared memory of the 16-byte chunks of this warp's rows of A, and of B.
    pub a: Vec<u32>,
    pub b: Vec<u32>,
    pub landed: bool,
}

impl Products {
    pub fn new(kernel: &Kernel) -> Self {
        // Nothing is fenced when a kernel begins.
        let row = RowState { unfenced: true, ..RowState::default() };
        Self {
            committed: 0,
            pending: vec![],
            rows: if kernel.uses_wgmma { vec![row; kernel.registers[1] as usize] } else { vec![] },
        }
    }

    /// Numbers of the products that nobody has waited for.
    pub fn flights(&self) -> impl Iterator<Item = u32> + '_ {
        self.pending.iter().map(|p| p.flight)
    }

    pub fn fence(&mut self) {
        for row in &mut self.rows {
            row.unfenced = false;
        }
    }

    pub fn commit(&mut self) {
        self.committed += 1;
    }
}
