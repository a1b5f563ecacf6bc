// SPDX-License-Identifier: Apache-2.0
use super::*;

pub(crate) fn cluster(n: u16) -> Config {
    let all = HostSet::first(usize::from(n));
    Config {
        me: 1,
        incarnation: 1,
        members: (1..=n)
            .map(|id| {
                let mut monitors = all;
                monitors.remove(id);
                Member { id, name: format!("h{id}").parse().unwrap(), role: Role::Voter, monitors }
            })
            .collect(),
        planes: 2,
        heartbeat_ns: 1_000_000,
        trust: Trust::Lease,
        policy: Policy::Majority,
        timeout_ns: 5_000_000,
        stall_slack_ns: 1_000_000,
        drift_ppm: DRIFT_PPM,
        piggyback_max: PIGGYBACK_MAX,
        payload_max: PAYLOAD_MAX,
    }
}

#[test]
fn valid_config_passes_and_each_invalid_one_is_refused() {
    assert_eq!(cluster(3).validate(), Ok(()));
    assert_eq!(cluster(64).validate(), Ok(()));
    let with = |f: &dyn Fn(&mut Config)| {
        let mut c = cluster(3);
        f(&mut c);
        c.validate().unwrap_err()
    };
    assert_eq!(with(&|c| c.members.clear()), ConfigError::Members { count: 0 });
    assert_eq!(with(&|c| c.members[1].id = 5), ConfigError::Id { at: 2, id: 5 });
    assert!(matches!(with(&|c| c.members[1].name = c.members[0].name), ConfigError::DuplicateName { .. }));
    assert_eq!(with(&|c| c.me = 4), ConfigError::UnknownMe { me: 4 });
    assert_eq!(with(&|c| c.incarnation = 0), ConfigError::Incarnation);
    assert_eq!(with(&|c| c.members[0].monitors.insert(1)), ConfigError::Monitors { id: 1 });
    assert_eq!(with(&|c| c.members[0].monitors.insert(9)), ConfigError::Monitors { id: 1 });
    assert_eq!(with(&|c| c.planes = 3), ConfigError::Planes { planes: 3 });
    assert_eq!(with(&|c| c.heartbeat_ns = 0), ConfigError::Heartbeat);
    assert!(matches!(with(&|c| c.timeout_ns = 1_000_000), ConfigError::TimeoutTooShort { .. }));
    assert!(matches!(with(&|c| c.timeout_ns = u64::MAX), ConfigError::TimeoutTooLong { .. }));
    assert_eq!(with(&|c| c.drift_ppm = 100_000), ConfigError::Drift { drift_ppm: 100_000 });
    assert_eq!(with(&|c| c.members[1].monitors.remove(3)), ConfigError::MajorityMonitors { id: 2, missing: 3 });
    assert_eq!(with(&|c| c.members.iter_mut().for_each(|m| m.role = Role::Observer)), ConfigError::NoVoter);
    let need = cluster(3).payload_min();
    assert_eq!(with(&|c| c.payload_max = need - 1), ConfigError::Payload { payload_max: need - 1, need });
    assert!(matches!(with(&|c| c.payload_max = PAYLOAD_MAX + 1), ConfigError::Payload { .. }));
    let error = with(&|c| c.timeout_ns = 2_000_000);
    let ConfigError::LeaseTimeout { need_ns, .. } = error else { panic!("{error}") };
    let mut c = cluster(3);
    c.timeout_ns = need_ns;
    assert_eq!(c.validate(), Ok(()), "what the error asks for is accepted");
    c.timeout_ns = 2_000_000;
    c.trust = Trust::Network;
    assert_eq!(c.validate(), Ok(()));
}

#[test]
fn timeout_is_the_published_formula() {
    assert_eq!(timeout_ns(100, 5, 7), 119);
    assert_eq!(timeout_ns(u64::MAX, 5, 7), u64::MAX);
}

#[test]
fn piggyback_grant_fits_beside_the_fixed_parts() {
    let mut c = cluster(2);
    c.trust = Trust::Network;
    c.policy = Policy::Network;
    assert_eq!(c.piggyback_grant(), PIGGYBACK_MAX);
    assert_eq!(cluster(2).piggyback_grant(), 1408);
    assert_eq!(cluster(64).piggyback_grant(), 1472 - 28 - 8 * 63 - 12 - 8 - 8);
    let mut c = cluster(2);
    c.piggyback_max = 64;
    assert_eq!(c.piggyback_grant(), 64);
    let mut c = cluster(2);
    c.payload_max = 600;
    assert_eq!(c.piggyback_grant(), 600 - (1472 - 1408));
}
