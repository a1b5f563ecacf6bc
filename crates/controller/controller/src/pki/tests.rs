// SPDX-License-Identifier: Apache-2.0

use fide_controller_api::identity::{Identity, Role};

use super::*;
use std::os::unix::fs::PermissionsExt;

fn controller() -> Request {
    let identity = Identity::new(Role::Controller, "c1".parse().unwrap());
    Request { addresses: vec!["127.0.0.1".into(), "localhost".into()], ..Request::new(identity) }
}

fn host(name: &str) -> Request {
    Request::new(Identity::host(name).unwrap())
}

fn made() -> (tempfile::TempDir, PathBuf) {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("pki");
    init(&dir, CA_DAYS, &controller()).unwrap();
    (scratch, dir)
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn keys_are_for_their_owner_only() {
    let (_scratch, dir) = made();
    let issued = issue(&dir, &host("alpha")).unwrap();
    for private in [&dir, &dir.join(ISSUED_DIR), &issued.dir] {
        assert_eq!(mode(private), 0o700, "{}", private.display());
    }
    for key in [dir.join(CA_KEY_FILE), issued.dir.join(KEY_FILE)] {
        assert_eq!(mode(&key), 0o600, "{}", key.display());
    }
    let open = tempfile::tempdir().unwrap();
    std::fs::set_permissions(open.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let refused = init(open.path(), 1, &controller()).unwrap_err().to_string();
    assert!(refused.contains("mode 755") && refused.contains("chmod 700"), "{refused}");
    assert_eq!(std::fs::read_dir(open.path()).unwrap().count(), 0);
}

#[test]
fn existing_files_are_replaced_only_with_overwrite() {
    let (_scratch, dir) = made();
    let ca = std::fs::read(dir.join(CA_FILE)).unwrap();
    assert!(matches!(init(&dir, CA_DAYS, &controller()), Err(Error::Exists { .. })));
    let first = issue(&dir, &host("alpha")).unwrap();
    let refused = issue(&dir, &host("alpha")).unwrap_err();
    assert!(refused.to_string().contains("--overwrite"), "{refused}");
    assert_eq!(Certificate::read(&first.dir.join(CERTIFICATE_FILE), "").unwrap(), first.certificate);
    let second = issue(&dir, &Request { overwrite: true, ..host("alpha") }).unwrap();
    assert_ne!(second.certificate.serial, first.certificate.serial);
    assert_eq!(std::fs::read(dir.join(CA_FILE)).unwrap(), ca);
    init(&dir, CA_DAYS, &Request { overwrite: true, ..controller() }).unwrap();
    assert_ne!(std::fs::read(dir.join(CA_FILE)).unwrap(), ca);
}

#[test]
fn certificate_has_name_addresses_and_expiry() {
    let (_scratch, dir) = made();
    let addresses: Vec<String> = ["10.0.0.1", "fd00::1", "alpha.example"].map(String::from).to_vec();
    let issued = issue(&dir, &Request { addresses: addresses.clone(), days: 30, ..host("alpha") }).unwrap().certificate;
    assert_eq!(issued.identity, Some(Identity::host("alpha").unwrap()));
    assert_eq!(issued.addresses, addresses);
    assert_eq!(issued.not_after_s - issued.not_before_s, 30 * 86_400 + CLOCK_SKEW_S);
    let renewed = renew(&dir, issued.identity.unwrap(), 60).unwrap().certificate;
    assert_eq!((renewed.addresses, renewed.identity), (issued.addresses, issued.identity));
    assert!(renewed.not_after_s > issued.not_after_s && renewed.serial != issued.serial);
    assert!(matches!(renew(&dir, Identity::host("beta").unwrap(), 1), Err(Error::Missing { .. })));
}

#[test]
fn invalid_requests_are_refused_before_writing() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("pki");
    assert!(matches!(init(&dir, CA_DAYS, &Request { addresses: vec![], ..controller() }), Err(Error::NoAddress)));
    assert!(matches!(init(&dir, 0, &controller()), Err(Error::Days { days: 0 })));
    for bad in ["", "a b", "-", "http://x", "1.2.3.4.5/8", "ü"] {
        let refused = init(&dir, 1, &Request { addresses: vec![bad.into()], ..controller() });
        assert!(matches!(refused, Err(Error::Address { .. })), "{bad}");
    }
    let many = vec!["a".to_string(); ADDRESSES_MAX + 1];
    assert!(matches!(init(&dir, 1, &Request { addresses: many, ..controller() }), Err(Error::TooManyAddresses { .. })));
    assert!(!dir.exists());
    let refused = issue(&dir, &host("alpha")).unwrap_err();
    assert!(refused.to_string().contains("fide controller init"), "{refused}");
}

#[test]
fn authority_is_replaced_in_steps() {
    let (_scratch, dir) = made();
    let alpha = issue(&dir, &host("alpha")).unwrap();
    rotate_ca(&dir, CA_DAYS).unwrap();
    assert_eq!(status(&dir).unwrap().iter().filter(|e| e.certificate.as_ref().unwrap().identity.is_none()).count(), 2);
    let bundle = std::fs::read_to_string(dir.join(CA_FILE)).unwrap();
    assert_eq!(std::fs::read_to_string(alpha.dir.join(CA_FILE)).unwrap(), bundle);
    let early = retire_cas(&dir).unwrap_err();
    assert!(early.to_string().contains("renew or revoke"), "{early}");
    revoke(&dir, Identity::host("alpha").unwrap()).unwrap();
    renew(&dir, controller().identity, 10).unwrap();
    retire_cas(&dir).unwrap();
    let left = status(&dir).unwrap();
    assert_eq!(left.iter().filter(|e| e.certificate.as_ref().unwrap().identity.is_none()).count(), 1);
    assert!(!dir.join("ca.key.old").exists());
    // The key still fits the authority that is left.
    issue(&dir, &host("beta")).unwrap();
}

#[test]
fn status_lists_certificates_and_their_errors() {
    let (_scratch, dir) = made();
    issue(&dir, &host("alpha")).unwrap();
    let beta = issue(&dir, &host("beta")).unwrap();
    let serial = revoke(&dir, Identity::host("alpha").unwrap()).unwrap();
    assert_eq!(revoke(&dir, Identity::host("alpha").unwrap()).unwrap(), serial);
    std::fs::write(beta.dir.join(CERTIFICATE_FILE), "-----BEGIN CERTIFICATE-----\nAAAA\n").unwrap();
    let entries = status(&dir).unwrap();
    let of = |name: &str| entries.iter().find(|e| e.path.to_string_lossy().contains(name)).unwrap();
    assert!(of("host.alpha").revoked && of("host.alpha").current);
    assert!(of("host.beta").certificate.is_err() && !of("controller.c1").revoked);
    assert_eq!(entries.len(), 4);
    std::fs::write(dir.join(REVOKED_FILE), "zz\n").unwrap();
    assert!(status(&dir).unwrap_err().to_string().contains("line 1"));
    std::fs::write(dir.join(CA_KEY_FILE), rcgen::KeyPair::generate().unwrap().serialize_pem()).unwrap();
    assert!(issue(&dir, &host("gamma")).unwrap_err().to_string().contains("is not the key"));
}
