// SPDX-License-Identifier: Apache-2.0
//! Set-up, by the Noise protocol framework (`snow`).
//!
//! Noise, and not TLS: two messages set a connection up, without certificates, names, or a negotiation that might go wrong. They
//! agree on the keys of [`crate::seal`].
//!
//! | key | pattern |
//! |---|---|
//! | a secret that both know | `NNpsk0`: both are sure of each other, and what was sent stays closed if the secret is stolen later |
//! | the server's private key | `NK`: the client is sure of the server |
//!
//! Randomness comes from outside: 32 bytes of it for each set-up.

use snow::{
    Builder, HandshakeState,
    params::{CipherChoice, DHChoice, HashChoice, NoiseParams},
    resolvers::{CryptoResolver, DefaultResolver, RingResolver},
    types::{Cipher, Dh, Hash, Random},
};

use crate::{
    keys::{ClientKey, KEY_LEN, ServerKey},
    packet::TAG_LEN,
    seal::{Sealer, Suite},
};

/// Bytes that nobody can guess, for one set-up.
pub type Entropy = [u8; 32];

/// Bytes of the client's message.
pub const MESSAGE_LEN: usize = 32 + TAG_LEN;
/// Bytes of the server's: with its number of the connection.
pub const ANSWER_LEN: usize = 32 + NUMBER_LEN + TAG_LEN;
const NUMBER_LEN: usize = 4;

/// Of a set-up by a secret, and by the server's key.
const fn patterns(suite: Suite) -> [&'static str; 2] {
    match suite {
        Suite::ChaCha20Poly1305 => ["Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s", "Noise_NK_25519_ChaChaPoly_BLAKE2s"],
        Suite::Aes256Gcm => ["Noise_NNpsk0_25519_AESGCM_BLAKE2s", "Noise_NK_25519_AESGCM_BLAKE2s"],
    }
}

/// Both ends mix it in, so that a set-up of another protocol or version is none of this one; and after it what the messages are
/// bound to.
fn prologue(suite: Suite, bound: &[u8]) -> Vec<u8> {
    [b"fide-pace ", &[b'0' + suite.version()][..], bound].concat()
}

/// Gives the entropy of one set-up, stretched. What the set-up is bound to goes in: what is bound to something else has another
/// ephemeral key, and so nothing is sealed twice by one key.
struct Given(blake3::OutputReader);

impl Random for Given {
    fn try_fill_bytes(&mut self, dest: &mut [u8]) -> Result<(), snow::Error> {
        self.0.fill(dest);
        Ok(())
    }
}

struct Resolver {
    entropy: Entropy,
    bound: Vec<u8>,
}

impl CryptoResolver for Resolver {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        let mut hasher = blake3::Hasher::new_derive_key("fide-pace ephemeral keys");
        hasher.update(&self.entropy).update(&self.bound);
        Some(Box::new(Given(hasher.finalize_xof())))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        DefaultResolver.resolve_dh(choice)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        DefaultResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        RingResolver.resolve_cipher(choice)
    }
}

fn builder<'a>(pattern: &str, prologue: &'a [u8], entropy: Entropy) -> Option<Builder<'a>> {
    let params: NoiseParams = pattern.parse().ok()?;
    let resolver = Resolver { entropy, bound: prologue.to_vec() };
    Builder::with_resolver(params, Box::new(resolver)).prologue(prologue).ok()
}

/// The public key of a private one.
///
/// # Panics
/// Never: the curve is there.
#[must_use]
pub fn public_key(private: &[u8; KEY_LEN]) -> [u8; KEY_LEN] {
    let mut dh = DefaultResolver.resolve_dh(&DHChoice::Curve25519).expect("the curve is compiled in");
    dh.set(private);
    dh.pubkey().try_into().expect("a public key of the curve")
}

/// A point of low order, which agrees on one secret with every key: whoever has it as a server's key is sure of nobody.
fn is_of_low_order(public: &[u8; KEY_LEN]) -> bool {
    let Some(mut dh) = DefaultResolver.resolve_dh(&DHChoice::Curve25519) else { return true };
    // Any private key: each is a multiple of all low orders.
    dh.set(&[1; KEY_LEN]);
    let mut secret = [0; KEY_LEN];
    dh.dh(public, &mut secret).is_err() || secret == [0; KEY_LEN]
}

/// A client's half of a set-up.
pub struct Initiator {
    suite: Suite,
    state: HandshakeState,
}

