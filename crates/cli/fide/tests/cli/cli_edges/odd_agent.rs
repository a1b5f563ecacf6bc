// SPDX-License-Identifier: Apache-2.0
//! Answers of an agent that are none: of another shape, or to another question.

use std::{
    net::Shutdown,
    os::{fd::OwnedFd, unix::net::UnixStream},
    sync::Arc,
    thread::JoinHandle,
};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType, accept, bind, listen, recv, send, socket,
};

use super::common::{Place, refused, said};

/// Answers every question with the same bytes, at `agent.sock` of a place.
pub(crate) struct OddAgent {
    socket: Arc<OwnedFd>,
    answering: Option<JoinHandle<()>>,
}

impl OddAgent {
    pub(crate) fn start(place: &Place, answer: &str) -> Self {
        let socket = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("a socket");
        let _ = std::fs::remove_file(place.path("agent.sock"));
        bind(&socket, &SocketAddrUnix::new(place.path("agent.sock")).expect("short")).expect("bound");
        listen(&socket, 8).expect("listens");
        let socket = Arc::new(socket);
        let (listening, answer) = (Arc::clone(&socket), answer.to_owned());
        let answering = std::thread::spawn(move || {
            while let Ok(asker) = accept(&*listening) {
                let _ = recv(&asker, &mut [0; 4096][..], RecvFlags::empty());
                let _ = send(&asker, answer.as_bytes(), SendFlags::NOSIGNAL);
            }
        });
        Self { socket, answering: Some(answering) }
    }
}

impl Drop for OddAgent {
    fn drop(&mut self) {
        // Ends the accept of the thread.
        let socket = UnixStream::from((*self.socket).try_clone().expect("a copy"));
        let _ = socket.shutdown(Shutdown::Both);
        let _ = self.answering.take().map(JoinHandle::join);
    }
}

#[test]
fn answer_of_another_shape_is_no_success() {
    let place = Place::new();
    let not_understood = "is not understood";
    let other = "the agent's answer is to another question";
    for (answer, words, says) in [
        (r#"{"id":1,"ok":{}}"#, &["status"][..], not_understood),
        (r#"{"id":1,"ok":{}}"#, &["explain"], not_understood),
        (r#"{"id":1,"ok":{"events":5}}"#, &["explain", "--json"], not_understood),
        (r#"{"id":1,"ok":{"events":[{"id":"a-1"}]}}"#, &["explain"], not_understood),
        (r#"{"id":1,"ok":{}}"#, &["explain", "a-1"], not_understood),
        (r#"{"id":1,"ok":{"text":"x","evidence":5}}"#, &["explain", "a-1", "--json"], not_understood),
        (r#"{"id":1,"ok":[]}"#, &["metrics"], not_understood),
        (r#"{"id":1,"ok":{"text":5}}"#, &["metrics"], not_understood),
        (r#"{"id":2,"ok":{"text":"fide_up 1\n"}}"#, &["metrics"], other),
        (r#"{"id":2,"ok":{"events":[]}}"#, &["explain"], other),
        ("no reply", &["metrics"], "the agent's answer"),
    ] {
        let _agent = OddAgent::start(&place, answer);
        let err = refused(place.fide(words).env("FIDE_SOCKET", "agent.sock"), 1, &[says]);
        assert!(err.lines().count() == 1, "{words:?}: {err}");
    }
}

#[test]
fn answer_is_printed_with_fields_of_a_later_version() {
    let place = Place::new();
    for (answer, words, says) in [
        (r#"{"id":1,"ok":{"text":"fide_up 1\n","later":1}}"#, &["metrics"][..], "fide_up 1\n"),
        (r#"{"id":1,"ok":{"events":[{"id":"a-1","text":"up","later":1}]}}"#, &["explain"], "a-1          up\n"),
        (r#"{"id":1,"ok":{"events":[],"later":1}}"#, &["explain"], ""),
        (r#"{"id":1,"ok":{"text":"up","evidence":{"seq":7}}}"#, &["explain", "a-1"], "up\n  seq                  7\n"),
    ] {
        let _agent = OddAgent::start(&place, answer);
        let (code, out, err) = said(place.fide(words).env("FIDE_SOCKET", "agent.sock"));
        assert_eq!((code, out.as_str()), (Some(0), says), "{words:?}: {err}");
    }
}
