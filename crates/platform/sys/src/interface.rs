// SPDX-License-Identifier: Apache-2.0
//! Network interfaces of this network namespace.

use std::{ffi::CStr, io, net::Ipv4Addr, os::fd::AsRawFd, ptr};

/// One interface and one of its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name, such as `eth0`.
    pub name: String,
    /// Its index, never 0.
    pub index: u32,
    /// Its hardware address; zeroes on loopback.
    pub hardware: [u8; 6],
    /// The address it was looked up by.
    pub address: Ipv4Addr,
    /// The loopback interface.
    pub loopback: bool,
}

/// Why there is no interface to use.
#[derive(Debug, thiserror::Error)]
pub enum InterfaceError {
    /// No interface holds the address.
    #[error("no interface of this host has the address {wanted}; it has {}", list(.found))]
    Missing { wanted: Ipv4Addr, found: Vec<(String, Ipv4Addr)> },
    /// The interface exists but is down.
    #[error("interface {name} with address {address} is down: `ip link set {name} up`")]
    Down { name: String, address: Ipv4Addr },
    /// The kernel did not list its interfaces.
    #[error("the interfaces of this host could not be listed: {0}")]
    List(io::Error),
}

impl From<io::Error> for InterfaceError {
    fn from(why: io::Error) -> Self {
        Self::List(why)
    }
}

fn list(found: &[(String, Ipv4Addr)]) -> String {
    if found.is_empty() {
        return "none".to_owned();
    }
    found.iter().map(|(name, address)| format!("{address} ({name})")).collect::<Vec<_>>().join(", ")
}

/// Every IPv4 address of this network namespace with its interface's name.
///
/// # Errors
/// [`InterfaceError::List`].
pub fn addresses() -> Result<Vec<(String, Ipv4Addr)>, InterfaceError> {
    Ok(Entries::read()?.iter().filter_map(|entry| Some((entry.name(), entry.ipv4()?))).collect())
}

/// The interface that holds `address`.
///
/// # Errors
/// [`InterfaceError`]; names the addresses there are when the wanted one is not among them.
pub fn by_address(address: Ipv4Addr) -> Result<Interface, InterfaceError> {
    let entries = Entries::read()?;
    let Some(entry) = entries.iter().find(|entry| entry.ipv4() == Some(address) || entry.holds_loopback(address))
    else {
        let found = entries.iter().filter_map(|entry| Some((entry.name(), entry.ipv4()?))).collect();
        return Err(InterfaceError::Missing { wanted: address, found });
    };
    let name = entry.name();
    if entry.flags() & libc::IFF_UP == 0 {
        return Err(InterfaceError::Down { name, address });
    }
    let (index, hardware) = entries
        .iter()
        .filter(|other| other.name() == name)
        .find_map(|other| other.link())
        .ok_or_else(|| io::Error::other(format!("interface {name} has no link-layer address")))?;
    Ok(Interface { name, index, hardware, address, loopback: entry.flags() & libc::IFF_LOOPBACK != 0 })
}

/// Bytes of the largest packet that the interface called `name` carries, IP header included; it may change.
///
/// # Errors
/// The kernel's, if there is no such interface any more.
pub fn mtu_bytes(name: &str) -> io::Result<usize> {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?;
    let mut request = request(name);
    // SAFETY: the request is writable and holds a name that ends with a zero; the kernel fills in the MTU.
    let mtu = unsafe {
        if libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU, &raw mut request) != 0 {
            return Err(io::Error::last_os_error());
        }
        request.ifr_ifru.ifru_mtu
    };
    Ok(usize::try_from(mtu).unwrap_or(0))
}

/// Index and hardware address of the interface called `name`; none if there is no such interface.
///
/// # Errors
/// The kernel's, which did not list its interfaces.
pub fn by_name(name: &str) -> io::Result<Option<(u32, [u8; 6])>> {
    Ok(Entries::read()?.iter().filter(|entry| entry.name() == name).find_map(|entry| entry.link()))
}

/// Bits per second of the interface called `name`, as its driver tells. None: it does not, or there is no such interface, or
/// it is made by software: such a one (veth, TAP) tells a number that means nothing.
///
/// # Errors
/// The kernel's, which gave no socket.
pub fn speed_bps(name: &str) -> io::Result<Option<u64>> {
    // linux/ethtool.h, in words: struct ethtool_drvinfo with the name of the bus at its byte 100, struct ethtool_cmd.
    const ETHTOOL_GDRVINFO: u32 = 3;
    const ETHTOOL_GSET: u32 = 1;
    /// "Unknown", in either half's width.
    const UNKNOWN: [u32; 3] = [0, 0xffff, u32::MAX];
    let (mut driver, mut settings) = ([0; 49], [0; 11]);
    (driver[0], settings[0]) = (ETHTOOL_GDRVINFO, ETHTOOL_GSET);
    if !ethtool(name, &mut driver)? || !ethtool(name, &mut settings)? {
        return Ok(None);
    }
    let bus: Vec<u8> =
        driver[25..33].iter().flat_map(|word| word.to_ne_bytes()).take_while(|byte| *byte != 0).collect();
    if [&b""[..], b"tun", b"tap"].contains(&&bus[..]) {
        return Ok(None);
    }
    let half = |at: usize| {
        let [a, b, ..] = settings[at / 4].to_ne_bytes();
        u32::from(u16::from_ne_bytes([a, b]))
    };
    let mbit = half(28) << 16 | half(12);
    Ok((!UNKNOWN.contains(&mbit)).then(|| u64::from(mbit) * 1_000_000))
}

