// SPDX-License-Identifier: Apache-2.0
//! Set-up and sealing, by the Noise protocol framework (`snow`).
//!
//! Noise, and not TLS: two messages set a connection up, without certificates, names, or a negotiation that might go wrong; and
//! what is sealed is a datagram with its number, as here.
//!
//! | key | pattern |
//! |---|---|
//! | a secret that both know | `NNpsk0`: both are sure of each other, and what was sent stays closed if the secret is stolen later |
//! | the server's private key | `NK`: the client is sure of the server |
//!
//! Randomness comes from outside: 32 bytes of it for each set-up.

use snow::{
    Builder, HandshakeState, StatelessTransportState,
    params::{CipherChoice, DHChoice, HashChoice, NoiseParams},
    resolvers::{CryptoResolver, DefaultResolver, RingResolver},
    types::{Cipher, Dh, Hash, Random},
};

use crate::{
    keys::{ClientKey, KEY_LEN, ServerKey},
    packet::TAG_LEN,
};

/// Bytes that nobody can guess, for one set-up.
pub type Entropy = [u8; 32];

/// Bytes of the client's message.
pub const MESSAGE_LEN: usize = 32 + TAG_LEN;
/// Bytes of the server's: with its number of the connection.
pub const ANSWER_LEN: usize = 32 + NUMBER_LEN + TAG_LEN;
const NUMBER_LEN: usize = 4;

const WITH_SECRET: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
const WITH_KEY: &str = "Noise_NK_25519_ChaChaPoly_BLAKE2s";
/// Both ends mix it in, so that a set-up of another protocol or version is none of this one; and after it what the messages are
/// bound to.
const PROLOGUE: &[u8] = b"fide-pace 3";

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
        // Each packet passes it: ring's takes a third of the time of the default.
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
    state: HandshakeState,
}

/// Keys that were agreed on.
pub struct Sealer {
    state: StatelessTransportState,
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sealer(..)")
    }
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
    pub fn new(key: &ClientKey, bound: &[u8], entropy: Entropy) -> Option<(Self, [u8; MESSAGE_LEN])> {
        let prologue = [PROLOGUE, bound].concat();
        let builder = |pattern| builder(pattern, &prologue, entropy);
        let state = match key {
            ClientKey::Secret(secret) => builder(WITH_SECRET)?.psk(0, secret).ok()?.build_initiator(),
            ClientKey::Public(public) if is_of_low_order(public) => return None,
            ClientKey::Public(public) => builder(WITH_KEY)?.remote_public_key(public).ok()?.build_initiator(),
        };
        let (mut state, mut message) = (state.ok()?, [0; MESSAGE_LEN]);
        let len = state.write_message(&[], &mut message).ok()?;
        (len == MESSAGE_LEN).then_some((Self { state }, message))
    }

    /// Ends it with the server's message: the keys, and the server's number of the connection. None: it is not from the server,
    /// or not for this set-up. The set-up is spent then, as the message may be forged: [`Initiator::new`] with the same
    /// entropy gives it again.
    #[must_use]
    pub fn finish(mut self, message: &[u8]) -> Option<(Sealer, u32)> {
        let mut number = [0; NUMBER_LEN];
        let read = self.state.read_message(message, &mut number).ok()?;
        let state = self.state.into_stateless_transport_mode().ok()?;
        (read == NUMBER_LEN).then_some((Sealer { state }, u32::from_be_bytes(number)))
    }
}

/// A server's answer to a client's message: the keys, and the message that says the server's number of the connection. None: it
/// is from a client without the key, or bound to something else.
#[must_use]
pub fn respond(
    key: &ServerKey,
    message: &[u8],
    bound: &[u8],
    number: u32,
    entropy: Entropy,
) -> Option<(Sealer, [u8; ANSWER_LEN])> {
    let prologue = [PROLOGUE, bound].concat();
    let builder = |pattern| builder(pattern, &prologue, entropy);
    let state = match key {
        ServerKey::Secret(secret) => builder(WITH_SECRET)?.psk(0, secret).ok()?.build_responder(),
        ServerKey::Private(private) => builder(WITH_KEY)?.local_private_key(private).ok()?.build_responder(),
    };
    let (mut state, mut answer) = (state.ok()?, [0; ANSWER_LEN]);
    state.read_message(message, &mut []).ok()?;
    let len = state.write_message(&number.to_be_bytes(), &mut answer).ok()?;
    let state = state.into_stateless_transport_mode().ok()?;
    (len == ANSWER_LEN).then_some((Sealer { state }, answer))
}

