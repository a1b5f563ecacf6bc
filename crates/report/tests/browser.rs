// SPDX-License-Identifier: Apache-2.0
//! The page in a real browser: nothing on its console, every plot there with its points within it, and the little that its
//! script does works. Skipped, and said so, where there is no Chromium.

use fide_jitter::synth::{Disturbance, Noise, Scenario, synthesize};
use fide_jitter::{RunInfo, RunStats, Samples, Schedule, Stamp, StatsOptions};
use fide_jitter_report::{Run, render};
use std::error::Error;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

type Outcome = Result<(), Box<dyn Error>>;

/// A browser that takes longer is stopped. Only so that a test ends.
const GIVE_UP: Duration = Duration::from_secs(120);

/// Looks at the page from within.
const PROBE: &str = include_str!("probe.js");

fn chromium() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let names = ["chromium", "chromium-browser", "google-chrome"];
    std::env::split_paths(&path).flat_map(|dir| names.map(|name| dir.join(name))).find(|program| program.is_file())
}

/// What the browser made of a page, and what it wrote on its console.
struct Seen {
    page: String,
    console: Vec<String>,
}

impl Seen {
    /// Lines of the probe that begin with a word.
    fn probe(&self, word: &str) -> Vec<&str> {
        let lines = self.page.split("<pre id=\"probe\">").nth(1).and_then(|rest| rest.split("</pre>").next());
        lines.unwrap_or("").lines().filter_map(|line| line.strip_prefix(word)?.strip_prefix(' ')).collect()
    }
}

fn open(program: &Path, page: &str, flags: &[&str]) -> Result<Seen, Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let (file, out, err) = (dir.path().join("page.html"), dir.path().join("out"), dir.path().join("err"));
    fs::write(&file, page)?;
    let mut browser = Command::new(program)
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
            return Err("the browser did not end".into());
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let log = String::from_utf8_lossy(&fs::read(&err)?).into_owned();
    if !status.success() {
        return Err(format!("the browser failed: {status}\n{log}").into());
    }
    let console = log.lines().filter(|line| line.contains("CONSOLE")).map(String::from).collect();
    Ok(Seen { page: String::from_utf8_lossy(&fs::read(&out)?).into_owned(), console })
}

fn probed(page: &str) -> String {
    page.replace("</body>", &format!("<script>{PROBE}</script></body>"))
}

fn runs() -> Vec<Run> {
    let arrow = Disturbance { phase_ns: 3e5, ..Disturbance::new(Stamp::Ts2, 0.1e9 + 5_000.0, 2e5) };
    let quiet = Scenario {
        period_ns: 1_000_000,
        schedule: Schedule::Absolute,
        packets: 20_000,
        disturbances: vec![arrow],
        noise: Noise::quiet(),
        clock: None,
        seed: 7,
    };
    let busy = Scenario { noise: Noise::busy(), clock: Some((5_000_000_000, 10.0)), ..quiet.clone() };
    let run = |name: &str, scenario: &Scenario| {
        let made = synthesize(scenario);
        let stats = RunStats::of(&made.info, &made.samples, &StatsOptions::default());
        Run::new(name, made.info, stats)
    };
    let nothing = RunStats::of(&RunInfo::default(), &Samples::new(), &StatsOptions::default());
    vec![
        run("quiet <script>alert('of a log')</script>", &quiet),
        run("busy", &busy),
        Run::new("nothing", RunInfo::default(), nothing),
    ]
}

fn whole(seen: &Seen, plots: usize) {
    assert_eq!(seen.console, Vec::<String>::new(), "nothing on the console");
    let found = seen.probe("plot");
    assert_eq!(found.len(), plots, "{found:?}");
    for plot in found {
        let words: Vec<&str> = plot.split(' ').collect();
        let points: u64 = words[1].parse().unwrap_or(0);
        assert!(points >= 2 && words[2..] == ["true"; 3], "points, inside, pointer, size: {plot}");
    }
}

#[test]
fn the_page_is_whole_in_a_browser() -> Outcome {
    let Some(program) = chromium() else {
        eprintln!("skipped: no chromium in PATH (apt-get install chromium)");
        return Ok(());
    };
    let runs = runs();
    let page = render(&runs);
    // 23 plots for each run with packets, two overlays for each of six measures.
    let wide = open(&program, &probed(&page), &["--window-size=1300,1000"])?;
    whole(&wide, 2 * 23 + 12);
    assert_eq!(
        (wide.probe("hides"), wide.probe("shows"), wide.probe("fits")),
        (vec!["true"], vec!["true"], vec!["true"])
    );
    assert!(wide.page.contains("quiet &lt;script&gt;"), "a log's markup is text");
    assert_eq!(wide.page.matches("data-none=").count(), 4 + 6, "what an empty log has no plot of");

    let narrow = open(&program, &probed(&page), &["--window-size=500,900", "--blink-settings=preferredColorScheme=0"])?;
    whole(&narrow, 2 * 23 + 12);
    assert_eq!(narrow.probe("fits"), ["true"]);
    assert_ne!(narrow.probe("colors"), wide.probe("colors"), "dark is not light");

    let one = open(&program, &probed(&render(&runs[1..2])), &["--window-size=1300,1000"])?;
    whole(&one, 23);
    Ok(())
}

#[test]
fn a_fault_on_the_page_would_be_seen() -> Outcome {
    let Some(program) = chromium() else {
        eprintln!("skipped: no chromium in PATH (apt-get install chromium)");
        return Ok(());
    };
    // What the page must not do: fail in a script, load something.
    let page = render(&runs()[..1]).replace(
        "</body>",
        "<script>nowhere()</script><img src=\"file:///nowhere.png\"><script src=\"https://example.invalid/x.js\"></script></body>",
    );
    let console = open(&program, &page, &[])?.console.join("\n");
    assert!(console.contains("nowhere is not defined"), "{console}");
    assert!(console.contains("Content Security Policy"), "nothing is loaded: {console}");
    Ok(())
}
