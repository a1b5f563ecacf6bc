// SPDX-License-Identifier: Apache-2.0
//! Starts all parts of the controller, until a signal ends it.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fide_controller_api::identity::{Identity, Role};
use fide_controller_api::tls::{self, Files};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sd_notify::NotifyState;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::cables;
use crate::config::{Config, EtcdSection, Place};
use crate::core::{Core, Event};
use crate::etcd::{Client, Config as EtcdConfig, TlsFiles};
use crate::leader::{Candidate, Elected, ElectedOptions, Leadership, LockError, Single};
use crate::server::{Limits, Server};
use crate::shell::Shell;
use crate::store::{self, Etcd, Redb};
use crate::switches::{Pace, Switches};
use crate::tls::ServerTls;

/// Threads that serve connections.
const SERVING_THREADS: usize = 2;
/// File descriptors that are not connections: the store, etcd, the log, the runtime's own.
const DESCRIPTORS: u64 = 128;
/// For each switch: its sockets, and one to watch its carriers.
const DESCRIPTORS_PER_SWITCH: u64 = 4;
/// How often to check that the deciding thread still runs.
const LOOK_PERIOD: Duration = Duration::from_millis(500);

/// Why a controller does not run, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("credentials: {0}")]
    Tls(tls::Error),
    #[error("revoked: {0}")]
    Revoked(tls::Error),
    #[error("store: {}: {why}; give a file in a directory where this user may write", path.display())]
    Place { path: PathBuf, why: std::io::Error },
    #[error("credentials {}: they are those of {who}; a controller needs its own, made by `fide controller init`", path.display())]
    NotAController { path: PathBuf, who: String },
    #[error(transparent)]
    Limits(#[from] fide_planner::limits::LimitsError),
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error(transparent)]
    Etcd(#[from] crate::etcd::Error),
    #[error("listening at {address}: {why}")]
    Listen { address: SocketAddr, why: std::io::Error },
    #[error("starting: {0}")]
    Io(std::io::Error),
    #[error("the deciding thread has failed, which is a fault of this program; the log says where")]
    Failed,
}

impl From<std::io::Error> for RunError {
    fn from(why: std::io::Error) -> Self {
        Self::Io(why)
    }
}

/// What a controller has read before it begins.
struct Prepared {
    tls: Arc<ServerTls>,
    identity: Identity,
    core: Core,
}

/// Reads what [`run`] reads and looks where it would write, and changes nothing.
///
/// # Errors
/// Those with which [`run`] would refuse to start, but for what others do: an address or a lock that is
/// taken, etcd that does not answer.
pub fn check(config: &Config) -> Result<(), RunError> {
    prepare(config).map(drop)
}

fn prepare(config: &Config) -> Result<Prepared, RunError> {
    let files = Files::of_member(&config.credentials).with_list(config.revoked.clone());
    let tls = Arc::new(ServerTls::load(files).map_err(|error| by_key(config, error))?);
    let identity = identity(config, &tls)?;
    let core = Core::new(config.topology.clone(), config.limits.clone(), config.options.clone())?;
    match &config.place {
        Place::File(path) => look_at_store(path)?,
        Place::Etcd(etcd) => drop(client(etcd)?),
    }
    Ok(Prepared { tls, identity, core })
}

/// With the key of the file that is wrong.
fn by_key(config: &Config, error: tls::Error) -> RunError {
    match &error {
        tls::Error::Read { path, .. } | tls::Error::File { path, .. } if config.revoked.as_ref() == Some(path) => {
            RunError::Revoked(error)
        }
        _ => RunError::Tls(error),
    }
}

/// Whether the store can be opened there, or made.
fn look_at_store(store: &Path) -> Result<(), RunError> {
    let wrong = |path: &Path, why| RunError::Place { path: path.to_owned(), why };
    let may = |path: &Path, access: Access| {
        accessat(CWD, path, access, AtFlags::EACCESS).map_err(|errno| wrong(path, errno.into()))
    };
    let dir = store.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !dir.metadata().map_err(|why| wrong(dir, why))?.is_dir() {
        return Err(wrong(dir, ErrorKind::NotADirectory.into()));
    }
    // The store and, beside it, its lock are made unless they are there.
    let is_made = store.exists() && lock_of(store).exists();
    may(dir, if is_made { Access::EXEC_OK } else { Access::WRITE_OK | Access::EXEC_OK })?;
    match store.metadata() {
        Ok(meta) if meta.is_dir() => Err(wrong(store, ErrorKind::IsADirectory.into())),
        Ok(_) => may(store, Access::READ_OK | Access::WRITE_OK),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(why) => Err(wrong(store, why)),
    }
}

/// The file that a controller locks while it has the store open.
fn lock_of(store: &Path) -> PathBuf {
    let mut lock = OsString::from(store);
    lock.push(".lock");
    lock.into()
}

