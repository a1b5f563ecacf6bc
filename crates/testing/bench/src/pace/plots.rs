// SPDX-License-Identifier: Apache-2.0
//! The runs drawn as figures 1, 4, 5, 6 and 7 of X-PACE's paper: `target/bench/pace/figure-N.svg`.

use std::{
    error::Error,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, anyhow};
use plotters::{coord::Shift, prelude::*};

use crate::{
    carriers::{BARE, BBR, BBR_UNTUNED, CUBIC, CUBIC_UNTUNED, Carrier, DATAGRAMS, LEVEL, STREAM, XPACE},
    flow::{Run, Scenario},
    scenarios::Runs,
};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn Error>>;
type Points = Vec<(f64, f64)>;

/// Size of a panel.
const PANEL: (u32, u32) = (640, 400);
/// Delivery times are drawn between these, ms.
const TIMES_MS: std::ops::Range<f64> = 1.0..10_000.0;
/// Times between two messages up to this, ms: most of TCP's are at either end.
const GAPS_MS: f64 = 20.0;

/// What a panel shows of each run.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Shows {
    /// Delivery times against the time of sending.
    Times,
    /// Times between two messages, against the same.
    Gaps,
    /// The shares of delivery times that are no longer than each.
    TimesShare,
    GapsShare,
}

/// A figure's panels: a scenario and what is shown of it.
fn panels(figure: u32) -> Vec<(&'static str, Shows)> {
    match figure {
        1 => vec![("network", Shows::Times)],
        4 => vec![("network", Shows::GapsShare), ("network", Shows::TimesShare)],
        5 => ["receiver", "network", "sender"].map(|name| (name, Shows::Gaps)).to_vec(),
        6 => ["receiver", "network", "internet"].map(|name| (name, Shows::Times)).to_vec(),
        _ => ["receiver", "network", "sender", "internet", "wlan"].map(|name| (name, Shows::TimesShare)).to_vec(),
    }
}

fn look(carrier: Carrier) -> (RGBColor, u32) {
    match carrier {
        LEVEL => (RGBColor(0x00, 0x62, 0xa8), 3),
        XPACE => (RGBColor(0x56, 0xb4, 0xe9), 2),
        CUBIC => (RGBColor(0xd5, 0x7a, 0x00), 1),
        BBR => (RGBColor(0xb8, 0x2a, 0x2a), 1),
        DATAGRAMS => (RGBColor(0x1c, 0x82, 0x4a), 1),
        STREAM => (RGBColor(0x7a, 0xb8, 0x00), 1),
        Carrier::Srt => (RGBColor(0x84, 0x3d, 0x9e), 1),
        // Paler than the same, tuned.
        CUBIC_UNTUNED => (RGBColor(0xef, 0xc3, 0x8a), 1),
        BBR_UNTUNED => (RGBColor(0xe3, 0x9c, 0xa4), 1),
        _ => (RGBColor(0xb4, 0xb9, 0xbe), 1),
    }
}

/// Draws all figures whose scenarios ran, into the folder of the bench's results.
///
/// # Errors
/// A file cannot be written.
pub(crate) fn draw(done: &[(Scenario, Runs)]) -> Result<()> {
    let dir = std::env::var_os("FIDE_BENCH_DIR").map_or_else(|| PathBuf::from("target/bench"), PathBuf::from);
    let dir = dir.join("pace");
    fs::create_dir_all(&dir).with_context(|| format!("making {}", dir.display()))?;
    for figure in [1, 4, 5, 6, 7] {
        let panels = panels(figure);
        if !panels.iter().any(|(name, _)| done.iter().any(|(scenario, _)| scenario.name == *name)) {
            continue;
        }
        let path = dir.join(format!("figure-{figure}.svg"));
        write(&path, &panels, done).map_err(|why| anyhow!("drawing {}: {why}", path.display()))?;
        println!("drawn to {}", path.display());
    }
    Ok(())
}

