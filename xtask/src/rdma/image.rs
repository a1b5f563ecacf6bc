// SPDX-License-Identifier: Apache-2.0
//! What a guest boots: Debian's kernel, and an initial file system of busybox, our program and the files that
//! both need.

use crate::run::Step;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Modules that are loaded, each after the modules that it needs.
const MODULES: [&str; 4] = ["virtio_pci", "virtio_net", "crc32_generic", "rdma_rxe"];
/// libibverbs loads this provider by name when it finds the software card.
const PROVIDER: &str = "/usr/lib/x86_64-linux-gnu/libibverbs";
const PROVIDER_LIST: &str = "/etc/libibverbs.d/rxe.driver";

pub(super) struct Image {
    pub(super) kernel: PathBuf,
    pub(super) initial: PathBuf,
}

/// Makes the image below `target`, where the downloads stay.
pub(super) fn make(target: &Path) -> Result<Image, String> {
    let dir = target.join("rdma");
    let unpacked = dir.join("debian");
    let version = download(&dir, &unpacked)?;
    let busybox = unpacked.join("bin/busybox");
    let kernel = unpacked.join("boot").join(format!("vmlinuz-{version}"));

    let root = dir.join("root");
    let _ = fs::remove_dir_all(&root);
    stage_programs(&root, &busybox, &target.join("debug/fide"))?;
    stage_modules(&root, &unpacked, &version, &MODULES)?;
    let initial = dir.join("initial.cpio");
    pack(&busybox, &root, &initial)?;
    Ok(Image { kernel, initial })
}

/// Packs everything below `root` into an initial file system.
pub(crate) fn pack(busybox: &Path, root: &Path, initial: &Path) -> Result<(), String> {
    let pack = format!("find . | '{}' cpio -o -H newc > '{}'", busybox.display(), initial.display());
    Step::new("sh").args(&["-c", &pack]).dir(root).run("file system of the guests")
}

/// Fetches and unpacks what is missing. Returns the kernel's version.
pub(crate) fn download(dir: &Path, unpacked: &Path) -> Result<String, String> {
    let package = kernel_package()?;
    let version = package.trim_start_matches("linux-image-").to_owned();
    let modules = unpacked.join("lib/modules").join(&version);
    if modules.join("modules.dep").exists() {
        return Ok(version);
    }
    // What is there is another version, or an incomplete one.
    let _ = fs::remove_dir_all(dir);
    fs::create_dir_all(unpacked).map_err(|e| format!("{}: {e}", unpacked.display()))?;
    Step::new("apt-get")
        .args(&["download", "-q", &package, "busybox-static"])
        .dir(dir)
        .run("kernel and busybox of the guests")?;
    let archives: Vec<PathBuf> = fs::read_dir(dir)
        .map_err(|e| format!("{}: {e}", dir.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "deb"))
        .collect();
    for archive in archives {
        let paths = [&archive, unpacked].map(|path| path.to_string_lossy().into_owned());
        Step::new("dpkg").args(&["-x", &paths[0], &paths[1]]).run("unpack")?;
        let _ = fs::remove_file(&archive);
    }
    Step::new(&unpacked.join("bin/busybox").to_string_lossy())
        .args(&["depmod", "-b", &unpacked.to_string_lossy(), &version])
        .run("dependencies of modules")?;
    Ok(version)
}

/// The package of the kernel that Debian installs now; not the kernel for clouds, which has no software card.
fn kernel_package() -> Result<String, String> {
    let output = Command::new("apt-cache")
        .args(["depends", "--important", "linux-image-amd64"])
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| format!("apt-cache: {e}"))?;
    kernel_of(&String::from_utf8_lossy(&output.stdout))
        .ok_or_else(|| "apt knows no linux-image-amd64: the guests need Debian's kernel".to_owned())
}

fn kernel_of(depends: &str) -> Option<String> {
    let mut names = depends.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    names.find(|name| name.starts_with("linux-image-")).map(str::to_owned)
}

fn stage_programs(root: &Path, busybox: &Path, fide: &Path) -> Result<(), String> {
    let bin = root.join("bin");
    fs::create_dir_all(&bin).map_err(|e| format!("{}: {e}", bin.display()))?;
    copy(busybox, &bin.join("busybox"))?;
    // Its debug information would be most of what the guests load.
    let (from, to) = (fide.to_string_lossy(), bin.join("fide"));
    Step::new("strip").args(&["-o", &to.to_string_lossy(), &from]).run("program of the guests")?;
    let tool = ["/usr/bin/rdma", "/usr/sbin/rdma", "/sbin/rdma"].iter().map(Path::new).find(|path| path.exists());
    let tool = tool.ok_or("iproute2 has no `rdma`")?;
    copy(tool, &bin.join("rdma"))?;
    let provider = fs::read_dir(PROVIDER)
        .map_err(|e| format!("{PROVIDER}: {e}"))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("librxe-rdmav")))
        .ok_or_else(|| format!("{PROVIDER} has no librxe: ibverbs-providers is incomplete"))?;
    for path in [&provider, Path::new(PROVIDER_LIST)] {
        copy(path, &inside(root, path))?;
    }
    for program in [fide, tool, &provider] {
        for library in libraries(program)? {
            copy(&library, &inside(root, &library))?;
        }
    }
    let init = root.join("init");
    fs::write(&init, include_str!("init.sh")).map_err(|e| format!("{}: {e}", init.display()))?;
    Step::new("chmod").args(&["755", &init.to_string_lossy()]).run("first program of the guests")
}

