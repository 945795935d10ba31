//! Errors of the broker, in the words of the contract: one table from what RabbitMQ says to a kind,
//! a class and a remedy.

use std::fmt;
use std::io;
use std::time::Duration;

use lapin::ErrorKind;
use lapin::protocol::{AMQPError, AMQPErrorKind, AMQPHardError};
use lapin::types::ShortString;
use outbox_contract::backend::{Outcome, Unavailable};
use outbox_contract::{Failure, TransportError, TransportErrorKind};
use tokio::time::timeout;

use crate::address::Address;

/// An error, with its remedy.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) kind: TransportErrorKind,
    /// The class of a [`Failure`].
    pub(crate) class: &'static str,
    words: String,
    cause: Option<Box<lapin::Error>>,
}

impl Fault {
    pub(crate) fn new(kind: TransportErrorKind, class: &'static str, words: impl Into<String>) -> Self {
        Self { kind, class, words: words.into(), cause: None }
    }

    /// The transport was closed by its owner.
    pub(crate) fn closed() -> Self {
        Self::new(TransportErrorKind::Closed, "closed", "the transport is closed; build another one")
    }

    /// The broker takes nothing for now.
    pub(crate) fn blocked(reason: &str) -> Self {
        Self::new(
            TransportErrorKind::Unavailable,
            "blocked",
            format!(
                "the broker has blocked publishing by a resource alarm ({reason}); give it memory or disk"
            ),
        )
    }

    /// The broker did not answer in time.
    pub(crate) fn silent(address: &Address, what: &str, after: Duration) -> Self {
        Self::new(
            TransportErrorKind::Unavailable,
            "timeout",
            format!(
                "connection timed out: {address} did not answer within {after:?} ({what}); check that it is RabbitMQ, and the network and firewalls"
            ),
        )
    }

    /// Waits for an answer of the broker to a question, for so long at most.
    pub(crate) async fn unless_answered<T>(
        what: impl fmt::Display,
        within: Duration,
        asked: impl Future<Output = lapin::Result<T>>,
    ) -> Result<T, Self> {
        match timeout(within, asked).await {
            Ok(answer) => answer.map_err(|error| Self::asking(what, error)),
            Err(_) => Err(Self::new(
                TransportErrorKind::Unavailable,
                "timeout",
                format!(
                    "{what}: no answer within {within:?}; the broker may be overloaded or wait for its disk; if it needs longer, raise `timeout` of the transport"
                ),
            )),
        }
    }

    /// There is no connection, and no reason is known: one that was just made is lost again, or the
    /// runtime of the attempt has ended.
    pub(crate) fn lost_again() -> Self {
        let words = "the connection to the broker was lost as soon as it was opened; the next batch opens another one";
        Self::new(TransportErrorKind::Unavailable, "connection", words)
    }

    /// A connection has all the channels that it may have.
    pub(crate) fn no_channel() -> Self {
        Self::new(
            TransportErrorKind::Unavailable,
            "channel-limit",
            "no free channel: a connection has reached channel_max; raise channel_max of the broker, or `connections` of the transport",
        )
    }

    /// Something came back that is none of what is under way.
    pub(crate) fn unknown_return(reason: &str) -> Self {
        let words = format!(
            "the broker returned a message ({reason}) that matches none in flight; check whether a plugin or a proxy changes messages"
        );
        Self::new(TransportErrorKind::Unavailable, "unknown-return", words)
    }

    /// Creates the error of an attempt to connect.
    pub(crate) fn connecting(address: &Address, error: lapin::Error) -> Self {
        let (kind, class, remedy) = match error.kind() {
            ErrorKind::IOError(cause) => of_socket(address, cause),
            ErrorKind::ProtocolError(cause) => {
                of_refusal(address, cause.get_id(), cause.get_message().as_str())
            }
            _ => (
                TransportErrorKind::Unavailable,
                "connection",
                "the client could not open the connection".to_owned(),
            ),
        };
        Self {
            kind,
            class,
            words: format!("can't connect to {address}: {remedy}"),
            cause: Some(Box::new(error)),
        }
    }

