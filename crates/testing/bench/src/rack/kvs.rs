// SPDX-License-Identifier: Apache-2.0
//! A small key-value store and its client, written for TCP, under the library and without it, with the mixes of YCSB that the paper takes
//! (NTSocks §6.5.1). Keys are drawn evenly, where YCSB draws few of them often. Values are of one field of YCSB's, of a record of ten, and of ten records.

use std::{
    collections::HashMap,
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    process::Stdio,
    time::Instant,
};

use anyhow::{Context, Result, ensure};
use fide_testbed::{
    figures::{Goal, Report, Samples},
    sys::bind_to_core,
};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use serde::{Deserialize, Serialize};

use crate::apps::{BOTH, Bed, Over, Pair};

/// Bytes of a value, and the names of figures of that size. The paper's text says that they grow, and names none.
const VALUES: [(usize, &str); 3] = [(100, "kvs"), (1_000, "kvs1k"), (10_000, "kvs10k")];
/// Of all values that are there at first.
const STORED: usize = 10_000_000;
const SEED: u64 = 7;

/// Shares of reads, updates and inserts, in percent.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Mix {
    reads: u32,
    updates: u32,
}

/// The rest of each is inserts.
const MIXES: [(&str, Mix); 4] = [
    ("r100", Mix { reads: 100, updates: 0 }),
    ("r95i5", Mix { reads: 95, updates: 0 }),
    ("r90u10", Mix { reads: 90, updates: 10 }),
    ("r50u50", Mix { reads: 50, updates: 50 }),
];

/// What a process of this program does.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Side {
    /// Says its port, and serves one client.
    Server { core: usize, value: usize },
    /// Says the time of each request.
    Client { core: usize, port: u16, value: usize, requests: usize },
}

/// What a client says: for each mix, by its place, the median and the 99th percentile.
type Said = Vec<[u64; 2]>;

const GET: u8 = 0;
const PUT: u8 = 1;
/// Kind and key.
const HEAD: usize = 9;

/// The process.
pub(crate) fn run(side: &Side) -> Result<()> {
    match *side {
        Side::Server { core, value } => {
            bind_to_core(None, core)?;
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            println!("{}", listener.local_addr()?.port());
            serve(listener.accept()?.0, value)
        }
        Side::Client { core, port, value, requests } => {
            bind_to_core(None, core)?;
            let said = asks(TcpStream::connect((Ipv4Addr::LOCALHOST, port))?, value, requests)?;
            println!("{}", serde_json::to_string(&said)?);
            Ok(())
        }
    }
}

/// Keys that are there at first.
fn keys(value: usize) -> u64 {
    (STORED / value) as u64
}

fn serve(mut stream: TcpStream, value: usize) -> Result<()> {
    stream.set_nodelay(true)?;
    let first = |key: u64| vec![key.to_le_bytes()[0]; value];
    let mut values: HashMap<u64, Vec<u8>> = (0..keys(value)).map(|key| (key, first(key))).collect();
    let mut request = vec![0; HEAD + value];
    loop {
        if let Err(why) = stream.read_exact(&mut request[..1]) {
            return if why.kind() == std::io::ErrorKind::UnexpectedEof { Ok(()) } else { Err(why.into()) };
        }
        let len = if request[0] == PUT { HEAD + value } else { HEAD };
        stream.read_exact(&mut request[1..len])?;
        let key = u64::from_le_bytes(request[1..HEAD].try_into()?);
        if request[0] == PUT {
            match values.get_mut(&key) {
                Some(value) => value.copy_from_slice(&request[HEAD..]),
                None => _ = values.insert(key, request[HEAD..].to_vec()),
            }
            stream.write_all(&[PUT])?;
        } else {
            stream.write_all(values.get(&key).context("a key that is not there")?)?;
        }
    }
}

