// SPDX-License-Identifier: Apache-2.0
//! Network interfaces of this network namespace.

use std::{
    io,
    net::{IpAddr, Ipv4Addr},
    os::fd::{AsRawFd, OwnedFd},
};

use nix::{
    ifaddrs::{InterfaceAddress, getifaddrs},
    net::if_::InterfaceFlags,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

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
    Ok(entries()?.iter().filter_map(|entry| Some((entry.interface_name.clone(), ipv4(entry)?))).collect())
}

/// Whether an interface of this network namespace has an address that `is` so. Of the loopback's only those count that it was given, though
/// the kernel takes all of 127.0.0.0/8 for its own.
///
/// # Errors
/// [`InterfaceError::List`].
pub fn any_address(is: impl Fn(IpAddr) -> bool) -> Result<bool, InterfaceError> {
    let ip = |entry: &InterfaceAddress| -> Option<IpAddr> {
        let of = entry.address.as_ref()?;
        let v4 = of.as_sockaddr_in().map(|of| of.ip().into());
        v4.or_else(|| of.as_sockaddr_in6().map(|of| of.ip().into()))
    };
    Ok(entries()?.iter().filter_map(ip).any(is))
}

/// The interface that holds `address`.
///
/// # Errors
/// [`InterfaceError`]; lists the addresses of this host when the wanted one is not among them.
pub fn by_address(address: Ipv4Addr) -> Result<Interface, InterfaceError> {
    let entries = entries()?;
    let Some(entry) = entries.iter().find(|entry| ipv4(entry) == Some(address) || holds_loopback(entry, address))
    else {
        return Err(InterfaceError::Missing { wanted: address, found: addresses()? });
    };
    let name = entry.interface_name.clone();
    if !entry.flags.contains(InterfaceFlags::IFF_UP) {
        return Err(InterfaceError::Down { name, address });
    }
    let (index, hardware) =
        link(&entries, &name).ok_or_else(|| io::Error::other(format!("interface {name} has no link-layer address")))?;
    Ok(Interface { name, index, hardware, address, loopback: entry.flags.contains(InterfaceFlags::IFF_LOOPBACK) })
}

/// Bytes of the largest packet that the interface called `name` carries, IP header included; it may change.
///
/// # Errors
/// The kernel's, if there is no such interface any more.
pub fn mtu_bytes(name: &str) -> io::Result<usize> {
    let (socket, mut request) = (inet_socket()?, request(name)?);
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
    Ok(link(&entries()?, name))
}

/// A socket to ask the kernel about interfaces.
pub(crate) fn inet_socket() -> io::Result<OwnedFd> {
    let (family, flags) = (AddressFamily::INET, SocketFlags::CLOEXEC);
    Ok(rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?)
}

/// A request about the interface called `name`; `InvalidInput` if no interface can have this name.
pub(crate) fn request(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: plain data, for which zeroes are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.is_empty() || name.len() >= request.ifr_name.len() || name.contains('\0') {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("no interface can be called {name:?}")));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    Ok(request)
}

/// All addresses of all interfaces, of every family.
fn entries() -> io::Result<Vec<InterfaceAddress>> {
    Ok(getifaddrs()?.collect())
}

fn ipv4(entry: &InterfaceAddress) -> Option<Ipv4Addr> {
    Some(entry.address.as_ref()?.as_sockaddr_in()?.ip())
}

/// Every address of 127/8 belongs to this host although only 127.0.0.1 is listed.
fn holds_loopback(entry: &InterfaceAddress, wanted: Ipv4Addr) -> bool {
    wanted.is_loopback() && ipv4(entry).is_some_and(|address| address.is_loopback())
}

/// Index and hardware address of the interface called `name`.
fn link(entries: &[InterfaceAddress], name: &str) -> Option<(u32, [u8; 6])> {
    entries.iter().filter(|entry| entry.interface_name == name).find_map(|entry| {
        let link = entry.address.as_ref()?.as_link_addr()?;
        Some((u32::try_from(link.ifindex()).ok()?, link.addr()?))
    })
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
    fn own_addresses_are_known_and_no_others() {
        let has = |address: IpAddr| any_address(|own| own == address).expect("listed");
        assert!(has(Ipv4Addr::LOCALHOST.into()) && !has(Ipv4Addr::new(192, 0, 2, 1).into()));
    }

    #[test]
    fn loopback_carries_large_packets_and_what_is_not_there_none() {
        assert!(mtu_bytes("lo").expect("lo") >= 1500);
        assert_eq!(mtu_bytes("none-such0").expect_err("no such").raw_os_error(), Some(libc::ENODEV));
        mtu_bytes(&"x".repeat(100)).expect_err("longer than any name");
    }

    #[test]
    fn loopback_is_found_by_its_name() {
        let (index, hardware) = by_name("lo").expect("listed").expect("every namespace has one");
        assert_eq!((index, hardware), (by_address(Ipv4Addr::LOCALHOST).expect("up").index, [0; 6]));
        assert_eq!(by_name("none-such0").expect("listed"), None);
    }

    #[test]
    fn a_missing_address_names_those_there_are() {
        let error = by_address(Ipv4Addr::new(192, 0, 2, 1)).expect_err("a documentation address");
        let text = error.to_string();
        assert!(text.contains("192.0.2.1") && text.contains("127.0.0.1 (lo)"), "{text}");
    }
}
