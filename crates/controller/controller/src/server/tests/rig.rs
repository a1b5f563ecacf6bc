// SPDX-License-Identifier: Apache-2.0
//! A whole controller except for its decisions: real certificates, a real file, a real socket on loopback.

use super::super::*;
use crate::leader::Single;
use crate::pki::{self, CA_DAYS, Request as Wanted, init, issue};
use crate::shell::Shell;
use crate::store::Redb;
use crate::testing::Adder;
use axum::http::{HeaderMap, Request};
use fide_controller_api::identity::Identity;
use fide_controller_api::tls::{ClientTls, Files};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde_json::Value;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Mutex;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;

pub(super) struct Rig {
    pub(super) runtime: tokio::runtime::Runtime,
    pub(super) tls: Arc<ServerTls>,
    pub(super) pki: PathBuf,
    pub(super) address: SocketAddr,
    pub(super) shell: Mutex<Option<Shell<u64>>>,
    end: Mutex<Option<oneshot::Sender<()>>>,
    running: Mutex<Option<JoinHandle<()>>>,
    _dir: tempfile::TempDir,
}

/// An answer.
#[derive(Debug, Clone)]
pub(super) struct Sent {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: Value,
}

impl Sent {
    pub(super) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
    pub(super) fn code(&self) -> &str {
        self.body["error"]["code"].as_str().unwrap_or_default()
    }
    pub(super) fn message(&self) -> &str {
        self.body["error"]["message"].as_str().unwrap_or_default()
    }
}

impl Rig {
    pub(super) fn new(limits: Limits) -> Rig {
        Rig::acting(limits, |_| {})
    }

    pub(super) fn acting(limits: Limits, act: impl FnMut(u64) + Send + 'static) -> Rig {
        let dir = tempfile::tempdir().unwrap();
        let pki = dir.path().join("pki");
        let who = |name: &str| Wanted::new(name.parse::<Identity>().unwrap());
        let server =
            init(&pki, CA_DAYS, &Wanted { addresses: vec!["127.0.0.1".into()], ..who("controller.c1") }).unwrap();
        for name in ["host.alpha", "host.beta", "host.watcher", "operator.ann"] {
            issue(&pki, &who(name)).unwrap();
        }
        let files = Files::of_member(&server.dir).with_list(Some(pki.join(pki::REVOKED_FILE)));
        let tls = Arc::new(ServerTls::load(files).unwrap());
        let lock = Single::lock(&dir.path().join("lock"), "c1").unwrap();
        let mut store = Redb::open(&crate::store::redb_file(dir.path())).unwrap();
        let single = lock.lead(store.last_epoch().unwrap());
        let shell = Shell::start(Adder::default(), store, single, act).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let (end, ended) = oneshot::channel::<()>();
        let server = Server::new(tls.clone(), shell.request_sender(), limits);
        let running = runtime.spawn(server.run(listener, async {
            let _ = ended.await;
        }));
        let rig = Rig {
            runtime,
            tls,
            pki,
            address,
            shell: Mutex::new(Some(shell)),
            end: Mutex::new(Some(end)),
            running: Mutex::new(Some(running)),
            _dir: dir,
        };
        // It leads once the thread has checked.
        let mut ann = rig.client("operator.ann");
        crate::testing::eventually("it leads", || (ann.get(&rig, "/v1/total").status == 200).then_some(()));
        rig
    }

    pub(super) fn connect(&self, name: &str) -> Result<SendRequest<Full<Bytes>>, String> {
        let files = Files::of_member(&self.pki.join(pki::ISSUED_DIR).join(name));
        let config = ClientTls::load(files).unwrap().current().config.clone();
        self.runtime.block_on(async {
            let stream = TcpStream::connect(self.address).await.map_err(|e| e.to_string())?;
            let server = ServerName::try_from("127.0.0.1").unwrap();
            let stream = TlsConnector::from(config).connect(server, stream).await.map_err(|e| e.to_string())?;
            let (mut send, connection) = handshake(TokioIo::new(stream)).await.map_err(|e| e.to_string())?;
            tokio::spawn(connection);
            // In TLS 1.3 a client learns only afterwards that its certificate was refused.
            let probe = Request::get("/").header("host", "c1").body(Full::default()).unwrap();
            send.send_request(probe).await.map_err(|e| e.to_string())?.collect().await.map_err(|e| e.to_string())?;
            send.ready().await.map_err(|e| e.to_string())?;
            Ok(send)
        })
    }