/// The keys that were agreed on.
fn sealer(suite: Suite, mut state: HandshakeState) -> Option<Sealer> {
    if !state.is_handshake_finished() {
        return None;
    }
    let (of_client, of_server) = state.dangerously_get_raw_split();
    let (out, into) = if state.is_initiator() { (of_client, of_server) } else { (of_server, of_client) };
    Some(Sealer::new(suite, out, into))
}

impl std::fmt::Debug for Initiator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Initiator(..)")
    }
}

impl Initiator {
    /// Begins a set-up. `bound`: what the server has to know of it, too ([`crate::setup::bound`]). The same again with the same
    /// entropy. None: the key is none of the curve, or of low order.
    #[must_use]
    pub fn new(suite: Suite, key: &ClientKey, bound: &[u8], entropy: Entropy) -> Option<(Self, [u8; MESSAGE_LEN])> {
        let (prologue, [by_secret, by_key]) = (prologue(suite, bound), patterns(suite));
        let builder = |pattern| builder(pattern, &prologue, entropy);
        let state = match key {
            ClientKey::Secret(secret) => builder(by_secret)?.psk(0, secret).ok()?.build_initiator(),
            ClientKey::Public(public) if is_of_low_order(public) => return None,
            ClientKey::Public(public) => builder(by_key)?.remote_public_key(public).ok()?.build_initiator(),
        };
        let (mut state, mut message) = (state.ok()?, [0; MESSAGE_LEN]);
        let len = state.write_message(&[], &mut message).ok()?;
        (len == MESSAGE_LEN).then_some((Self { suite, state }, message))
    }

    /// Ends it with the server's message: the keys, and the server's number of the connection. None: it is not from the server,
    /// or not for this set-up. The set-up is spent then, as the message may be forged: [`Initiator::new`] with the same
    /// entropy gives it again.
    #[must_use]
    pub fn finish(mut self, message: &[u8]) -> Option<(Sealer, u32)> {
        let mut number = [0; NUMBER_LEN];
        let read = self.state.read_message(message, &mut number).ok()?;
        let sealer = sealer(self.suite, self.state)?;
        (read == NUMBER_LEN).then_some((sealer, u32::from_be_bytes(number)))
    }
}