    /// Creates the error of a question, or of a channel or connection that the broker ended by
    /// itself.
    pub(crate) fn asking(what: impl fmt::Display, error: lapin::Error) -> Self {
        let (said, text) = match error.kind() {
            ErrorKind::ProtocolError(cause) => (Some(cause.get_id()), cause.get_message().as_str()),
            _ => (None, ""),
        };
        let (kind, class, remedy) = match said {
            Some(530) if text.contains("limit") => (
                TransportErrorKind::Unavailable,
                "channel-limit",
                "the user has reached a limit; raise it (rabbitmqctl set_user_limits)",
            ),
            Some(404) => (
                TransportErrorKind::Missing,
                "missing",
                "does not exist; create it, or let the transport declare it (Topology::Declared)",
            ),
            Some(403) => (
                TransportErrorKind::NotPermitted,
                "not-authorized",
                "access refused; grant the user the permission that the broker names",
            ),
            Some(406) => (
                TransportErrorKind::Invalid,
                "precondition-failed",
                "the broker's declaration differs from the transport's; make both the same",
            ),
            Some(405) => (
                TransportErrorKind::Unavailable,
                "locked",
                "another connection uses it exclusively; close that connection",
            ),
            Some(320) => (
                TransportErrorKind::Unavailable,
                "closed-by-operator",
                "connection closed: the broker is shutting down, or an operator closed it",
            ),
            _ => (TransportErrorKind::Unavailable, "connection", "the connection to the broker was lost"),
        };
        Self { kind, class, words: format!("{what}: {remedy}"), cause: Some(Box::new(error)) }
    }

    /// Returns true if it is of the one queue that was asked about: it is missing, not to be used,
    /// or refused to this user. Others can be consumed.
    pub(crate) fn is_of_one_queue(&self) -> bool {
        matches!(
            self.class,
            "missing" | "not-authorized" | "precondition-failed" | "locked" | "queue-not-fit"
        )
    }

    /// Returns true if the client could not read what came: it ends the connection then, and what
    /// it could not read comes again over the next one.
    pub(crate) fn is_unreadable(&self) -> bool {
        match self.cause.as_ref().map(|cause| cause.kind()) {
            Some(ErrorKind::ParsingError(_)) => true,
            // It says so to the broker, before anybody else could.
            Some(ErrorKind::ProtocolError(cause)) => {
                cause.get_id() == 501 && cause.get_message().as_str().contains("frame too large")
            }
            _ => false,
        }
    }

    /// The same, with the queues that what could not be read may be in.
    pub(crate) fn naming<'q>(mut self, queues: impl ExactSizeIterator<Item = &'q str>) -> Self {
        const MAX_NAMED: usize = 8;
        if self.is_unreadable() {
            let (all, named) = (queues.len(), queues.take(MAX_NAMED).map(|name| format!("{name:?}")));
            let named = named.collect::<Vec<_>>().join(", ");
            let (one_of, rest) = match all {
                0 | 1 => ("", String::new()),
                2..=MAX_NAMED => ("one of ", String::new()),
                _ => ("one of ", format!(" and {} more", all - MAX_NAMED)),
            };
            self.class = "unreadable";
            self.words = format!(
                "the client can't read a message in queue {one_of}{named}{rest}: a text in it (a header's name, a message-id) is not UTF-8, or its \
                 headers are larger than a frame; it blocks the messages behind it: remove it, or let a delivery limit dead-letter it, and \
                 correct its sender"
            );
        }
        self
    }

    /// The same as something that is waited for: once a subscription stands, whatever is wrong may
    /// become right again.
    pub(crate) fn waited_for(mut self) -> Self {
        if self.kind != TransportErrorKind::Closed {
            self.kind = TransportErrorKind::Unavailable;
        }
        self
    }

    /// Returns the text without that of the cause.
    pub(crate) fn own_words(&self) -> &str {
        &self.words
    }

    pub(crate) fn to_error(&self, operation: &'static str) -> TransportError {
        let error = TransportError::new(self.kind, operation, self.words.clone());
        match &self.cause {
            Some(cause) => error.with_source(lapin::Error::clone(cause)),
            None => error,
        }
    }

    pub(crate) fn to_failure(&self) -> Failure {
        Failure::new(self.class, self.to_string())
    }

    /// Nothing can be published, whatever the message.
    pub(crate) fn unavailable(&self) -> Outcome {
        Outcome::Unavailable(Unavailable::Route, self.to_failure())
    }

    /// It may or may not have arrived.
    pub(crate) fn unknown(&self) -> Outcome {
        Outcome::Unknown(self.to_failure())
    }

    /// Returns the outcome of the messages that were on their way over a channel when this ended
    /// it; `alone`: there was only one.
    ///
    /// The broker does not say which message it objects to. So it is the message's fault only if
    /// there was no other.
    pub(crate) fn of_messages_under_way(&self, alone: bool) -> Outcome {
        match self.class {
            "precondition-failed" if alone => Outcome::Rejected(self.to_failure()),
            "missing" | "not-authorized" => self.unavailable(),
            _ => self.unknown(),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)?;
        match &self.cause {
            Some(cause) => write!(f, ": {cause}"),
            None => Ok(()),
        }
    }
}

