// SPDX-License-Identifier: Apache-2.0
//! Which path does what, and for which role.

use fide_controller_api::Method;
use fide_controller_api::identity::Role;
use fide_controller_api::paths::{self, template};
use serde::Serialize;
use serde_json::{Value, json};

use super::asked::Done;
use super::{Core, Out};
use crate::handler::{Peer, Request, Route};

/// The action of a request.
#[derive(Clone, Copy)]
pub(super) enum Action {
    Change(fn(&mut Core, &mut Out, &Peer, &Request) -> Done<Value>),
    Read(fn(&Core, &Peer, &Request) -> Done<Value>),
}

use Action::{Change, Read};
use Method::{Delete, Get, Post, Put};

const HOST: &[Role] = &[Role::Host];
const BOTH: &[Role] = &[Role::Host, Role::Operator];
const OPERATOR: &[Role] = &[Role::Operator];

const ROUTES: [(Method, &str, &[Role], Action); 17] = [
    (Post, paths::LANES, HOST, Change(|core, out, peer, asked| json(core.request_lane(out, peer, &asked.body)))),
    (
        Put,
        template::LANE,
        HOST,
        Change(|core, out, peer, asked| json(core.change_lane(out, peer, lane(asked), &asked.body))),
    ),
    (Delete, template::LANE, BOTH, Change(|core, out, peer, asked| json(core.release_lane(out, peer, lane(asked))))),
    (Get, paths::LANES, BOTH, Read(|core, peer, _| json(Ok(core.lanes_of(peer))))),
    (Get, template::LANE, BOTH, Read(|core, peer, asked| json(core.lane_of(peer, lane(asked))))),
    (
        Post,
        template::USAGE,
        HOST,
        Change(|core, out, peer, asked| json(core.usage(out, peer, lane(asked), &asked.body))),
    ),
    (
        Post,
        template::MOVED,
        HOST,
        Change(|core, out, peer, asked| json(core.moved(out, peer, lane(asked), &asked.body))),
    ),
    (
        Post,
        template::LANE_REPORTS,
        HOST,
        Change(|core, out, peer, asked| json(core.report(out, peer, lane(asked), &asked.body))),
    ),
    (Post, paths::REPORTS, HOST, Change(|core, out, peer, asked| json(core.reports(out, peer, &asked.body)))),
    (Post, paths::APPS, HOST, Change(|core, out, peer, asked| json(core.join(out, peer, &asked.body)))),
    (Delete, template::APP, HOST, Change(|core, out, peer, asked| json(core.quit(out, peer, app(asked))))),
    (Post, paths::MONITORS, HOST, Change(|core, out, peer, asked| json(core.monitor(out, peer, &asked.body)))),
    (Delete, template::MONITOR, HOST, Change(|core, out, peer, asked| json(core.unmonitor(out, peer, app(asked))))),
    (Get, paths::CLUSTER, BOTH, Read(|core, _, _| json(Ok(core.cluster())))),
    (Get, paths::NETWORK, BOTH, Read(|core, _, _| json(Ok(core.network())))),
    (
        Put,
        template::CABLE,
        OPERATOR,
        Change(|core, out, _, asked| json(core.set_cable(out, asked.parameter("cable"), &asked.body))),
    ),
    (Get, paths::SELF, BOTH, Read(|core, peer, _| json(Ok(core.about(peer))))),
];

fn lane(asked: &Request) -> &str {
    asked.parameter("lane")
}

fn app(asked: &Request) -> &str {
    asked.parameter("app")
}

fn json<T: Serialize>(done: Done<T>) -> Done<Value> {
    done.map(|body| json!(body))
}

/// All routes, for the server.
pub(super) fn all() -> Vec<Route> {
    ROUTES.iter().map(|(method, path, roles, _)| Route { method: *method, path, roles }).collect()
}

/// The action of a request; its path is one of [`all`].
pub(super) fn action(asked: &Request) -> Option<Action> {
    let of = |(method, path, ..): &&(Method, &str, &[Role], Action)| (*method, *path) == (asked.method, asked.path);
    ROUTES.iter().find(of).map(|(.., action)| *action)
}
