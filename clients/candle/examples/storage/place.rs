//! Where a tensor of candle lies: the address of its first element on its device.

use candle_core::{DType, Result, Storage, Tensor, bail};
use flashtile::{bf16, f16};

/// The address of the first element, asked of candle alone.
pub fn address(tensor: &Tensor) -> Result<u64> {
    let (storage, layout) = tensor.storage_and_layout();
    let start = match (&*storage, tensor.dtype()) {
        (Storage::Cpu(cpu), DType::F32) => cpu.as_slice::<f32>()?.as_ptr().addr() as u64,
        (Storage::Cpu(cpu), DType::F16) => cpu.as_slice::<f16>()?.as_ptr().addr() as u64,
        (Storage::Cpu(cpu), DType::BF16) => cpu.as_slice::<bf16>()?.as_ptr().addr() as u64,
        #[cfg(feature = "cuda")]
        (Storage::Cuda(cuda), dtype) => on_gpu::start(cuda, dtype)?,
        (_, dtype) => bail!("a tensor of {dtype:?} on {:?} is not looked for", tensor.device()),
    };
    Ok(start + (layout.start_offset() * tensor.dtype().size_in_bytes()) as u64)
}

#[cfg(feature = "cuda")]
mod on_gpu {
    use candle_core::backend::BackendStorage;
    use candle_core::{CudaStorage, DType, Result, bail};
    use cudarc::driver::DevicePtr;
    use flashtile::{bf16, f16};

    /// The address of the first element of the storage.
    pub fn start(storage: &CudaStorage, dtype: DType) -> Result<u64> {
        let queue = storage.device().cuda_stream();
        let (address, _read) = match dtype {
            DType::F32 => storage.as_cuda_slice::<f32>()?.device_ptr(&queue),
            DType::F16 => storage.as_cuda_slice::<f16>()?.device_ptr(&queue),
            DType::BF16 => storage.as_cuda_slice::<bf16>()?.device_ptr(&queue),
            other => bail!("a tensor of {other:?} is not looked for"),
        };
        Ok(address)
    }
}
