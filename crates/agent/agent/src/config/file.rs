// SPDX-License-Identifier: Apache-2.0
//! The file as it is written. An unknown key is an error: it is a misspelt one.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
};

use serde::Deserialize;

use super::{ExitRung, Limits, Mode, Policy, ReceiveRung, Role, Trust, UnlistedNames};

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct File {
    pub(super) cluster: ClusterTable,
    pub(super) plane: Vec<PlaneTable>,
    pub(super) member: Vec<MemberTable>,
    pub(super) agent: AgentTable,
    pub(super) name: Vec<NameTable>,
    pub(super) limits: Limits,
    pub(super) controller: Option<ControllerTable>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ControllerTable {
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) credentials: PathBuf,
    pub(super) packet_max_bytes: Option<usize>,
    pub(super) salvage: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NameTable {
    pub(super) pattern: String,
    #[serde(default)]
    pub(super) users: Vec<String>,
    #[serde(default)]
    pub(super) groups: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PlaneTable {
    pub(super) group: Option<Ipv4Addr>,
    pub(super) windows: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MemberTable {
    pub(super) name: String,
    #[serde(default)]
    pub(super) addresses: Vec<Ipv4Addr>,
    #[serde(default)]
    pub(super) role: Role,
    pub(super) monitors: Option<Vec<String>>,
}

macro_rules! table {
    ($name:ident { $($field:ident: $type:ty,)* }) => {
        #[derive(Debug, Default, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub(super) struct $name {
            $(pub(super) $field: Option<$type>,)*
        }

        impl $name {
            /// Takes each key that `over` has.
            pub(super) fn override_with(&mut self, over: Self) {
                $(if over.$field.is_some() {
                    self.$field = over.$field;
                })*
            }
        }
    };
}

table!(ClusterTable {
    name: String,
    key_file: PathBuf,
    trust: Trust,
    policy: Policy,
    heartbeat_us: u64,
    timeout_us: u64,
    drift_ppm: u32,
    port: u16,
    key_overlap_ms: u64,
});

table!(AgentTable {
    mode: Mode,
    core: usize,
    receive: ReceiveRung,
    exit_watch: ExitRung,
    calibrate_ms: u64,
    runtime_dir: PathBuf,
    state_dir: PathBuf,
    unlisted_names: UnlistedNames,
});
