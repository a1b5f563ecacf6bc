// SPDX-License-Identifier: Apache-2.0
//! A queue pair for datagrams: a safe interface to `c/rdma.h`.

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    io,
    net::Ipv4Addr,
    ptr::{self, NonNull},
    slice,
    sync::Arc,
};

use fide_net::link::TYPE_OF_SERVICE;
use fide_sys::interface::Interface;

use super::super::{Method, PortError};

/// `struct fide_rdma` and `struct ibv_ah`, whose fields are never accessed.
#[repr(C)]
struct Rdma {
    _opaque: [u8; 0],
}
#[repr(C)]
struct AddressHandle {
    _opaque: [u8; 0],
}

#[repr(C)]
struct Found {
    qpn: u32,
    mtu_bytes: u32,
    inline_bytes: u32,
    device: [c_char; 64],
}

#[repr(C)]
struct Slot {
    data: *const u8,
    bytes: u32,
    slot: u32,
    from_qpn: u32,
    from: [u8; 4],
}

unsafe extern "C" {
    fn fide_rdma_open(
        ifindex: u32,
        address: *const u8,
        traffic_class: u8,
        opened: *mut *mut Rdma,
        found: *mut Found,
        step: *mut *const c_char,
    ) -> c_int;
    fn fide_rdma_close(rdma: *mut Rdma);
    fn fide_rdma_handle(rdma: *mut Rdma, address: *const u8, handle: *mut *mut AddressHandle) -> c_int;
    fn fide_rdma_forget(handle: *mut AddressHandle);
    fn fide_rdma_send(rdma: *mut Rdma, handle: *mut AddressHandle, qpn: u32, data: *const c_void, bytes: u32) -> c_int;
    fn fide_rdma_take(rdma: *mut Rdma, arrived: *mut Slot) -> c_int;
    fn fide_rdma_give_back(rdma: *mut Rdma, slot: u32) -> c_int;
}

/// The open queue pair; it is closed when its last user is dropped.
struct Card(NonNull<Rdma>);

/// A queue pair, its rings and its memory.
pub(super) struct Queue {
    card: Arc<Card>,
    qpn: u32,
    mtu_bytes: u32,
    device: String,
}

/// The path to a host.
pub(super) struct Handle {
    handle: NonNull<AddressHandle>,
    // The handle has to be dropped before its card.
    _card: Arc<Card>,
}

// SAFETY: libibverbs ties nothing to a thread, and its calls to make, use and end these may come from several
// threads.
unsafe impl Send for Card {}
// SAFETY: as above. Only a `Queue`, by `&mut`, touches the C code's state of the rings.
unsafe impl Sync for Card {}
// SAFETY: as for the card.
unsafe impl Send for Handle {}

/// A datagram in its slot, which is given back to the ring at the end.
pub(super) struct Datagram<'a> {
    queue: &'a mut Queue,
    slot: Slot,
}

impl Queue {
    /// # Errors
    /// [`PortError::NoRdmaDevice`], or an error of the card.
    pub(super) fn open(interface: &Interface) -> Result<Self, PortError> {
        let (mut opened, mut step) = (ptr::null_mut(), ptr::null());
        let mut found = Found { qpn: 0, mtu_bytes: 0, inline_bytes: 0, device: [0; 64] };
        let address = interface.address.octets();
        // SAFETY: the four bytes of the address and the three values that are written to all outlive the
        // call.
        let result = unsafe {
            fide_rdma_open(
                interface.index,
                address.as_ptr(),
                TYPE_OF_SERVICE,
                &raw mut opened,
                &raw mut found,
                &raw mut step,
            )
        };
        let failed = |why| Err(PortError::Open { method: Method::RdmaUd, why });
        if result == libc::ENODEV {
            return Err(PortError::NoRdmaDevice { interface: interface.name.clone() });
        }
        if result == libc::EADDRNOTAVAIL {
            return failed(io::Error::other(format!(
                "the RDMA device of {} has no RoCEv2 address for {} (`rdma link`, and its `gids` in sysfs)",
                interface.name, interface.address
            )));
        }
        let Some(rdma) = NonNull::new(opened).filter(|_| result == 0) else {
            let error = io::Error::from_raw_os_error(result);
            // SAFETY: a failed call has set it to a string constant.
            let step = unsafe { CStr::from_ptr(step) }.to_string_lossy();
            // The kind tells a missing permission from the rest.
            return failed(io::Error::new(error.kind(), format!("{step}: {error}")));
        };
        // SAFETY: the name ends with a zero, because the whole array was zeroed before.
        let device = unsafe { CStr::from_ptr(found.device.as_ptr()) }.to_string_lossy().into_owned();
        Ok(Self { card: Arc::new(Card(rdma)), qpn: found.qpn, mtu_bytes: found.mtu_bytes, device })
    }

