//! Buffers that connections share: one holds some only while it has bytes to keep.
//!
//! Ten thousand idle connections cost no buffer at all, and busy ones use the few that are still in the core's cache.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a connection reads into and writes from.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    /// Bytes that came and are not answered yet.
    pub(crate) input: Vec<u8>,
    /// Answers that are not sent yet.
    pub(crate) output: Vec<u8>,
}

/// How much is read at once: some two hundred pipelined commands.
pub(crate) const READ_BYTES: usize = 16 * 1024;

/// Larger ones are not kept: somebody's long command must not be everybody's memory.
const KEPT_BYTES: usize = 128 * 1024;
const MOST_KEPT: usize = 64;

/// Buffers that nobody uses now.
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
        // Nothing is half done when a push or a pop panics.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
