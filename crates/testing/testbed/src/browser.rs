// SPDX-License-Identifier: Apache-2.0
//! Opens a jitter report in a real browser, for tests: in headless Chromium, where a script (`probe.js`)
//! inspects the page and writes its findings into it.
//!
//! **Invariant:** it writes only into a temporary directory, and its browser ends.

use std::{
    fs::{self, File},
    io,
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

/// A browser that takes longer is killed, only so that a test ends.
const GIVE_UP: Duration = Duration::from_secs(120);
const PROGRAMS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];
const PROBE: &str = include_str!("browser/probe.js");

/// The Chromium program.
#[derive(Debug, Clone)]
pub struct Browser {
    program: PathBuf,
}

impl Browser {
    /// The browser in PATH. If there is none, prints that the test is skipped.
    #[must_use]
    pub fn here() -> Option<Self> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let program =
            std::env::split_paths(&path).flat_map(|dir| PROGRAMS.map(|name| dir.join(name))).find(|p| p.is_file());
        if program.is_none() {
            eprintln!("skipped: no chromium in PATH (apt-get install chromium)");
        }
        program.map(|program| Self { program })
    }

    /// Opens a page, with further flags, and waits until its scripts have run.
    ///
    /// # Errors
    /// Errors of the system, and a browser that fails or does not end.
    pub fn open(&self, page: &str, flags: &[&str]) -> io::Result<Seen> {
        let dir = tempfile::tempdir()?;
        let (file, out, err) = (dir.path().join("page.html"), dir.path().join("out"), dir.path().join("err"));
        fs::write(&file, page)?;
        let mut browser = Command::new(&self.program)
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
            .args(["--virtual-time-budget=5000", "--enable-logging=stderr", "--dump-dom"])
            .arg(format!("--user-data-dir={}", dir.path().join("profile").display()))
            .args(flags)
            .arg(format!("file://{}", file.display()))
            .stdout(File::create(&out)?)
            .stderr(File::create(&err)?)
            .spawn()?;
        let started = Instant::now();
        let status = loop {
            if let Some(status) = browser.try_wait()? {
                break status;
            }
            if started.elapsed() > GIVE_UP {
                browser.kill()?;
                browser.wait()?;
                return Err(io::Error::other("the browser did not end"));
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let log = String::from_utf8_lossy(&fs::read(&err)?).into_owned();
        if !status.success() {
            return Err(io::Error::other(format!("the browser failed: {status}\n{log}")));
        }
        let console = log.lines().filter(|line| line.contains("CONSOLE")).map(String::from).collect();
        Ok(Seen { page: String::from_utf8_lossy(&fs::read(&out)?).into_owned(), console })
    }

    /// Opens a report with the probe in it.
    ///
    /// # Errors
    /// As [`Browser::open`].
    pub fn probe(&self, report: &str, flags: &[&str]) -> io::Result<Seen> {
        self.open(&report.replace("</body>", &format!("<script>{PROBE}</script></body>")), flags)
    }
}

/// A page as the browser has rendered it, and the output on its console.
#[derive(Debug, Clone)]
pub struct Seen {
    /// The page once its scripts have run.
    pub page: String,
    /// Lines of the console.
    pub console: Vec<String>,
}

impl Seen {
    /// Lines of the probe that begin with `word`, without that word.
    #[must_use]
    pub fn lines_of(&self, word: &str) -> Vec<&str> {
        let lines = self.page.split("<pre id=\"probe\">").nth(1).and_then(|rest| rest.split("</pre>").next());
        lines.unwrap_or("").lines().filter_map(|line| line.strip_prefix(word)?.strip_prefix(' ')).collect()
    }

    /// Asserts that the console is empty and that there are `plots` plots, each with points within its frame,
    /// a value under the pointer, and a size.
    ///
    /// # Panics
    /// If any of that does not hold.
    pub fn assert_whole(&self, plots: usize) {
        assert_eq!(self.console, Vec::<String>::new(), "nothing on the console");
        let found = self.lines_of("plot");
        assert_eq!(found.len(), plots, "{found:?}");
        for plot in found {
            let words: Vec<&str> = plot.split(' ').collect();
            let points: u64 = words[1].parse().unwrap_or(0);
            assert!(points >= 2 && words[2..] == ["true"; 3], "points, inside, pointer, size: {plot}");
        }
    }
}
