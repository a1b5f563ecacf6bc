// SPDX-License-Identifier: Apache-2.0

use fide_planner::file::parse;

use super::*;
use crate::lldp::{Frame, Role};
use crate::survey::{End, Listened, survey};

#[test]
fn file_has_the_survey_and_the_source_of_each_figure() {
    let listened = |port: &str, host: &str, rate| Listened {
        at: End::new("s1", port),
        carrier: true,
        rate,
        queue: None,
        heard: vec![Frame::ours(Role::Host, (host, "p0"), [2, 0, 0, 0, 0, 1], 120, None)],
        refused: 0,
        why_refused: None,
    };
    let given = Given { bandwidth_bps: Some(2_000_000), latency_min_ns: Some(700), ..Given::default() };
    let slow = Some(Figure::new(1_000_000, Source::Queue));
    let mut all = [listened("a", "h1", slow), listened("b", "h2", None), listened("c", "bad\nname", None)];
    all[2].heard[0].port_description = Some("x".into());
    let found = survey(&["s1".to_owned()], &all, None, &given);
    let text = write(&found, &given);
    let expected = "# What was discovered by `fide controller discover`.
# odd: s1:c hears bad\u{fffd}name:p0: names of nodes and ports have 1 to 63 of a-z, A-Z, 0-9, '.', '_' and '-', \
                    without \"--\"

[cables]
bandwidth_bps = 2000000 # given, where a cable's ports tell none
queue_bytes = 131072 # assumed, where a cable's ports tell none
latency_min_ns = 700 # given
jitter_max_ns = 50 # assumed
host_latency_min_ns = 2200 # assumed
host_jitter_max_ns = 300 # assumed

[[host]]
name = \"h1\"

[[host]]
name = \"h2\"

[[switch]]
name = \"s1\"

[[cable]]
a = \"h1\"
a_port = \"p0\"
b = \"s1\"
b_port = \"a\"
bandwidth_bps = 1000000 # the port's queue

[[cable]]
a = \"h2\"
a_port = \"p0\"
b = \"s1\"
b_port = \"b\"
";
    assert_eq!(text, expected);
    let topology = parse(&text).unwrap().topology;
    let rates: Vec<u64> = topology.cables().iter().map(|cable| cable.bandwidth_bps).collect();
    assert_eq!(rates, [1_000_000, 2_000_000]);
}