/// Asks what the first word says, which is answered in the others; whether there was an answer. `words` has as many as the
/// kernel's structure for this question, which must be one of a fixed length.
fn ethtool(name: &str, words: &mut [u32]) -> io::Result<bool> {
    const SIOCETHTOOL: u32 = 0x8946;
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?;
    let mut request = request(name);
    request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
    // SAFETY: the request holds a name that ends with a zero, and a pointer to as many writable bytes as the kernel's
    // structure has, which outlive the call.
    let answered = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL.into(), &raw mut request) };
    Ok(answered == 0)
}

/// A request about an interface.
fn request(name: &str) -> libc::ifreq {
    // SAFETY: plain data, for which zeroes are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // One byte less than there is room: the name ends with a zero.
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    request
}

/// What getifaddrs(3) returned, freed at the end.
struct Entries(*mut libc::ifaddrs);

/// One entry, borrowed from [`Entries`].
struct Entry<'a>(&'a libc::ifaddrs);

impl Entries {
    fn read() -> io::Result<Self> {
        let mut first = ptr::null_mut();
        // SAFETY: `first` is writable; the list is freed in `drop`.
        if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(first))
    }

    fn iter(&self) -> impl Iterator<Item = Entry<'_>> {
        // SAFETY: each pointer is null or an entry of the list, which lives as long as `self`.
        std::iter::successors(unsafe { self.0.as_ref() }, |entry| unsafe { entry.ifa_next.as_ref() }).map(Entry)
    }
}

impl Drop for Entries {
    fn drop(&mut self) {
        // SAFETY: the list that getifaddrs made, freed once.
        unsafe { libc::freeifaddrs(self.0) };
    }
}

impl Entry<'_> {
    fn name(&self) -> String {
        // SAFETY: the name is a C string of the list.
        unsafe { CStr::from_ptr(self.0.ifa_name) }.to_string_lossy().into_owned()
    }

    fn flags(&self) -> i32 {
        self.0.ifa_flags.cast_signed()
    }

    fn family(&self) -> Option<i32> {
        // SAFETY: null or a socket address of the list; every one begins with its family.
        unsafe { self.0.ifa_addr.as_ref() }.map(|address| i32::from(address.sa_family))
    }

    fn ipv4(&self) -> Option<Ipv4Addr> {
        if self.family()? != libc::AF_INET {
            return None;
        }
        // SAFETY: the family says that it is a sockaddr_in.
        let address = unsafe { &*self.0.ifa_addr.cast::<libc::sockaddr_in>() };
        Some(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)))
    }

    /// All of 127/8 is this host's although only 127.0.0.1 is listed.
    fn holds_loopback(&self, wanted: Ipv4Addr) -> bool {
        wanted.is_loopback() && self.ipv4().is_some_and(|address| address.is_loopback())
    }

    fn link(&self) -> Option<(u32, [u8; 6])> {
        if self.family()? != libc::AF_PACKET {
            return None;
        }
        // SAFETY: the family says that it is a sockaddr_ll.
        let link = unsafe { &*self.0.ifa_addr.cast::<libc::sockaddr_ll>() };
        Some((u32::try_from(link.sll_ifindex).ok()?, link.sll_addr[..6].try_into().expect("6 of 8 bytes")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_found_by_any_of_its_addresses() {
        let one = by_address(Ipv4Addr::LOCALHOST).expect("every namespace we run in has lo up");
        let other = by_address(Ipv4Addr::new(127, 9, 8, 7)).expect("127/8 is loopback");
        assert_eq!((one.index, one.loopback), (other.index, true));
        assert_eq!(one.hardware, [0; 6]);
    }

    #[test]
    fn loopback_carries_large_packets_and_what_is_not_there_none() {
        assert!(mtu_bytes("lo").expect("lo") >= 1500);
        assert_eq!(mtu_bytes("none-such0").expect_err("no such").raw_os_error(), Some(libc::ENODEV));
        mtu_bytes(&"x".repeat(100)).expect_err("longer than any name");
    }

    #[test]
    fn loopback_is_found_by_its_name_and_has_no_speed() {
        let (index, hardware) = by_name("lo").expect("listed").expect("every namespace has one");
        assert_eq!((index, hardware), (by_address(Ipv4Addr::LOCALHOST).expect("up").index, [0; 6]));
        assert_eq!(by_name("none-such0").expect("listed"), None);
        assert_eq!(speed_bps("lo").expect("asked"), None);
        assert_eq!(speed_bps("none-such0").expect("asked"), None);
    }

    #[test]
    fn a_missing_address_names_those_there_are() {
        let error = by_address(Ipv4Addr::new(192, 0, 2, 1)).expect_err("a documentation address");
        let text = error.to_string();
        assert!(text.contains("192.0.2.1") && text.contains("127.0.0.1 (lo)"), "{text}");
    }
}
