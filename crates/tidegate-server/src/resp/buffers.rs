//! Shared buffers: a connection holds one only while it has bytes to keep.
//!
//! Ten thousand idle connections cost no buffers, and busy ones reuse the few that are still in the CPU cache.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The input and output buffers of a connection.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    /// Bytes received and not yet answered.
    pub(crate) input: Vec<u8>,
    /// Replies not yet sent.
    pub(crate) output: Vec<u8>,
}

/// Bytes per read: some two hundred pipelined commands.
pub(crate) const READ_BYTES: usize = 16 * 1024;

/// Larger buffers are not pooled: one client's long command must not stay in memory for ever.
const KEPT_BYTES: usize = 128 * 1024;
const MOST_KEPT: usize = 64;

/// Unused buffers.
#[derive(Debug, Default)]
pub(crate) struct BufferPool(Mutex<Vec<Buffers>>);

impl BufferPool {
    pub(crate) fn take(&self) -> Buffers {
        let mut buffers = self.free().pop().unwrap_or_default();
        buffers.input.reserve(READ_BYTES);
        buffers
    }

    pub(crate) fn give_back(&self, mut buffers: Buffers) {
        buffers.input.clear();
        buffers.output.clear();
        let mut free = self.free();
        if free.len() < MOST_KEPT && buffers.input.capacity() + buffers.output.capacity() <= KEPT_BYTES {
            free.push(buffers);
        }
    }

    fn free(&self) -> MutexGuard<'_, Vec<Buffers>> {
        // A panic in a push or a pop leaves the list consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
