// SPDX-License-Identifier: Apache-2.0
//! Fetches the client libraries whose sessions with the Redis module are tested: `baselines/clients/LIBRARY`, by
//! the package client of its language, into `target/clients/LIBRARY`; and what builds the Python package of X-PACE.

use crate::Outcome;
use crate::run::{Step, root_dir, target_dir};
use crate::setup::{self, Package};
use std::fs;
use std::path::{Path, PathBuf};

pub(crate) struct Library {
    name: &'static str,
    /// Where it is described.
    sources: &'static str,
    /// What is not tested without it.
    tests: &'static str,
    needs: &'static [Package],
    /// What says which versions are wanted. Nothing is fetched while it is as it was the last time.
    pinned_by: &'static str,
    fetch: fn(&Path, &Path) -> Outcome,
}

/// The one of them that `make test` has: it is fetched fastest.
pub(crate) const FEW: &[Library] = &[Library {
    name: "redis-py",
    sources: "baselines/clients/redis-py",
    tests: "the Redis module is not tested with redis-py",
    needs: setup::PYTHON,
    pinned_by: "requirements.txt",
    fetch: of_python,
}];

/// What builds the Python package of X-PACE.
pub(crate) const WHEEL: &[Library] = &[Library {
    name: "pace-python",
    sources: "crates/transport/pace-python/tests",
    tests: "the Python package of X-PACE is not tested",
    needs: setup::PYTHON,
    pinned_by: "requirements.txt",
    fetch: of_python,
}];

/// The others.
pub(crate) const MORE: &[Library] = &[
    // Go keeps what it has fetched, and its sources may have changed.
    Library {
        name: "go-redis",
        sources: "baselines/clients/go-redis",
        tests: "the Redis module is not tested with go-redis",
        needs: setup::JUDGE,
        pinned_by: "",
        fetch: go_redis,
    },
    Library {
        name: "jedis",
        sources: "baselines/clients/jedis",
        tests: "the Redis module is not tested with Jedis",
        needs: setup::JAVA,
        pinned_by: "SHA256SUMS",
        fetch: jedis,
    },
    Library {
        name: "ioredis",
        sources: "baselines/clients/ioredis",
        tests: "the Redis module is not tested with ioredis",
        needs: setup::NODE,
        pinned_by: "package-lock.json",
        fetch: ioredis,
    },
];

/// The sessions of libraries that cannot be fetched say so and skip themselves.
pub(crate) fn prepare(libraries: &[Library]) {
    for library in libraries {
        if !setup::prepare(library.needs, library.tests) {
            continue;
        }
        if let Err(why) = library.prepare() {
            println!("{why}: {}", library.tests);
        }
    }
}

impl Library {
    fn prepare(&self) -> Outcome {
        let from = root_dir().join(self.sources);
        let to = target_dir().join("clients").join(self.name);
        let (wanted, stamp) = (from.join(self.pinned_by), to.join("fetched"));
        if !self.pinned_by.is_empty() && is_same(&wanted, &stamp) {
            return Ok(());
        }
        // What is left of another version would be found, too.
        let _ = fs::remove_dir_all(&to);
        fs::create_dir_all(&to).map_err(|why| format!("{}: {why}", to.display()))?;
        let fetched = (self.fetch)(&from, &to);
        if fetched.is_err() {
            let _ = fs::remove_dir_all(&to);
            return fetched;
        }
        let stamped =
            if self.pinned_by.is_empty() { fs::write(&stamp, "") } else { fs::copy(&wanted, &stamp).map(drop) };
        stamped.map_err(|why| format!("{}: {why}", stamp.display()))
    }
}

fn is_same(one: &Path, other: &Path) -> bool {
    matches!((fs::read(one), fs::read(other)), (Ok(one), Ok(other)) if one == other)
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn of_python(from: &Path, to: &Path) -> Outcome {
    let name = to.file_name().unwrap_or_default().to_string_lossy();
    Step::new("python3").args(&["-m", "venv", &text(to)]).run(&format!("a Python of its own for {name}"))?;
    Step::new(&text(&to.join("bin/pip")))
        .args(&["install", "-q", "--disable-pip-version-check", "--require-hashes", "-r"])
        .args(&[&text(&from.join("requirements.txt"))])
        .run(&format!("what {name} needs"))
}

fn go_redis(from: &Path, to: &Path) -> Outcome {
    let program: PathBuf = to.join("session");
    Step::new("go").args(&["build", "-trimpath", "-o", &text(&program), "."]).dir(from).run("the session of go-redis")
}

fn jedis(from: &Path, to: &Path) -> Outcome {
    const COPY: &str = "org.apache.maven.plugins:maven-dependency-plugin:2.8:copy-dependencies";
    Step::new("mvn")
        .args(&["-q", "-B", "-f", &text(&from.join("pom.xml")), COPY])
        .args(&[&format!("-DoutputDirectory={}", to.display())])
        .run("Jedis")?;
    Step::new("sha256sum").args(&["--quiet", "--check", &text(&from.join("SHA256SUMS"))]).dir(to).run("Jedis' hashes")
}

fn ioredis(from: &Path, to: &Path) -> Outcome {
    for name in ["package.json", "package-lock.json"] {
        fs::copy(from.join(name), to.join(name)).map_err(|why| format!("{name}: {why}"))?;
    }
    Step::new("npm").args(&["ci", "--ignore-scripts", "--no-audit", "--no-fund"]).dir(to).run("ioredis")
}
