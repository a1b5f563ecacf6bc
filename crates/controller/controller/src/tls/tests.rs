// SPDX-License-Identifier: Apache-2.0

use std::path::PathBuf;

use super::*;
use crate::pki;
use crate::pki::{CA_DAYS, CERTIFICATE_DAYS, Request, init, issue, renew, retire_cas, revoke, rotate_ca};
use fide_controller_api::tls::{ClientTls, Revoked, calling};
use proptest::prelude::*;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

struct Made {
    _scratch: tempfile::TempDir,
    dir: PathBuf,
    server: Files,
    alpha: Files,
}

fn controller() -> Identity {
    "controller.c1".parse().unwrap()
}

fn alpha() -> Identity {
    "host.alpha".parse().unwrap()
}

fn made() -> Made {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("pki");
    let server =
        init(&dir, CA_DAYS, &Request { addresses: vec!["c1.example".into()], ..Request::new(controller()) }).unwrap();
    let alpha = issue(&dir, &Request { addresses: vec!["c1.example".into()], ..Request::new(alpha()) }).unwrap();
    let server = Files::of_member(&server.dir).with_list(Some(dir.join(pki::REVOKED_FILE)));
    Made { _scratch: scratch, dir, server, alpha: Files::of_member(&alpha.dir) }
}

type Pair = (server::TlsStream<DuplexStream>, client::TlsStream<DuplexStream>);

async fn connect(server: &Arc<ServerConfig>, client: &Arc<ClientConfig>, name: &'static str) -> Result<Pair, String> {
    let (a, b) = tokio::io::duplex(64 * 1024);
    let name = ServerName::try_from(name).unwrap();
    let (served, called) =
        tokio::join!(TlsAcceptor::from(server.clone()).accept(a), TlsConnector::from(client.clone()).connect(name, b));
    match (served, called) {
        (Ok(served), Ok(called)) => Ok((served, called)),
        (served, called) => Err(format!("{:?} {:?}", served.err(), called.err())),
    }
}

async fn talk((a, b): &mut Pair) {
    let mut got = [0; 4];
    a.write_all(b"ping").await.unwrap();
    a.flush().await.unwrap();
    b.read_exact(&mut got).await.unwrap();
    b.write_all(b"pong").await.unwrap();
    b.flush().await.unwrap();
    a.read_exact(&mut got).await.unwrap();
    assert_eq!(&got, b"pong");
}

fn peer_of(tls: &ServerTls, pair: &Pair) -> Result<Admitted, NotAdmitted> {
    tls.greet(pair.0.get_ref().1.peer_certificates().unwrap())
}

#[tokio::test]
async fn both_ends_know_each_other() {
    let made = made();
    let (server, client) = (ServerTls::load(made.server).unwrap(), ClientTls::load(made.alpha).unwrap());
    let mut pair = connect(&server.current().config, &client.current().config, "c1.example").await.unwrap();
    talk(&mut pair).await;
    assert_eq!(peer_of(&server, &pair).unwrap().identity, alpha());
    // A controller under another address is not believed.
    assert!(connect(&server.current().config, &client.current().config, "c2.example").await.is_err());
}

#[tokio::test]
async fn host_cannot_be_server_and_stranger_cannot_be_client() {
    let made = made();
    let client = ClientTls::load(made.alpha.clone()).unwrap().current();
    // The host's own certificate has the controller's address, because nobody can check a host's addresses.
    let set = Reloading::load(made.alpha.clone(), |_, contents| Ok(contents.to_vec())).unwrap().current();
    let set = Set::parse(&made.alpha, &set).unwrap();
    let builder = || ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&rustls::version::TLS13]);
    let impostor = builder().unwrap().with_no_client_auth().with_single_cert(set.chain, set.key).unwrap();
    assert!(connect(&Arc::new(impostor), &client.config, "c1.example").await.is_err());
    assert!(matches!(ServerTls::load(made.alpha.clone()), Err(Error::NotIssued { .. })));

    let server = ServerTls::load(made.server).unwrap().current();
    let nobody = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Servers::new(set.roots, Default::default(), provider()).unwrap()))
        .with_no_client_auth();
    assert!(connect(&server.config, &Arc::new(nobody), "c1.example").await.is_err());
    let other = self::made();
    let stranger = ClientTls::load(other.alpha).unwrap().current();
    assert!(connect(&server.config, &stranger.config, "c1.example").await.is_err());
}

