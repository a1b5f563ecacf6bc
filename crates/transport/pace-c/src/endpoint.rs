// SPDX-License-Identifier: Apache-2.0
//! Keys; endpoints made, connected, accepted from and closed.

use std::{
    net::{SocketAddr, ToSocketAddrs},
    time::Duration,
};

use fide_c_abi::{Failure, guard, invalid, last_error, needed, sized};
use fide_pace_socket::{ClientKey, Config, Endpoint, ServerKey, new_private, new_secret};
use libc::{c_char, c_int};

use crate::{FidePaceConfig, FidePaceConnection, FidePaceEndpoint, FidePaceKey, failure, handles};

/// What was wrong with the last failed call of this thread, and what would be right; empty before the first. It is valid
/// until the next call of this thread fails.
#[unsafe(no_mangle)]
pub extern "C" fn fide_pace_last_error() -> *const c_char {
    last_error()
}

/// Writes a text and its NUL.
///
/// # Safety
/// `into` is null, or `len` bytes there are writable.
unsafe fn write_text(text: &str, into: *mut c_char, len: usize) -> Result<c_int, Failure> {
    if into.is_null() {
        return Err(invalid(&format!("into is NULL; pass an array of at least {} bytes", text.len() + 1)));
    }
    if len <= text.len() {
        let needs = text.len() + 1;
        return Err(Failure(-libc::ENOSPC, format!("there is room for {len} bytes, and {needs} are needed")));
    }
    // SAFETY: more bytes than the text has are writable, by the contract and the check above.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), into, text.len());
        into.add(text.len()).write(0);
    }
    Ok(0)
}

/// # Safety
/// `config` is null, or a fide_pace_config whose `size` is set.
unsafe fn config_of(config: *const FidePaceConfig) -> Result<Config, Failure> {
    // SAFETY: by the contract; zero is valid for fide_pace_config.
    let config = unsafe { sized(config, "fide_pace_config") }?;
    config.map_or_else(|| Ok(Config::default()), |config| config.read())
}

fn resolve(address: &str) -> Result<SocketAddr, Failure> {
    let wrong = |why: String| invalid(&format!("{address:?} is no address: {why}; write HOST:PORT"));
    let mut found = address.to_socket_addrs().map_err(|why| wrong(why.to_string()))?;
    found.next().ok_or_else(|| wrong("the name has no address".to_owned()))
}

fn write_handle(handle: u64, out: *mut u64) -> c_int {
    // SAFETY: every caller has checked that it is not null, and its contract says that it is writable.
    unsafe { out.write(handle) };
    0
}

fn checked(out: *mut u64, what: &str) -> Result<(), Failure> {
    if out.is_null() {
        return Err(invalid(&format!("out is NULL; pass the address of a {what}")));
    }
    write_handle(0, out);
    Ok(())
}

/// Makes a key for a server, of a kind that is a fide_pace_key, and writes its text: FIDE_PACE_KEY_BYTES at most.
/// Returns 0; -EINVAL for another kind; -ENOSPC if there is less room.
///
/// # Safety
/// `len` bytes at `into` are writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_pace_key_new(kind: u32, into: *mut c_char, len: usize) -> c_int {
    guard(|| {
        let key = match kind {
            secret if secret == FidePaceKey::Secret as u32 => new_secret(),
            private if private == FidePaceKey::Private as u32 => new_private(),
            other => return Err(invalid(&format!("kind is {other}; use a fide_pace_key"))),
        };
        // SAFETY: by the contract.
        unsafe { write_text(&key.to_text(), into, len) }
    })
}

/// Writes the key that the clients of a server have, FIDE_PACE_KEY_BYTES at most: the same secret, or the public key.
/// Returns 0; -EINVAL if `server_key` is no server's; -ENOSPC if there is less room.
///
/// # Safety
/// `server_key` is NULL or a NUL-terminated string; `len` bytes at `into` are writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_pace_key_for_clients(server_key: *const c_char, into: *mut c_char, len: usize) -> c_int {
    guard(|| {
        // SAFETY: by the contract.
        let key = server_key_of(unsafe { needed(server_key, "server_key") }?)?;
        // SAFETY: by the contract.
        unsafe { write_text(&key.for_clients().to_text(), into, len) }
    })
}

fn server_key_of(text: &str) -> Result<ServerKey, Failure> {
    ServerKey::parse(text).map_err(|why| invalid(&format!("key: {why}")))
}

/// Makes an endpoint that only connects. On success `*out` is its handle. Returns 0, or the errno of the socket.
///
/// # Safety
/// `out` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_pace_client(out: *mut FidePaceEndpoint) -> c_int {
    guard(|| {
        checked(out, "fide_pace_endpoint")?;
        let endpoint = Endpoint::client().map_err(|why| failure::bind(&why))?;
        Ok(write_handle(handles::add_endpoint(endpoint), out))
    })
}

