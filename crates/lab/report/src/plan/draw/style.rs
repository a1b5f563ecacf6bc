// SPDX-License-Identifier: Apache-2.0
//! Colours, lines and letters.

/// Colours and dashes of trees 0, 1 and 2: three of Okabe and Ito's colours, which people with every kind of
/// colour blindness can tell apart, and dashes for print in black.
pub(crate) const TREES: [(&str, &str); 3] = [("#0072b2", "none"), ("#d55e00", "9 5"), ("#007f5f", "2 4")];
/// From low to high load: colours of viridis, darker for more, and widths.
pub(crate) const LOADS: [(&str, f64); 5] =
    [("#7ad151", 1.4), ("#22a884", 2.0), ("#2a788e", 2.8), ("#414487", 3.6), ("#440154", 4.6)];

/// Class of a share on a scale that ends at `top`.
pub(crate) fn load(share: f64, top: f64) -> usize {
    (1..LOADS.len()).find(|n| share <= load_from(*n, top)).unwrap_or(LOADS.len()) - 1
}

/// Where a class begins.
#[allow(clippy::cast_precision_loss, reason = "a few classes")]
pub(crate) fn load_from(class: usize, top: f64) -> f64 {
    top * class as f64 / LOADS.len() as f64
}

/// The end of a scale for shares up to `most`: 1, 2 or 5 times a power of ten, at most 1.
pub(crate) fn load_top(most: f64) -> f64 {
    let steps = (-4..=0).flat_map(|power| [1.0, 2.0, 5.0].map(|step| step * 10_f64.powi(power)));
    steps.into_iter().find(|step| most <= *step).unwrap_or(1.0).min(1.0)
}

/// The style sheet. All rules are limited to the class of the drawing, because pages may hold several
/// drawings and their own styles. If there are many `cables`, the grey ones are fainter.
pub(crate) fn sheet(scale: f64, cables: usize) -> String {
    let many = cables > 1000;
    let px = |px: f64| format!("{:.1}px", px * scale);
    let mut rules: Vec<(String, String)> = vec![
        (
            "text".into(),
            format!("font-family:system-ui,'DejaVu Sans',Arial,sans-serif;font-size:{};fill:#222", px(12.0)),
        ),
        (".h1".into(), format!("font-size:{};font-weight:700", px(17.0))),
        (".h2".into(), format!("font-size:{};font-weight:700", px(14.0))),
        (".dim".into(), "fill:#5c6670".into()),
        (".bad".into(), "fill:#b3001b;font-weight:700".into()),
        (".mid".into(), "text-anchor:middle".into()),
        (".halo".into(), "paint-order:stroke;stroke:#fff;stroke-width:3px;stroke-linejoin:round".into()),
        (
            ".c".into(),
            if many {
                "fill:none;stroke:#d7dce0;stroke-width:0.6px".into()
            } else {
                format!("fill:none;stroke:#c3cad0;stroke-width:{}", px(0.7))
            },
        ),
        (".d".into(), format!("fill:none;stroke:#e0001b;stroke-width:{};stroke-dasharray:3 3", px(1.4))),
        (".x".into(), format!("fill:none;stroke:#e0001b;stroke-width:{};stroke-linecap:round", px(3.0))),
        (".s rect".into(), "fill:#eceff1;stroke:#98a3ab".into()),
        (".s text".into(), "fill:#3a444c;text-anchor:middle".into()),
        (".o".into(), "fill:#fff;stroke:#98a3ab".into()),
        (".dots".into(), format!("fill:none;stroke:#98a3ab;stroke-width:{};stroke-linecap:round", px(4.0))),
        (".p rect".into(), "fill:#f6f8f9;stroke:#c3cad0".into()),
        (".p text".into(), "fill:#5c6670;text-anchor:middle;font-size:12px".into()),
        (".tx".into(), "text-anchor:middle;fill:#fff;font-weight:700".into()),
        (".from".into(), "fill:#222;stroke:#fff;stroke-width:1.5px".into()),
        (".to".into(), "fill:#fff;stroke:#222;stroke-width:2.2px".into()),
        (".dot".into(), "fill:#222".into()),
        (".sx".into(), "text-anchor:middle;fill:#fff;font-weight:700".into()),
        (".w".into(), format!("fill:none;stroke:#fff;stroke-width:{}", px(6.5))),
        (".frame".into(), "fill:#fff;stroke:#d5dadd".into()),
    ];
    for (n, (colour, dash)) in TREES.iter().enumerate() {
        rules.push((
            format!(".t{n}"),
            format!("fill:none;stroke:{colour};stroke-width:{};stroke-dasharray:{dash}", px(3.2)),
        ));
        rules.push((format!(".a{n}"), format!("fill:{colour};stroke:#fff;stroke-width:0.8px")));
        rules.push((format!(".b{n}"), format!("fill:{colour};stroke:#fff;stroke-width:1px")));
        rules.push((format!(".x{n}"), format!("fill:{colour};font-weight:700")));
    }
    for (n, (colour, width)) in LOADS.iter().enumerate() {
        let width = if many { width * 0.55 } else { *width };
        rules.push((format!(".u{n}"), format!("fill:none;stroke:{colour};stroke-width:{}", px(width))));
    }
    rules.into_iter().map(|(of, rule)| format!(".fide-plan {of}{{{rule}}}\n")).collect()
}
