// SPDX-License-Identifier: Apache-2.0
//! What the kernel says of processes and of their TCP connections, in `/proc`.

use std::{
    collections::HashMap,
    fs, io,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    os::unix::fs::FileExt,
};

use fide_rack::{meet::WORDS, shm::words_at};

/// Bytes of a table of connections that are read at most.
const TABLE_BYTES_MAX: u64 = 256 << 20;
/// `TCP_ESTABLISHED` and `TCP_LISTEN` of `include/net/tcp_states.h`.
const ESTABLISHED: u8 = 1;
const LISTEN: u8 = 10;
/// The name of rack sockets' memory in a process' map.
const MEMORY: &str = "/memfd:fide-rack";
pub(super) const LIBRARY: &str = "libfide_rack_preload.so";

/// A TCP socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Socket {
    pub(super) local: SocketAddr,
    pub(super) peer: SocketAddr,
    state: u8,
    /// The number that a descriptor of it shows.
    pub(super) inode: u64,
}

impl Socket {
    pub(super) fn is_established(&self) -> bool {
        self.state == ESTABLISHED
    }

    pub(super) fn listens(&self) -> bool {
        self.state == LISTEN
    }

    /// Both ends have the same address, or are of the loopback.
    pub(super) fn is_within_host(&self) -> bool {
        let (here, there) = (self.local.ip(), self.peer.ip());
        here == there || here.is_loopback() && there.is_loopback()
    }
}

/// All TCP sockets in the network namespace of a process. None: it has ended, or this user may not look.
pub(super) fn sockets(pid: u32) -> Option<Vec<Socket>> {
    let table = |name: &str| {
        use io::Read;
        let file = fs::File::open(format!("/proc/{pid}/net/{name}")).ok()?;
        let mut text = String::new();
        file.take(TABLE_BYTES_MAX).read_to_string(&mut text).ok()?;
        Some(text)
    };
    let v4 = table("tcp")?;
    // There may be no IPv6.
    let v6 = table("tcp6").unwrap_or_default();
    Some([v4, v6].iter().flat_map(|text| text.lines().skip(1).filter_map(socket)).collect())
}

fn socket(line: &str) -> Option<Socket> {
    let words: Vec<&str> = line.split_whitespace().take(10).collect();
    let [_, local, peer, state, .., inode] = words[..] else { return None };
    Some(Socket {
        local: address(local)?,
        peer: address(peer)?,
        state: u8::from_str_radix(state, 16).ok()?,
        inode: inode.parse().ok()?,
    })
}

/// Words of this machine's byte order, each in hexadecimal digits, and the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let word = |at: usize| Some(u32::from_str_radix(ip.get(at * 8..at * 8 + 8)?, 16).ok()?.to_ne_bytes());
    let ip: IpAddr = match ip.len() {
        8 => word(0)?.into(),
        32 => {
            let bytes = [word(0)?, word(1)?, word(2)?, word(3)?].concat();
            Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).to_canonical()
        }
        _ => return None,
    };
    Some((ip, u16::from_str_radix(port, 16).ok()?).into())
}

/// The name of a process. None: it has ended.
pub(super) fn name(pid: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/comm")).ok().map(|name| name.trim_end().to_owned())
}

/// What a process has mapped of rack sockets.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Mapped {
    /// The library's file.
    pub(super) library: Option<String>,
    /// By the numbers of the memories' files: where each lies.
    pub(super) memories: HashMap<u64, u64>,
}

/// What a process has mapped.
///
/// # Errors
/// The kernel's: it has ended, or is another user's.
pub(super) fn mapped(pid: u32) -> io::Result<Mapped> {
    fs::read_to_string(format!("/proc/{pid}/maps")).map(|maps| in_maps(&maps))
}

fn in_maps(maps: &str) -> Mapped {
    let mut found = Mapped::default();
    for line in maps.lines() {
        // Addresses, rights, offset, device, inode, and what it is, which may have spaces.
        let Some(at) = line.find('/') else { continue };
        let (numbers, path) = line.split_at(at);
        if path.starts_with(MEMORY) {
            let inode = numbers.split_whitespace().nth(4).and_then(|inode| inode.parse().ok());
            let at = numbers.split('-').next().and_then(|at| u64::from_str_radix(at, 16).ok());
            found.memories.extend(inode.zip(at));
        } else if path.contains(LIBRARY) && found.library.is_none() {
            found.library = Some(path.to_owned());
        }
    }
    found
}

/// How many bytes were read of what each end of a connection has sent through its memory, with the headers of the pieces, by a process that has
/// it mapped there; it may lag by a ring. None: this user may not look into that process.
pub(super) fn carried(pid: u32, at: u64) -> Option<[u64; 2]> {
    let memory = fs::File::open(format!("/proc/{pid}/mem")).ok()?;
    let [first, second] = words_at::<WORDS>().map(|offset| {
        let mut word = [0; 8];
        let at = at.checked_add(u64::try_from(offset).ok()?)?;
        memory.read_exact_at(&mut word, at).ok().map(|()| u64::from_ne_bytes(word))
    });
    Some([first?, second?])
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn connections_of_this_process_are_found() {
        for at in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(at).unwrap();
            let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let all = sockets(std::process::id()).unwrap();
            let ends = (here.local_addr().unwrap(), here.peer_addr().unwrap());
            let found = all.iter().find(|socket| (socket.local, socket.peer) == ends).expect("it is there");
            assert!(found.is_established() && found.is_within_host() && found.inode > 0);
            assert!(all.iter().any(|socket| socket.listens() && socket.local == ends.1));
        }
        assert!(sockets(0).is_none());
    }

    #[test]
    fn addresses_are_read_and_garbage_is_not() {
        if cfg!(target_endian = "little") {
            assert_eq!(address("0100007F:1F90"), Some("127.0.0.1:8080".parse().unwrap()));
            assert_eq!(
                address("0000000000000000FFFF00000100007F:0050"),
                Some("127.0.0.1:80".parse().unwrap()),
                "of IPv4, at a socket of IPv6"
            );
        }
        for garbage in ["", ":", "0100007F", "0100007F:x", "01:1", "g100007F:1F90", "\u{e4}\u{e4}\u{e4}\u{e4}:1"] {
            assert_eq!(address(garbage), None, "{garbage}");
        }
        assert_eq!(socket("sl  local_address rem_address   st"), None);
    }

    #[test]
    fn memories_and_the_library_are_found_in_a_map() {
        let maps = "7f00-7f01 rw-s 00000000 00:01 77 /memfd:fide-rack (deleted)\n\
                    7f02-7f03 r-xp 00000000 fe:00 5 /a dir/libfide_rack_preload.so\n\
                    7f04-7f05 rw-s 00000000 00:01 77 /memfd:fide-rack (deleted)\n\
                    7f06-7f07 rw-s 00000000 00:01 9 /memfd:else (deleted)\n\
                    7f08-7f09 rw-p 00000000 00:00 0\n\
                    7f0a-7f0b rw-s 00000000 00:01 8 /memfd:fide-rack (deleted)\n";
        let found = in_maps(maps);
        assert_eq!(found.library.as_deref(), Some("/a dir/libfide_rack_preload.so"));
        assert_eq!(found.memories, HashMap::from([(8, 0x7f0a), (77, 0x7f04)]));
        assert_eq!(carried(std::process::id(), u64::MAX - 8), None);
    }
}
