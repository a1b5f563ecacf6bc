// SPDX-License-Identifier: Apache-2.0
//! Carrier changes as they happen.

use crate::DriverError;
use crate::link::{self, Link};
use crate::netlink::{Netlink, in_namespace, split};
use netlink_packet_core::NetlinkPayload;
use netlink_sys::{Socket, protocols::NETLINK_ROUTE};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

const RTNLGRP_LINK: u32 = 1;
/// Messages read by one [`Watch::changes`]; the descriptor stays readable if there are more.
const READS_MAX: usize = 256;

/// A port's carrier went or came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CarrierChange {
    /// Name of the port.
    pub port: String,
    /// Whether it has one now. A port that was taken away has none.
    pub carrier: bool,
}

/// The interfaces that are ports.
#[derive(Debug, Clone)]
pub(crate) enum Ports {
    OfBridge(u32),
    Named(Vec<String>),
}

impl Ports {
    fn has(&self, link: &Link) -> bool {
        match self {
            Ports::OfBridge(index) => link.master == Some(*index),
            Ports::Named(names) => names.contains(&link.state.name),
        }
    }
}

/// Becomes readable when the carrier of a port changes. It belongs to its creator and outlives the driver.
pub struct Watch {
    socket: Socket,
    netns: Option<PathBuf>,
    ports: Ports,
    /// Name and carrier by interface number.
    known: BTreeMap<u32, (String, bool)>,
}

impl Watch {
    pub(crate) fn open(netns: Option<&Path>, ports: Ports) -> Result<Watch, DriverError> {
        let open = || -> std::io::Result<Socket> {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.bind_auto()?;
            socket.add_membership(RTNLGRP_LINK)?;
            socket.set_non_blocking(true)?;
            Ok(socket)
        };
        let socket = in_namespace(netns, || open().map_err(|e| DriverError::io("watching carriers", e)))?;
        let mut watch = Watch { socket, netns: netns.map(Path::to_path_buf), ports, known: BTreeMap::new() };
        // After the membership, so that nothing falls in between.
        watch.look()?;
        Ok(watch)
    }

    /// Changes since the last call, each port once with its newest state; empty without any. Never waits.
    ///
    /// # Errors
    /// If the socket fails, or the namespace is gone. Messages that the kernel had to drop are no error: the
    /// ports are then looked at one by one.
    pub fn changes(&mut self) -> Result<Vec<CarrierChange>, DriverError> {
        let mut changed = BTreeMap::new();
        for _ in 0..READS_MAX {
            match self.socket.recv_from_full() {
                Ok((bytes, _)) => {
                    for (_, payload) in split(&bytes) {
                        let NetlinkPayload::InnerMessage(raw) = payload else { continue };
                        let Some(link) = link::parse(&raw) else { continue };
                        let gone = raw.kind == link::RTM_DELLINK;
                        self.note(&link, gone, &mut changed);
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error()) => {
                    changed.extend(self.look()?);
                }
                Err(e) => return Err(DriverError::io("reading carrier changes", e)),
            }
        }
        Ok(changed.into_iter().map(|(port, carrier)| CarrierChange { port, carrier }).collect())
    }

    /// Checks all ports; returns the ones that differ from the known state.
    fn look(&mut self) -> Result<BTreeMap<String, bool>, DriverError> {
        let links = link::list(&mut Netlink::open(self.netns.as_deref())?)?;
        let mut changed = BTreeMap::new();
        let indices: Vec<u32> = links.iter().map(|l| l.index).collect();
        for link in &links {
            self.note(link, false, &mut changed);
        }
        let gone: Vec<u32> = self.known.keys().filter(|i| !indices.contains(i)).copied().collect();
        changed.extend(gone.iter().filter_map(|i| self.known.remove(i)).map(|(name, _)| (name, false)));
        Ok(changed)
    }

    fn note(&mut self, link: &Link, gone: bool, changed: &mut BTreeMap<String, bool>) {
        if gone || !self.ports.has(link) {
            // Deleted, or no longer a port.
            if let Some((name, _)) = self.known.remove(&link.index) {
                changed.insert(name, false);
            }
            return;
        }
        let now = (link.state.name.clone(), link.state.carrier);
        if self.known.get(&link.index) != Some(&now) {
            changed.insert(now.0.clone(), now.1);
            self.known.insert(link.index, now);
        }
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
