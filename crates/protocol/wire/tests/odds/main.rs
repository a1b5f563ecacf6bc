// SPDX-License-Identifier: Apache-2.0
//! The checksums of `fide_wire::chunk`: what they do not see, counted, and how long that takes to happen.
//!
//! Every figure of `docs/internals/chunks.md` is computed here, and the tables there are compared with what
//! these tests print. Candidates are searched by
//! `cargo test --release -p fide-wire --test odds -- --ignored --nocapture` (half an hour).

mod gf2;
mod model;
mod search;
mod weights;

use fide_wire::PAYLOAD_MAX;
use fide_wire::chunk::{CHUNK_HEADER_LEN, CRC_26, CRC_36, CRC_HEADER, Scheme};
use model::{ETHERNET_BITS, line_rate, random_residue, scrambled_bound, undetected, years};
use num_bigint::BigInt;
use std::collections::BTreeMap;
use std::sync::LazyLock;

const DOC: &str = include_str!("../../../../../docs/internals/chunks.md");
/// Ethernet's FCS.
const CRC_32: u32 = 0x04C1_1DB7;
/// The header's 20 bytes and its checksum.
const HEADER_BITS: usize = 192;
const BER: f64 = 1e-12;
/// Packets per second of a lane with a period of 20 us.
const LANE_RATE: f64 = 50_000.0;
/// What X-Lane §4.1 promises.
const GOAL_YEARS: f64 = 1e6;

fn bits(scheme: Scheme) -> usize {
    8 * scheme.chunk_len()
}

fn all_weights(poly: u32, width: u32, n: usize) -> Vec<BigInt> {
    weights::macwilliams(&weights::dual_weights(&gf2::syndromes(poly, width, n), width), width)
}

/// Exact weights of the three codes in use, by length; each takes a few seconds.
static CODES: LazyLock<BTreeMap<usize, Vec<BigInt>>> = LazyLock::new(|| {
    let codes =
        [(CRC_HEADER.poly, HEADER_BITS), (CRC_26.poly, bits(Scheme::Chunks26)), (CRC_36.poly, bits(Scheme::Chunks36))];
    std::thread::scope(|scope| {
        let counting = codes.map(|(poly, n)| (n, scope.spawn(move || all_weights(poly, 32, n))));
        counting.map(|(n, thread)| (n, thread.join().unwrap())).into()
    })
});

fn distance(weights: &[BigInt]) -> usize {
    (1..weights.len()).find(|k| weights[*k] != BigInt::ZERO).unwrap_or(0)
}

/// A line of a table in the document.
fn expect_in_doc(line: &str) {
    println!("{line}");
    assert!(DOC.contains(line), "docs/internals/chunks.md does not say: {line}");
}

/// Digits in groups of three.
fn grouped(n: &BigInt) -> String {
    let digits = n.to_string();
    let groups: Vec<&str> = digits.as_bytes().rchunks(3).rev().map(|g| std::str::from_utf8(g).unwrap()).collect();
    groups.join(" ")
}

#[test]
fn the_weights_of_the_codes_in_use() {
    let names = ["header, CRC-32C", "26-byte chunks", "36-byte chunks"];
    let polys = [CRC_HEADER.poly, CRC_26.poly, CRC_36.poly];
    for ((name, poly), (n, weights)) in names.iter().zip(polys).zip(CODES.iter()) {
        let total: BigInt = weights.iter().sum();
        assert_eq!(total, BigInt::from(1) << (n - 32), "there are 2^(n-32) code words");
        let d = distance(weights);
        let next = (d + 1..).find(|k| weights[*k] != BigInt::ZERO).unwrap();
        expect_in_doc(&format!(
            "| {name} | {n} | `0x{poly:08X}` | {d} | {} of weight {d} | {} of weight {next} |",
            grouped(&weights[d]),
            grouped(&weights[next])
        ));
    }
}

/// Counted the other way, as far as it takes seconds: up to weight 8, for 288 bits up to 7.
#[test]
fn the_lowest_weights_counted_directly() {
    let expected = [
        (CRC_HEADER.poly, HEADER_BITS, 8, Some((8, 18_575))),
        (CRC_26.poly, bits(Scheme::Chunks26), 8, None),
        (CRC_36.poly, bits(Scheme::Chunks36), 7, None),
    ];
    std::thread::scope(|scope| {
        for (poly, n, limit, first) in expected {
            scope.spawn(move || assert_eq!(weights::first_weight(&gf2::syndromes(poly, 32, n), limit), first));
        }
    });
}

