// SPDX-License-Identifier: Apache-2.0

use super::*;
use proptest::prelude::*;

#[test]
fn identity_is_a_role_and_a_name() {
    let host: Identity = "host.a.b_C-1".parse().unwrap();
    assert_eq!((host.role, host.name.as_str()), (Role::Host, "a.b_C-1"));
    assert_eq!(host.uri(), "fide:host.a.b_C-1");
    assert_eq!(serde_json::from_value::<Identity>(serde_json::json!("operator.ann")).unwrap().role, Role::Operator);
    for bad in ["", "host", "host.", "root.a", "Host.a", "host.a b", "host.a/b", &format!("host.{}", "x".repeat(32))] {
        assert!(bad.parse::<Identity>().is_err(), "{bad}");
    }
    let long = "x".repeat(100_000).parse::<Identity>().unwrap_err().to_string();
    assert!(long.len() < 200 && long.contains("host.NAME"), "{long}");
}

proptest! {
    #[test]
    fn no_text_and_no_certificate_panics(text in ".{0,80}", bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        if let Ok(identity) = text.parse::<Identity>() {
            prop_assert_eq!(identity.to_string(), text);
        }
        prop_assert!(Identity::of_certificate(&bytes).is_err());
    }

    /// Bytes changed in a real certificate.
    #[test]
    fn damaged_certificate_never_panics(at in any::<prop::sample::Index>(), to in any::<u8>(), cut in any::<prop::sample::Index>()) {
        let mut der = real();
        let at = at.index(der.len());
        der[at] = to;
        let _ = Identity::of_certificate(&der);
        let _ = Identity::of_certificate(&der[..cut.index(der.len())]);
    }
}

fn real() -> Vec<u8> {
    static DER: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
    DER.get_or_init(|| {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec!["somewhere".into()]).unwrap();
        params.subject_alt_names.push(rcgen::SanType::URI("fide:host.alpha".try_into().unwrap()));
        let der = params.self_signed(&key).unwrap().der().to_vec();
        assert_eq!(Identity::of_certificate(&der).unwrap().to_string(), "host.alpha");
        der
    })
    .clone()
}

#[test]
fn certificate_with_two_or_no_identities_is_refused() {
    let key = rcgen::KeyPair::generate().unwrap();
    let der = |uris: &[&str]| {
        let mut params = rcgen::CertificateParams::new(vec!["host.alpha".into(), "operator.x".into()]).unwrap();
        for uri in uris {
            params.subject_alt_names.push(rcgen::SanType::URI((*uri).try_into().unwrap()));
        }
        params.self_signed(&key).unwrap().der().to_vec()
    };
    assert_eq!(Identity::of_certificate(&der(&[])), Err(IdentityError::Absent));
    assert_eq!(Identity::of_certificate(&der(&["https://a", "fide:host.b"])).unwrap().to_string(), "host.b");
    let two = Identity::of_certificate(&der(&["fide:host.a", "fide:operator.a"]));
    assert_eq!(two, Err(IdentityError::Several { count: 2 }));
}
