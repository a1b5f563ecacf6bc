// SPDX-License-Identifier: Apache-2.0
//! Real agents, controllers and programs in namespaces as hosts. One binary, so that it is linked once;
//! several of its tests run at a time (`xtask/src/run.rs`), because none measures anything. Tests that need
//! root and cannot have it print why and pass.

mod root_agreement;
mod root_controller;
mod root_discover;
mod root_end_to_end;
mod root_lane_cli;
mod root_lanes;
mod root_pace_bench;
mod root_pace_links;
mod root_pace_video;
mod root_systemd;
mod root_takeover;
mod root_takeover_service;
