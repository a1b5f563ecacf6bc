// SPDX-License-Identifier: Apache-2.0
//! AF_XDP: rings shared with the kernel instead of system calls (Linux Documentation/networking/af_xdp.rst).
//!
//! One socket on one queue. Half of the frames are for receiving, half for sending. Each of the four rings
//! has one producer and one consumer; positions only grow, and a slot's number is its position modulo the
//! size.

use std::{
    ffi::c_void,
    io,
    net::Ipv4Addr,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
    ptr,
    sync::atomic::{AtomicU32, Ordering},
};

use fide_bpf::{
    XdpMode,
    pingpong::{Mode, PingPong, STAMP_BYTES, stamp_in},
};
use fide_net::link::frame::{HEADERS, payload_len};
use fide_sys::clock::mono_ns;
use fide_sys::interface::Interface;
use fide_wire::PAYLOAD_MAX;

use crate::pages::{HUGE_BYTES, Pages};

use super::{
    Arrived, Method, Port, PortError,
    frame::{Envelope, attach},
};

/// Slots of each ring, and frames of each half.
const RING: u32 = 1024;
const FRAME_BYTES: u32 = 2048;
const MEMORY_BYTES: usize = 2 * RING as usize * FRAME_BYTES as usize;
/// The queue that is listened to.
const QUEUE: u32 = 0;

/// A memory mapping; it is unmapped when this is dropped.
struct Mapping {
    base: *mut u8,
    bytes: usize,
}

impl Mapping {
    /// # Errors
    /// The kernel's.
    fn new(bytes: usize, fd: i32, offset: i64, flags: i32) -> io::Result<Self> {
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let base = unsafe { libc::mmap(ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, fd, offset) };
        if base == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(Self { base: base.cast(), bytes }) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `new`; nothing borrows from it any more.
        unsafe { libc::munmap(self.base.cast::<c_void>(), self.bytes) };
    }
}

/// One ring of entries of type `T`.
struct Ring<T> {
    _mapping: Mapping,
    producer: *const AtomicU32,
    consumer: *const AtomicU32,
    entries: *mut T,
}

impl<T: Copy> Ring<T> {
    fn map(socket: &OwnedFd, offsets: &libc::xdp_ring_offset, page: u64) -> io::Result<Self> {
        let at = |offset: u64| usize::try_from(offset).map_err(io::Error::other);
        let (entries, producer, consumer) = (at(offsets.desc)?, at(offsets.producer)?, at(offsets.consumer)?);
        let bytes = entries + RING as usize * size_of::<T>();
        let page = i64::try_from(page).map_err(io::Error::other)?;
        let mapping = Mapping::new(bytes, socket.as_raw_fd(), page, libc::MAP_SHARED | libc::MAP_POPULATE)?;
        // SAFETY: the kernel gave these offsets for this very mapping, which is long enough for the entries.
        unsafe {
            Ok(Self {
                producer: mapping.base.add(producer).cast(),
                consumer: mapping.base.add(consumer).cast(),
                entries: mapping.base.add(entries).cast(),
                _mapping: mapping,
            })
        }
    }

    /// The positions of producer and consumer.
    fn ends(&self) -> (&AtomicU32, &AtomicU32) {
        // SAFETY: both are aligned words of the mapping, which lives as long as `self`.
        unsafe { (&*self.producer, &*self.consumer) }
    }

    fn entry(&self, position: u32) -> *mut T {
        // SAFETY: in range: the ring has RING entries.
        unsafe { self.entries.add((position % RING) as usize) }
    }

    /// Puts one entry in; false if there is no room.
    fn put(&mut self, value: T) -> bool {
        let (producer, consumer) = self.ends();
        let position = producer.load(Ordering::Relaxed);
        if position.wrapping_sub(consumer.load(Ordering::Acquire)) == RING {
            return false;
        }
        // SAFETY: this slot belongs to the producer until the position below is published.
        unsafe { self.entry(position).write_volatile(value) };
        producer.store(position.wrapping_add(1), Ordering::Release);
        true
    }

    /// Takes one entry out.
    fn take(&mut self) -> Option<T> {
        let (producer, consumer) = self.ends();
        let position = consumer.load(Ordering::Relaxed);
        if producer.load(Ordering::Acquire) == position {
            return None;
        }
        // SAFETY: the producer has published this slot and does not touch it before the position below is.
        let value = unsafe { self.entry(position).read_volatile() };
        consumer.store(position.wrapping_add(1), Ordering::Release);
        Some(value)
    }
}

