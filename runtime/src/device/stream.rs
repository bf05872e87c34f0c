//! Streams: queues of a GPU in which work runs in order.

use std::sync::Arc;

use super::cuda::CudaStream;

/// A queue of a GPU. Work queued on one stream runs in order. Clones are the same stream.
#[derive(Clone, Debug)]
pub struct Stream {
    pub(crate) cuda: Arc<CudaStream>,
}
