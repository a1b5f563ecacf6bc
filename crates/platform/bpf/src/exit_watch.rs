// SPDX-License-Identifier: Apache-2.0
//! Loader of the exit watch.

use std::{
    io,
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use libbpf_rs::{
    MapCore, MapHandle, libbpf_sys,
    skel::{OpenSkel, SkelBuilder},
};
use zerocopy::IntoBytes;

use crate::{BpfError, intf::Watched, map::check_layout, skel::exit_watch::ExitWatchSkelBuilder};

/// One process to watch. `pid` and `start_ticks` together never name two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration {
    /// Process id in the initial pid namespace.
    pub pid: u32,
    /// Field 22 of `/proc/PID/stat`: start after boot, in ticks of 10 ms.
    pub start_ticks: u64,
    /// Given back with the exit.
    pub slot: u32,
    /// Given back with the exit; distinguishes registrations of one slot.
    pub cookie: u64,
}

/// Descriptors that a new agent takes over.
pub struct ExitWatchFds {
    /// The hash of watched processes.
    pub watched: OwnedFd,
}

/// The attached exit watch. Dropping it detaches the program.
pub struct ExitWatch {
    watched: MapHandle,
    _link: OwnedFd,
}

impl ExitWatch {
    /// Loads and attaches. Exits are reported in the ring `wake`, counted in the map `stats`.
    ///
    /// # Errors
    /// [`BpfError::Load`] if the kernel lacks BTF or the hook, or we lack the privilege.
    pub fn attach(
        wake: BorrowedFd<'_>,
        stats: BorrowedFd<'_>,
        inherited: Option<ExitWatchFds>,
    ) -> Result<Self, BpfError> {
        let fail = |error: libbpf_rs::Error| BpfError::load("exit watch", &error);
        let mut storage = MaybeUninit::uninit();
        let mut open = ExitWatchSkelBuilder::default().open(&mut storage).map_err(fail)?;
        open.maps.wake.reuse_fd(wake).map_err(fail)?;
        open.maps.stats.reuse_fd(stats).map_err(fail)?;
        if let Some(inherited) = &inherited {
            check_layout(inherited.watched.as_fd(), size_of::<Watched>(), "watched")?;
            open.maps.watched.reuse_fd(inherited.watched.as_fd()).map_err(fail)?;
        }
        let skel = open.load().map_err(fail)?;
        // The link outlives the skeleton through a descriptor of our own.
        let keep = |link: libbpf_rs::Result<libbpf_rs::Link>| -> Result<OwnedFd, BpfError> {
            link.map_err(fail)?
                .as_fd()
                .try_clone_to_owned()
                .map_err(|why| BpfError::Map { what: "a link could not be kept", why })
        };
        let link = keep(skel.progs.on_process_exit.attach())?;
        let watched = MapHandle::try_from(&skel.maps.watched).map_err(fail)?;
        check_layout(watched.as_fd(), size_of::<Watched>(), "watched")?;
        Ok(Self { watched, _link: link })
    }

    /// Starts to watch a process. The caller holds a pidfd and checks it after this call: a
    /// process that left before it was registered is never reported.
    ///
    /// # Errors
    /// [`BpfError::Map`]; with `E2BIG` when [`crate::intf::MAX_WATCHED`] are watched already.
    pub fn watch(&self, registration: &Registration) -> Result<(), BpfError> {
        let value = Watched {
            start_ticks: registration.start_ticks,
            slot: registration.slot,
            reserved: 0,
            cookie: registration.cookie,
        };
        let (key, value) = (registration.pid.to_ne_bytes(), value.as_bytes());
        // Not through `MapHandle`, whose errors lack their number.
        // SAFETY: a live map whose key and value have these sizes; the call only reads them.
        let result = unsafe {
            libbpf_sys::bpf_map_update_elem(
                self.watched.as_fd().as_raw_fd(),
                key.as_ptr().cast(),
                value.as_ptr().cast(),
                u64::from(libbpf_sys::BPF_ANY),
            )
        };
        match result {
            0 => Ok(()),
            error => Err(BpfError::Map {
                what: "a process could not be put under watch",
                why: io::Error::from_raw_os_error(-error),
            }),
        }
    }

    /// Stops to watch; a pid that is not watched is no error.
    pub fn unwatch(&self, pid: u32) {
        // ENOENT is the only failure of a delete from a valid hash.
        let _ = self.watched.delete(&pid.to_ne_bytes());
    }

    /// The map a new agent takes over.
    #[must_use]
    pub fn watched_fd(&self) -> BorrowedFd<'_> {
        self.watched.as_fd()
    }
}