/// The same path below `root`.
pub(crate) fn inside(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Copies a file with its mode; of a link, copies the file that it points to.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let failed = |e| format!("{} to {}: {e}", from.display(), to.display());
    if let Some(dir) = to.parent() {
        fs::create_dir_all(dir).map_err(failed)?;
    }
    fs::copy(from, to).map(drop).map_err(failed)
}

/// Shared libraries that a program is loaded with, the loader among them.
pub(crate) fn libraries(program: &Path) -> Result<Vec<PathBuf>, String> {
    let output = Command::new("ldd").arg(program).output().map_err(|e| format!("ldd: {e}"))?;
    if !output.status.success() {
        return Err(format!("ldd {}: {}", program.display(), output.status));
    }
    Ok(library_paths(&String::from_utf8_lossy(&output.stdout)))
}

/// `name => path (address)`, or `path (address)` for the loader.
fn library_paths(listed: &str) -> Vec<PathBuf> {
    listed.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect()
}

/// The wanted modules and what they need, below `root/modules`.
pub(crate) fn stage_modules(root: &Path, unpacked: &Path, version: &str, wanted: &[&str]) -> Result<(), String> {
    let tree = unpacked.join("lib/modules").join(version);
    let listed = tree.join("modules.dep");
    let text = fs::read_to_string(&listed).map_err(|e| format!("{}: {e}", listed.display()))?;
    for (at, module) in load_order(&text, wanted)?.iter().enumerate() {
        // The names sort in the order in which the modules are loaded.
        let name = module.rsplit('/').next().unwrap_or(module);
        copy(&tree.join(module), &root.join(format!("modules/{at:02}-{name}")))?;
    }
    Ok(())
}

/// The wanted modules, each after all modules that it needs.
fn load_order<'a>(listed: &'a str, wanted: &[&str]) -> Result<Vec<&'a str>, String> {
    let needs: BTreeMap<&str, &str> = listed.lines().filter_map(|line| line.split_once(':')).collect();
    let mut order = Vec::new();
    for name in wanted {
        let file = format!("/{name}.ko");
        let path = needs.keys().find(|path| path.ends_with(&file));
        add(&needs, path.ok_or_else(|| format!("the guests' kernel has no module {name}"))?, &mut order);
    }
    Ok(order)
}

/// The lists have no cycles; otherwise the modules could not be loaded.
fn add<'a>(needs: &BTreeMap<&'a str, &'a str>, path: &'a str, order: &mut Vec<&'a str>) {
    if order.contains(&path) {
        return;
    }
    for need in needs.get(path).into_iter().flat_map(|list| list.split_whitespace()) {
        add(needs, need, order);
    }
    order.push(path);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn module_comes_after_its_dependencies() {
        let listed = "net/rxe.ko: core/uverbs.ko net/tunnel.ko\ncore/uverbs.ko: core/ib.ko\ncore/ib.ko:\n\
                      net/tunnel.ko:\nother.ko: core/ib.ko\n";
        let order = load_order(listed, &["rxe", "uverbs"]).expect("all there");
        assert_eq!(order, ["core/ib.ko", "core/uverbs.ko", "net/tunnel.ko", "net/rxe.ko"]);
        assert!(load_order(listed, &["verbs"]).is_err_and(|why| why.contains("verbs")));
    }

    #[test]
    fn libraries_and_the_loader_are_found() {
        let listed = "\tlinux-vdso.so.1 (0x7f)\n\tlibz.so.1 => /lib/libz.so.1 (0x7f)\n\t/lib64/ld.so.2 (0x7f)\n";
        assert_eq!(library_paths(listed), [Path::new("/lib/libz.so.1"), Path::new("/lib64/ld.so.2")]);
    }

    #[test]
    fn kernel_is_the_installed_one() {
        let listed = "linux-image-amd64\n  Depends: linux-image-6.1.0-56-amd64\n  Provides: x\n";
        assert_eq!(kernel_of(listed).as_deref(), Some("linux-image-6.1.0-56-amd64"));
        assert_eq!(kernel_of("linux-image-amd64\n"), None);
    }
}
