// SPDX-License-Identifier: Apache-2.0
//! Colours, lines and letters.

/// Of trees 0, 1 and 2: of Okabe and Ito's colours three that every kind of colour blindness tells apart; and dashes, for
/// print in black.
pub(crate) const TREES: [(&str, &str); 3] = [("#0072b2", "none"), ("#d55e00", "9 5"), ("#007f5f", "2 4")];
/// Shares of the lane that is used, up to, and the colours of viridis for them, darker for more.
pub(crate) const LOADS: [(f64, &str, f64); 5] = [
    (0.2, "#7ad151", 1.6),
    (0.4, "#22a884", 2.2),
    (0.6, "#2a788e", 2.9),
    (0.8, "#414487", 3.6),
    (f64::INFINITY, "#440154", 4.4),
];

/// Class of a share.
pub(crate) fn load(share: f64) -> usize {
    LOADS.iter().position(|(upto, ..)| share <= *upto).unwrap_or(LOADS.len() - 1)
}

/// The style sheet; all of it within the class of the drawing, as pages may hold several drawings and their own styles.
pub(crate) fn sheet(scale: f64) -> String {
    let px = |px: f64| format!("{:.1}px", px * scale);
    let mut rules: Vec<(String, String)> = vec![
        ("text".into(), format!("font-family:system-ui,'DejaVu Sans',Arial,sans-serif;font-size:{};fill:#222", px(12.0))),
        (".h1".into(), format!("font-size:{};font-weight:700", px(17.0))),
        (".h2".into(), format!("font-size:{};font-weight:700", px(14.0))),
        (".dim".into(), "fill:#5c6670".into()),
        (".bad".into(), "fill:#b3001b;font-weight:700".into()),
        (".mid".into(), "text-anchor:middle".into()),
        (".halo".into(), "paint-order:stroke;stroke:#fff;stroke-width:3px;stroke-linejoin:round".into()),
        (".c".into(), format!("fill:none;stroke:#c3cad0;stroke-width:{}", px(0.7))),
        (".d".into(), format!("fill:none;stroke:#e0001b;stroke-width:{};stroke-dasharray:3 3", px(1.4))),
        (".x".into(), format!("fill:none;stroke:#e0001b;stroke-width:{};stroke-linecap:round", px(3.0))),
        (".s rect".into(), "fill:#eceff1;stroke:#98a3ab".into()),
        (".s text".into(), "fill:#3a444c;text-anchor:middle".into()),
        (".o".into(), "fill:#fff;stroke:#98a3ab".into()),
        (".dots".into(), format!("fill:none;stroke:#98a3ab;stroke-width:{};stroke-linecap:round", px(4.0))),
        (".p rect".into(), "fill:#f6f8f9;stroke:#c3cad0".into()),
        (".p text".into(), format!("fill:#5c6670;text-anchor:middle;font-size:{}", px(10.0).replace("px", "") + "px")),
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
    for (n, (_, colour, width)) in LOADS.iter().enumerate() {
        rules.push((format!(".u{n}"), format!("fill:none;stroke:{colour};stroke-width:{}", px(*width))));
    }
    rules.into_iter().map(|(of, rule)| format!(".fide-plan {of}{{{rule}}}\n")).collect()
}
