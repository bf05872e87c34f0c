//! Streams of the libraries whose tensors kernels are called on.

use std::ffi::c_void;
use std::sync::Mutex;

use super::kept::lock;
use crate::device::{Device, Stream};
use crate::error::Result;

/// A stream of another library: the index of its GPU, and its `CUstream` as a number.
pub type RawStream = (usize, usize);

/// The caller's stream of a GPU, else a stream of the device's own. It is made once for a handle,
/// and orders nothing but itself ([`Stream::from_raw_ordered`]).
///
/// # Safety
/// As [`Stream::from_raw_ordered`], for as long as the result and its clones are used. A handle may
/// become that of another stream later on.
///
/// # Errors
/// As [`Stream::from_raw`], or [`Stream::new`].
pub unsafe fn stream(device: &Device, of: Option<RawStream>) -> Result<Stream> {
    type Known = (Option<RawStream>, Stream);
    // A process has few: they are found sooner one by one than by a hash. The one of the call
    // before is the first.
    static STREAMS: Mutex<Vec<Known>> = Mutex::new(Vec::new());
    let mut streams = lock(&STREAMS);
    if let Some(found) = streams.iter().position(|(known, stream)| *known == of && stream.device() == device) {
        streams.swap(0, found);
        return Ok(streams[0].1.clone());
    }
    let stream = match of {
        // SAFETY: as the caller promises.
        Some((_, handle)) => unsafe { Stream::from_raw_ordered(device, std::ptr::with_exposed_provenance_mut::<c_void>(handle)) },
        None => Stream::new(device),
    };
    streams.push((of, stream?));
    Ok(streams[streams.len() - 1].1.clone())
}