#[tokio::test]
async fn revoked_peer_is_refused_on_new_and_open_connections() {
    let made = made();
    let (server, client) = (ServerTls::load(made.server).unwrap(), ClientTls::load(made.alpha).unwrap());
    let mut open = connect(&server.current().config, &client.current().config, "c1.example").await.unwrap();
    let mut peer = peer_of(&server, &open).unwrap();
    revoke(&made.dir, alpha()).unwrap();
    assert_eq!(server.admit(&mut peer), Ok(()));
    server.reload().unwrap();
    let refused = server.admit(&mut peer).unwrap_err().to_string();
    assert!(refused.contains("revoked"), "{refused}");
    talk(&mut open).await;
    assert!(connect(&server.current().config, &client.current().config, "c1.example").await.is_err());
    // The member is let in again with a new certificate.
    renew(&made.dir, alpha(), 1).unwrap();
    client.reload().unwrap();
    let pair = connect(&server.current().config, &client.current().config, "c1.example").await.unwrap();
    peer_of(&server, &pair).unwrap();
}

#[tokio::test]
async fn revoked_controller_is_refused_by_members() {
    let made = made();
    let (server, client) = (ServerTls::load(made.server).unwrap(), ClientTls::load(made.alpha.clone()).unwrap());
    connect(&server.current().config, &client.current().config, "c1.example").await.unwrap();
    // On the list of every member, which reads it by itself.
    revoke(&made.dir, controller()).unwrap();
    let before = client.generation();
    assert!(!client.look() && client.look());
    assert!(client.generation() > before, "who keeps a connection sees that it is to be judged again");
    let refused = connect(&server.current().config, &client.current().config, "c1.example").await.unwrap_err();
    assert!(refused.contains("Revoked"), "{refused}");
    // A list that is gone is no list without entries.
    std::fs::remove_file(made.alpha.revoked.path()).unwrap();
    assert!(!client.look() && !client.look());
    assert!(client.trouble().unwrap().to_string().contains("revoked"));
    assert!(connect(&server.current().config, &client.current().config, "c1.example").await.is_err());
    // A new certificate of that controller is believed.
    renew(&made.dir, controller(), CERTIFICATE_DAYS).unwrap();
    renew(&made.dir, alpha(), CERTIFICATE_DAYS).unwrap();
    server.reload().unwrap();
    client.reload().unwrap();
    connect(&server.current().config, &client.current().config, "c1.example").await.unwrap();
}

#[test]
fn revocation_list_may_be_missing_and_come_later() {
    let made = made();
    let list = made.alpha.revoked.path().clone();
    let text = std::fs::read(&list).unwrap();
    std::fs::remove_file(&list).unwrap();
    let client = ClientTls::load(made.alpha).unwrap();
    assert!(!client.look());
    std::fs::write(&list, text).unwrap();
    assert!(!client.look() && client.look());
    std::fs::remove_file(&list).unwrap();
    assert!(client.reload().is_err(), "it was there");
    // A list that is configured must exist.
    let server = Files { revoked: Revoked::List(list), ..made.server };
    assert!(ServerTls::load(server).unwrap_err().to_string().contains("revoked"));
}

#[tokio::test]
async fn authority_is_replaced_without_cutting_anybody_off() {
    let made = made();
    let (server, client) = (ServerTls::load(made.server).unwrap(), ClientTls::load(made.alpha).unwrap());
    let reconnect = async || connect(&server.current().config, &client.current().config, "c1.example").await;
    let mut open = reconnect().await.unwrap();
    let mut peer = peer_of(&server, &open).unwrap();
    rotate_ca(&made.dir, CA_DAYS).unwrap();
    // The members may be renewed in any order.
    server.reload().unwrap();
    reconnect().await.unwrap();
    client.reload().unwrap();
    renew(&made.dir, controller(), CERTIFICATE_DAYS).unwrap();
    server.reload().unwrap();
    reconnect().await.unwrap();
    renew(&made.dir, alpha(), CERTIFICATE_DAYS).unwrap();
    client.reload().unwrap();
    reconnect().await.unwrap();
    assert_eq!(server.admit(&mut peer), Ok(()));
    retire_cas(&made.dir).unwrap();
    server.reload().unwrap();
    client.reload().unwrap();
    reconnect().await.unwrap();
    // The connection from before is still open, but its certificate is not accepted any more.
    talk(&mut open).await;
    assert!(server.admit(&mut peer).unwrap_err().to_string().contains("believed no more"));
}

