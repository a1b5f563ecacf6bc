// SPDX-License-Identifier: Apache-2.0
//! Ten thousand requests at once.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use fide_controller_api::sequence::{HEADER, Sequence};
use fide_controller_api::tls::{ClientTls, Files};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::net::TcpSocket;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use super::common::{Site, lane_of};

const HOSTS: usize = 20;
/// The most connections of one host.
const CONNECTIONS: usize = fide_controller_api::limits::CONNECTIONS_PER_PEER;
/// Requests on each connection.
const REQUESTS: usize = 32;
const _: () = assert!(HOSTS * CONNECTIONS * REQUESTS >= 10_000);
const _: () = assert!(HOSTS * (CONNECTIONS + 1) < fide_controller::server::CONNECTIONS_MAX);

type Connection = SendRequest<Full<Bytes>>;

/// Connects from a separate address for each host, since handshakes are counted by address.
async fn connect(n: usize, address: SocketAddr, config: Arc<ClientConfig>) -> Connection {
    let socket = TcpSocket::new_v4().expect("a socket");
    let own = [127, 0, 1, u8::try_from(n).expect("few hosts")];
    socket.bind(SocketAddr::from((own, 0))).expect("loopback");
    let stream = socket.connect(address).await.expect("a connection");
    let server = ServerName::IpAddress(address.ip().into());
    let stream = TlsConnector::from(config).connect(server, stream).await.expect("a handshake");
    let (send, connection) = handshake(TokioIo::new(stream)).await.expect("HTTP");
    tokio::spawn(connection);
    send
}

struct Sent {
    status: u16,
    retry_after: Option<u64>,
    body: Value,
}

async fn sent(response: Response<hyper::body::Incoming>) -> Sent {
    let status = response.status().as_u16();
    let retry_after = response.headers().get("retry-after").and_then(|value| value.to_str().ok()?.parse().ok());
    let bytes = response.into_body().collect().await.expect("a body").to_bytes();
    Sent { status, retry_after, body: serde_json::from_slice(&bytes).expect("JSON") }
}

async fn ask(connection: &mut Connection, number: u64, body: &Value) -> Sent {
    let request = Request::post("/v1/lanes")
        .header("host", "c1")
        .header("content-type", "application/json")
        .header(HEADER, Sequence { incarnation: 1, number }.to_string())
        .body(Full::from(body.to_string()))
        .expect("a request");
    connection.ready().await.expect("it is open");
    sent(connection.send_request(request).await.expect("an answer")).await
}

/// Asserts that a request is refused by a bound, with a hint.
fn refused(sent: &Sent) -> &'static str {
    let error = &sent.body["error"];
    let message = error["message"].as_str().unwrap_or_default();
    let (status, code, says) = [
        (429, "too_many_requests", "wait 1 s"),
        (503, "busy", "try again"),
        (429, "too_many_connections", "use those"),
    ]
    .into_iter()
    .find(|(_, code, _)| error["code"] == *code)
    .unwrap_or_else(|| panic!("{} {}", sent.status, sent.body));
    assert_eq!((sent.status, message.contains(says), sent.retry_after), (status, true, Some(1)), "{}", sent.body);
    code
}

#[derive(Default)]
struct Tally {
    acknowledged: BTreeMap<String, u64>,
    /// Answers by kind.
    answers: BTreeMap<&'static str, usize>,
}