/// Makes an endpoint that accepts clients with a key, and connects, too. `address`: HOST:PORT, and port 0 for a free one.
/// `config` is of the connections that it accepts; NULL: the defaults. On success `*out` is its handle. Returns 0; -EINVAL
/// for an address, a key or a configuration that cannot be; -EADDRINUSE and others of the socket.
///
/// # Safety
/// `address` and `key` are NULL or NUL-terminated strings; `config` is NULL or points to a fide_pace_config whose `size` is
/// set; `out` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_pace_server(
    address: *const c_char,
    key: *const c_char,
    config: *const FidePaceConfig,
    out: *mut FidePaceEndpoint,
) -> c_int {
    guard(|| {
        checked(out, "fide_pace_endpoint")?;
        // SAFETY: by the contract.
        let (address, key) = unsafe { (needed(address, "address")?, needed(key, "key")?) };
        // SAFETY: by the contract.
        let config = unsafe { config_of(config) }?;
        let endpoint = Endpoint::server(resolve(address)?, server_key_of(key)?, config);
        Ok(write_handle(handles::add_endpoint(endpoint.map_err(|why| failure::bind(&why))?), out))
    })
}

/// Writes where an endpoint is, FIDE_PACE_ADDRESS_BYTES at most. Returns 0; -EBADF if it is none; -ENOSPC if there is less
/// room.
///
/// # Safety
/// `len` bytes at `into` are writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_pace_local_address(endpoint: FidePaceEndpoint, into: *mut c_char, len: usize) -> c_int {
    guard(|| {
        let address = handles::endpoint(endpoint)?.local_address();
        let address = address.map_err(|why| failure::system("the endpoint's address", &why))?;
        // SAFETY: by the contract.
        unsafe { write_text(&address.to_string(), into, len) }
    })
}

/// Connects to HOST:PORT, and returns when the connection stands. `key`: of clients. `config`: NULL for the defaults. On
/// success `*out` is its handle. Returns 0; -EBADF if `endpoint` is none; -EINVAL for an address, a key or a configuration that
/// cannot be; -ECONNREFUSED if the other end has another key, another version, or too many connections; -ETIMEDOUT if nobody
/// answers; -ENOSPC if there are as many connections as are allowed; -ESHUTDOWN if the endpoint was closed;
/// -EAFNOSUPPORT if the endpoint is at an address of the other family.
///
/// # Safety
/// `address` and `key` are NULL or NUL-terminated strings; `config` is NULL or points to a fide_pace_config whose `size` is
/// set; `out` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_pace_connect(
    endpoint: FidePaceEndpoint,
    address: *const c_char,
    key: *const c_char,
    config: *const FidePaceConfig,
    out: *mut FidePaceConnection,
) -> c_int {
    guard(|| {
        checked(out, "fide_pace_connection")?;
        let endpoint = handles::endpoint(endpoint)?;
        // SAFETY: by the contract.
        let (address, key) = unsafe { (needed(address, "address")?, needed(key, "key")?) };
        // SAFETY: by the contract.
        let config = unsafe { config_of(config) }?;
        let key = ClientKey::parse(key).map_err(|why| invalid(&format!("key: {why}")))?;
        let connection = endpoint.connect(resolve(address)?, &key, config).map_err(|why| failure::connect(&why))?;
        Ok(write_handle(handles::add_connection(connection), out))
    })
}

/// The next connection of a client; waits for it no longer than a time, or for ever if that is negative. On success `*out` is its
/// handle. Returns 0; -EBADF if `endpoint` is none; -EOPNOTSUPP if it is a client; -EAGAIN if nobody has connected; -ESHUTDOWN
/// if the endpoint was closed meanwhile.
///
/// # Safety
/// `out` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_pace_accept(
    endpoint: FidePaceEndpoint,
    timeout_us: i64,
    out: *mut FidePaceConnection,
) -> c_int {
    guard(|| {
        checked(out, "fide_pace_connection")?;
        let endpoint = handles::endpoint(endpoint)?;
        let accepted = match u64::try_from(timeout_us) {
            Ok(us) => endpoint.accept_timeout(Duration::from_micros(us)),
            Err(_) => endpoint.accept().map(Some),
        };
        let accepted = accepted.map_err(failure::accept)?;
        let connection = accepted.ok_or_else(|| failure::nothing("nobody has connected", timeout_us))?;
        Ok(write_handle(handles::add_connection(connection), out))
    })
}

/// Closes an endpoint: it takes and makes no more connections, and calls that wait for one return -ESHUTDOWN. Connections that
/// stand go on. Returns 0; -EBADF if `endpoint` is none, or closed already.
#[unsafe(no_mangle)]
pub extern "C" fn fide_pace_endpoint_close(endpoint: FidePaceEndpoint) -> c_int {
    guard(|| {
        handles::take_endpoint(endpoint)?.close();
        Ok(0)
    })
}