fn asks(mut stream: TcpStream, value: usize, requests: usize) -> Result<Said> {
    stream.set_nodelay(true)?;
    let (mut random, mut keys) = (SmallRng::seed_from_u64(SEED), keys(value));
    let mut request = vec![0; HEAD + value];
    let mut answer = vec![0; value];
    let mut said = Vec::new();
    for (_, mix) in MIXES {
        let mut samples = Samples::default();
        // A tenth to warm up.
        for number in 0..requests + requests / 10 {
            let turn = random.random_range(0..100);
            let key = if turn < mix.reads + mix.updates {
                random.random_range(0..keys)
            } else {
                keys += 1;
                keys - 1
            };
            let (kind, [sent, answered]) =
                if turn < mix.reads { (GET, [HEAD, value]) } else { (PUT, [HEAD + value, 1]) };
            request[0] = kind;
            request[1..HEAD].copy_from_slice(&key.to_le_bytes());
            request[HEAD..].fill(key.to_le_bytes()[0]);
            let begun = Instant::now();
            stream.write_all(&request[..sent])?;
            stream.read_exact(&mut answer[..answered])?;
            let took = begun.elapsed();
            let expected = if kind == GET { key.to_le_bytes()[0] } else { PUT };
            ensure!(answer[..answered].iter().all(|byte| *byte == expected), "key {key} has another value");
            if number >= requests / 10 {
                samples.add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
            }
        }
        said.push([samples.quantile(0.5), samples.quantile(0.99)]);
    }
    Ok(said)
}

fn round(bed: &Bed, over: Over, [here, there]: [usize; 2], value: usize, requests: usize) -> Result<Said> {
    let program = std::env::current_exe().context("where this program is")?;
    let command = |side: &Side| -> Result<_> {
        let mut command = bed.command(over, None, &program);
        command.arg("kvs").arg(serde_json::to_string(side)?);
        Ok(command)
    };
    let mut server = command(&Side::Server { core: there, value })?.stdout(Stdio::piped()).spawn()?;
    let mut says = std::io::BufReader::new(server.stdout.take().context("its output")?);
    let mut port = String::new();
    std::io::BufRead::read_line(&mut says, &mut port)?;
    let client = command(&Side::Client { core: here, port: port.trim().parse()?, value, requests })?.output();
    let ended = fide_testbed::end_within(&mut server, std::time::Duration::from_secs(20));
    if ended.is_err() {
        server.kill()?;
        server.wait()?;
    }
    let client = client?;
    let text = String::from_utf8_lossy(&client.stdout);
    ensure!(client.status.success(), "the client, {}: {}", client.status, String::from_utf8_lossy(&client.stderr));
    ensure!(ended?.success(), "the server has failed");
    Ok(serde_json::from_str(&text)?)
}

/// Adds the figures.
pub(crate) fn measure(report: &mut Report, cores: [usize; 2], rounds: usize, requests: usize) -> Result<()> {
    let bed = Bed::new()?;
    for (value, size) in VALUES {
        let mut pairs: Vec<[Pair; 2]> = MIXES.iter().map(|_| Default::default()).collect();
        for round_number in 0..rounds {
            for turn in 0..BOTH.len() {
                let over = BOTH[(round_number + turn) % BOTH.len()];
                for (pair, said) in pairs.iter_mut().zip(round(&bed, over, cores, value, requests)?) {
                    pair.iter_mut().zip(said).for_each(|(pair, ns)| pair.add(over, ns as f64 / 1e3));
                }
            }
            println!("round {} of {rounds}: the key-value store, values of {value} bytes", round_number + 1);
        }
        for ((mix, _), [median, p99]) in MIXES.iter().zip(pairs) {
            report.add(median.rate(&format!("{size}_{mix}_vs_tcp"), "us").goal(Goal::AtMost(0.1)));
            report.add(p99.rate(&format!("{size}_{mix}_p99_vs_tcp"), "us"));
        }
    }
    Ok(())
}
