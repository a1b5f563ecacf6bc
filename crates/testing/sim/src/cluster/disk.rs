// SPDX-License-Identifier: Apache-2.0
//! A disk: after a crash, only what was synced is there.

#[derive(Debug, Clone)]
pub(super) struct Disk<T> {
    written: Option<T>,
    synced: Option<T>,
}

impl<T> Default for Disk<T> {
    fn default() -> Self {
        Self { written: None, synced: None }
    }
}

impl<T: Clone> Disk<T> {
    /// As a program reads it.
    pub(super) fn read(&self) -> Option<T> {
        self.written.clone()
    }

    pub(super) fn write(&mut self, content: T) {
        self.written = Some(content);
    }

    pub(super) fn sync(&mut self) {
        self.synced = self.written.clone();
    }

    pub(super) fn crash(&mut self) {
        self.written = self.synced.clone();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsynced_data_is_lost_in_a_crash() {
        let mut disk = Disk::default();
        disk.write(1);
        disk.crash();
        assert_eq!(disk.read(), None);
        disk.write(2);
        disk.sync();
        disk.write(3);
        assert_eq!(disk.read(), Some(3));
        disk.crash();
        assert_eq!(disk.read(), Some(2));
    }
}
