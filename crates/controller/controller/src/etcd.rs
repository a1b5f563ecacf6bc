// SPDX-License-Identifier: Apache-2.0
//! etcd v3 through its JSON gateway (`/v3/...`, on by default since etcd 3.4): what store and leadership
//! need of it.
//!
//! Calls block, with a time limit. A call without an answer may or may not have had an effect, so callers
//! make transactions that can be repeated.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use ureq::tls::{Certificate, ClientCert, PemItem, RootCerts, TlsConfig, TlsProvider, parse_pem};

/// Bytes of one answer: a page of [`PAGE_KEYS`] values as large as etcd takes them, in base64.
const ANSWER_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Keys in one page of a range.
pub const PAGE_KEYS: usize = 16;
/// Keys read by one [`Client::range`]. More is a damaged store.
pub const RANGE_KEYS_MAX: usize = 100_000;

/// How etcd is reached.
#[derive(Debug, Clone)]
pub struct Config {
    /// `http://HOST:PORT` or `https://HOST:PORT`, one or more members of one etcd cluster; tried in order,
    /// beginning with the one that answered last.
    pub endpoints: Vec<String>,
    /// Needed for https.
    pub tls: Option<TlsFiles>,
    /// Time limit of one call at one endpoint.
    pub timeout: Duration,
}

/// PEM files for https, read when the client is made.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    pub authorities: PathBuf,
    /// Certificate and key, if etcd requires them.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("etcd cannot be called as configured: {why}")]
    Config { why: String },
    #[error("no answer from etcd at {endpoints}: {why}")]
    NoAnswer { endpoints: String, why: String },
    #[error("etcd refused {path}: {why}")]
    Refused { path: String, why: String },
    #[error("etcd's answer to {path} makes no sense ({why}); is {endpoints} an etcd of version 3.4 or newer?")]
    Nonsense { path: String, endpoints: String, why: String },
}

type Result<T> = std::result::Result<T, Error>;

/// A key with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    pub key: String,
    pub value: Vec<u8>,
    /// Revision at which the key was created.
    pub created: u64,
    /// The lease that it is attached to; 0 for none.
    pub lease: u64,
}

/// Calls etcd. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Client {
    agent: ureq::Agent,
    endpoints: Vec<String>,
    /// The endpoint that answered last. It is asked first, so that a member that is gone costs its time
    /// limit only once.
    at: Arc<AtomicUsize>,
}