/// One host: sends each request over all its connections at once, and the next one when all are answered.
/// Each is carried out at most once, however many copies got through.
async fn flood(n: usize, address: SocketAddr, config: Arc<ClientConfig>) -> Tally {
    let mut tally = Tally::default();
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        connections.push(connect(n, address, config.clone()).await);
    }
    let (mut number, receiver) = (1, format!("h{}", n % HOSTS + 1));
    for _ in 0..REQUESTS {
        let name = format!("h{n}-{number}");
        let mut asking = JoinSet::new();
        for mut connection in connections.drain(..) {
            let body = lane_of(&name, &receiver);
            asking.spawn(async move {
                let sent = ask(&mut connection, number, &body).await;
                (connection, sent)
            });
        }
        let mut lanes = Vec::new();
        while let Some(answer) = asking.join_next().await {
            let (connection, sent) = answer.expect("an answer");
            connections.push(connection);
            let kind = if sent.status == 200 {
                lanes.push(sent.body["lane"].as_u64().expect("a number"));
                "done"
            } else {
                refused(&sent)
            };
            *tally.answers.entry(kind).or_default() += 1;
        }
        if let Some(lane) = lanes.first() {
            assert!(lanes.iter().all(|other| other == lane), "{name} was carried out twice: {lanes:?}");
            tally.acknowledged.insert(name, *lane);
            number += 1;
        }
    }
    // One more connection while the others are open.
    let mut more = connect(n, address, config).await;
    let sent = ask(&mut more, number, &lane_of("more", &receiver)).await;
    assert_eq!(refused(&sent), "too_many_connections");
    tally
}

#[test]
fn of_ten_thousand_requests_at_once_each_is_done_or_refused_by_name() {
    let site = Site::new(1, HOSTS, 1, "store = \"c.redb\"");
    let mut running = site.start("c1");
    assert!(site.lanes().is_empty());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads");
    let tally = runtime.block_on(async {
        let mut flooding = JoinSet::new();
        for n in 1..=HOSTS {
            let files = Files::of_member(&site.credentials(&format!("host.h{n}")));
            let config = ClientTls::load(files).expect("credentials").current().config.clone();
            flooding.spawn(flood(n, site.addresses[0], config));
        }
        let mut all = Tally::default();
        while let Some(one) = flooding.join_next().await {
            let one = one.expect("a host");
            all.acknowledged.extend(one.acknowledged);
            for (kind, count) in one.answers {
                *all.answers.entry(kind).or_default() += count;
            }
        }
        all
    });
    drop(runtime);
    println!("{:?}, {} lanes", tally.answers, tally.acknowledged.len());
    assert_eq!(tally.answers.values().sum::<usize>(), HOSTS * CONNECTIONS * REQUESTS);
    assert!(tally.answers["done"] < HOSTS * CONNECTIONS * REQUESTS, "no bound was met");
    assert!(tally.acknowledged.len() >= HOSTS);
    assert_eq!(site.lanes(), tally.acknowledged, "what was acknowledged is not what is held");
    // The controller is well, and serves a host that knows nothing of its former requests.
    let (name, lane) = site.host("h1").lane("h2");
    running.kill();
    let _running = site.start("c1");
    // The host restarts its names, so the first one exists twice, as two lanes.
    assert_eq!(name, "h1-1");
    assert!(tally.acknowledged.values().all(|before| *before < lane));
    site.host("h1").release(lane);
    assert_eq!(site.lanes(), tally.acknowledged, "what was acknowledged is not what is there after a crash");
}

#[test]
fn with_few_file_descriptors_connections_are_fewer_and_the_store_has_its_own() {
    use std::io::Read;
    use std::net::TcpStream as Stream;
    const DESCRIPTORS: usize = 160;
    let site = Site::new(1, 2, 1, "store = \"c.redb\"");
    let limit = format!("--nofile={DESCRIPTORS}:{DESCRIPTORS}");
    let mut command = std::process::Command::new("setpriv");
    let _running =
        site.start_by("c1", command.args(["--pdeathsig", "KILL", "prlimit", &limit, "--", env!("CARGO_BIN_EXE_fide")]));
    let mut h1 = site.host("h1");
    let first = h1.lane("h2");
    let silent: Vec<Stream> = (0..DESCRIPTORS).map(|_| Stream::connect(site.addresses[0]).expect("loopback")).collect();
    // The last connection is closed at once, and does not wait for a descriptor.
    let mut last = silent.last().expect("many");
    last.set_read_timeout(Some(super::common::LIMIT)).expect("a limit");
    match last.read(&mut [0; 1]) {
        Ok(0) => {}
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        other => panic!("it is not closed: {other:?}"),
    }
    let second = h1.lane("h2");
    drop(silent);
    assert_eq!(site.lanes(), BTreeMap::from([first, second]));
    assert!(site.log("c1").contains("file descriptors are allowed"), "{}", site.log("c1"));
}
