// SPDX-License-Identifier: Apache-2.0
//! Two guests that share a memory through a PCI device each (`ivshmem-plain`), and have a network between them.

use crate::machine::{Boot, Initial, Machine};
use crate::run::target_dir;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// virtio_net for the network. 8139cp is a driver that takes the memory of any device whose name it is given.
const MODULES: [&str; 3] = ["virtio_pci", "virtio_net", "8139cp"];
const PROGRAMS: [&str; 4] = ["fide", "libfide_rack_preload.so", "examples/pci_window", "examples/redis_check"];
/// Of the host.
const TOOLS: [&str; 3] = ["redis-server", "redis-cli", "redis-benchmark"];
/// Bytes of the memory.
const MEMORY: u64 = 16 << 20;
/// Where both guests see the device.
pub(super) const DEVICE: &str = "/sys/bus/pci/devices/0000:00:05.0";

/// The memory of both guests: a file without a name, which ends with this process.
struct Memory(fs::File);

pub(super) struct Guests {
    machines: [Machine; 2],
    memory: Memory,
    /// The device of each guest has memory of its own name each time.
    times: [u32; 2],
}

impl Memory {
    fn new() -> Result<Self, String> {
        let name = PathBuf::from(format!("/dev/shm/fide-link-{}", std::process::id()));
        let file = fs::OpenOptions::new().read(true).write(true).create_new(true).open(&name);
        let _ = fs::remove_file(&name);
        let memory = Self(file.map_err(|e| format!("{}: {e}", name.display()))?);
        memory.zero()?;
        Ok(memory)
    }

    /// Where the emulators find it.
    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// Writes zeros over it: the mappings of the emulators stay.
    fn zero(&self) -> Result<(), String> {
        let zeros = vec![0; 1 << 20];
        (0..MEMORY)
            .step_by(1 << 20)
            .try_for_each(|at| self.0.write_all_at(&zeros, at))
            .map_err(|e| format!("the memory of the guests: {e}"))
    }
}

impl Guests {
    /// Boots both.
    pub(super) fn start(until: Instant) -> Result<Self, String> {
        let dir = target_dir().join("link-rack");
        let tools = TOOLS.map(|name| (Path::new("/usr/bin").join(name), format!("bin/{name}")));
        let init = include_str!("init.sh");
        let initial = Initial { programs: &PROGRAMS, tools: &tools, modules: &MODULES, init };
        let (kernel, initial) = initial.make(&dir)?;
        let memory = Memory::new()?;
        // An abstract socket, without a file.
        let wire = format!("fide-link-{}", std::process::id());
        let boot = |host: usize| {
            let end = if host == 2 { "on" } else { "off" };
            let arguments = [
                ["-netdev", &format!("stream,id=wire,server={end},addr.type=unix,addr.abstract=on,addr.path={wire}")],
                ["-device", &format!("virtio-net-pci,netdev=wire,romfile=,mac=02:00:00:47:02:0{host},addr=4")],
                [
                    "-object",
                    &format!("memory-backend-file,id=memory0,share=on,mem-path={},size={MEMORY}", memory.path()),
                ],
                ["-device", "ivshmem-plain,id=window,memdev=memory0,addr=5"],
            ];
            Machine::start(&Boot {
                name: &format!("host {host}"),
                hidden: "OPENED ",
                kernel: &kernel,
                initial: &initial,
                dir: &dir,
                arguments: &arguments.concat().into_iter().map(str::to_owned).collect::<Vec<_>>(),
                // The other clocks of an emulated machine can run wild.
                append: &format!("tsc=unstable clocksource=hpet fide.host={host}"),
            })
        };
        // Host 2 holds the end of the wire that has to exist first; its monitor has answered when it does.
        let second = boot(2)?;
        let mut guests = Self { machines: [boot(1)?, second], memory, times: [0; 2] };
        for machine in &mut guests.machines {
            machine.wait("LINK READY", until)?;
        }
        Ok(guests)
    }

    /// Host 1 or 2.
    pub(super) fn host(&mut self, host: usize) -> &mut Machine {
        &mut self.machines[host - 1]
    }

    pub(super) fn zero_memory(&self) -> Result<(), String> {
        self.memory.zero()
    }

    /// Takes the device away from a host.
    pub(super) fn cut(&mut self, host: usize) -> Result<(), String> {
        let memory = self.times[host - 1];
        let machine = self.host(host);
        machine.monitor_with("device_del", "\"id\": \"window\"")?;
        machine.event(&["\"DEVICE_DELETED\"", "\"device\": \"window\""])?;
        machine.monitor_with("object-del", &format!("\"id\": \"memory{memory}\""))
    }

    /// Gives it back.
    pub(super) fn restore(&mut self, host: usize) -> Result<(), String> {
        self.times[host - 1] += 1;
        // The emulator does not take one again that a device has had.
        let id = format!("memory{}", self.times[host - 1]);
        let path = self.memory.path().to_string();
        let machine = self.host(host);
        machine.monitor_with(
            "object-add",
            &format!("\"qom-type\": \"memory-backend-file\", \"id\": \"{id}\", \"share\": true, \"mem-path\": \"{path}\", \"size\": {MEMORY}"),
        )?;
        machine.monitor_with(
            "device_add",
            &format!("\"driver\": \"ivshmem-plain\", \"id\": \"window\", \"memdev\": \"{id}\", \"addr\": \"5\""),
        )
    }
}