/// An error that the broker names by number.
pub(crate) fn said_by_broker(code: u16, text: ShortString) -> lapin::Error {
    let unknown = AMQPError::new(AMQPErrorKind::Hard(AMQPHardError::INTERNALERROR), text.clone());
    ErrorKind::ProtocolError(AMQPError::from_id(code, text).unwrap_or(unknown)).into()
}

type Row = (TransportErrorKind, &'static str, String);

/// Classifies an error of the socket.
fn of_socket(address: &Address, cause: &io::Error) -> Row {
    let said = cause.to_string();
    if cause.kind() == io::ErrorKind::ConnectionRefused {
        let remedy = format!(
            "connection refused at {}:{}; start the broker, or correct the address",
            address.host(),
            address.port()
        );
        return (TransportErrorKind::Unavailable, "connection-refused", remedy);
    }
    if said.contains("certificate") || said.contains("tls") || said.contains("TLS") {
        let remedy = "the TLS handshake failed, or the broker's certificate is not trusted; name the authority that signed it (authorities), and connect by the host name in it";
        return (TransportErrorKind::NotPermitted, "tls", remedy.to_owned());
    }
    if address.is_tls() {
        let remedy = "no TLS handshake took place; check that this is the broker's TLS port, and whether it requires a client certificate (identity)";
        return (TransportErrorKind::Unavailable, "tls", remedy.to_owned());
    }
    (
        TransportErrorKind::Unavailable,
        "connection",
        "the connection was lost; check that the broker runs, and that this is its port without TLS"
            .to_owned(),
    )
}

/// Classifies a refusal of the broker while a connection is opened.
fn of_refusal(address: &Address, code: u16, said: &str) -> Row {
    let (user, vhost) = (address.user(), address.vhost());
    match code {
        403 => (
            TransportErrorKind::NotPermitted,
            "not-authorized",
            format!(
                "authentication failed for user {user:?}; correct user and password, or allow this user to connect from this host"
            ),
        ),
        530 if said.contains("limit") => (
            TransportErrorKind::Unavailable,
            "connection-limit",
            format!(
                "user {user:?} or vhost {vhost:?} has reached its connection limit; raise the limit, or lower `connections`"
            ),
        ),
        530 if said.contains("not found") => (
            TransportErrorKind::Missing,
            "missing",
            format!("the vhost {vhost:?} does not exist; create it, or correct the name"),
        ),
        530 if said.contains("negotiated") => (
            TransportErrorKind::Invalid,
            "limits",
            "the broker rejects frame_max or channel_max of the URL; lower them".to_owned(),
        ),
        530 => (
            TransportErrorKind::NotPermitted,
            "not-authorized",
            format!(
                "access refused: user {user:?} has no access to vhost {vhost:?}; set its permissions there"
            ),
        ),
        _ => (TransportErrorKind::Unavailable, "connection", "the broker closed the connection".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn said(code: u16, text: &str) -> lapin::Error {
        let error = AMQPError::from_id(code, text.into()).unwrap();
        ErrorKind::ProtocolError(error).into()
    }

    fn address() -> Address {
        Address::parse("amqp://shop:s3cret@broker/v").unwrap()
    }

    #[test]
    fn what_the_broker_refuses_is_named_with_a_remedy_and_without_the_password() {
        let table = [
            (403, "ACCESS_REFUSED - Login was refused", TransportErrorKind::NotPermitted, "shop"),
            (530, "NOT_ALLOWED - vhost v not found", TransportErrorKind::Missing, "vhost \"v\""),
            (
                530,
                "NOT_ALLOWED - access to vhost 'v' refused for user 'shop'",
                TransportErrorKind::NotPermitted,
                "permissions",
            ),
            (
                530,
                "NOT_ALLOWED - connection limit (1) is reached",
                TransportErrorKind::Unavailable,
                "raise the limit",
            ),
            (541, "INTERNAL_ERROR", TransportErrorKind::Unavailable, "broker"),
        ];
        for (code, text, kind, words) in table {
            let fault = Fault::connecting(&address(), said(code, text));
            let shown = format!("{fault} {}", fault.to_error("check"));
            assert_eq!(fault.kind, kind, "{shown}");
            assert!(shown.contains(words) && !shown.contains("s3cret"), "{shown}");
        }
    }

    #[test]
    fn what_the_socket_says_is_told_apart() {
        let class = |url: &str, cause: io::Error| {
            let error = ErrorKind::IOError(Arc::new(cause)).into();
            Fault::connecting(&Address::parse(url).unwrap(), error).class
        };
        let plain = "amqp://broker";
        assert_eq!(class(plain, io::ErrorKind::ConnectionRefused.into()), "connection-refused");
        assert_eq!(class(plain, io::ErrorKind::ConnectionReset.into()), "connection");
        assert_eq!(
            class("amqps://broker", io::Error::other("invalid peer certificate: UnknownIssuer")),
            "tls"
        );
        assert_eq!(class("amqps://broker", io::ErrorKind::UnexpectedEof.into()), "tls");
    }

    #[test]
    fn a_limit_of_the_user_is_no_lost_connection() {
        let text = "NOT_ALLOWED - number of channels opened for user 'app' has reached the maximum allowed user limit of 1";
        let fault = Fault::asking("opening a channel", said(530, text));
        assert_eq!(fault.class, "channel-limit", "{fault}");
        assert!(fault.to_string().contains("raise it") && !fault.to_string().contains("lost"), "{fault}");
    }

    #[test]
    fn only_a_message_that_was_sent_alone_is_rejected() {
        let too_large =
            Fault::asking("publishing", said(406, "PRECONDITION_FAILED - message size 9 is larger than 8"));
        assert!(matches!(too_large.of_messages_under_way(true), Outcome::Rejected(_)));
        assert!(matches!(too_large.of_messages_under_way(false), Outcome::Unknown(_)));
        for code in [404, 403] {
            let outcome = Fault::asking("publishing", said(code, "no")).of_messages_under_way(true);
            assert!(matches!(outcome, Outcome::Unavailable(Unavailable::Route, _)), "{code}: {outcome:?}");
        }
        let lost = Fault::asking("publishing", io::Error::from(io::ErrorKind::ConnectionReset).into());
        assert!(matches!(lost.of_messages_under_way(true), Outcome::Unknown(_)));
    }

    #[test]
    fn what_can_not_be_read_is_named_by_its_queues() {
        let asking = |error| Fault::asking("consuming queue \"q\"", error);
        let unreadable = || asking(said(501, "frame too large: 9 bytes"));
        assert!(unreadable().is_unreadable());
        assert!(!asking(said(501, "FRAME_ERROR")).is_unreadable());
        assert!(!asking(io::Error::from(io::ErrorKind::ConnectionReset).into()).is_unreadable());
        let words = |count: usize| {
            let names: Vec<String> = (0..count).map(|at| format!("q{at}")).collect();
            unreadable().naming(names.iter().map(String::as_str)).to_string()
        };
        assert!(words(1).contains("in queue \"q0\": a text"), "{}", words(1));
        assert!(!words(1).contains("  "), "{}", words(1));
        assert!(words(2).contains("in queue one of \"q0\", \"q1\": a text"), "{}", words(2));
        assert!(words(10).contains("\"q7\" and 2 more: a text"), "{}", words(10));
        let lost = asking(io::Error::from(io::ErrorKind::ConnectionReset).into());
        assert!(!lost.naming(["q"].into_iter()).to_string().contains("can't read a message"));
    }

    #[test]
    fn once_subscribed_everything_is_waited_for_but_a_close() {
        let missing = Fault::asking("queue q", said(404, "no queue"));
        assert_eq!(missing.kind, TransportErrorKind::Missing);
        assert_eq!(missing.waited_for().kind, TransportErrorKind::Unavailable);
        assert_eq!(Fault::closed().waited_for().kind, TransportErrorKind::Closed);
    }
}
