// SPDX-License-Identifier: Apache-2.0
//! What the guest under a register boots: Debian's kernel, the same as for `make clocks`, and an initial file
//! system.

use std::fs;
use std::path::{Path, PathBuf};

use crate::rdma::image::{copy, download, inside, libraries, pack, stage_modules};
use crate::run::Step;

const MODULES: [&str; 2] = ["virtio_pci", "virtio_net"];
const PROGRAMS: [&str; 2] = ["fide", "histories"];

/// Makes the image below `target`. Returns its directory.
pub(super) fn make(target: &Path, profile: &str) -> Result<PathBuf, String> {
    // Kernel and busybox are those of `make rdma` and `make clocks`.
    let store = target.join("rdma");
    let unpacked = store.join("debian");
    let version = download(&store, &unpacked)?;
    let busybox = unpacked.join("bin/busybox");
    let dir = target.join("guest");
    let root = dir.join("root");
    let _ = fs::remove_dir_all(&root);
    for name in ["bin", "proc", "sys", "dev", "run", "tmp"] {
        fs::create_dir_all(root.join(name)).map_err(|e| format!("{}: {e}", root.display()))?;
    }
    copy(&busybox, &root.join("bin/busybox"))?;
    copy(&busybox, &dir.join("busybox"))?;
    copy(&unpacked.join("boot").join(format!("vmlinuz-{version}")), &dir.join("vmlinuz"))?;
    for name in PROGRAMS {
        let program = target.join(profile).join(name);
        let to = root.join("bin").join(name);
        // Their debug information would be most of what the guest loads.
        Step::new("strip")
            .args(&["-o", &to.to_string_lossy(), &program.to_string_lossy()])
            .run("program of the guest")?;
        for library in libraries(&program)? {
            copy(&library, &inside(&root, &library))?;
        }
    }
    stage_modules(&root, &unpacked, &version, &MODULES)?;
    let init = root.join("init");
    fs::write(&init, include_str!("init.sh")).map_err(|e| format!("{}: {e}", init.display()))?;
    Step::new("chmod").args(&["755", &init.to_string_lossy()]).run("first program of the guest")?;
    pack(&busybox, &root, &dir.join("initial.cpio"))?;
    Ok(dir)
}