impl Client {
    /// Reads the TLS files; does not connect yet.
    pub fn new(config: &Config) -> Result<Client> {
        let refused = |why: String| Error::Config { why };
        if config.endpoints.is_empty() {
            return Err(refused("no endpoint; name at least one as http://HOST:2379".into()));
        }
        for endpoint in &config.endpoints {
            if !["http://", "https://"].iter().any(|scheme| endpoint.starts_with(scheme)) {
                return Err(refused(format!("endpoint `{endpoint}` must begin with http:// or https://")));
            }
            if endpoint.starts_with("https://") && config.tls.is_none() {
                return Err(refused(format!("{endpoint} needs the authority it is to be checked by")));
            }
        }
        let mut builder = ureq::Agent::config_builder()
            .timeout_global(Some(config.timeout))
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None);
        if let Some(files) = &config.tls {
            let read = |path: &PathBuf| {
                std::fs::read(path).map_err(|e| Error::Config { why: format!("{}: {e}", path.display()) })
            };
            let certificates = |path: &PathBuf| -> Result<Vec<Certificate<'static>>> {
                let pem = read(path)?;
                let all: Vec<_> = parse_pem(&pem)
                    .filter_map(|item| match item {
                        Ok(PemItem::Certificate(certificate)) => Some(certificate),
                        _ => None,
                    })
                    .collect();
                if all.is_empty() {
                    return Err(Error::Config { why: format!("{} holds no certificate", path.display()) });
                }
                Ok(all)
            };
            let mut tls = TlsConfig::builder()
                .provider(TlsProvider::Rustls)
                .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .root_certs(RootCerts::new_with_certs(&certificates(&files.authorities)?));
            if let Some((certificate, key)) = &files.client {
                let chain = certificates(certificate)?;
                let key = ureq::tls::PrivateKey::from_pem(&read(key)?)
                    .map_err(|e| Error::Config { why: format!("{}: {e}", key.display()) })?;
                tls = tls.client_cert(Some(ClientCert::new_with_certs(&chain, key)));
            }
            builder = builder.tls_config(tls.build());
        }
        let endpoints = config.endpoints.iter().map(|e| e.trim_end_matches('/').to_owned()).collect();
        Ok(Client { agent: builder.build().into(), endpoints, at: Arc::default() })
    }

    /// The endpoints, for messages.
    pub fn endpoints(&self) -> String {
        self.endpoints.join(", ")
    }

    /// Posts `body` to the first endpoint that answers, beginning with the one that did last.
    fn call(&self, path: &str, body: &Value) -> Result<Value> {
        let mut why = String::new();
        let first = self.at.load(Ordering::Relaxed);
        for n in (0..self.endpoints.len()).map(|n| (first + n) % self.endpoints.len()) {
            let endpoint = &self.endpoints[n];
            let answer = self.agent.post(format!("{endpoint}{path}")).send_json(body).and_then(|mut response| {
                let text = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string()?;
                Ok((response.status().as_u16(), text))
            });
            match answer {
                // 5xx: this member has no quorum, or is stopping; another one may have it.
                Ok((status, text)) if status >= 500 => why = format!("{endpoint} answered {status} {}", shown(&text)),
                Ok((200, text)) => {
                    self.at.store(n, Ordering::Relaxed);
                    return serde_json::from_str(&text).map_err(|e| self.nonsense(path, e));
                }
                Ok((status, text)) => {
                    return Err(Error::Refused { path: path.into(), why: format!("{status} {}", shown(&text)) });
                }
                Err(e) => why = format!("{endpoint}: {e}"),
            }
        }
        Err(Error::NoAnswer { endpoints: self.endpoints(), why })
    }

    fn nonsense(&self, path: &str, why: impl ToString) -> Error {
        Error::Nonsense { path: path.into(), endpoints: self.endpoints(), why: why.to_string() }
    }

    /// All keys with `prefix`, in order, at one revision.
    pub fn range(&self, prefix: &str) -> Result<Vec<Pair>> {
        const PATH: &str = "/v3/kv/range";
        let (mut from, mut revision, mut pairs) = (prefix.to_owned(), 0u64, Vec::new());
        loop {
            let answer = self.call(
                PATH,
                &json!({"key": b64(&from), "range_end": b64(end_of(prefix)), "limit": PAGE_KEYS, "revision": revision,
                        "sort_order": "ASCEND", "sort_target": "KEY"}),
            )?;
            pairs.extend(self.pairs(PATH, &answer)?);
            if !answer["more"].as_bool().unwrap_or(false) {
                return Ok(pairs);
            }
            if pairs.len() > RANGE_KEYS_MAX {
                return Err(self.nonsense(PATH, format!("more than {RANGE_KEYS_MAX} keys under {prefix}")));
            }
            revision = number(&answer["header"]["revision"]);
            // The key right after the last one.
            from = pairs.last().map_or(from, |pair: &Pair| format!("{}\0", pair.key));
        }
    }

    /// One key.
    pub fn get(&self, key: &str) -> Result<Option<Pair>> {
        let answer = self.call("/v3/kv/range", &json!({"key": b64(key)}))?;
        Ok(self.pairs("/v3/kv/range", &answer)?.into_iter().next())
    }

    fn pairs(&self, path: &str, answer: &Value) -> Result<Vec<Pair>> {
        let none = Vec::new();
        answer["kvs"].as_array().unwrap_or(&none).iter().map(|kv| self.pair(path, kv)).collect()
    }

    fn pair(&self, path: &str, kv: &Value) -> Result<Pair> {
        let bytes = |field: &str| {
            BASE64
                .decode(kv[field].as_str().unwrap_or_default())
                .map_err(|e| self.nonsense(path, format!("{field}: {e}")))
        };
        let key = String::from_utf8(bytes("key")?).map_err(|e| self.nonsense(path, e))?;
        Ok(Pair { key, value: bytes("value")?, created: number(&kv["create_revision"]), lease: number(&kv["lease"]) })
    }

    /// Runs a transaction.
    pub fn transact(&self, transaction: &Transaction) -> Result<Outcome> {
        const PATH: &str = "/v3/kv/txn";
        let answer = self.call(PATH, &transaction.body)?;
        let none = Vec::new();
        let mut read = Vec::new();
        for response in answer["responses"].as_array().unwrap_or(&none) {
            if !response["response_range"].is_null() {
                read.extend(self.pairs(PATH, &response["response_range"])?);
            }
        }
        // etcd leaves out fields that are false.
        let succeeded = answer["succeeded"].as_bool().unwrap_or(false);
        Ok(Outcome { succeeded, revision: number(&answer["header"]["revision"]), read })
    }

    /// Grants a lease of `ttl_s` seconds, or longer. Returns its number and its actual duration.
    pub fn grant(&self, ttl_s: u64) -> Result<(u64, u64)> {
        let answer = self.call("/v3/lease/grant", &json!({"TTL": ttl_s}))?;
        match (number(&answer["ID"]), number(&answer["TTL"])) {
            (0, _) | (_, 0) => Err(self.nonsense("/v3/lease/grant", "no lease in it")),
            lease => Ok(lease),
        }
    }

    /// Renews lease `id`. Returns its seconds; 0 if it has ended.
    pub fn keep_alive(&self, id: u64) -> Result<u64> {
        let answer = self.call("/v3/lease/keepalive", &json!({"ID": id.to_string()}))?;
        if !answer["error"].is_null() {
            return Err(Error::Refused {
                path: "/v3/lease/keepalive".into(),
                why: shown(&answer["error"].to_string()),
            });
        }
        Ok(number(&answer["result"]["TTL"]))
    }

    /// Ends lease `id` and removes its keys.
    pub fn revoke(&self, id: u64) -> Result<()> {
        self.call("/v3/lease/revoke", &json!({"ID": id.to_string()})).map(|_| ())
    }
}

