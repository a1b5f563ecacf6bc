// SPDX-License-Identifier: Apache-2.0
//! The ring buffer reader against the kernel itself: a small program copies each packet it is run on into the ring.
//! Needs the right to load BPF programs; says so and passes where there is none.
#![cfg(not(loom))]

use fide_shm::bpf_ring::BpfRing;
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
};

const RING: u32 = 4096;
/// With its header and padding 72 bytes: no divisor of the ring's size, so that records lie across its end.
const RECORD: usize = 60;

/// The bpf system call; `attr` is zero-padded to the size the kernel of any age accepts.
fn bpf(command: i32, attr: &[u32]) -> Result<i32, std::io::Error> {
    // SAFETY: the kernel reads `attr` and the memory its addresses name, all alive during the call.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attr.as_ptr(), size_of_val(attr)) };
    if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(result as i32) }
}

fn split(address: usize) -> [u32; 2] {
    [address as u32, (address as u64 >> 32) as u32]
}

fn ring_map() -> Result<OwnedFd, std::io::Error> {
    let mut attr = [0; 18];
    (attr[0], attr[3]) = (27, RING);
    // SAFETY: a new descriptor that nobody else owns.
    bpf(0, &attr).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// XDP: the first word of the packet, and at the end of the record its lowest byte, zeros between them.
/// `if (data + 4 <= data_end) bpf_ringbuf_output(map, record, RECORD, 0); return XDP_PASS;`
fn program(map: &OwnedFd) -> Result<OwnedFd, std::io::Error> {
    // The kernel's `struct bpf_insn`: 8 bits of code, two registers of 4, an offset, a constant.
    let instruction = |code: u64, dst: u64, src: u64, offset: i16, constant: i32| {
        code | dst << 8 | src << 12 | u64::from(offset as u16) << 16 | u64::from(constant as u32) << 32
    };
    let (load32, store32, store8, store64_constant) = (0x61, 0x63, 0x73, 0x7a);
    let (copy, add, set, if_greater, load64_constant, call, exit) = (0xbf, 0x07, 0xb7, 0x2d, 0x18, 0x85, 0x95);
    let mut code = vec![
        instruction(load32, 3, 1, 4, 0),
        instruction(load32, 2, 1, 0, 0),
        instruction(copy, 4, 2, 0, 0),
        instruction(add, 4, 0, 0, 4),
        instruction(if_greater, 4, 3, 18, 0),
        instruction(load32, 5, 2, 0, 0),
    ];
    code.extend((0..8).map(|word| instruction(store64_constant, 10, 0, -64 + 8 * word, 0)));
    code.extend([
        instruction(store32, 10, 5, -64, 0),
        instruction(store8, 10, 5, -64 + RECORD as i16 - 1, 0),
        instruction(load64_constant, 1, 1, 0, map.as_raw_fd()),
        0,
        instruction(copy, 2, 10, 0, 0),
        instruction(add, 2, 0, 0, -64),
        instruction(set, 3, 0, 0, RECORD as i32),
        instruction(set, 4, 0, 0, 0),
        instruction(call, 0, 0, 0, 130),
        instruction(set, 0, 0, 0, 2),
        instruction(exit, 0, 0, 0, 0),
    ]);
    let licence = c"Apache-2.0";
    let mut attr = [0; 18];
    (attr[0], attr[1]) = (6, code.len() as u32);
    attr[2..4].copy_from_slice(&split(code.as_ptr() as usize));
    attr[4..6].copy_from_slice(&split(licence.as_ptr() as usize));
    // SAFETY: a new descriptor that nobody else owns.
    bpf(5, &attr).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The ring and its program, or `None` where this user may not load programs.
fn loaded() -> Option<(OwnedFd, OwnedFd)> {
    match ring_map().and_then(|map| Ok((program(&map)?, map))) {
        Ok((program, map)) => Some((map, program)),
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            eprintln!("skipped: this user may not load BPF programs");
            None
        }
        Err(error) => panic!("loading the BPF program: {error}"),
    }
}

fn run(program: &OwnedFd, number: u32) {
    let mut packet = [0u8; 64];
    packet[..4].copy_from_slice(&number.to_le_bytes());
    let mut attr = [0; 18];
    (attr[0], attr[2], attr[8]) = (program.as_raw_fd() as u32, packet.len() as u32, 1);
    attr[4..6].copy_from_slice(&split(packet.as_ptr() as usize));
    bpf(10, &attr).expect("running the program on a packet");
}

fn readable(fd: &OwnedFd) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)];
    rustix::event::poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
}

#[test]
fn root_records_of_the_kernel_come_whole_and_in_order_through_many_wraps() {
    let Some((map, program)) = loaded() else { return };
    let mut ring = BpfRing::open(map.as_fd()).unwrap();
    assert!(ring.is_empty() && !readable(&map));
    let (mut pushed, mut taken) = (0u32, 0u32);
    for round in 0..200 {
        for _ in 0..=round % 50 {
            run(&program, pushed);
            pushed += 1;
        }
        assert!(!ring.is_empty() && readable(&map));
        while !ring.is_empty() {
            ring.drain(7, |record| {
                assert_eq!(record.len(), RECORD);
                assert_eq!(record[..4], taken.to_le_bytes());
                assert_eq!(record[RECORD - 1], taken as u8);
                taken += 1;
            })
            .unwrap();
        }
        assert!(!readable(&map));
        if round % 20 == 0 {
            // Another consumer, after this one, as after a re-attachment.
            ring = BpfRing::open(map.as_fd()).unwrap();
        }
    }
    assert_eq!(taken, pushed);
}

#[test]
fn root_a_full_ring_keeps_the_oldest() {
    let Some((map, program)) = loaded() else { return };
    for number in 0..100 {
        run(&program, number);
    }
    let mut ring = BpfRing::open(map.as_fd()).unwrap();
    let mut numbers = Vec::new();
    ring.drain(1000, |record| numbers.push(u32::from_le_bytes([record[0], record[1], record[2], record[3]]))).unwrap();
    assert_eq!(numbers, (0..RING / 72).collect::<Vec<_>>());
}