impl Sealer {
    /// Seals a packet with its number, which no other packet of this end has. Returns the bytes written: those of `plain` and
    /// [`TAG_LEN`]. None: `sealed` is too short.
    #[must_use]
    pub fn seal(&self, number: u64, plain: &[u8], sealed: &mut [u8]) -> Option<usize> {
        self.state.write_message(number, plain, sealed).ok()
    }

    /// Opens one. None: it was not sealed by the other end with this number.
    #[must_use]
    pub fn open(&self, number: u64, sealed: &[u8], plain: &mut [u8]) -> Option<usize> {
        self.state.read_message(number, sealed, plain).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(server: &ServerKey, client: &ClientKey) -> Option<(Sealer, Sealer)> {
        let (initiator, first) = Initiator::new(client, b"a set-up", [1; 32]).unwrap();
        let (there, second) = respond(server, &first, b"a set-up", 7, [2; 32])?;
        let (here, number) = initiator.finish(&second)?;
        assert_eq!(number, 7);
        Some((here, there))
    }

    #[test]
    fn messages_are_of_one_set_up() {
        for server in [ServerKey::Secret([7; 32]), ServerKey::Private([9; 32])] {
            let begin = |bound: &[u8]| Initiator::new(&server.for_clients(), bound, [1; 32]).unwrap();
            let (_, first) = begin(b"a set-up");
            assert!(respond(&server, &first, b"another", 7, [2; 32]).is_none());
            let (other, other_first) = begin(b"another");
            assert_ne!(first[..32], other_first[..32], "the same ephemeral key");
            let (_, second) = respond(&server, &first, b"a set-up", 7, [2; 32]).unwrap();
            assert!(other.finish(&second).is_none());
            for at in 0..ANSWER_LEN {
                let mut forged = second;
                forged[at] ^= 1;
                assert!(begin(b"a set-up").0.finish(&forged).is_none(), "byte {at}");
            }
            assert!(begin(b"a set-up").0.finish(&second).is_some());
        }
    }

    #[test]
    fn both_ends_open_what_the_other_sealed_and_nothing_else() {
        for server in [ServerKey::Secret([7; 32]), ServerKey::Private([9; 32])] {
            let (here, there) = ends(&server, &server.for_clients()).unwrap();
            let (mut sealed, mut plain) = ([0; 100], [0; 100]);
            let len = here.seal(5, b"some bytes", &mut sealed).unwrap();
            assert_eq!(len, 10 + TAG_LEN);
            assert_eq!(there.open(5, &sealed[..len], &mut plain), Some(10));
            assert_eq!(&plain[..10], b"some bytes");
            assert_eq!(there.open(6, &sealed[..len], &mut plain), None, "another number");
            assert_eq!(here.open(5, &sealed[..len], &mut plain), None, "its own packet");
            for at in 0..len {
                let mut forged = sealed;
                forged[at] ^= 1;
                assert_eq!(there.open(5, &forged[..len], &mut plain), None);
            }
        }
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
            assert!(Initiator::new(&ClientKey::Public(key), &[], [1; 32]).is_none(), "{key:x?}");
        }
    }

    #[test]
    fn other_keys_set_nothing_up() {
        let secret = ServerKey::Secret([7; 32]);
        assert!(ends(&secret, &ClientKey::Secret([8; 32])).is_none());
        let private = ServerKey::Private([9; 32]);
        assert!(ends(&private, &ServerKey::Private([8; 32]).for_clients()).is_none());
        assert!(ends(&private, &secret.for_clients()).is_none());
        assert!(ends(&secret, &private.for_clients()).is_none());
    }
}
