// SPDX-License-Identifier: Apache-2.0
//! The endpoint and the connections for tokio, in a runtime.

#![cfg(feature = "tokio")]

use std::{error::Error, fs::File, net::SocketAddr, process::Command, time::Duration};

use fide_pace_socket::{
    ClientKey, Closed, Config, RecvError, SendError, ServerKey,
    tokio::{AcceptError, Connection, Endpoint},
};
use tokio::time::timeout;

/// Longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(60);
const KEY: ServerKey = ServerKey::Secret([7; 32]);

fn config() -> Config {
    Config { deadline_ns: 30_000_000_000, ..Config::default() }
}

fn server() -> (Endpoint, SocketAddr) {
    let server = Endpoint::server("127.0.0.1:0".parse().unwrap(), KEY, config()).unwrap();
    let address = server.get_ref().local_address().unwrap();
    (server, address)
}

async fn pair() -> (Connection, Connection) {
    let (server, address) = server();
    let (client, key) = (Endpoint::client().unwrap(), KEY.for_clients());
    let (here, there) = tokio::join!(client.connect(address, &key, config()), server.accept());
    (here.unwrap(), there.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_go_both_ways_in_order() {
    let (here, there) = pair().await;
    let echoes = tokio::spawn(async move {
        while let Ok(message) = there.recv().await {
            if there.send(&message.bytes).await.is_err() {
                break;
            }
        }
    });
    for at in 0..200_u32 {
        here.send(&at.to_be_bytes()).await.unwrap();
        let message = timeout(LIMIT, here.recv()).await.expect("an echo").unwrap();
        assert_eq!(message.bytes, at.to_be_bytes());
    }
    timeout(LIMIT, here.finish()).await.expect("all has arrived");
    here.get_ref().close("enough");
    assert_eq!(here.send(b"late").await, Err(SendError::Closed(Closed::Here)));
    here.ready().await;
    timeout(LIMIT, echoes).await.expect("it ends").unwrap();
}

/// Polls once, and drops what is not ready then.
async fn once(future: impl Future<Output = Result<(), SendError>>) -> Option<Result<(), SendError>> {
    tokio::select! {
        biased;
        result = future => Some(result),
        () = std::future::ready(()) => None,
    }
}

/// The receiver takes two milliseconds for a message, so that the sender waits.
#[tokio::test]
async fn dropped_send_has_sent_the_whole_message_or_nothing() {
    let (here, there) = pair().await;
    let takes = tokio::spawn(async move {
        let mut came = Vec::new();
        while let Ok(message) = there.recv().await {
            came.push(message.bytes);
            std::thread::sleep(Duration::from_millis(2));
        }
        came
    });
    let sent = || here.get_ref().counts().sent.messages;
    let (mut is_sent, mut dropped) = (Vec::new(), [0; 2]);
    for at in 0..400_u16 {
        let (message, before) = (at.to_be_bytes(), sent());
        let result = once(here.send(&message)).await;
        let count = sent() - before;
        assert!(count <= 1 && result.is_none_or(|result| result.is_ok() && count == 1), "{count} messages");
        if count == 1 {
            is_sent.push(message.to_vec());
        }
        dropped[usize::from(count == 1)] += 1;
        if at % 2 == 0 {
            // What the one before it has waited for is waited for now.
            timeout(LIMIT, here.ready()).await.expect("it goes on");
        }
    }
    println!("dropped before and after they were sent, or ready at once: {dropped:?}");
    assert!(dropped[0] > 0 && dropped[1] > 0, "{dropped:?}");
    timeout(LIMIT, here.finish()).await.expect("all has arrived");
    here.get_ref().close("");
    assert_eq!(timeout(LIMIT, takes).await.expect("it ends").unwrap(), is_sent);
}

/// A `send` waits in one branch of `select!`, and the task sends in the other one.
#[tokio::test]
async fn task_sends_while_another_send_of_it_waits() {
    let (here, there) = pair().await;
    let answers = tokio::spawn(async move {
        while there.recv().await.is_ok() {
            let _ = there.get_ref().try_send(b"answer", None);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let both = async {
        let mut sends = std::pin::pin!(here.send(b"message"));
        loop {
            let is_sent = tokio::select! {
                biased;
                sent = &mut sends => sent.map(|()| true),
                message = here.recv() => message.map(|_| false).map_err(|over| SendError::Closed(over.0)),
            };
            if is_sent.unwrap() {
                sends.set(here.send(b"message"));
            } else if once(sends.as_mut()).await.is_none() {
                break here.send(b"beside it").await.unwrap();
            }
        }
        sends.await.unwrap();
    };
    timeout(LIMIT, both).await.expect("both leave");
    drop(here);
    timeout(LIMIT, answers).await.expect("it ends").unwrap();
}

#[tokio::test]
async fn dropped_recv_loses_no_message() {
    let (here, there) = pair().await;
    let sends = tokio::spawn(async move {
        for at in 0..50_u32 {
            here.send(&at.to_be_bytes()).await.unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        here.finish().await;
    });
    let mut came = Vec::new();
    while came.len() < 50 {
        if let Ok(message) = timeout(Duration::from_micros(100), there.recv()).await {
            came.push(message.expect("it stands").bytes);
        }
    }
    assert_eq!(came, (0..50_u32).map(|at| at.to_be_bytes().to_vec()).collect::<Vec<_>>());
    sends.await.unwrap();
}

#[tokio::test]
async fn dropped_accept_takes_no_connection() {
    let (server, address) = server();
    assert!(timeout(Duration::from_millis(1), server.accept()).await.is_err());
    let client = Endpoint::client().unwrap();
    let here = client.connect(address, &KEY.for_clients(), config()).await.unwrap();
    let there = timeout(LIMIT, server.accept()).await.expect("a client").unwrap();
    there.send(b"first").await.unwrap();
    assert_eq!(here.recv().await.unwrap().bytes, b"first");
    assert!(client.accept().await.unwrap_err().to_string().contains("no key for clients"));
}

const FEW_FILES: &str = "FIDE_PACE_FEW_FILES";

/// In a process of its own: no other test finds a descriptor either.
#[test]
fn accept_without_a_descriptor_waits_for_a_client_and_closes_its_connection() {
    if std::env::var_os(FEW_FILES).is_some() {
        return accepts_without_a_descriptor();
    }
    let mut inside = Command::new("sh");
    inside.args(["-c", "ulimit -n 256 && exec \"$0\" \"$@\""]).arg(std::env::current_exe().unwrap());
    inside.args(["--exact", "accept_without_a_descriptor_waits_for_a_client_and_closes_its_connection", "--nocapture"]);
    assert!(inside.env(FEW_FILES, "1").status().unwrap().success());
}

#[tokio::main(flavor = "current_thread")]
async fn accepts_without_a_descriptor() {
    let ((server, address), client) = (server(), Endpoint::client().unwrap());
    let take_all = || std::iter::from_fn(|| File::open("/dev/null").ok()).collect::<Vec<_>>();
    let taken = take_all();
    assert!(timeout(Duration::from_millis(50), server.accept()).await.is_err(), "nobody has connected");
    drop(taken);
    let here = client.connect(address, &KEY.for_clients(), config()).await.unwrap();
    let taken = take_all();
    let accepted = timeout(LIMIT, server.accept()).await.expect("a client");
    assert!(matches!(accepted, Err(AcceptError::Timer(_))), "{accepted:?}");
    drop(taken);
    assert!(matches!(timeout(LIMIT, here.recv()).await.expect("it is closed"), Err(RecvError(Closed::There(_)))));
}

struct Camera {
    turned: usize,
}

impl Camera {
    fn frame(&self) -> [u8; 1000] {
        [7; 1000]
    }

    fn turn(&mut self, _how: &[u8]) {
        self.turned += 1;
    }
}

/// The lines of docs/pace.md: the test below looks whether they are the same.
async fn documented(address: SocketAddr, key: ClientKey, camera: &mut Camera) -> Result<(), Box<dyn Error>> {
    // begin
    let endpoint = fide_pace_socket::tokio::Endpoint::client()?;
    let connection = endpoint.connect(address, &key, Config::default()).await?;
    loop {
        tokio::select! {
            // When the next one may be made. `connection.send(&frame)` sends, and waits for that.
            () = connection.ready() => connection.get_ref().try_send(&camera.frame(), None)?,
            message = connection.recv() => camera.turn(&message?.bytes),
        }
    }
    // end
}

#[tokio::test]
async fn documented_lines_run() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/pace.md")).unwrap();
    let (_, source) = include_str!("tokio.rs").split_once("    // begin\n").unwrap();
    let lines: String =
        source.lines().take_while(|line| *line != "    // end").map(|line| line[4..].to_owned() + "\n").collect();
    assert!(page.contains(&format!("```rust\n{lines}```\n")), "docs/pace.md has other lines than these:\n{lines}");

    let (server, address) = server();
    let receives = async {
        let there = timeout(LIMIT, server.accept()).await.expect("a client").unwrap();
        for _ in 0..50 {
            let message = timeout(LIMIT, there.recv()).await.expect("a message").unwrap();
            assert_eq!(message.bytes, [7; 1000]);
            there.send(b"left").await.unwrap();
        }
        there.finish().await;
        there.get_ref().close("enough frames");
    };
    let mut camera = Camera { turned: 0 };
    let (result, ()) = tokio::join!(documented(address, KEY.for_clients(), &mut camera), receives);
    assert!(result.unwrap_err().to_string().contains("enough frames"));
    assert!(camera.turned > 0);
}
