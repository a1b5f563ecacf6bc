// SPDX-License-Identifier: Apache-2.0
use super::*;

#[test]
fn missing_socket_is_named() {
    let why = ask(Path::new("/nonexistent/agent.sock"), "status", json!({})).unwrap_err();
    assert!(why.contains("status at /nonexistent/agent.sock"), "{why}");
}

fn table(spec: &AgentsSpec, host: usize) -> toml::Table {
    let hosts: Vec<_> = (1..=3).map(|h| Host::nowhere(h, 2)).collect();
    spec.toml(&hosts, host).parse().unwrap()
}

#[test]
fn the_configuration_names_every_member_and_plane() {
    let t = table(&AgentsSpec::default(), 1);
    assert_eq!(t["cluster"]["trust"].as_str(), Some("lease"));
    assert_eq!(t["cluster"]["heartbeat_us"].as_integer(), Some(1000));
    assert!(t["cluster"].get("timeout_us").is_none());
    assert_eq!(t["plane"][1]["group"].as_str(), Some("239.70.0.2"));
    assert_eq!(t["member"].as_array().unwrap().len(), 3);
    assert_eq!(t["member"][2]["name"].as_str(), Some("h3"));
    assert_eq!(t["member"][2]["addresses"][1].as_str(), Some("10.70.2.3"));
    assert_eq!(t["agent"]["mode"].as_str(), Some("sleep"));
    assert!(t["agent"].get("core").is_none());
}

#[test]
fn hosts_may_differ_and_unicast_has_no_groups() {
    let busy = AgentSpec { mode: "busy".into(), core: Some(1), extra: "# more".into(), ..AgentSpec::default() };
    let spec = AgentsSpec {
        multicast: false,
        timeout_us: Some(5000),
        cluster_extra: "x = 1".into(),
        member_extra: BTreeMap::from([(3, "role = \"observer\"".into())]),
        overrides: BTreeMap::from([(2, busy)]),
        ..AgentsSpec::default()
    };
    let (one, two) = (table(&spec, 1), table(&spec, 2));
    assert_eq!((one["agent"]["mode"].as_str(), two["agent"]["mode"].as_str()), (Some("sleep"), Some("busy")));
    assert_eq!(two["agent"]["core"].as_integer(), Some(1));
    assert_eq!(two["cluster"]["timeout_us"].as_integer(), Some(5000));
    assert_eq!(two["cluster"]["x"].as_integer(), Some(1));
    assert_eq!(two["member"][2]["role"].as_str(), Some("observer"));
    assert_eq!(two["plane"].as_array().unwrap().len(), 2);
    assert!(two["plane"][0].get("group").is_none());
}
