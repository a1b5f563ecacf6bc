// SPDX-License-Identifier: Apache-2.0
//! A video of `ffmpeg` through `fide pace tunnel` over a link that loses packets: each picture comes out as it went in. And a
//! stream like it over a link that is too slow for a while: what comes is not late.

use std::{
    fs,
    net::UdpSocket,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::Duration,
};

use fide_link_model::LinkSpec;
use fide_pace::loss::Gilbert;
use fide_pace_socket::new_secret;
use fide_testbed::{
    Host, Lines, Spec, Stops, Testbed, emulator::Emulator, end_within, retry_until, say_not_tested, supported,
};

/// Bound of every wait; no wait is expected to come near it.
const LIMIT: Duration = Duration::from_secs(60);
/// Pictures of the video, 25 a second, and those that a receiver has to have.
const PICTURES: usize = 100;
const WANTED: usize = 90;
/// Where the receivers listen: behind the tunnel, and for the same video without one.
const PORTS: [u16; 2] = [5004, 5006];

/// Ended with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn ffmpeg(host: Option<&Host>) -> Command {
    let mut command = host.map_or_else(|| Command::new("ffmpeg"), |host| host.command("ffmpeg"));
    command.args(["-hide_banner", "-nostdin", "-v", "warning", "-threads", "1"]).stdin(Stdio::null());
    command
}

/// A checksum of each picture, of what ffmpeg wrote by `-f framemd5`.
fn pictures(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| Some(line.rsplit(',').next()?.trim().to_owned())).collect()
}

/// A video of some seconds, and a checksum of each of its pictures.
fn video(dir: &Path) -> (String, Vec<String>) {
    let (path, sums) = (dir.join("video.ts"), dir.join("video.md5"));
    let source = format!("testsrc2=size=320x240:rate=25:duration={}", PICTURES / 25);
    let codec = ["-c:v", "mpeg2video", "-b:v", "1M", "-g", "25", "-f", "mpegts"];
    let made = ffmpeg(None).args(["-f", "lavfi", "-i", &source]).args(codec).arg(&path).status().unwrap();
    assert!(made.success());
    let read = ffmpeg(None).arg("-i").arg(&path).args(["-f", "framemd5"]).arg(&sums).status().unwrap();
    assert!(read.success());
    (path.to_str().unwrap().to_owned(), pictures(&sums))
}

/// A receiver that ends once it has the wanted pictures.
fn receiver(host: &Host, port: u16, dir: &Path) -> Process {
    let child = ffmpeg(Some(host))
        // Less than the video has: otherwise it waits for more before it decodes anything.
        .args(["-probesize", "32768", "-analyzeduration", "500000"])
        .args(["-i", &format!("udp://0.0.0.0:{port}?fifo_size=100000")])
        .args(["-frames:v", &WANTED.to_string(), "-f", "framemd5", "-y"])
        .arg(dir.join(format!("{port}.md5")))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A try to have the port itself could keep it from ffmpeg. The kernel lists it in hexadecimal.
    let listed = format!(":{port:04X} ");
    let process = Process(child);
    retry_until("ffmpeg at its port", LIMIT, || {
        let sockets = host.run_in(|| fs::read_to_string("/proc/thread-self/net/udp").unwrap()).unwrap();
        if sockets.contains(&listed) { Ok(()) } else { Err(sockets) }
    })
    .unwrap();
    process
}

fn sender(host: &Host, video: &str, to: &str) -> Process {
    let words = ["-re", "-i", video, "-c", "copy", "-f", "mpegts"];
    let child = ffmpeg(Some(host)).args(words).arg(format!("udp://{to}?pkt_size=1316")).spawn().unwrap();
    Process(child)
}

/// One end of the tunnel, which says what it does.
fn tunnel(host: &Host, words: &[&str], way: &[&str]) -> (Process, Lines) {
    let mut command = host.command(env!("CARGO_BIN_EXE_fide"));
    let mut child = command.args(["pace", "tunnel"]).args(words).args(way).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = Lines::of(child.stderr.take().unwrap());
    let process = Process(child);
    lines.find_words("fide: ");
    (process, lines)
}

fn key_in(dir: &Path) -> String {
    let key = dir.join("key");
    fs::write(&key, new_secret().to_text()).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o400)).unwrap();
    key.to_str().unwrap().to_owned()
}

