// SPDX-License-Identifier: Apache-2.0
//! What an ELF file says of itself: how it is linked, what it needs, which functions it takes from others.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use object::{
    elf,
    read::{
        ReadCache,
        elf::{Dyn, FileHeader, ProgramHeader, Sym},
    },
};

/// Names that are kept of one file: those of functions, and of libraries.
const NAMES_MAX: usize = 65_536;

/// A file that the kernel or the dynamic linker would load.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Elf {
    pub(super) machine: String,
    /// Of this machine, and so one that can be read further.
    pub(super) is_ours: bool,
    /// The dynamic linker that it asks for. None: it is static, or a library.
    pub(super) linker: Option<PathBuf>,
    pub(super) is_go: bool,
    /// Libraries by name, in order.
    pub(super) needed: Vec<String>,
    /// Where it wants them looked for: RPATH and RUNPATH.
    pub(super) paths: Vec<String>,
    /// Functions of others.
    pub(super) imports: Vec<String>,
}

const MAGIC: [u8; 4] = *b"\x7fELF";
#[cfg(target_arch = "x86_64")]
const MACHINE: elf::Machine = elf::EM_X86_64;
#[cfg(target_arch = "aarch64")]
const MACHINE: elf::Machine = elf::EM_AARCH64;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const MACHINE: elf::Machine = elf::EM_NONE;

fn wrong(why: object::read::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_string())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl Elf {
    /// Reads a file. None: it is none of this format.
    ///
    /// # Errors
    /// The kernel's; `InvalidData`: it is broken.
    pub(super) fn read(path: &Path) -> io::Result<Option<Self>> {
        let mut file = File::open(path)?;
        let mut head = [0; 20];
        let len = read_up_to(&mut file, &mut head)?;
        if !head[..len].starts_with(&MAGIC) {
            return Ok(None);
        }
        file.seek(SeekFrom::Start(0))?;
        let (class, endian) = (head[4], head[5]);
        let number = match endian {
            2 => u16::from_be_bytes([head[18], head[19]]),
            _ => u16::from_le_bytes([head[18], head[19]]),
        };
        let is_ours = class == 2 && endian == 1 && number == MACHINE.0 && len == head.len();
        let machine = machine(number, class);
        if !is_ours {
            return Ok(Some(Self { machine, ..Self::default() }));
        }
        let found = Self::read_ours(&ReadCache::new(file)).map_err(wrong)?;
        Ok(Some(Self { machine, is_ours, ..found }))
    }

    fn read_ours(data: &ReadCache<File>) -> object::read::Result<Self> {
        let header = elf::FileHeader64::<object::Endianness>::parse(data)?;
        let endian = header.endian()?;
        let mut found = Self::default();
        for part in header.program_headers(endian, data)? {
            if let Some(linker) = part.interpreter(endian, data)? {
                found.linker = Some(text(linker).into());
            }
        }
        let sections = header.sections(endian, data)?;
        let has = |name: &[u8]| sections.section_by_name(endian, name).is_some();
        found.is_go = has(b".go.buildinfo") || has(b".note.go.buildid");
        if let Some((entries, names)) = sections.dynamic(endian, data)? {
            let names = sections.strings(endian, data, names)?;
            for entry in entries.iter().take(NAMES_MAX) {
                match entry.tag(endian) {
                    elf::DT_NEEDED => found.needed.push(text(entry.string(endian, names)?)),
                    elf::DT_RPATH | elf::DT_RUNPATH => {
                        found.paths.extend(text(entry.string(endian, names)?).split(':').map(str::to_owned));
                    }
                    _ => {}
                }
            }
        }
        let symbols = sections.symbols(endian, data, elf::SHT_DYNSYM)?;
        let undefined = symbols.iter().skip(1).filter(|symbol| symbol.is_undefined(endian)).take(NAMES_MAX);
        for symbol in undefined {
            found.imports.push(text(symbol.name(endian, symbols.strings())?));
        }
        Ok(found)
    }
}

/// As many bytes as there are.
pub(super) fn read_up_to(file: &mut File, into: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < into.len() {
        match file.read(&mut into[len..]) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
            Err(why) => return Err(why),
        }
    }
    Ok(len)
}

fn machine(number: u16, class: u8) -> String {
    let name = match elf::Machine(number) {
        elf::EM_386 => "i386",
        elf::EM_X86_64 if class == 1 => "x32",
        elf::EM_X86_64 => "x86_64",
        elf::EM_ARM => "arm",
        elf::EM_AARCH64 => "aarch64",
        elf::EM_RISCV => "riscv",
        elf::EM_PPC64 => "ppc64",
        elf::EM_S390 => "s390x",
        _ => return format!("machine {number}"),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    #[test]
    fn own_program_is_read() {
        let own = std::env::current_exe().unwrap();
        let elf = Elf::read(&own).unwrap().expect("a program");
        assert!(elf.is_ours && elf.linker.is_some() && !elf.is_go);
        assert!(elf.needed.iter().any(|name| name.starts_with("libc.so")), "{:?}", elf.needed);
        assert!(elf.imports.iter().any(|name| name == "read" || name == "write"), "{} imports", elf.imports.len());
        assert_eq!(elf.machine, std::env::consts::ARCH);
    }

    /// Whatever a file says, it is read or refused.
    #[test]
    fn broken_programs_do_no_harm() {
        let whole = fs::read("/bin/sh").unwrap();
        let path = tempfile::NamedTempFile::new().unwrap();
        let mut random = ChaCha8Rng::seed_from_u64(7);
        // Heads, and the table of sections at the end.
        let places = [0..64, 64..1024, whole.len() - 2048..whole.len(), 0..whole.len()];
        let (mut read, mut refused) = (0, 0);
        for turn in 0..400 {
            let mut bytes = whole.clone();
            for _ in 0..=turn % 8 {
                let place = &places[random.random_range(0..places.len())];
                bytes[random.random_range(place.clone())] = random.random();
            }
            if turn % 5 == 0 {
                bytes.truncate(random.random_range(0..bytes.len()));
            }
            fs::write(path.path(), bytes).unwrap();
            match Elf::read(path.path()) {
                Ok(_) => read += 1,
                Err(_) => refused += 1,
            }
        }
        assert!(read > 0 && refused > 0, "{read} read, {refused} refused");
    }
}