    /// Sends `bytes` as they are. Returns everything until the connection is closed.
    pub(super) fn raw(&self, name: &str, bytes: &str) -> String {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let files = Files::of_member(&self.pki.join(pki::ISSUED_DIR).join(name));
        let config = ClientTls::load(files).unwrap().current().config.clone();
        self.runtime.block_on(async {
            let stream = TcpStream::connect(self.address).await.unwrap();
            let server = ServerName::try_from("127.0.0.1").unwrap();
            let mut stream = TlsConnector::from(config).connect(server, stream).await.unwrap();
            stream.write_all(bytes.as_bytes()).await.unwrap();
            stream.flush().await.unwrap();
            let mut said = Vec::new();
            // A close without goodbye is an error of TLS, and fine here.
            let _ = stream.read_to_end(&mut said).await;
            String::from_utf8_lossy(&said).into_owned()
        })
    }

    /// A connection without requests.
    pub(super) fn silent(&self, name: &str) -> Silent {
        let files = Files::of_member(&self.pki.join(pki::ISSUED_DIR).join(name));
        let config = ClientTls::load(files).unwrap().current().config.clone();
        let server = ServerName::try_from("127.0.0.1").unwrap();
        let connected = self.runtime.block_on(async {
            let stream = TcpStream::connect(self.address).await.unwrap();
            TlsConnector::from(config).connect(server, stream).await
        });
        Silent(connected.unwrap())
    }

    pub(super) fn client(&self, name: &str) -> Client {
        Client { send: self.connect(name).unwrap() }
    }

    pub(super) fn wait(&self, waiting: JoinHandle<Sent>) -> Sent {
        self.runtime.block_on(waiting).unwrap()
    }

    pub(super) fn stop_deciding(&self) {
        *self.shell.lock().unwrap() = None;
    }

    /// Orders the end; the server, to be waited for.
    pub(super) fn end(&self) -> JoinHandle<()> {
        let _ = self.end.lock().unwrap().take().unwrap().send(());
        self.running.lock().unwrap().take().unwrap()
    }
}

pub(super) struct Silent(tokio_rustls::client::TlsStream<TcpStream>);

impl Silent {
    /// Whether the controller has closed it; waits a moment for that.
    pub(super) fn is_closed(&mut self, rig: &Rig) -> bool {
        use tokio::io::AsyncReadExt;
        rig.runtime.block_on(async {
            let mut byte = [0];
            tokio::time::timeout(Duration::from_millis(300), self.0.read(&mut byte)).await.is_ok()
        })
    }
}

pub(super) struct Client {
    pub(super) send: SendRequest<Full<Bytes>>,
}

async fn sent(response: hyper::Response<hyper::body::Incoming>) -> Sent {
    let (parts, body) = response.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    Sent {
        status: parts.status.as_u16(),
        headers: parts.headers,
        body: serde_json::from_slice(&bytes).unwrap_or_default(),
    }
}

impl Client {
    pub(super) fn send_bytes(
        &mut self,
        rig: &Rig,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Vec<u8>,
    ) -> Sent {
        let mut request = Request::builder().method(method).uri(path).header("host", "c1");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        // An invalid URI cannot be sent.
        let Ok(request) = request.body(Full::from(body)) else { return self.get(rig, "/nowhere") };
        rig.runtime.block_on(async {
            self.send.ready().await.unwrap();
            sent(self.send.send_request(request).await.unwrap()).await
        })
    }

    pub(super) fn send(&mut self, rig: &Rig, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Sent {
        self.send_bytes(rig, method, path, headers, body.as_bytes().to_vec())
    }

    pub(super) fn get(&mut self, rig: &Rig, path: &str) -> Sent {
        self.send(rig, "GET", path, &[], "")
    }

    pub(super) fn add(&mut self, rig: &Rig, sequence: &str, body: Value) -> Sent {
        let headers = [("fide-sequence", sequence), ("content-type", "application/json")];
        self.send(rig, "POST", "/v1/add", &headers, &body.to_string())
    }

    /// Asks, and leaves the answer to be awaited.
    pub(super) fn start(&mut self, rig: &Rig, path: &str) -> JoinHandle<Sent> {
        let request = Request::get(path).header("host", "c1").body(Full::default()).unwrap();
        rig.runtime.block_on(self.send.ready()).unwrap();
        let answer = self.send.send_request(request);
        rig.runtime.spawn(async { sent(answer.await.unwrap()).await })
    }
}