#[test]
fn root_video_through_a_tunnel_over_a_lossy_link_is_whole() {
    if let Err(why) = supported() {
        println!("skipped: {why}");
        return;
    }
    if Command::new("ffmpeg").arg("-version").output().is_err() {
        say_not_tested("a video over X-PACE: ffmpeg is not installed");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (video, sent) = video(dir.path());
    assert_eq!(sent.len(), PICTURES);
    let key = key_in(dir.path());
    // A busy machine stands still for a while now and then; nothing here is about time.
    let way = ["--key", &key, "--deadline", "10s", "--loss", "0.000001", "--queue", "1000"];

    let testbed = Testbed::build(Spec { planes: 1, ..Spec::hosts(2) }).unwrap();
    let (here, there) = (testbed.host(1), testbed.host(2));
    let losses = Gilbert::of(0.02, 1.0);
    let lossy = LinkSpec { losses, ..LinkSpec::of(15_000_000).with_rate(8_000_000, 100_000) };
    let emulator = Emulator::between(here, there, [lossy, LinkSpec { losses, ..LinkSpec::of(15_000_000) }], 7).unwrap();
    let [behind, without] = PORTS;
    let (far, near) = (Emulator::address(1), "127.0.0.1:5004");
    let mut receivers = PORTS.map(|port| receiver(there, port, dir.path()));
    let accept = (format!("{far}:7000"), format!("127.0.0.1:{behind}"));
    let (_accepts, _) = tunnel(there, &["--accept", &accept.0, "--forward", &accept.1], &way);
    let (_carries, _) = tunnel(here, &["--from", near, "--to", &accept.0], &way);
    let senders = [near.to_owned(), format!("{far}:{without}")].map(|to| sender(here, &video, &to));
    for mut sender in senders {
        assert!(end_within(&mut sender.0, LIMIT).unwrap().success());
    }
    let by_tunnel = end_within(&mut receivers[0].0, LIMIT).unwrap();
    let said = Lines::of(receivers[0].0.stderr.take().unwrap()).rest();
    assert!(by_tunnel.success() && said.is_empty(), "{by_tunnel}: {said}");
    let came = pictures(&dir.path().join(format!("{behind}.md5")));
    assert_eq!(came, sent[..WANTED]);
    let (_, dropped) = emulator.take_longest_queue_ns(0);
    assert!(dropped > 0, "the link has lost nothing");

    let alike = pictures(&dir.path().join(format!("{without}.md5"))).iter().filter(|sum| sent.contains(sum)).count();
    println!("{dropped} packets lost; of {WANTED} pictures, without the tunnel {alike} came as they went in");
}

/// Datagrams of a picture, 25 a second: a megabit a second.
const OF_PICTURE: u64 = 4;
const SECOND: u64 = 25 * OF_PICTURE;

/// A stream like a video's, each datagram with its number, from 1 on. `sent`: the last one.
fn play(from: &UdpSocket, sent: &AtomicU64, is_over: &AtomicBool) {
    let mut datagram = [0; 1316];
    while !is_over.load(Relaxed) {
        for _ in 0..OF_PICTURE {
            let number = sent.fetch_add(1, Relaxed) + 1;
            datagram[..8].copy_from_slice(&number.to_be_bytes());
            from.send(&datagram).unwrap();
        }
        thread::sleep(Duration::from_millis(40));
    }
}

/// For three seconds the link takes less than half of the stream. Without a deadline more than a second of it would wait in a
/// queue then. How late a datagram is, is told by those that were sent meanwhile, so that a machine that stands still changes nothing.
#[test]
fn root_stream_over_a_link_that_is_too_slow_for_a_while_is_not_late_and_recovers() {
    if let Err(why) = supported() {
        println!("skipped: {why}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let key = key_in(dir.path());
    let testbed = Testbed::build(Spec { planes: 1, ..Spec::hosts(2) }).unwrap();
    let (here, there) = (testbed.host(1), testbed.host(2));
    let way = LinkSpec::of(5_000_000);
    let (fast, slow) = (way.with_rate(8_000_000, 100_000), way.with_rate(400_000, 100_000));
    let link = Emulator::between(here, there, [fast, way], 7).unwrap();
    let bind = |host: &Host, port: u16| host.run_in(|| UdpSocket::bind(("127.0.0.1", port)).unwrap()).unwrap();
    let (source, behind) = (bind(here, 0), bind(there, PORTS[0]));
    source.connect(("127.0.0.1", PORTS[0])).unwrap();
    behind.set_read_timeout(Some(LIMIT)).unwrap();
    let short = ["--key", &key, "--deadline", "150ms"];
    let (at, program) = (format!("{}:7000", Emulator::address(1)), format!("127.0.0.1:{}", PORTS[0]));
    let (_accepts, _) = tunnel(there, &["--accept", &at, "--forward", &program], &short);
    let (_carries, _) = tunnel(here, &["--from", &program, "--to", &at], &short);
    let (sent, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let _ends = Stops(&is_over);
        scope.spawn(|| play(&source, &sent, &is_over));
        // The number of the next one, and how many were sent after it before it came.
        let take = || {
            let mut datagram = [0; 2000];
            let len = behind.recv(&mut datagram).unwrap();
            assert_eq!(len, 1316);
            let number = datagram.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
            (number, sent.load(Relaxed) - number)
        };
        let (mut last, mut missing) = (take().0, 0);
        let next = |last: &mut u64| {
            let (number, after) = take();
            assert!(number > *last, "{number} came after {last}");
            // A deadline is a sixth of a second; programs that run late have the rest.
            assert!(after < SECOND, "{after} were sent before {number} came");
            std::mem::replace(last, number)
        };
        while last < SECOND {
            next(&mut last);
        }
        link.change(0, slow);
        let until = sent.load(Relaxed) + 3 * SECOND;
        while last < until {
            let before = next(&mut last);
            missing += last - before - 1;
        }
        assert!(missing > SECOND, "{missing} datagrams were dropped: the link was fast enough");
        link.change(0, fast);
        // Half a second comes whole.
        let mut run = 0;
        while run < SECOND / 2 {
            let before = next(&mut last);
            run = if last == before + 1 { run + 1 } else { 0 };
        }
    });
}