fn write(path: &Path, panels: &[(&'static str, Shows)], done: &[(Scenario, Runs)]) -> Drawn {
    let width = PANEL.0 * u32::try_from(panels.len())?;
    let root = SVGBackend::new(path, (width, PANEL.1)).into_drawing_area();
    root.fill(&WHITE)?;
    for (area, (name, shows)) in root.split_evenly((1, panels.len())).iter().zip(panels) {
        match done.iter().find(|(scenario, _)| scenario.name == *name) {
            Some((scenario, runs)) => panel(area, scenario, runs, *shows)?,
            None => area.titled(&format!("{name}: not measured"), ("sans-serif", 16)).map(|_| ())?,
        }
    }
    root.present()?;
    Ok(())
}

fn panel(area: &Area<'_>, scenario: &Scenario, runs: &Runs, shows: Shows) -> Drawn {
    let name = scenario.name;
    let series: Vec<(Carrier, Points)> = runs
        .iter()
        // It is not compared.
        .filter(|(carrier, _)| *carrier != BARE)
        .filter_map(|(carrier, run)| Some((*carrier, points(run.as_ref().ok()?, shows))))
        .filter(|(_, points)| !points.is_empty())
        .collect();
    let least_ms = scenario.least.as_secs_f64() * 1e3;
    let pace_ms = scenario.pace.as_secs_f64() * 1e3;
    let last_s = series.iter().filter_map(|(_, points)| points.last()).map(|point| point.0).fold(1.0, f64::max);
    let mut chart = ChartBuilder::on(area);
    let title = match shows {
        Shows::Times | Shows::TimesShare => format!("{name}: delivery times (dashed: the least possible)"),
        Shows::Gaps | Shows::GapsShare => format!("{name}: between two messages (dashed: the slowest step)"),
    };
    chart.caption(title, ("sans-serif", 16)).margin(10).x_label_area_size(38).y_label_area_size(56);
    // The kinds of axes are types, so that each has its own chart.
    match shows {
        Shows::Times => {
            let mut chart = chart.build_cartesian_2d(0.0..last_s, TIMES_MS.log_scale())?;
            chart.configure_mesh().x_desc("sent after, s").y_desc("ms").light_line_style(WHITE).draw()?;
            series_of(&mut chart, series, [(0.0, least_ms), (last_s, least_ms)])
        }
        Shows::Gaps => {
            let mut chart = chart.build_cartesian_2d(0.0..last_s, 0.0..GAPS_MS)?;
            chart.configure_mesh().x_desc("sent after, s").y_desc("ms").light_line_style(WHITE).draw()?;
            let series = series.into_iter().map(|(carrier, points)| (carrier, below(points, GAPS_MS))).collect();
            series_of(&mut chart, series, [(0.0, pace_ms), (last_s, pace_ms)])
        }
        Shows::TimesShare => {
            let mut chart = chart.build_cartesian_2d(TIMES_MS.log_scale(), 0.0..1.0)?;
            chart.configure_mesh().x_desc("ms").y_desc("share of messages that came").light_line_style(WHITE).draw()?;
            series_of(&mut chart, series, [(least_ms, 0.0), (least_ms, 1.0)])
        }
        Shows::GapsShare => {
            let mut chart = chart.build_cartesian_2d(0.0..GAPS_MS, 0.0..1.0)?;
            chart.configure_mesh().x_desc("ms").y_desc("share of messages").light_line_style(WHITE).draw()?;
            let series = series.into_iter().map(|(carrier, mut points)| {
                points.retain(|point| point.0 <= GAPS_MS);
                (carrier, points)
            });
            series_of(&mut chart, series.collect(), [(pace_ms, 0.0), (pace_ms, 1.0)])
        }
    }
}

/// Longer ones are drawn at the edge.
fn below(points: Points, most: f64) -> Points {
    points.into_iter().map(|(x, y)| (x, y.min(most))).collect()
}

/// Draws all series, ours above the others, and the best that is possible.
fn series_of<'a, X, Y>(
    chart: &mut ChartContext<'a, SVGBackend<'a>, Cartesian2d<X, Y>>,
    mut series: Vec<(Carrier, Points)>,
    best: [(f64, f64); 2],
) -> Drawn
where
    X: Ranged<ValueType = f64>,
    Y: Ranged<ValueType = f64>,
{
    series.sort_by_key(|(carrier, _)| look(*carrier).1);
    for (carrier, points) in series {
        let (color, width) = look(carrier);
        let style = color.stroke_width(width);
        chart
            .draw_series(LineSeries::new(points, style))?
            .label(carrier.name())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    }
    chart.draw_series(DashedLineSeries::new(best, 4, 4, BLACK.stroke_width(1)))?;
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .border_style(BLACK)
        .background_style(WHITE.mix(0.8))
        .draw()?;
    Ok(())
}

fn points(run: &Run, shows: Shows) -> Points {
    let ms = |ns: u64| (ns as f64 / 1e6).max(TIMES_MS.start / 1000.0);
    match shows {
        Shows::Times => {
            let mut points: Points = run.times.iter().map(|(sent, time)| (*sent as f64 / 1e9, ms(*time))).collect();
            points.sort_by(|one, other| one.0.total_cmp(&other.0));
            points
        }
        Shows::Gaps => {
            let mut at = 0;
            let after = run.gaps.iter().map(|gap| {
                at += gap;
                (at as f64 / 1e9, *gap as f64 / 1e6)
            });
            after.collect()
        }
        Shows::TimesShare => shares(run.times.iter().map(|(_, time)| ms(*time)).collect()),
        Shows::GapsShare => shares(run.gaps.iter().map(|gap| *gap as f64 / 1e6).collect()),
    }
}

/// The share of values up to each.
fn shares(mut values: Vec<f64>) -> Points {
    values.sort_by(f64::total_cmp);
    let all = values.len() as f64;
    values.into_iter().enumerate().map(|(at, value)| (value, (at + 1) as f64 / all)).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::carriers::ALL;

    #[test]
    fn figures_show_each_run_and_say_what_was_not_measured() {
        let run =
            Run { times: vec![(0, 20_000_000), (5_000_000, 21_000_000)], gaps: vec![5_000_000], sent: 2, whole_ns: 1 };
        let ms = Duration::from_millis;
        let scenario = Scenario {
            name: "network",
            send_work: ms(0),
            receive_work: ms(0),
            send_buffer: 1,
            receive_buffer: 1,
            pace: ms(5),
            least: ms(20),
        };
        let runs = vec![(LEVEL, Ok(run.clone())), (BARE, Ok(run)), (CUBIC, Err("it could not run".to_owned()))];
        let file = tempfile::NamedTempFile::new().expect("a file");
        for figure in [1, 4, 5, 6, 7] {
            write(file.path(), &panels(figure), &[(scenario, runs.clone())]).expect("drawn");
            let drawn = fs::read_to_string(file.path()).expect("text");
            assert!(drawn.contains("pace-level") && !drawn.contains("tcp-cubic"), "figure {figure}");
            assert!(!drawn.contains(&BARE.name()), "figure {figure}: the bare sender is not compared");
            assert_eq!(drawn.contains("receiver: not measured"), figure > 4, "figure {figure}");
        }
    }

    #[test]
    fn each_carrier_has_a_look_of_its_own() {
        let mut colors: Vec<_> = ALL.map(|carrier| look(carrier).0).map(|RGBColor(r, g, b)| [r, g, b]).to_vec();
        colors.sort_unstable();
        colors.dedup();
        assert_eq!(colors.len(), ALL.len());
    }

    #[test]
    fn shares_end_at_one() {
        assert_eq!(shares(vec![3.0, 1.0]), [(1.0, 0.5), (3.0, 1.0)]);
    }
}
