// SPDX-License-Identifier: Apache-2.0
//! nginx, which serves files to wrk, as Debian has them.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};
use fide_testbed::figures::Goal;
use rustix::process::Signal;

use super::{App, Bed, Over, Running, Server, output, port};

pub(super) const APP: App = App {
    name: "nginx",
    figures: &[("nginx_vs_tcp", "per second", Some(Goal::AtLeast(2.0))), ("nginx_small_vs_tcp", "per second", None)],
    start,
};

/// The files, and their bytes.
const FILES: [(&str, usize); 2] = [("1m", 1 << 20), ("10k", 10 << 10)];
const CLIENTS: u32 = 8;

fn start(bed: &Bed, over: Over) -> Result<Running> {
    let port = port()?;
    let folder = bed.folder(&format!("nginx-{port}"))?;
    for (name, bytes) in FILES {
        fs::write(folder.join(name), vec![b'x'; bytes])?;
    }
    let at = folder.display();
    let settings = folder.join("conf");
    fs::write(
        &settings,
        format!(
            "daemon off; master_process off; user root; pid {at}/pid; error_log {at}/errors;\n\
             events {{ worker_connections 256; }}\n\
             http {{ access_log off; sendfile on; tcp_nopush on; keepalive_requests 100000000;\n\
             client_body_temp_path {at}/body; proxy_temp_path {at}/proxy; fastcgi_temp_path {at}/fastcgi;\n\
             uwsgi_temp_path {at}/uwsgi; scgi_temp_path {at}/scgi;\n\
             server {{ listen 127.0.0.1:{port}; root {at}; }} }}\n"
        ),
    )?;
    let mut command = bed.command(over, None, Path::new("nginx"));
    command.arg("-c").arg(&settings);
    let server = Server::start(command, port, &folder.join("log"), Signal::TERM)?;
    Ok((server, Box::new(move |bed, is_short| round(bed, over, port, is_short))))
}

/// Requests per second, for each file.
fn round(bed: &Bed, over: Over, port: u16, is_short: bool) -> Result<Vec<f64>> {
    let rate = |(name, _): &(&str, usize)| -> Result<f64> {
        let mut command = bed.command(over, None, Path::new("wrk"));
        command.args(["-t", "1", "-c", &CLIENTS.to_string(), "-d", if is_short { "1s" } else { "3s" }]);
        let text = output({
            command.arg(format!("http://127.0.0.1:{port}/{name}"));
            command
        })?;
        ensure!(!text.contains("errors") && !text.contains("Non-2xx"), "wrk has seen errors: {text}");
        let word = text.lines().find_map(|line| line.trim().strip_prefix("Requests/sec:"));
        word.and_then(|word| word.trim().parse().ok()).with_context(|| format!("wrk: {text}"))
    };
    FILES.iter().map(rate).collect()
}