/// A server's answer to a client's message: the keys, and the message that says the server's number of the connection. None: it
/// is from a client without the key, or bound to something else.
#[must_use]
pub fn respond(
    suite: Suite,
    key: &ServerKey,
    message: &[u8],
    bound: &[u8],
    number: u32,
    entropy: Entropy,
) -> Option<(Sealer, [u8; ANSWER_LEN])> {
    let (prologue, [by_secret, by_key]) = (prologue(suite, bound), patterns(suite));
    let builder = |pattern| builder(pattern, &prologue, entropy);
    let state = match key {
        ServerKey::Secret(secret) => builder(by_secret)?.psk(0, secret).ok()?.build_responder(),
        ServerKey::Private(private) => builder(by_key)?.local_private_key(private).ok()?.build_responder(),
    };
    let (mut state, mut answer) = (state.ok()?, [0; ANSWER_LEN]);
    state.read_message(message, &mut []).ok()?;
    let len = state.write_message(&number.to_be_bytes(), &mut answer).ok()?;
    (len == ANSWER_LEN).then_some((sealer(suite, state)?, answer))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(suite: Suite, server: &ServerKey, client: &ClientKey) -> Option<(Sealer, Sealer)> {
        let (initiator, first) = Initiator::new(suite, client, b"a set-up", [1; 32]).unwrap();
        let (there, second) = respond(suite, server, &first, b"a set-up", 7, [2; 32])?;
        let (here, number) = initiator.finish(&second)?;
        assert_eq!(number, 7);
        Some((here, there))
    }

    #[test]
    fn messages_are_of_one_set_up() {
        let suite = Suite::Aes256Gcm;
        for server in [ServerKey::Secret([7; 32]), ServerKey::Private([9; 32])] {
            let begin = |bound: &[u8]| Initiator::new(suite, &server.for_clients(), bound, [1; 32]).unwrap();
            let (_, first) = begin(b"a set-up");
            assert!(respond(suite, &server, &first, b"another", 7, [2; 32]).is_none());
            let (other, other_first) = begin(b"another");
            assert_ne!(first[..32], other_first[..32], "the same ephemeral key");
            let (_, second) = respond(suite, &server, &first, b"a set-up", 7, [2; 32]).unwrap();
            assert!(other.finish(&second).is_none());
            for at in 0..ANSWER_LEN {
                let mut forged = second;
                forged[at] ^= 1;
                assert!(begin(b"a set-up").0.finish(&forged).is_none(), "byte {at}");
            }
            assert!(begin(b"a set-up").0.finish(&second).is_some());
        }
    }

    /// Of version 3: the keys of Noise, used as Noise does.
    #[test]
    fn packets_of_version_3_are_transport_messages_of_noise() {
        let (suite, key, number) = (Suite::ChaCha20Poly1305, ServerKey::Secret([7; 32]), 0x0102_0304_0506);
        let (initiator, first) = Initiator::new(suite, &key.for_clients(), b"a set-up", [1; 32]).unwrap();
        let (mut there, second) = respond(suite, &key, &first, b"a set-up", 7, [2; 32]).unwrap();
        let mut state = initiator.state;
        state.read_message(&second, &mut [0; NUMBER_LEN]).unwrap();
        let (noise, mut sealed, mut plain) = (state.into_stateless_transport_mode().unwrap(), [0; 100], [0; 100]);
        let len = noise.write_message(number, b"some bytes", &mut sealed).unwrap();
        assert_eq!(there.open(number, &sealed[..len], &mut plain), Some(10));
        assert_eq!(&plain[..10], b"some bytes");
        let len = there.seal(number, &mut plain, 10).unwrap();
        assert_eq!(noise.read_message(number, &plain[..len], &mut sealed).unwrap(), 10);
    }

    #[test]
    fn both_ends_have_the_keys_of_their_suite() {
        for (suite, server) in
            Suite::ALL.map(|suite| [(suite, ServerKey::Secret([7; 32])), (suite, ServerKey::Private([9; 32]))]).concat()
        {
            let (mut here, mut there) = ends(suite, &server, &server.for_clients()).unwrap();
            let mut bytes = [5; 4 + TAG_LEN];
            assert_eq!(here.seal(5, &mut bytes, 4), Some(4 + TAG_LEN));
            assert_eq!(there.open(5, &bytes, &mut [0; 100]), Some(4));
            assert_eq!(here.open(5, &bytes, &mut [0; 100]), None, "its own packet");
        }
    }

    #[test]
    fn suites_do_not_mix() {
        let key = ServerKey::Secret([7; 32]);
        let [one, other] = Suite::ALL;
        let (_, first) = Initiator::new(one, &key.for_clients(), &[], [1; 32]).unwrap();
        assert!(respond(other, &key, &first, &[], 7, [2; 32]).is_none());
        let (_, other_first) = Initiator::new(other, &key.for_clients(), &[], [1; 32]).unwrap();
        assert_ne!(first[..32], other_first[..32], "the same ephemeral key");
    }

    /// All that the curve and its twist have: <https://cr.yp.to/ecdh.html#validate>.
    #[test]
    fn public_keys_of_low_order_are_refused() {
        let order_8 = "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800";
        let other_8 = "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157";
        let hex = |text: &str| std::array::from_fn(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap());
        let of = |first: u8, rest: u8, last: u8| {
            let mut key = [rest; KEY_LEN];
            (key[0], key[KEY_LEN - 1]) = (first, last);
            key
        };
        let keys = [
            of(0, 0, 0),
            of(1, 0, 0),
            hex(order_8),
            hex(other_8),
            of(0xec, 0xff, 0x7f),
            of(0xed, 0xff, 0x7f),
            of(0xee, 0xff, 0x7f),
        ];
        for key in keys {
            assert!(Initiator::new(Suite::Aes256Gcm, &ClientKey::Public(key), &[], [1; 32]).is_none(), "{key:x?}");
        }
    }

    #[test]
    fn other_keys_set_nothing_up() {
        let secret = ServerKey::Secret([7; 32]);
        assert!(ends(Suite::Aes256Gcm, &secret, &ClientKey::Secret([8; 32])).is_none());
        let private = ServerKey::Private([9; 32]);
        assert!(ends(Suite::Aes256Gcm, &private, &ServerKey::Private([8; 32]).for_clients()).is_none());
        assert!(ends(Suite::Aes256Gcm, &private, &secret.for_clients()).is_none());
        assert!(ends(Suite::Aes256Gcm, &secret, &private.for_clients()).is_none());
    }
}