#[tokio::test]
async fn half_written_or_mismatching_files_are_not_taken() {
    let made = made();
    let server = ServerTls::load(made.server.clone()).unwrap();
    let client = ClientTls::load(made.alpha).unwrap().current();
    let works = async || connect(&server.current().config, &client.config, "c1.example").await.is_ok();
    for path in made.server.list() {
        let whole = std::fs::read(&path).unwrap();
        let mut cut = whole[..whole.len() / 2].to_vec();
        cut.extend(b"zzz");
        std::fs::write(&path, &cut).unwrap();
        let refused = server.reload().unwrap_err();
        assert!(refused.to_string().contains(path.to_str().unwrap()), "{refused}");
        assert_eq!(server.trouble(), Some(refused));
        assert!(works().await);
        std::fs::write(&path, &whole).unwrap();
        server.reload().unwrap();
        assert_eq!(server.trouble(), None);
    }
    // A new certificate with the old key.
    let key = std::fs::read(&made.server.key).unwrap();
    renew(&made.dir, controller(), 5).unwrap();
    let new_key = std::fs::read(&made.server.key).unwrap();
    std::fs::write(&made.server.key, key).unwrap();
    assert!(matches!(server.reload(), Err(Error::Mismatch { .. })), "{:?}", server.trouble());
    assert!(works().await);
    std::fs::write(&made.server.key, new_key).unwrap();
    server.reload().unwrap();
    assert!(works().await);
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&made.server.key, PermissionsExt::from_mode(0o604)).unwrap();
    assert!(server.reload().unwrap_err().to_string().contains("chmod 600"));
    std::fs::remove_file(&made.server.certificate).unwrap();
    let gone = server.reload().unwrap_err();
    assert!(matches!(&gone, Error::Read { kind: std::io::ErrorKind::NotFound, .. }), "{gone:?}");
    assert!(gone.to_string().contains("cert.pem"), "{gone}");
    assert!(works().await);
}

#[test]
fn changed_files_are_read_once_they_rest() {
    let made = made();
    let server = ServerTls::load(made.server.clone()).unwrap();
    let first = server.current().own.serial.clone();
    assert!(!server.look() && !server.look());
    renew(&made.dir, controller(), 5).unwrap();
    // Noticed, but the change may not be complete.
    assert!(!server.look());
    assert!(server.look());
    assert_ne!(server.current().own.serial, first);
    assert!(!server.look());
    // A bad set is reported once and not read over and over.
    std::fs::write(&made.server.authorities, "nonsense").unwrap();
    assert!(!server.look() && !server.look() && !server.look());
    assert!(server.trouble().unwrap().to_string().contains("ca.pem"));
    assert_eq!(server.inner.generation(), 2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Garbage in any of the files is refused with a reason, or is harmless.
    #[test]
    fn garbage_never_panics(which in 0..4usize, garbage in prop::collection::vec(any::<u8>(), 0..300), at in any::<prop::sample::Index>()) {
        static FILES: std::sync::OnceLock<(Files, Vec<Vec<u8>>)> = std::sync::OnceLock::new();
        let (files, contents) = FILES.get_or_init(|| {
            let made = made();
            let contents = made.server.list().iter().map(|path| std::fs::read(path).unwrap()).collect();
            (made.server, contents)
        });
        let mut changed = contents.clone();
        let at = at.index(changed[which].len() + 1);
        changed[which].splice(at..at, garbage.iter().copied());
        let _ = serving(files, &changed);
        let _ = calling(files, &changed);
        changed[which] = garbage;
        if which < 3 {
            prop_assert!(serving(files, &changed).is_err());
        }
        let _ = serving(files, &changed);
    }
}
