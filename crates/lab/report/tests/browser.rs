// SPDX-License-Identifier: Apache-2.0
//! Tests the page in a real browser: its console is empty, every plot is there with its points within it, and
//! the few functions of its script work. The tests are skipped, with a message, if there is no Chromium.

use fide_jitter_analysis::synth::{Disturbance, Noise, Scenario, synthesize};
use fide_jitter_analysis::{RunInfo, RunStats, Samples, Schedule, Stamp, StatsOptions};
use fide_report::run::{Run, render};
use fide_testbed::browser::Browser;
use std::error::Error;

type Outcome = Result<(), Box<dyn Error>>;

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

#[test]
fn the_page_is_whole_in_a_browser() -> Outcome {
    let Some(browser) = Browser::here() else { return Ok(()) };
    let runs = runs();
    let page = render(&runs);
    // 23 plots for each run with packets, two overlays for each of six measures.
    let wide = browser.probe(&page, &["--window-size=1300,1000"])?;
    wide.assert_whole(2 * 23 + 12);
    assert_eq!(
        (wide.lines_of("hides"), wide.lines_of("shows"), wide.lines_of("fits")),
        (vec!["true"], vec!["true"], vec!["true"])
    );
    assert!(wide.page.contains("quiet &lt;script&gt;"), "a log's markup is text");
    assert_eq!(wide.page.matches("data-none=").count(), 4 + 6, "what an empty log has no plot of");

    let narrow = browser.probe(&page, &["--window-size=500,900", "--blink-settings=preferredColorScheme=0"])?;
    narrow.assert_whole(2 * 23 + 12);
    assert_eq!(narrow.lines_of("fits"), ["true"]);
    assert_ne!(narrow.lines_of("colors"), wide.lines_of("colors"), "dark is not light");

    let one = browser.probe(&render(&runs[1..2]), &["--window-size=1300,1000"])?;
    one.assert_whole(23);
    Ok(())
}

#[test]
fn a_fault_on_the_page_would_be_seen() -> Outcome {
    let Some(browser) = Browser::here() else { return Ok(()) };
    // The page must not fail in a script or load anything; here it is made to do both.
    let page = render(&runs()[..1]).replace(
        "</body>",
        "<script>nowhere()</script><img src=\"file:///nowhere.png\"><script src=\"https://example.invalid/x.js\"></script></body>",
    );
    let console = browser.open(&page, &[])?.console.join("\n");
    assert!(console.contains("nowhere is not defined"), "{console}");
    assert!(console.contains("Content Security Policy"), "nothing is loaded: {console}");
    Ok(())
}
