// SPDX-License-Identifier: Apache-2.0
//! The package as people get it: its wheel is built by maturin, installed by pip, and used over the loopback
//! (`tests/sessions.py`).

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use fide_testbed::say_not_tested;

/// `target/clients/pace-python`, where `make test` has made a Python of its own with maturin.
fn python() -> (PathBuf, PathBuf) {
    let test = std::env::current_exe().expect("the path of this test");
    let target = test.ancestors().nth(3).expect("target/debug/deps/python-...").to_owned();
    (target.join("clients/pace-python/bin/python"), target)
}

/// What cargo tells a test of itself, and what would lead Python elsewhere.
const NOT_PASSED_ON: [&str; 6] =
    ["CARGO_MANIFEST_", "CARGO_PKG_", "CARGO_BIN_", "PYTHON", "VIRTUAL_ENV", "LD_LIBRARY_PATH"];

/// A command in the package's directory. Its cargo has the settings of the one that has built this test, so that nothing is
/// built twice.
fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(env!("CARGO_MANIFEST_DIR")).env_remove("CARGO");
    for (name, _) in std::env::vars_os() {
        if NOT_PASSED_ON.iter().any(|begin| name.to_string_lossy().starts_with(begin)) {
            command.env_remove(&name);
        }
    }
    // Where pip finds maturin.
    let own = program.parent().expect("a directory");
    let others = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(own.to_owned()).chain(std::env::split_paths(&others)));
    command.env("PATH", path.expect("directories"));
    command
}

fn succeeds(command: &mut Command) {
    let output = command.output().expect("it can be started");
    let said = [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
    println!("{said}");
    assert!(output.status.success(), "{command:?}: {}", output.status);
}

#[test]
fn wheel_is_built_installed_and_used() {
    let (python, target) = python();
    if !python.exists() {
        say_not_tested("the Python package of X-PACE, without the Python that `make test` makes for it");
        return;
    }
    let wheels = tempfile::tempdir().expect("a directory");
    let quiet = ["-q", "--disable-pip-version-check", "--no-input", "--no-deps"];
    let pip = |verb: &str| {
        let mut pip = command(&python);
        pip.args(["-m", "pip", verb]).args(quiet).env("CARGO_TARGET_DIR", &target);
        pip
    };
    // As the other tests are built.
    let build = ["--no-build-isolation", "--config-settings=build-args=--profile dev --locked", "--wheel-dir"];
    succeeds(pip("wheel").args(build).arg(wheels.path()).arg("."));
    let wheel = std::fs::read_dir(wheels.path()).expect("there").flatten().next().expect("a wheel").path();
    assert!(wheel.to_string_lossy().contains("-cp311-abi3-"), "{}: for all versions of Python", wheel.display());
    succeeds(pip("install").args(["--force-reinstall", "--no-index"]).arg(&wheel));
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/pace.md");
    // Not in this directory, where the sources of the package are.
    let sessions = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sessions.py");
    let strict = ["-X", "dev", "-W", "error"];
    succeeds(command(&python).current_dir(wheels.path()).args(strict).arg(sessions).arg(page));
}