/// Runs a controller until SIGTERM or SIGINT. SIGHUP reads the certificates again. `restore`: at the end
/// every switch gets its earlier state back; otherwise its rules stay, and lanes go on without a
/// controller.
///
/// # Errors
/// [`RunError`]; whatever was started is ended.
pub fn run(config: Config, restore: bool) -> Result<(), RunError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(SERVING_THREADS)
        .thread_name("fide-serve")
        .enable_all()
        .build()?;
    // Before the controller is visible to anybody who might end it.
    let signals = runtime.block_on(async { Signals::new() })?;
    let limits = limits(config.switches.len() as u64);
    let Prepared { tls, identity, core } = prepare(&config)?;
    let switches = Switches::new(config.switch_specs());
    let act = switches.act();
    let listener = runtime
        .block_on(TcpListener::bind(config.listen))
        .map_err(|why| RunError::Listen { address: config.listen, why })?;
    let (shell, leadership): (Shell<Event>, Arc<dyn Leadership + Send + Sync>) = match &config.place {
        Place::File(path) => {
            let lock = Single::lock(&lock_of(path), identity.name.as_str())?;
            let mut store = Redb::open(path)?;
            let leads: Arc<dyn Leadership + Send + Sync> = Arc::new(lock.lead(store.last_epoch()?));
            (Shell::start(core, store, leads.clone(), act)?, leads)
        }
        Place::Etcd(etcd) => {
            let client = client(etcd)?;
            let address = etcd.advertise.clone().unwrap_or_else(|| config.listen.to_string());
            let candidate = Candidate { name: identity.name.to_string(), address };
            let options = ElectedOptions { prefix: etcd.prefix.clone(), candidate, ttl_s: etcd.ttl_s };
            let leads: Arc<dyn Leadership + Send + Sync> = Arc::new(Elected::start(client.clone(), options)?);
            (Shell::start(core, Etcd::new(client, &etcd.prefix), leads.clone(), act)?, leads)
        }
    };
    let pace = Pace { audit: config.audit, ..Pace::default() };
    let switches = switches.start(shell.event_sender(), leadership, pace)?;
    let looking = cables::Looking::start(&config)?;
    let server = Server::new(tls.clone(), shell.request_sender(), limits);
    tracing::info!("controller {} listens at {}", identity.name, config.listen);
    let done = runtime.block_on(serve(server, listener, tls, &shell, signals));
    say(&[NotifyState::Stopping]);
    looking.stop();
    shell.stop();
    switches.stop(restore);
    done
}

/// As many connections as there are file descriptors left after everything else has its own: clients must
/// not be able to keep the store from being opened.
fn limits(switches: u64) -> Limits {
    let limits = Limits::default();
    let others = DESCRIPTORS + switches.saturating_mul(DESCRIPTORS_PER_SWITCH);
    let wanted = limits.connections as u64 + others;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= wanted) {
        return limits;
    }
    let raised = Rlimit { current: Some(maximum.map_or(wanted, |maximum| maximum.min(wanted))), maximum };
    let have = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => raised.current.unwrap_or(wanted),
        Err(_) => current.unwrap_or(wanted),
    };
    if have >= wanted {
        return limits;
    }
    let connections = usize::try_from(have.saturating_sub(others)).unwrap_or(limits.connections).max(1);
    tracing::warn!(
        "{have} file descriptors are allowed: {connections} connections instead of {}; allow {wanted} (LimitNOFILE=, ulimit -n)",
        limits.connections
    );
    Limits { connections, handshakes: limits.handshakes.min(connections.div_ceil(2)), ..limits }
}

fn identity(config: &Config, tls: &ServerTls) -> Result<Identity, RunError> {
    match tls.current().own.identity {
        Some(identity) if identity.role == Role::Controller => Ok(identity),
        other => {
            let who = other.map_or_else(|| "nobody".to_owned(), |identity| identity.to_string());
            Err(RunError::NotAController { path: config.credentials.clone(), who })
        }
    }
}

fn client(etcd: &EtcdSection) -> Result<Client, RunError> {
    let pair = etcd.certificate.clone().zip(etcd.key.clone());
    let tls = etcd.authorities.clone().map(|authorities| TlsFiles { authorities, client: pair });
    let timeout = Duration::from_millis(etcd.timeout_ms);
    Ok(Client::new(&EtcdConfig { endpoints: etcd.endpoints.clone(), tls, timeout })?)
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }
}

async fn serve(
    server: Server,
    listener: TcpListener,
    tls: Arc<ServerTls>,
    shell: &Shell<Event>,
    mut signals: Signals,
) -> Result<(), RunError> {
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(server.run(listener, async {
        let _ = ended.await;
    }));
    let watching = tokio::spawn({
        let tls = tls.clone();
        async move { tls.watch().await }
    });
    say(&[NotifyState::Ready]);
    let done = loop {
        tokio::select! {
            _ = signals.terminate.recv() => break Ok(()),
            _ = signals.interrupt.recv() => break Ok(()),
            _ = signals.hangup.recv() => match tls.reload() {
                Ok(()) => tracing::info!("the certificates are read again"),
                Err(why) => tracing::warn!("the certificates stay as they were: {why}"),
            },
            () = tokio::time::sleep(LOOK_PERIOD) => if !shell.is_running() {
                break Err(RunError::Failed);
            },
        }
    };
    tracing::info!("ends");
    watching.abort();
    drop(end);
    let _ = serving.await;
    done
}

fn say(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(false, state) {
        tracing::warn!("the service manager could not be notified: {error}");
    }
}
