// SPDX-License-Identifier: Apache-2.0
//! A replicated set of lines. On each host `LINES_KEY=... lines STATE_DIR HOST...`, with all hosts; then anywhere
//! `nc -u HOST 7000`: a line adds itself ("ok": all live members have it), an empty line prints all, "-ID" takes host
//! ID out. Without an answer, ask again: a line counts once. A crate of its own, to be copied; lines.c: the same in C.
use fide_group::{Config, ConnectOptions, Entry, Hsuc, Member, Standing, entries, hsuc};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

const TEXT_LEN: usize = 60_000; // It has to fit one answer.

fn has(text: &[u8], line: &[u8]) -> bool {
    text.split(|byte| *byte == b'\n').any(|known| known == line)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let [_, state_dir, hosts @ ..] = &args[..] else { return Err("usage: lines STATE_DIR HOST...".into()) };
    let config = Config::new("lines", hosts, std::env::var("LINES_KEY")?.parse()?, state_dir, hsuc(32));
    let mut member = Member::<Hsuc>::open(config, ConnectOptions::default())?;
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 7000))?;
    socket.set_nonblocking(true)?;
    member.watch(&socket)?;
    let (mut text, mut buffer) = (b"\n".to_vec(), [0; 500]); // A longer line is cut off.
    while member.standing() != Standing::Removed {
        member.wait(None)?;
        text = member.poll_install().map_or(text, |(_, state)| state);
        let leads = member.leads();
        while let Some(decision) = member.poll_decision() {
            for entry in entries(decision.value) {
                let Entry::Value(value) = entry else { continue }; // The client as C's struct sockaddr_in, and the line.
                let Some(([_, _, p, q, a, b, c, d, ..], line)) = value.split_first_chunk::<16>() else { continue };
                if !has(&text, line) && text.len() + line.len() + 2 <= TEXT_LEN {
                    text.extend([line, b"\n"].concat());
                }
                let client = SocketAddr::from(([*a, *b, *c, *d], u16::from_be_bytes([*p, *q])));
                let answer: &[u8] = if has(&text, line) { b"ok\n" } else { b"full\n" };
                let _ = leads.then(|| socket.send_to(answer, client));
            }
        }
        if member.wants_state() {
            let _ = member.give_state(text.clone()); // Without room it is wanted again.
        }
        while let Ok((len, SocketAddr::V4(who))) = socket.recv_from(&mut buffer) {
            let line = buffer[..len].split(|byte| matches!(byte, b'\n' | 0)).next().unwrap_or_default();
            let value =
                [&2_u16.to_ne_bytes()[..], &who.port().to_be_bytes(), &who.ip().octets(), &[0; 8], line].concat();
            let leader = format!("ask {}\n", member.leader().and_then(|id| member.name(id)).unwrap_or("again"));
            let answer = match line {
                _ if !member.leads() => leader.into_bytes(),
                b"" if member.may_answer() => text[1..].to_vec(),
                [b'-', id @ b'1'..=b'9'] if member.remove((id - b'0').into()).is_ok() => b"ok\n".to_vec(),
                [first, ..] if *first != b'-' && member.propose(&value).is_ok() => continue, // Answered once decided.
                _ => b"later\n".to_vec(),
            };
            let _ = socket.send_to(&answer, who);
        }
    }
    Ok(())
}