/// The result of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Whether all conditions held.
    pub succeeded: bool,
    pub revision: u64,
    /// The keys read on the branch taken.
    pub read: Vec<Pair>,
}

/// `if` conditions `then` changes `else` reads.
#[derive(Debug, Clone)]
pub struct Transaction {
    body: Value,
}

impl Default for Transaction {
    fn default() -> Self {
        Transaction { body: json!({"compare": [], "success": [], "failure": []}) }
    }
}

impl Transaction {
    fn add(mut self, part: &str, what: Value) -> Self {
        if let Some(list) = self.body[part].as_array_mut() {
            list.push(what);
        }
        self
    }

    /// Holds if `key` was created at `revision`; 0: if it does not exist.
    pub fn if_created(self, key: &str, revision: u64) -> Self {
        let compare =
            json!({"key": b64(key), "target": "CREATE", "result": "EQUAL", "create_revision": revision.to_string()});
        self.add("compare", compare)
    }

    /// Holds if `key` has `value`.
    pub fn if_value(self, key: &str, value: &[u8]) -> Self {
        self.add("compare", json!({"key": b64(key), "target": "VALUE", "result": "EQUAL", "value": b64(value)}))
    }

    pub fn put(self, key: &str, value: &[u8], lease: u64) -> Self {
        let put = json!({"request_put": {"key": b64(key), "value": b64(value), "lease": lease.to_string()}});
        self.add("success", put)
    }

    /// Removes all keys from `first` up to but not including `end`.
    pub fn remove_range(self, first: &str, end: &str) -> Self {
        self.add("success", json!({"request_delete_range": {"key": b64(first), "range_end": b64(end)}}))
    }

    /// Reads `key` if a condition did not hold.
    pub fn else_get(self, key: &str) -> Self {
        self.add("failure", json!({"request_range": {"key": b64(key)}}))
    }
}

fn b64(bytes: impl AsRef<[u8]>) -> String {
    BASE64.encode(bytes)
}

/// 64-bit numbers are strings in the gateway's JSON; zeros are left out.
fn number(value: &Value) -> u64 {
    value.as_u64().or_else(|| value.as_str()?.parse().ok()).unwrap_or(0)
}

/// The first key after all those with `prefix`, which does not end with the highest character.
pub fn end_of(prefix: &str) -> String {
    let mut end = prefix.to_owned();
    match end.pop().and_then(|last| char::from_u32(last as u32 + 1)) {
        Some(next) => end + &next.to_string(),
        None => "\u{10ffff}".into(),
    }
}

/// The beginning of an answer, for messages.
fn shown(text: &str) -> String {
    text.chars().take(200).collect::<String>().trim().to_owned()
}
