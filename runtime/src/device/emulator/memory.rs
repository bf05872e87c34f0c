//! Memory of the emulator.

use flashtile_emulator::Buffer;

use super::handle::Emulator;
use crate::device::backend::check_range;
use crate::device::room::host_holds;
use crate::device::{DeviceError, Held, Memory};

/// A buffer of the emulator's global memory, given up on drop.
#[derive(Debug)]
pub(crate) struct EmulatorMemory {
    emulator: Emulator,
    buffer: Buffer,
    _held: Held,
}

impl EmulatorMemory {
    /// Zeroed memory.
    pub fn zeroed(emulator: &Emulator, bytes: usize) -> Result<Self, DeviceError> {
        host_holds("emulator", bytes.saturating_mul(2))?; // the contents, and where they are copied to
        let buffer = emulator.change_memory(|memory| memory.allocate_from(&vec![0; bytes]));
        Ok(Self { emulator: emulator.clone(), buffer, _held: emulator.allocated().hold(bytes) })
    }
}

impl EmulatorMemory {
    /// Memory that nothing was written to: a launch that reads it before it is written is at fault.
    pub fn unwritten(emulator: &Emulator, bytes: usize) -> Result<Self, DeviceError> {
        host_holds("emulator", bytes.saturating_add(bytes / 8))?; // and which bytes were written
        let buffer = emulator.change_memory(|memory| memory.allocate(bytes as u64));
        Ok(Self { emulator: emulator.clone(), buffer, _held: emulator.allocated().hold(bytes) })
    }
}

impl Drop for EmulatorMemory {
    fn drop(&mut self) {
        self.emulator.change_memory(|memory| memory.free(self.buffer));
    }
}

impl Memory for EmulatorMemory {
    fn bytes(&self) -> usize {
        self.buffer.bytes as usize
    }

    fn address(&self) -> u64 {
        self.buffer.address
    }

    fn write(&self, offset: usize, from: &[u8]) -> Result<(), DeviceError> {
        check_range(offset, from.len(), self.bytes())?;
        self.emulator.memory().write_at(self.buffer, offset as u64, from);
        Ok(())
    }

    fn fill(&self, byte: u8) -> Result<(), DeviceError> {
        self.emulator.memory().write(self.buffer, &vec![byte; self.bytes()]);
        Ok(())
    }

    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), DeviceError> {
        check_range(offset, into.len(), self.bytes())?;
        let there = self.emulator.memory().read_at(self.buffer, offset as u64, into);
        debug_assert!(there, "the range was checked, and the buffer lives");
        Ok(())
    }

    fn give_back(&self) {}

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
