"""The clock of a multiprocessor while something runs: its cycles over the time of the GPU's own timer."""

import ctypes

# Writes clock64, globaltimer (nanoseconds) and smid (PTX ISA, "Special Registers") of one thread.
PTX = b"""
.version 8.0
.target sm_70
.address_size 64
.visible .entry mark(.param .u64 to)
{
  .reg .u64 %to, %cycles, %nanoseconds, %place;
  .reg .u32 %sm;
  ld.param.u64 %to, [to];
  cvta.to.global.u64 %to, %to;
  mov.u64 %nanoseconds, %globaltimer;
  mov.u64 %cycles, %clock64;
  mov.u32 %sm, %smid;
  cvt.u64.u32 %place, %sm;
  st.global.u64 [%to], %cycles;
  st.global.u64 [%to+8], %nanoseconds;
  st.global.u64 [%to+16], %place;
  ret;
}
"""


class Clock:
    """Two marks on PyTorch's current stream, and the clock between them."""

    def __init__(self, cuda, torch):
        self.cuda, self.torch = cuda, torch
        module, self.function = ctypes.c_void_p(), ctypes.c_void_p()
        cuda.cuModuleLoadData(ctypes.byref(module), PTX)
        cuda.cuModuleGetFunction(ctypes.byref(self.function), module, b"mark")
        self.marks = torch.zeros(2, 3, dtype=torch.int64, device="cuda")

    def mark(self, number):
        to = ctypes.c_uint64(self.marks[number].data_ptr())
        pointers = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.pointer(to), ctypes.c_void_p))
        stream = ctypes.c_void_p(self.torch.cuda.current_stream().cuda_stream)
        self.cuda.cuLaunchKernel(self.function, 1, 1, 1, 1, 1, 1, 0, stream, pointers, None)

    def megahertz(self):
        """None if the marks are of two multiprocessors, whose counters differ."""
        (cycles, time, place), (later, end, other) = self.marks.tolist()
        return (later - cycles) / (end - time) * 1e3 if place == other else None