/// Koopman (2002) gives 223 059 undetected patterns of four bits for 12 112 bits of data, and none of fewer.
#[test]
fn ethernets_weights_are_the_published_ones() {
    assert_eq!(weights::first_weight(&gf2::syndromes(CRC_32, 32, ETHERNET_BITS), 4), Some((4, 223_059)));
}

/// Per packet: odds that something damaged in it is taken, by independent errors, by random checksums, with a
/// scrambler.
fn odds(scheme: Scheme, p: f64) -> [f64; 3] {
    let (n, chunks) = (bits(scheme), scheme.chunks_max() as f64);
    [
        chunks * undetected(&CODES[&n], p) + undetected(&CODES[&HEADER_BITS], p),
        chunks * random_residue(n, 32, p) + random_residue(HEADER_BITS, 32, p),
        chunks * scrambled_bound(n, p) + scrambled_bound(8 * CHUNK_HEADER_LEN, p),
    ]
}

/// Ethernet's, for the first two; of the first the leading term, so that it does not shorten the mean time.
fn ethernet_odds(p: f64) -> [f64; 2] {
    let rest = (1.0 - p).powi(ETHERNET_BITS as i32 - 4);
    [223_059.0 * p.powi(4) * rest, random_residue(ETHERNET_BITS, 32, p)]
}

#[test]
fn the_mean_time_to_false_acceptance_is_that_of_layer_2_or_better() {
    let full = line_rate(PAYLOAD_MAX);
    let [eth, eth_random] = ethernet_odds(BER);
    let row = |name: &str, odds: f64, random: f64, line: f64| {
        let [a, b, c, d] = [years(odds, line), years(odds, LANE_RATE), years(random, line), years(random, LANE_RATE)];
        format!("| {name} | {a:.1e} | {b:.1e} | {c:.1e} | {d:.1e} |")
    };
    expect_in_doc(&row("Ethernet CRC-32, 1518-byte frame", eth, eth_random, full));
    for (name, scheme) in [("55 chunks of 26 bytes", Scheme::Chunks26), ("40 chunks of 36 bytes", Scheme::Chunks36)] {
        let line = line_rate(scheme.packet_len(scheme.chunks_max()));
        let [independent, random, scrambled] = odds(scheme, BER);
        expect_in_doc(&row(name, independent, random, line));
        let with_scrambler = years(scrambled, line);
        expect_in_doc(&format!("| {name} | more than {with_scrambler:.1e} | {:.1e} |", with_scrambler / GOAL_YEARS));
        assert!(years(independent, line) > GOAL_YEARS && with_scrambler > GOAL_YEARS);
        assert!(independent < eth, "not worse than Ethernet's under independent errors");
        assert!(random <= eth_random, "nor when every damage leaves a random checksum");
    }
}

#[test]
fn the_mean_time_by_bit_error_rate() {
    for ber in [1e-12, 1e-10, 1e-8, 1e-6] {
        let [eth, _] = ethernet_odds(ber);
        let cells = Scheme::ALL.map(|s| years(odds(s, ber)[0], line_rate(s.packet_len(s.chunks_max()))));
        let eth = years(eth, line_rate(PAYLOAD_MAX));
        let [c26, c36] = cells;
        expect_in_doc(&format!("| {ber:.0e} | {eth:.1e} | {c26:.1e} | {c36:.1e} |"));
    }
}

/// Good polynomials of narrower checksums, from the search: what a width buys.
const NARROWER: [(u32, u32, u32); 2] = [(16, 0x56F3, 0xA6DB), (24, 0x5B_0BBB, 0x95_27D9)];

#[test]
fn what_a_width_buys() {
    let cells = |width: u32, scheme: Scheme, poly: u32| {
        let (n, chunks) = (bits(scheme), scheme.chunks_max() as f64);
        let weights = if width == 32 { CODES[&n].clone() } else { all_weights(poly, width, n) };
        let line = line_rate(scheme.packet_len(scheme.chunks_max()));
        let independent = years(chunks * undetected(&weights, BER), line);
        let random = years(chunks * random_residue(n, width, BER), line);
        format!("`0x{poly:X}` | {} | {independent:.1e} | {random:.1e}", distance(&weights))
    };
    for (width, p26, p36) in NARROWER.into_iter().chain([(32, CRC_26.poly, CRC_36.poly)]) {
        for (name, scheme, poly) in [("26", Scheme::Chunks26, p26), ("36", Scheme::Chunks36, p36)] {
            expect_in_doc(&format!("| {width} | {name} | {} |", cells(width, scheme, poly)));
        }
    }
}

