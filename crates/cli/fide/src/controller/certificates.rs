// SPDX-License-Identifier: Apache-2.0
//! `fide controller init`, `issue`, `renew`, `revoke`, `rotate`, `retire`, `certificates`.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::SystemTime,
};

use clap::ValueEnum;
use fide_controller::pki::{self, CA_DAYS, CERTIFICATE_DAYS, Issued, Request};
use fide_controller_api::identity::{Identity, Role};
use serde_json::{Value, json};

use crate::exit::{Done, Failure, NOT_PERMITTED, UNHEALTHY, USAGE};
use crate::say::show;

const DAY_S: i64 = 86_400;
/// A certificate with fewer days left is reported as ending soon.
const SOON_DAYS: i64 = 30;

#[derive(clap::Args)]
pub(super) struct Init {
    /// Directory to create; keep it where nobody else can read it
    dir: PathBuf,
    /// IP address or DNS name by which agents reach the controller; may be given several times
    #[arg(long, required = true)]
    address: Vec<String>,
    /// The controller's name
    #[arg(long, default_value = "c1")]
    name: String,
    /// Days the controller's certificate is valid
    #[arg(long, default_value_t = CERTIFICATE_DAYS)]
    days: u32,
    /// Days the authority is valid
    #[arg(long, default_value_t = CA_DAYS)]
    ca_days: u32,
    /// Replace an authority; all certificates that it issued become worthless
    #[arg(long)]
    overwrite: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Member {
    Host,
    Operator,
    Controller,
}

#[derive(clap::Args)]
pub(super) struct Issue {
    /// Directory of the authority
    dir: PathBuf,
    /// Role of the member
    #[arg(value_enum)]
    member: Member,
    /// Its name
    name: String,
    /// IP address or DNS name; a controller needs one
    #[arg(long)]
    address: Vec<String>,
    /// Days the certificate is valid
    #[arg(long, default_value_t = CERTIFICATE_DAYS)]
    days: u32,
    /// Replace the member's present certificate and key
    #[arg(long)]
    overwrite: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
pub(super) struct Renew {
    /// Directory of the authority
    dir: PathBuf,
    /// host.NAME, operator.NAME or controller.NAME
    identity: String,
    /// Days the certificate is valid
    #[arg(long, default_value_t = CERTIFICATE_DAYS)]
    days: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
pub(super) struct Revoke {
    /// Directory of the authority
    dir: PathBuf,
    /// host.NAME, operator.NAME or controller.NAME
    identity: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
pub(super) struct Rotate {
    /// Directory of the authority
    dir: PathBuf,
    /// Days the new authority is valid
    #[arg(long, default_value_t = CA_DAYS)]
    ca_days: u32,
}

#[derive(clap::Args)]
pub(super) struct Retire {
    /// Directory of the authority
    dir: PathBuf,
}

#[derive(clap::Args)]
pub(super) struct List {
    /// Directory of the authority
    dir: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn failure(error: pki::Error) -> Failure {
    let code = match &error {
        pki::Error::Io { why, .. } if why.kind() == std::io::ErrorKind::PermissionDenied => NOT_PERMITTED,
        pki::Error::Io { .. } | pki::Error::Make(_) | pki::Error::Content { .. } => UNHEALTHY,
        _ => USAGE,
    };
    Failure::new(code, error)
}

fn identity(text: &str) -> Result<Identity, Failure> {
    text.parse().map_err(|error: fide_controller_api::identity::IdentityError| Failure::new(USAGE, error))
}

fn days_left(not_after_s: i64) -> i64 {
    let now_s = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_secs());
    (not_after_s - i64::try_from(now_s).unwrap_or(i64::MAX)).div_euclid(DAY_S)
}

fn say(issued: &Issued, who: &str, json: bool) -> Done {
    let Issued { dir, certificate } = issued;
    let days = days_left(certificate.not_after_s);
    if json {
        show!(
            "{:#}",
            json!({"identity": who, "dir": dir, "serial": certificate.serial.to_string(), "addresses": certificate.addresses,
                   "not_after_s": certificate.not_after_s, "days_left": days})
        )?;
    } else {
        show!(
            "{who}: valid for {days} days; its credentials are in {}, copy all of that directory to it",
            dir.display()
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn init(arguments: Init) -> Done {
    let who = identity(&format!("controller.{}", arguments.name))?;
    let request = Request {
        addresses: arguments.address,
        days: arguments.days,
        overwrite: arguments.overwrite,
        ..Request::new(who)
    };
    let issued = pki::init(&arguments.dir, arguments.ca_days, &request).map_err(failure)?;
    say(&issued, &who.to_string(), arguments.json)
}

pub(super) fn issue(arguments: Issue) -> Done {
    let role = match arguments.member {
        Member::Host => Role::Host,
        Member::Operator => Role::Operator,
        Member::Controller => Role::Controller,
    };
    let who = identity(&format!("{}.{}", role.as_str(), arguments.name))?;
    let request = Request {
        addresses: arguments.address,
        days: arguments.days,
        overwrite: arguments.overwrite,
        ..Request::new(who)
    };
    let issued = pki::issue(&arguments.dir, &request).map_err(failure)?;
    say(&issued, &who.to_string(), arguments.json)
}

pub(super) fn renew(arguments: &Renew) -> Done {
    let who = identity(&arguments.identity)?;
    let issued = pki::renew(&arguments.dir, who, arguments.days).map_err(failure)?;
    say(&issued, &who.to_string(), arguments.json)
}

pub(super) fn revoke(arguments: &Revoke) -> Done {
    let who = identity(&arguments.identity)?;
    let serial = pki::revoke(&arguments.dir, who).map_err(failure)?;
    let list = arguments.dir.join(pki::REVOKED_FILE);
    if arguments.json {
        show!("{:#}", json!({"identity": who, "serial": serial.to_string(), "list": list}))?;
    } else {
        show!(
            "{who}: certificate {serial} is on the list {}: copy it to every controller{}",
            list.display(),
            if who.role == Role::Controller { ", and into the credentials of every host and operator" } else { "" }
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn rotate(arguments: &Rotate) -> Done {
    pki::rotate_ca(&arguments.dir, arguments.ca_days).map_err(failure)?;
    show!(
        "there is a new authority, and the old one is still trusted: copy each member's {} to it, then renew each",
        pki::CA_FILE
    )?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn retire(arguments: &Retire) -> Done {
    pki::retire_cas(&arguments.dir).map_err(failure)?;
    show!("only the present authority is trusted: copy each member's {} to it", pki::CA_FILE)?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn list(arguments: &List) -> Done {
    let entries = pki::status(&arguments.dir).map_err(failure)?;
    let shown: Vec<Value> = entries.iter().map(|entry| described(entry, &arguments.dir)).collect();
    if arguments.json {
        show!("{:#}", json!({"certificates": shown}))?;
    } else {
        for entry in &shown {
            let text = |key: &str| entry[key].as_str().unwrap_or("").to_owned();
            show!("{:<28} {:<10} {}", text("who"), text("state"), text("says"))?;
        }
    }
    let well = shown.iter().all(|entry| matches!(entry["state"].as_str(), Some("valid" | "revoked")));
    Ok(ExitCode::from(if well { 0 } else { UNHEALTHY }))
}

fn described(entry: &pki::Entry, dir: &Path) -> Value {
    let path = entry.path.strip_prefix(dir).unwrap_or(&entry.path).display().to_string();
    let certificate = match &entry.certificate {
        Ok(certificate) => certificate,
        Err(why) => return json!({"who": path, "path": path, "state": "unreadable", "says": why.to_string()}),
    };
    let days = days_left(certificate.not_after_s);
    let state = match (entry.revoked, entry.current) {
        (true, _) => "revoked",
        _ if days < 0 => "expired",
        (_, false) => "old",
        _ if days < SOON_DAYS => "ending",
        _ => "valid",
    };
    let says = match state {
        "expired" => format!("{} days ago; renew it", -days),
        "old" => "from an authority that is being replaced; renew it".to_owned(),
        "ending" => format!("{days} days left; renew it"),
        _ => format!("{days} days left"),
    };
    let who = certificate.identity.map_or_else(|| "authority".to_owned(), |identity| identity.to_string());
    json!({"who": who, "path": path, "state": state, "says": says, "serial": certificate.serial.to_string(),
           "addresses": certificate.addresses, "not_after_s": certificate.not_after_s, "days_left": days})
}