/// See the module.
pub struct XskPort {
    // Before the socket: packets must not be sent to a socket that is gone.
    program: PingPong,
    mode: XdpMode,
    zero_copy: bool,
    socket: OwnedFd,
    memory: Mapping,
    /// The kind of pages that it lies on, if huge ones were asked for.
    on: &'static str,
    fill: Ring<u64>,
    completion: Ring<u64>,
    rx: Ring<libc::xdp_desc>,
    tx: Ring<libc::xdp_desc>,
    free: Vec<u64>,
    envelope: Envelope,
}

// SAFETY: the pointers are into mappings that the value owns; one thread at a time uses it.
unsafe impl Send for XskPort {}

impl XskPort {
    /// Opens a socket on the interface's first queue.
    ///
    /// # Errors
    /// [`PortError`]; drivers that cannot do zero-copy refuse it.
    pub fn open(
        interface: &Interface,
        peer: Option<Ipv4Addr>,
        port: u16,
        zero_copy: bool,
        pages: Pages,
    ) -> Result<Self, PortError> {
        let method = if zero_copy { Method::XskZeroCopy } else { Method::Xsk };
        let envelope = Envelope::new(interface, peer, port)?;
        let (program, mode) = attach(interface, port, Mode::Socket, method)?;
        let failed = |why| PortError::Open { method, why };
        let (memory, on) = packets(pages).map_err(failed)?;
        let (socket, offsets) = socket(&memory).map_err(failed)?;
        let mut opened = Self {
            fill: Ring::map(&socket, &offsets.fr, libc::XDP_UMEM_PGOFF_FILL_RING).map_err(failed)?,
            completion: Ring::map(&socket, &offsets.cr, libc::XDP_UMEM_PGOFF_COMPLETION_RING).map_err(failed)?,
            rx: Ring::map(&socket, &offsets.rx, libc::XDP_PGOFF_RX_RING as u64).map_err(failed)?,
            tx: Ring::map(&socket, &offsets.tx, libc::XDP_PGOFF_TX_RING as u64).map_err(failed)?,
            free: (RING..2 * RING).map(|frame| u64::from(frame * FRAME_BYTES)).collect(),
            program,
            mode,
            zero_copy,
            socket,
            memory,
            on,
            envelope,
        };
        for frame in 0..RING {
            opened.fill.put(u64::from(frame * FRAME_BYTES));
        }
        let copy = if zero_copy { libc::XDP_ZEROCOPY } else { libc::XDP_COPY };
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: copy | libc::XDP_USE_NEED_WAKEUP,
            sxdp_ifindex: interface.index,
            sxdp_queue_id: QUEUE,
            sxdp_shared_umem_fd: 0,
        };
        // SAFETY: the address outlives the call and is of the size given.
        let bound = unsafe {
            libc::bind(opened.socket.as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as libc::socklen_t)
        };
        if bound != 0 {
            return Err(failed(io::Error::last_os_error()));
        }
        opened.program.set_socket(QUEUE, opened.socket.as_fd()).map_err(|why| PortError::Bpf { method, why })?;
        Ok(opened)
    }

    /// The time of arrival that the program wrote in front of a packet, if there is room for it. It is
    /// cleared, so that no later packet in this frame has it.
    fn stamp(&mut self, address: u64) -> Option<u64> {
        let start = usize::try_from(address.checked_sub(STAMP_BYTES as u64)?).ok()?;
        let room = address % u64::from(FRAME_BYTES) >= STAMP_BYTES as u64 && start + STAMP_BYTES <= MEMORY_BYTES;
        // SAFETY: checked to lie inside the memory; the kernel gave the frame away until it is filled in again.
        let stamp =
            room.then(|| unsafe { std::slice::from_raw_parts_mut(self.memory.base.add(start), STAMP_BYTES) })?;
        let rx_ns = stamp_in(stamp)?;
        stamp[..8].fill(0);
        Some(rx_ns)
    }

    fn frame(&self, address: u64, len: u32) -> Option<&[u8]> {
        let (start, len) = (usize::try_from(address).ok()?, len as usize);
        // SAFETY: checked to lie inside the memory; the kernel gave the frame away until it is filled in again.
        (start.checked_add(len)? <= MEMORY_BYTES)
            .then(|| unsafe { std::slice::from_raw_parts(self.memory.base.add(start), len) })
    }
}