/// The counting itself, where every code word can be looked at.
#[test]
fn the_counting_agrees_with_brute_force() {
    for (poly, n) in [(0x1021, 32), (0x8005, 34), (0x3D65, 30)] {
        let h = gf2::syndromes(poly, 16, n);
        let mut brute = vec![0u64; n + 1];
        for data in 0u64..1 << (n - 16) {
            // The data bits are the high powers; the remainder of them fills up the low ones.
            let checksum = (16..n).filter(|i| data >> (i - 16) & 1 == 1).fold(0, |sum, i| sum ^ h[i]);
            brute[(data.count_ones() + checksum.count_ones()) as usize] += 1;
        }
        let through_dual = all_weights(poly, 16, n);
        assert_eq!(through_dual, brute.iter().map(|w| BigInt::from(*w)).collect::<Vec<_>>());
        let d = distance(&through_dual);
        assert_eq!(weights::first_weight(&h, 8), Some((d, brute[d])));
        assert!(weights::may_detect(&h, d, false) && !weights::may_detect(&h, d + 1, false));
    }
}

#[test]
fn the_search_knows_its_families() {
    let count = |degree| gf2::irreducibles(8).iter().filter(|g| gf2::degree(**g) == degree).count();
    assert_eq!([1, 2, 3, 4, 8].map(count), [1, 1, 2, 3, 30]);
    assert_eq!((gf2::order(0x11d, 300), gf2::order(0x11b, 300), gf2::order(7, 2)), (Some(255), Some(51), None));
    // CRC-16-CCITT is (x + 1) times a primitive polynomial of degree 15: no cyclic code of a short length.
    // DNP's is one.
    let cyclic = search::cyclic(16, 150);
    assert!(!cyclic.contains(&0x11021) && cyclic.contains(&gf2::reciprocal(0x13D65).min(0x13D65)));
}

fn search(width: u32, scheme: Scheme, samples: usize) {
    let n = bits(scheme);
    let families = [("cyclic", search::cyclic(width, n as u32)), ("sample", search::sample(width, samples))];
    for (family, candidates) in families {
        let (tried, mut most) = (candidates.len(), 9);
        loop {
            let (seems, left) = search::best(&candidates, width, n, most);
            println!(
                "width {width}, {n} bits, {family}: {} of {tried} seem to have a distance of {seems} or more",
                left.len()
            );
            let mut ranked: Vec<_> = left
                .iter()
                .step_by(left.len().div_ceil(search::ranked_max(width)).max(1))
                .map(|g| (search::exact(*g, width, n), *g))
                .collect();
            ranked.sort_by(|((d, a), _), ((e, b), _)| e.cmp(d).then(a.cmp(b)));
            for ((d, patterns), g) in ranked.iter().take(5) {
                println!("  {:#x}: distance {d}, {patterns} patterns of that weight", g ^ 1 << width);
            }
            // None was as good as it seemed: then those count that showed at once how good they are, too.
            most = seems - 1;
            if ranked.first().is_none_or(|((d, _), _)| *d >= seems) {
                break;
            }
        }
    }
}

#[test]
#[ignore = "a search of up to a quarter of an hour, in a release build"]
fn search_16() {
    for scheme in Scheme::ALL {
        search(16, scheme, 60_000);
    }
}

#[test]
#[ignore = "a search of up to a quarter of an hour, in a release build"]
fn search_24() {
    for scheme in Scheme::ALL {
        search(24, scheme, 60_000);
    }
}

#[test]
#[ignore = "a search of up to a quarter of an hour, in a release build"]
fn search_32_chunks26() {
    search(32, Scheme::Chunks26, 20_000);
}

#[test]
#[ignore = "a search of up to a quarter of an hour, in a release build"]
fn search_32_chunks36() {
    search(32, Scheme::Chunks36, 20_000);
}
