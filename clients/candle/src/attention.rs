//! Causal attention of flashtile as an operator of candle. Inputs are read, and the output is written, where candle has them.

use std::sync::Mutex;

use candle_core::{CpuStorage, CustomOp3, DType, Device, Error, Layout, Result, Shape, WithDType, bail};
use flashtile::{AnyBits, Element, Kernel, LoadedKernel, Stream, Tensor, bf16, f16, lend};

/// Causal attention of one element type and head dim, on one device: `q (B, H, M, D)`, `k` and `v (B, G, N, D)` to
/// `(B, H, M, D)`, where `H` is a multiple of `G`. Strides are free, but for the last dimension.
pub struct Attention {
    kernel: LoadedKernel,
    dtype: DType,
    scale: f32,
    launched: Mutex<Option<Launched>>,
}

/// What the latest launch used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Launched {
    /// Addresses of `q`, `k`, `v` and the output on the device.
    pub addresses: [u64; 4],
    /// The handle of the stream; none on a CPU.
    pub stream: Option<usize>,
}

impl Attention {
    /// Makes the kernel ready for a device of candle.
    pub fn new(device: &Device, dtype: DType, head_dim: usize, scale: f32) -> Result<Self> {
        let device = match device {
            Device::Cpu => flashtile::Device::cpu(),
            #[cfg(feature = "cuda")]
            Device::Cuda(cuda) => flashtile::Device::cuda(cuda.cuda_stream().context().ordinal()).map_err(Error::wrap)?,
            other => bail!("flashtile has no device for {other:?}"),
        };
        let elem = match dtype {
            DType::F32 => flashtile::Elem::F32,
            DType::F16 => flashtile::Elem::F16,
            DType::BF16 => flashtile::Elem::Bf16,
            other => bail!("attention takes f32, f16 and bf16, not {other:?}"),
        };
        let head_dim = i64::try_from(head_dim).map_err(Error::wrap)?;
        let bound = Kernel::builtin("causal_attention").and_then(|kernel| kernel.bind(elem, [("D", head_dim)]));
        let kernel = bound.and_then(|bound| bound.on(&device)).map_err(Error::wrap)?;
        Ok(Self { kernel, dtype, scale, launched: Mutex::default() })
    }

    /// The device, as flashtile sees it.
    pub fn device(&self) -> &flashtile::Device {
        self.kernel.device()
    }

    /// What the latest launch used.
    pub fn launched(&self) -> Option<Launched> {
        *self.launched.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// What the device ran: the schedules of the code, or that the kernel was interpreted.
    pub fn schedule(&self) -> String {
        let variants: Vec<String> = self.kernel.variants().into_iter().map(|v| v.schedule.to_string()).collect();
        if variants.is_empty() { "interpreted".to_owned() } else { variants.join("\n    ") }
    }

    /// Launches on a stream, or on the device's own, and notes what was used.
    fn launch<T: Element>(
        &self,
        stream: Option<&Stream>,
        inputs: [&Tensor<T>; 3],
        o: &mut Tensor<T>,
        lse: &mut Tensor<f32>,
    ) -> flashtile::Result<()> {
        let [q, k, v] = inputs;
        let addresses = [q, k, v, o].map(|x| x.as_any().address());
        let used = Launched { addresses, stream: stream.and_then(Stream::as_raw).map(|handle| handle.addr()) };
        *self.launched.lock().unwrap_or_else(|e| e.into_inner()) = Some(used);
        let arguments = [q.into(), k.into(), v.into(), self.scale.into(), o.into(), lse.into()];
        match stream {
            Some(stream) => self.kernel.launch_on(stream, &arguments),
            None => self.kernel.launch(&arguments),
        }
    }

    /// Slices of candle's storage are lent to the kernel, and so is the memory of the output, which candle then takes.
    fn on_cpu<T: AnyBits + WithDType>(&self, inputs: [(&CpuStorage, &Layout); 3]) -> Result<(CpuStorage, Shape)> {
        let shape = inputs[0].1.shape().clone();
        let rows = rows(&shape)?;
        let mut output = vec![T::from_f64(0.0); shape.elem_count()];
        let mut lse = vec![0f32; rows.iter().product()];
        let [q, k, v] =
            inputs.map(|(storage, layout)| Ok::<_, Error>((&storage.as_slice::<T>()?[layout.start_offset()..], layout)));
        let (q, k, v) = (q?, k?, v?);
        let launched = lend(|loans| {
            let q = loans.read_strided(q.0, q.1.dims(), q.1.stride())?;
            let k = loans.read_strided(k.0, k.1.dims(), k.1.stride())?;
            let v = loans.read_strided(v.0, v.1.dims(), v.1.stride())?;
            let mut o = loans.write(&mut output, shape.dims())?;
            let mut lse = loans.write(&mut lse, rows)?;
            self.launch(None, [&q, &k, &v], &mut o, &mut lse)
        });
        launched.map_err(Error::wrap)?;
        Ok((T::to_cpu_storage_owned(output), shape))
    }
}

/// The shape of the LSE: that of the queries without the head dim.
fn rows(queries: &Shape) -> Result<&[usize]> {
    match queries.dims() {
        [rows @ .., _] => Ok(rows),
        [] => bail!("attention takes queries (B, H, M, D), not a scalar"),
    }
}

impl CustomOp3 for Attention {
    fn name(&self) -> &'static str {
        "flashtile-causal-attention"
    }

