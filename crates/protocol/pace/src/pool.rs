// SPDX-License-Identifier: Apache-2.0
//! Memory that is used again, so that a connection in use allocates nothing; and not more than what is soon used again.

/// Empty buffers, of no more than so many bytes together.
#[derive(Debug)]
pub(crate) struct Pool {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
    bytes_max: usize,
}

impl Pool {
    pub(crate) const fn new(bytes_max: usize) -> Self {
        Self { buffers: Vec::new(), bytes: 0, bytes_max }
    }

    /// An empty buffer.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        let buffer = self.buffers.pop().unwrap_or_default();
        self.bytes -= buffer.capacity();
        buffer
    }

    /// A buffer with these bytes.
    pub(crate) fn copy(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut buffer = self.take();
        buffer.extend_from_slice(bytes);
        buffer
    }

    /// Keeps a buffer for later, or drops it if there is no room.
    pub(crate) fn give(&mut self, mut buffer: Vec<u8>) {
        buffer.clear();
        let bytes = self.bytes + buffer.capacity();
        if buffer.capacity() > 0 && bytes <= self.bytes_max {
            self.bytes = bytes;
            self.buffers.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_kept_than_was_allowed() {
        let mut pool = Pool::new(2500);
        (0..3).for_each(|_| pool.give(Vec::with_capacity(1000)));
        assert_eq!((pool.bytes, pool.buffers.len()), (2000, 2));
        let buffer = pool.copy(b"content");
        assert_eq!((&buffer[..], pool.bytes), (&b"content"[..], 1000));
        pool.give(buffer);
        assert!(pool.take().is_empty() && pool.take().capacity() >= 1000 && pool.take().capacity() == 0);
    }
}
