// SPDX-License-Identifier: Apache-2.0
//! What depends on all descriptors of the process, in a process of its own: one test, so that nothing else opens any.

use std::{
    fs,
    os::fd::{AsFd, AsRawFd},
};

use fide_sys::seqpacket::{ReceiveError, Received, Wait, pair, receive, send};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

fn open() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn lost_messages_leave_no_descriptor_open() {
    let (one, other) = pair().unwrap();
    let before = open();
    let mut buffer = [0; 4];
    let mut lost = |bytes: &[u8], sent: usize| {
        send(&one, bytes, &vec![one.as_fd(); sent]).unwrap();
        let outcome = receive(&other, &mut buffer, 5, Wait::No).map(drop).unwrap_err();
        assert_eq!(open(), before, "{outcome}");
        outcome
    };
    assert_eq!(lost(b"long enough", 5), ReceiveError::TooLong { max: 4 });
    assert_eq!(lost(b"many", 6), ReceiveError::TooMany { max: 5 });
    assert_eq!(lost(b"many", 253), ReceiveError::TooMany { max: 5 });

    // Only two more may be open: those with the lowest free numbers.
    let free = [(); 3].map(|()| one.try_clone().unwrap());
    let limit = getrlimit(Resource::Nofile);
    let room = Rlimit { current: u64::try_from(free[2].as_raw_fd()).ok(), ..limit };
    drop(free);
    send(&one, b"five", &[one.as_fd(); 5]).unwrap();
    setrlimit(Resource::Nofile, room).unwrap();
    let why = receive(&other, &mut buffer, 5, Wait::No).map(drop).unwrap_err();
    setrlimit(Resource::Nofile, limit).unwrap();
    assert_eq!(why, ReceiveError::Lost { len: 4, taken: 2 });
    assert_eq!(&buffer, b"five");
    assert!(why.to_string().contains("only 2 could be taken") && why.to_string().contains("RLIMIT_NOFILE"), "{why}");
    assert_eq!(open(), before);

    send(&one, b"five", &[one.as_fd(); 5]).unwrap();
    assert!(matches!(receive(&other, &mut buffer, 5, Wait::No), Ok(Received::Message(4, fds)) if fds.len() == 5));
    assert_eq!(open(), before);
}