/// Maps memory for packets. With huge pages, all of it lies on reserved ones, or none of it does.
fn packets(pages: Pages) -> io::Result<(Mapping, &'static str)> {
    let usual = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
    if pages == Pages::Usual {
        return Ok((Mapping::new(MEMORY_BYTES, -1, 0, usual)?, ""));
    }
    match Mapping::new(MEMORY_BYTES, -1, 0, usual | libc::MAP_HUGETLB) {
        Ok(memory) => Ok((memory, ", huge pages")),
        Err(_) => Ok((
            Mapping::new(MEMORY_BYTES, -1, 0, usual)?,
            ", usual pages (no 2 huge ones are free: sysctl vm.nr_hugepages)",
        )),
    }
}

// The message names the same number of huge pages.
const _: () = assert!(MEMORY_BYTES == 2 * HUGE_BYTES);

/// Makes a socket whose rings have their sizes and whose frames are registered.
fn socket(memory: &Mapping) -> io::Result<(OwnedFd, libc::xdp_mmap_offsets)> {
    // SAFETY: no memory is handed over; the descriptor is ours alone.
    let socket = unsafe {
        let fd = libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(fd)
    };
    // SAFETY: zeroes are a valid value of this plain structure.
    let mut memory_of: libc::xdp_umem_reg = unsafe { std::mem::zeroed() };
    memory_of.addr = memory.base as u64;
    memory_of.len = MEMORY_BYTES as u64;
    memory_of.chunk_size = FRAME_BYTES;
    set(&socket, libc::XDP_UMEM_REG, &memory_of)?;
    for ring in [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING, libc::XDP_RX_RING, libc::XDP_TX_RING] {
        set(&socket, ring, &RING)?;
    }
    // SAFETY: zeroes are a valid value; the kernel fills it up to the length given.
    let offsets = unsafe {
        let mut offsets: libc::xdp_mmap_offsets = std::mem::zeroed();
        let mut len = size_of_val(&offsets) as libc::socklen_t;
        let result = libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_XDP,
            libc::XDP_MMAP_OFFSETS,
            (&raw mut offsets).cast(),
            &raw mut len,
        );
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        offsets
    };
    Ok((socket, offsets))
}

fn set<T>(socket: &OwnedFd, option: i32, value: &T) -> io::Result<()> {
    // SAFETY: the value outlives the call and is of the size given.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_XDP,
            option,
            ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

impl Port for XskPort {
    fn send(&mut self, payload: &[u8]) -> io::Result<()> {
        while let Some(sent) = self.completion.take() {
            self.free.push(sent);
        }
        let Some(address) = self.free.pop() else { return Err(io::ErrorKind::WouldBlock.into()) };
        let frame = self.envelope.close(payload);
        let len = frame.len() as u32;
        // SAFETY: the frame is one of ours, is not in a ring, and is FRAME_BYTES long, more than any packet.
        unsafe {
            ptr::copy_nonoverlapping(frame.as_ptr(), self.memory.base.add(address as usize), frame.len());
        }
        self.tx.put(libc::xdp_desc { addr: address, len, options: 0 });
        // SAFETY: no memory is handed over. Copy mode sends in this call.
        let kicked =
            unsafe { libc::sendto(self.socket.as_raw_fd(), ptr::null(), 0, libc::MSG_DONTWAIT, ptr::null(), 0) };
        if kicked < 0 {
            let error = io::Error::last_os_error();
            // The packet is in the ring: the next kick sends it too.
            if !matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS)) {
                return Err(error);
            }
        }
        Ok(())
    }

    fn receive(&mut self, buffer: &mut [u8; PAYLOAD_MAX], until_ns: u64) -> io::Result<Option<Arrived>> {
        loop {
            if let Some(received) = self.rx.take() {
                let at_ns = mono_ns();
                let kernel_ns = self.stamp(received.addr);
                let mut len = None;
                if let Some(frame) = self.frame(received.addr, received.len)
                    && let Some(headers) = frame.first_chunk::<HEADERS>()
                    && let Some(payload) = payload_len(headers, frame.len())
                {
                    let headers = *headers;
                    buffer[..payload].copy_from_slice(&frame[HEADERS..HEADERS + payload]);
                    self.envelope.answer(&headers);
                    len = Some(payload);
                }
                // The start of the frame, whatever headroom the kernel left in it.
                self.fill.put(received.addr - received.addr % u64::from(FRAME_BYTES));
                if let Some(len) = len {
                    return Ok(Some(Arrived { len, at_ns, kernel_ns }));
                }
            }
            if mono_ns() >= until_ns {
                return Ok(None);
            }
            std::hint::spin_loop();
        }
    }

    fn name(&self) -> String {
        format!("{}, {}{}", if self.zero_copy { "af-xdp-zc" } else { "af-xdp" }, self.mode, self.on)
    }
}