    fn cpu_fwd(
        &self,
        q: &CpuStorage,
        q_layout: &Layout,
        k: &CpuStorage,
        k_layout: &Layout,
        v: &CpuStorage,
        v_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let inputs = [(q, q_layout), (k, k_layout), (v, v_layout)];
        match self.dtype {
            DType::F32 => self.on_cpu::<f32>(inputs),
            DType::F16 => self.on_cpu::<f16>(inputs),
            DType::BF16 => self.on_cpu::<bf16>(inputs),
            other => bail!("attention takes f32, f16 and bf16, not {other:?}"),
        }
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        q: &candle_core::CudaStorage,
        q_layout: &Layout,
        k: &candle_core::CudaStorage,
        k_layout: &Layout,
        v: &candle_core::CudaStorage,
        v_layout: &Layout,
    ) -> Result<(candle_core::CudaStorage, Shape)> {
        let inputs = [(q, q_layout), (k, k_layout), (v, v_layout)];
        match self.dtype {
            DType::F32 => on_gpu::run::<f32>(self, inputs),
            DType::F16 => on_gpu::run::<f16>(self, inputs),
            DType::BF16 => on_gpu::run::<bf16>(self, inputs),
            other => bail!("attention takes f32, f16 and bf16, not {other:?}"),
        }
    }
}

/// The same on a GPU: slices of candle's storage are lent, and the launch is queued on candle's stream.
#[cfg(feature = "cuda")]
mod on_gpu {
    use candle_core::backend::BackendStorage;
    use candle_core::cuda::CudaDType;
    use candle_core::{CudaStorage, Error, Layout, Result, Shape};
    use cudarc::driver::DeviceRepr;
    use flashtile::{AnyBits, Stream, Tensor, lend};

    use super::{Attention, rows};

    pub fn run<T: AnyBits + CudaDType + DeviceRepr>(
        op: &Attention,
        inputs: [(&CudaStorage, &Layout); 3],
    ) -> Result<(CudaStorage, Shape)> {
        let shape = inputs[0].1.shape().clone();
        let rows = rows(&shape)?;
        let candle = inputs[0].0.device().clone();
        let queue = candle.cuda_stream();
        // SAFETY: the kernel writes every element before anything reads it.
        let (mut output, mut lse) =
            unsafe { (candle.alloc::<T>(shape.elem_count())?, candle.alloc::<f32>(rows.iter().product())?) };
        let [q, k, v] = inputs.map(|(storage, layout)| {
            let slice = storage.as_cuda_slice::<T>()?;
            Ok::<_, Error>((slice.slice(layout.start_offset()..), layout))
        });
        let (q, k, v) = (q?, k?, v?);
        let (o, l) = (output.as_view_mut(), lse.as_view_mut());
        let device = op.device();
        // SAFETY: the stream is candle's, of the primary context, and lives as long as `queue`.
        let stream = unsafe { Stream::from_raw(device, queue.cu_stream().cast()) }.map_err(Error::wrap)?;
        let launched = lend(|loans| {
            let q = loans.read_slice(device, &queue, q.0, q.1.dims(), q.1.stride())?;
            let k = loans.read_slice(device, &queue, k.0, k.1.dims(), k.1.stride())?;
            let v = loans.read_slice(device, &queue, v.0, v.1.dims(), v.1.stride())?;
            let mut o = loans.write_slice(device, &queue, o, shape.dims(), &Tensor::<T>::packed_strides(shape.dims())?)?;
            let mut l = loans.write_slice(device, &queue, l, rows, &Tensor::<f32>::packed_strides(rows)?)?;
            op.launch(Some(&stream), [&q, &k, &v], &mut o, &mut l)
        });
        launched.map_err(Error::wrap)?;
        Ok((T::wrap_cuda_slice(output, candle), shape))
    }
}
