// SPDX-License-Identifier: Apache-2.0
//! False suspicions per minute by timeout: as a table, and drawn as FiDe's Fig. 4.

use anyhow::anyhow;
use fide_bench::heard::Heard;
use fide_shm::gaps::{BUCKETS, most_ns};
use plotters::prelude::*;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Rows of the table, us.
const TIMEOUTS_US: [u64; 13] = [110, 150, 200, 300, 500, 800, 1000, 2000, 3000, 5000, 10_000, 20_000, 50_000];
/// The drawing's axis of timeouts, us.
const FROM_US: f64 = 50.0;

/// How many suspicions per minute a timeout of so many ns would have made.
fn per_minute(heard: &Heard, timeout_ns: u64) -> f64 {
    heard.all.above(timeout_ns) as f64 * 60e9 / heard.span_ns.max(1) as f64
}

/// A row for each timeout, a column for each set-up.
pub(super) fn text(lines: &[(&str, &Heard)]) -> String {
    let mut out = String::from("false suspicions a minute by timeout\n");
    // Writing to a string cannot fail.
    let _ = write!(out, "{:>10}", "us");
    for (name, _) in lines {
        let _ = write!(out, "{name:>14}");
    }
    out.push('\n');
    for timeout_us in TIMEOUTS_US {
        let _ = write!(out, "{timeout_us:>10}");
        for (_, heard) in lines {
            let _ = write!(out, "{:>14.1}", per_minute(heard, timeout_us * 1000));
        }
        out.push('\n');
    }
    let _ = write!(out, "{:>10}", "none from");
    for (_, heard) in lines {
        let _ = write!(out, "{:>14.1}", heard.all.longest_ns as f64 / 1000.0);
    }
    out.push('\n');
    out
}

/// The line of a set-up: at the end of each bucket the number of longer gaps, and at the longest gap the
/// floor.
fn points(heard: &Heard, floor: f64) -> Vec<(f64, f64)> {
    let ends_us = (0..BUCKETS - 1).map(most_ns).map(|ns| (ns, ns as f64 / 1000.0));
    let mut points: Vec<(f64, f64)> = ends_us
        .filter(|(ns, us)| *us >= FROM_US && *ns < heard.all.longest_ns)
        .map(|(ns, us)| (us, per_minute(heard, ns)))
        .collect();
    let last = points.last().map_or(floor, |point| point.1);
    let longest_us = heard.all.longest_ns as f64 / 1000.0;
    points.extend([(longest_us, last), (longest_us, floor)]);
    points
}

/// Draws them to `$FIDE_BENCH_DIR/accuracy.svg`.
pub(super) fn draw(lines: &[(&str, &Heard)]) -> anyhow::Result<()> {
    let dir = std::env::var_os("FIDE_BENCH_DIR").map_or_else(|| PathBuf::from("target/bench"), PathBuf::from);
    std::fs::create_dir_all(&dir)?;
    let path = dir.join("accuracy.svg");
    plot(&path, lines).map_err(|error| anyhow!("{}: {error}", path.display()))?;
    println!("drawn to {}", path.display());
    Ok(())
}

fn plot(path: &Path, lines: &[(&str, &Heard)]) -> Result<(), Box<dyn std::error::Error>> {
    let heard = || lines.iter().map(|(_, heard)| *heard).filter(|heard| heard.span_ns > 0);
    // Less than one in the whole run.
    let floor = heard().map(|heard| 60e9 / heard.span_ns as f64 / 2.0).fold(1.0, f64::min);
    let most_us = heard().map(|heard| heard.all.longest_ns as f64 / 1000.0).fold(1000.0, f64::max) * 2.0;
    let most = heard().map(|heard| per_minute(heard, 0)).fold(10.0, f64::max) * 2.0;
    let root = SVGBackend::new(path, (900, 540)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(
            "False suspicions a minute by timeout, nobody dies (a line ends where there are none)",
            ("sans-serif", 18),
        )
        .margin(15)
        .x_label_area_size(45)
        .y_label_area_size(70)
        .build_cartesian_2d((FROM_US..most_us).log_scale(), (floor..most).log_scale())?;
    chart.configure_mesh().x_desc("timeout, us").y_desc("false suspicions a minute").draw()?;
    for ((name, heard), colour) in lines.iter().zip([BLUE, GREEN, RED]) {
        if heard.span_ns == 0 {
            continue;
        }
        chart
            .draw_series(LineSeries::new(points(heard, floor), colour.stroke_width(2)))?
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .border_style(BLACK)
        .background_style(WHITE)
        .draw()?;
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use fide_shm::gaps::Gaps;

    fn heard() -> Heard {
        let mut all = Gaps::NONE;
        [1, 100_001, 200_001, 1_200_001].into_iter().for_each(|now_ns| all.arrived(1, now_ns));
        Heard { all, span_ns: 30_000_000_000, ..Heard::default() }
    }

    #[test]
    fn suspicions_are_counted_per_minute() {
        let heard = heard();
        assert_eq!([50_000, 500_000, 1_000_000].map(|ns| per_minute(&heard, ns)), [6.0, 2.0, 0.0]);
        let text = text(&[("spinning", &heard)]);
        assert!(text.contains("       800           2.0\n      1000           0.0\n"), "{text}");
        assert!(text.ends_with(" none from        1000.0\n"), "{text}");
    }

    #[test]
    fn line_falls_and_ends_on_the_floor_at_the_longest_gap() {
        let points = points(&heard(), 0.5);
        assert!(points.windows(2).all(|pair| pair[0].0 <= pair[1].0 && pair[0].1 >= pair[1].1), "{points:?}");
        assert_eq!((points.first().map(|point| point.1), points.last()), (Some(6.0), Some(&(1000.0, 0.5))));
        let svg = tempfile::NamedTempFile::new().expect("a file");
        plot(svg.path(), &[("spinning", &heard()), ("udp", &Heard::default())]).expect("drawn");
        let drawn = std::fs::read_to_string(svg.path()).expect("text");
        assert!(drawn.contains("spinning") && !drawn.contains("udp"));
    }
}
