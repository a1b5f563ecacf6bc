// SPDX-License-Identifier: Apache-2.0
//! Errors: their body and their codes.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::sequence::Sequence;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident $text:literal,)*) => {
        /// The kind of an error, for programs. [`Failure::message`] is for people.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Code {
            $($(#[$doc])* $name,)*
            /// A code of a later version.
            Other(String),
        }

        impl Code {
            /// As it is written.
            #[must_use]
            pub fn as_str(&self) -> &str {
                match self {
                    $(Code::$name => $text,)*
                    Code::Other(text) => text,
                }
            }

            /// All codes but [`Code::Other`].
            #[must_use]
            pub fn all() -> Vec<Code> {
                vec![$(Code::$name),*]
            }
        }

        impl From<&str> for Code {
            fn from(text: &str) -> Code {
                match text {
                    $($text => Code::$name,)*
                    other => Code::Other(other.to_owned()),
                }
            }
        }
    };
}

codes! {
    // The request as such.
    NoSuchPath "no_such_path",
    NoSuchMethod "no_such_method",
    BadQuery "bad_query",
    BadBody "bad_body",
    BodyTooLarge "body_too_large",
    BodyTooSlow "body_too_slow",
    /// A body that does not say that it is JSON.
    NotJson "not_json",
    BadJson "bad_json",
    /// A body that the path does not accept.
    BadRequest "bad_request",
    // The peer, and its rate.
    /// The certificate is not valid any more.
    NotAdmitted "not_admitted",
    NoPeer "no_peer",
    /// For another role.
    Forbidden "forbidden",
    TooManyConnections "too_many_connections",
    TooManyRequests "too_many_requests",
    TooManyPolls "too_many_polls",
    // The order of requests.
    SequenceMissing "sequence_missing",
    BadSequence "bad_sequence",
    Replayed "replayed",
    OutOfOrder "out_of_order",
    NumberReused "number_reused",
    TooManyPeers "too_many_peers",
    AnswerGone "answer_gone",
    // The controller.
    Busy "busy",
    Stopping "stopping",
    NotLeader "not_leader",
    ReadOnly "read_only",
    UnknownOutcome "unknown_outcome",
    DecisionTooLarge "decision_too_large",
    /// An event that was acknowledged and never sent: events are numbered anew.
    NeverSent "never_sent",
    Upcalls "upcalls",
    /// The parts of a decision do not fit together.
    Fault "fault",
    /// A decision without an answer.
    NoAnswer "no_answer",
    /// A decision that was rolled back.
    TakenBack "taken_back",
    // Lanes.
    NoSuchLane "no_such_lane",
    NoSuchTree "no_such_tree",
    NotYou "not_you",
    NotYours "not_yours",
    NotAReceiver "not_a_receiver",
    /// A lane of heartbeats, which follows from who monitors whom.
    Heartbeat "heartbeat",
    Ended "ended",
    Full "full",
    NoTrees "no_trees",
    NoCapacity "no_capacity",
    TooLate "too_late",
    HarmsOthers "harms_others",
    // The network and the cluster.
    NoSuchCable "no_such_cable",
    NotInTopology "not_in_topology",
    NoSuchApp "no_such_app",
    NoSuchMonitor "no_such_monitor",
}

impl Code {
    /// Whether the request was not decided, or its outcome is unknown. The client repeats it; a change with
    /// the same number.
    #[must_use]
    pub fn is_to_be_repeated(&self) -> bool {
        matches!(
            self,
            Code::NotLeader
                | Code::Busy
                | Code::Stopping
                | Code::ReadOnly
                | Code::UnknownOutcome
                | Code::TooManyRequests
                | Code::TooManyConnections
        )
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Code {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Code, D::Error> {
        Ok(Code::from(String::deserialize(deserializer)?.as_str()))
    }
}

/// The body of every answer whose status is not 200: `{"error": {"code", "message", ...}}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    pub error: Failure,
}

/// An error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub code: Code,
    /// What was wrong and how to correct it.
    pub message: String,
    #[serde(flatten)]
    pub details: Details,
}

/// Further fields of some errors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Details {
    /// With errors about the order of requests: the number to send next.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "text")]
    pub expected: Option<Sequence>,
    /// With [`Code::NeverSent`]: the last event that was sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<u64>,
    /// With [`Code::NotLeader`], where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<Leader>,
    /// With [`Code::BadJson`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<usize>,
}

/// The controller that leads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leader {
    pub name: String,
    /// `HOST:PORT` where agents reach it.
    pub address: String,
}

impl Failed {
    /// One without details.
    #[must_use]
    pub fn new(code: Code, message: impl ToString) -> Failed {
        Failed { error: Failure { code, message: message.to_string(), details: Details::default() } }
    }
}

/// A sequence as in its header. Text that is not a sequence is read as `None`.
mod text {
    use serde::{Deserialize, Deserializer, Serializer};

    use super::Sequence;

    pub(super) fn serialize<S: Serializer>(sequence: &Option<Sequence>, serializer: S) -> Result<S::Ok, S::Error> {
        match sequence {
            Some(sequence) => serializer.collect_str(sequence),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Sequence>, D::Error> {
        Ok(Option::<String>::deserialize(deserializer)?.and_then(|text| text.parse().ok()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn codes_are_read_back_and_unknown_ones_kept() {
        for code in Code::all() {
            assert_eq!(Code::from(code.as_str()), code);
            assert_eq!(serde_json::from_value::<Code>(json!(code)).unwrap(), code);
        }
        assert_eq!(Code::from("of_later"), Code::Other("of_later".to_owned()));
        assert_eq!(json!(Code::from("of_later")), json!("of_later"));
    }

    #[test]
    fn failures_of_later_versions_are_read() {
        let text = json!({"error": {"code": "of_later", "message": "m", "expected": "3.2", "more": [1], "last": 9}});
        let Failed { error } = serde_json::from_value(text).unwrap();
        assert_eq!(error.details.expected, Some(Sequence { incarnation: 3, number: 2 }));
        assert_eq!((error.details.last, error.message.as_str()), (Some(9), "m"));
        let plain = Failed::new(Code::NotYou, "no");
        assert_eq!(json!(plain), json!({"error": {"code": "not_you", "message": "no"}}));
    }
}