    /// The number of this queue pair.
    pub(super) fn qpn(&self) -> u32 {
        self.qpn
    }

    /// The card's name.
    pub(super) fn device(&self) -> &str {
        &self.device
    }

    /// The path to a host. The kernel asks for the host's hardware address if it does not know it.
    ///
    /// # Errors
    /// The kernel's, if nobody answers.
    pub(super) fn handle(&self, to: Ipv4Addr) -> io::Result<Handle> {
        let mut handle = ptr::null_mut();
        let address = to.octets();
        // SAFETY: the queue is open; four bytes of address and the handle outlive the call.
        let result = unsafe { fide_rdma_handle(self.card.0.as_ptr(), address.as_ptr(), &raw mut handle) };
        match NonNull::new(handle) {
            Some(handle) if result == 0 => Ok(Handle { handle, _card: self.card.clone() }),
            _ => Err(io::Error::from_raw_os_error(result)),
        }
    }

    /// # Errors
    /// `WouldBlock` if the ring is full; another error says if the payload is too long.
    pub(super) fn send(&mut self, to: &Handle, qpn: u32, payload: &[u8]) -> io::Result<()> {
        let Ok(len) = u32::try_from(payload.len()) else { return Err(io::ErrorKind::InvalidInput.into()) };
        // SAFETY: queue and handle are open; the payload is read only during the call: it is copied or sent
        // inline.
        let result =
            unsafe { fide_rdma_send(self.card.0.as_ptr(), to.handle.as_ptr(), qpn, payload.as_ptr().cast(), len) };
        match result {
            0 => Ok(()),
            libc::EMSGSIZE => Err(io::Error::other(format!(
                "{len} bytes are too long for a datagram of {}, whose MTU is {} (--bytes, or a larger MTU of the interface)",
                self.device, self.mtu_bytes
            ))),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// Looks once for a datagram.
    ///
    /// # Errors
    /// `NetworkDown` if the card is gone.
    pub(super) fn take(&mut self) -> io::Result<Option<Datagram<'_>>> {
        let mut slot = Slot { data: ptr::null(), bytes: 0, slot: 0, from_qpn: 0, from: [0; 4] };
        // SAFETY: the queue is open, and the slot outlives the call.
        match unsafe { fide_rdma_take(self.card.0.as_ptr(), &raw mut slot) } {
            0 => Ok(None),
            1 => Ok(Some(Datagram { queue: self, slot })),
            error => Err(io::Error::from_raw_os_error(-error)),
        }
    }
}

impl Datagram<'_> {
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the card has written this many bytes there, and does not touch the slot until it is given
        // back, which can happen only after this borrow has ended.
        unsafe { slice::from_raw_parts(self.slot.data, self.slot.bytes as usize) }
    }

    /// The host and the queue pair that sent it.
    pub(super) fn source(&self) -> (Ipv4Addr, u32) {
        (self.slot.from.into(), self.slot.from_qpn)
    }

    /// # Errors
    /// The card's.
    pub(super) fn give_back(self) -> io::Result<()> {
        // SAFETY: the queue is open, and this slot was taken from it; nothing borrows it any more.
        match unsafe { fide_rdma_give_back(self.queue.card.0.as_ptr(), self.slot.slot) } {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: made by `Queue::handle`, dropped once, before its card.
        unsafe { fide_rdma_forget(self.handle.as_ptr()) };
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        // SAFETY: opened in `open`, closed once; its queue and its handles are gone.
        unsafe { fide_rdma_close(self.0.as_ptr()) };
    }
}
