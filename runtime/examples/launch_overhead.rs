//! Microseconds of the host for a launch of attention on tensors so small that the host is the
//! slower side: `cargo run --release -p flashtile --example launch_overhead`. Where there is no GPU
//! it says so.

use std::time::Instant;

use flashtile::device::DeviceKind;
use flashtile::{ArgumentForm, ArgumentValue, Device, Elem, Kernel, Result, Stream, Tensor, f16};

const SHAPE: [usize; 4] = [1, 2, 64, 64];
const ROUNDS: usize = 25;
/// Fewer than a stream queues before the host has to wait.
const LAUNCHES: usize = 500;

/// The median over rounds of the time of a call, of which the GPU's work is not waited for inside
/// of a round.
fn microseconds(device: &Device, mut call: impl FnMut() -> Result<()>) -> Result<f64> {
    call()?;
    let mut rounds = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        device.synchronize()?;
        let start = Instant::now();
        for _ in 0..LAUNCHES {
            call()?;
        }
        rounds.push(start.elapsed().as_secs_f64() / LAUNCHES as f64 * 1e6);
    }
    rounds.sort_by(f64::total_cmp);
    Ok(rounds[ROUNDS / 2])
}

fn main() -> Result<()> {
    let device = Device::best();
    if device.info().kind != DeviceKind::Cuda {
        println!("the best device here is {device}: launches on a GPU are not timed");
        return Ok(());
    }
    let kernel = Kernel::builtin("attention")?.bind(Elem::F16, [("D", 64)])?.on(&device)?;
    let zeros = || Tensor::<f16>::zeros(&device, &SHAPE);
    let (q, k, v, mut o) = (zeros()?, zeros()?, zeros()?, zeros()?);
    let mut lse = Tensor::<f32>::zeros(&device, &SHAPE[..3])?;
    println!("{}; microseconds of a launch", device.info().name);

    let own = microseconds(&device, || {
        kernel.launch(&[(&q).into(), (&k).into(), (&v).into(), 0.125.into(), (&mut o).into(), (&mut lse).into()])
    })?;
    println!("launch, on the stream of the device      {own:6.2}");

    let stream = Stream::new(&device)?;
    let raw = stream.as_raw().expect("a stream of a GPU");
    // SAFETY: the stream is of the device and outlives `ordered`; all work on the tensors is queued
    // on it from here on.
    let ordered = unsafe { Stream::from_raw_ordered(&device, raw) }?;
    let other = microseconds(&device, || {
        let arguments = [(&q).into(), (&k).into(), (&v).into(), 0.125.into(), (&mut o).into(), (&mut lse).into()];
        kernel.launch_on(&stream, &arguments)
    })?;
    println!("launch_on, a stream                      {other:6.2}");
    stream.synchronize()?;
    let on = microseconds(&device, || {
        let arguments = [(&q).into(), (&k).into(), (&v).into(), 0.125.into(), (&mut o).into(), (&mut lse).into()];
        kernel.launch_on(&ordered, &arguments)
    })?;
    println!("launch_on, an ordered stream             {on:6.2}");

    let strides = Tensor::<f16>::packed_strides(&SHAPE)?;
    let form = ArgumentForm::Tensor { elem: Elem::F16, shape: &SHAPE, strides: &strides };
    let rows = ArgumentForm::Tensor { elem: Elem::F32, shape: &SHAPE[..3], strides: &[128, 64, 1] };
    let prepared = kernel.prepare(&[form, form, form, ArgumentForm::F32, form, rows])?;
    let at = ArgumentValue::Address;
    let values = [
        at(q.as_any().address()),
        at(k.as_any().address()),
        at(v.as_any().address()),
        ArgumentValue::F32(0.125),
        at(o.as_any().address()),
        at(lse.as_any().address()),
    ];
    // SAFETY: the tensors are alive, of these forms, and all work on them is on this stream.
    let raw = microseconds(&device, || unsafe { prepared.launch_on(&ordered, &values) })?;
    println!("PreparedLaunch::launch_on, ordered       {raw:6.2}");
    ordered.synchronize()
}
