//! Errors of a client's connections, with their remedies.
//!
//! librdkafka's code tells half of it. Which certificate was refused, and whether a listener with
//! TLS was taken for one without, stands in its words alone.

use outbox_contract::TransportErrorKind;
use rdkafka::types::RDKafkaErrorCode as Code;

use crate::repeats::without_circumstances;

/// Error of a connection, as the client said it.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionError {
    pub(crate) code: Code,
    pub(crate) words: String,
}

/// Cause of a connection error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The broker does not let this user in, or lets it do nothing.
    User,
    /// The broker's certificate is not trusted, or has another name: the client tells the two not
    /// apart.
    Untrusted,
    /// The broker wants a certificate of the client, and not this one, or the two have no way of
    /// TLS in common.
    Refused,
    /// There was no handshake: the listener may have no TLS.
    WithoutTls,
    /// A connection without TLS ended at once: the listener may want it.
    WantsTls,
    /// A connection with TLS ended at once after the handshake: the broker may want a certificate.
    Closed,
    /// The broker is away, or it is not known.
    Other,
}

impl Cause {
    /// Returns the message, with the remedy.
    pub(crate) const fn remedy(self) -> &'static str {
        match self {
            Self::User => {
                "authentication failed: the broker refuses these credentials; check user, password and mechanism"
            }
            Self::Untrusted => {
                "the broker's certificate is not trusted: name the authority that signed it (authorities), and check that the address and the \
                 broker's advertised.listeners use a host name of the certificate (property ssl.endpoint.identification.algorithm: https, \
                 the default, checks the name, none does not)"
            }
            Self::Refused => {
                "the broker refused the TLS handshake: check whether it requires a client certificate (identity), of an authority that it trusts"
            }
            Self::WithoutTls => {
                "no TLS handshake took place: check that this listener uses TLS, and that the broker runs"
            }
            Self::WantsTls => {
                "the broker closed the connection at once: if this listener uses TLS, enable it here (tls)"
            }
            Self::Closed => {
                "the broker closed the connection after the TLS handshake: check whether it requires a client certificate (identity), and that it runs"
            }
            Self::Other => "the broker does not answer; check the address, and that it runs",
        }
    }

    /// The class of a failure by it.
    pub(crate) const fn class(self) -> &'static str {
        match self {
            Self::User => "not-authorized",
            Self::Untrusted | Self::Refused => "certificate",
            Self::WithoutTls | Self::WantsTls | Self::Closed => "tls",
            Self::Other => "broker-unavailable",
        }
    }
}

/// Returns the kind of a failure of this class.
pub(crate) fn kind_of(class: &str) -> TransportErrorKind {
    match class {
        "topic-missing" => TransportErrorKind::Missing,
        "not-authorized" | "certificate" => TransportErrorKind::NotPermitted,
        _ => TransportErrorKind::Unavailable,
    }
}

impl ConnectionError {
    pub(crate) fn cause(&self) -> Cause {
        let says = |words: &str| self.words.contains(words);
        match self.code {
            Code::Authentication | Code::SaslAuthenticationFailed | Code::ClusterAuthorizationFailed => {
                Cause::User
            }
            _ if says("certificate verify failed") || says("verify broker certificate") => Cause::Untrusted,
            // A listener without TLS answers in plain text.
            _ if says("PLAINTEXT broker listener") || says("wrong version number") => Cause::WithoutTls,
            // An alert comes from the other side.
            Code::SSL => Cause::Refused,
            _ if says("SSL") && says("alert") => Cause::Refused,
            // The first request, which every broker answers, whoever asks.
            _ if says("Disconnected") && says("in state APIVERSION_QUERY") => {
                if says("ssl://") {
                    Cause::Closed
                } else {
                    Cause::WantsTls
                }
            }
            _ => Cause::Other,
        }
    }

    /// Returns true if the broker refuses this user everything.
    pub(crate) fn is_refusal(&self) -> bool {
        self.cause() == Cause::User
    }

    /// Returns true if it stays, most likely, until somebody does something.
    pub(crate) fn lasts(&self) -> bool {
        self.cause() != Cause::Other
    }

    /// Returns this report after another one. That all brokers are down says nothing of why: the
    /// report before it does.
    pub(crate) fn after(self, before: Option<Self>) -> Self {
        match before {
            Some(before) if self.code == Code::AllBrokersDown && before.tells_why() => {
                Self { words: without_circumstances(&before.words).to_owned(), ..self }
            }
            _ => self,
        }
    }

    /// Returns true if it has the reason why a broker is away.
    fn tells_why(&self) -> bool {
        match self.code {
            Code::BrokerTransportFailure | Code::Resolve => true,
            Code::AllBrokersDown => !self.words.ends_with("brokers are down"),
            _ => false,
        }
    }

    /// Returns true if the next report says less than this one. Where a broker refuses something,
    /// the client says a moment later that the connection is lost and that all brokers are down:
    /// the refusal has the remedy.
    pub(crate) fn says_more_than(&self, next: &Self) -> bool {
        let refuses = matches!(self.cause(), Cause::User | Cause::Untrusted | Cause::Refused);
        match next.code {
            Code::AllBrokersDown => self.lasts(),
            Code::BrokerTransportFailure => refuses,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trouble(code: Code, words: &str) -> ConnectionError {
        ConnectionError { code, words: words.to_owned() }
    }

    /// Words of librdkafka 2.12 with OpenSSL 3.
    #[test]
    fn the_cause_is_read_out_of_the_words() {
        let cases = [
            (
                Code::SSL,
                "ssl://b:9093/bootstrap: SSL handshake failed: error:0A000086:SSL routines::certificate verify failed: broker certificate \
                 could not be verified (after 4ms in state SSL_HANDSHAKE)",
                Cause::Untrusted,
            ),
            (
                Code::SSL,
                "ssl://b:9093/bootstrap: Failed to verify broker certificate: hostname mismatch",
                Cause::Untrusted,
            ),
            (
                Code::SSL,
                "ssl://b:9093/bootstrap: SSL handshake failed: error:0A000412:SSL routines::sslv3 alert bad certificate",
                Cause::Refused,
            ),
            (
                Code::BrokerTransportFailure,
                "ssl://b:9093/1: Receive failed: error:0A00045C:SSL routines::tlsv13 alert certificate required: SSL alert number 116",
                Cause::Refused,
            ),
            (
                Code::BrokerTransportFailure,
                "ssl://b:9092/bootstrap: SSL handshake failed: Disconnected: connecting to a PLAINTEXT broker listener? (after 2ms in \
                 state SSL_HANDSHAKE)",
                Cause::WithoutTls,
            ),
            (
                Code::SSL,
                "ssl://b:80/bootstrap: SSL handshake failed: wrong version number",
                Cause::WithoutTls,
            ),
            (
                Code::BrokerTransportFailure,
                "b:9093/bootstrap: Disconnected: connection closed by peer: receive 0 after POLLIN (after 9ms in state APIVERSION_QUERY)",
                Cause::WantsTls,
            ),
            (
                Code::BrokerTransportFailure,
                "sasl_ssl://b:9093/bootstrap: Disconnected: Connection reset by peer (after 9ms in state APIVERSION_QUERY)",
                Cause::Closed,
            ),
            (Code::BrokerTransportFailure, "b:9092/1: Disconnected (after 9000ms in state UP)", Cause::Other),
            (
                Code::BrokerTransportFailure,
                "b:9092/1: Connect to ipv4#10.0.0.1:9092 failed: Connection refused",
                Cause::Other,
            ),
            (Code::Authentication, "sasl_ssl://b:9093/bootstrap: SASL authentication error", Cause::User),
        ];
        for (code, words, cause) in cases {
            assert_eq!(trouble(code, words).cause(), cause, "{words}");
        }
    }

    #[test]
    fn what_has_a_remedy_is_not_covered_by_what_has_none() {
        let away = trouble(Code::BrokerTransportFailure, "Connect failed: Connection refused");
        let all_down = trouble(Code::AllBrokersDown, "1/1 brokers are down");
        let refused = trouble(Code::SSL, "SSL handshake failed: certificate verify failed");
        let no_tls = trouble(
            Code::BrokerTransportFailure,
            "SSL handshake failed: connecting to a PLAINTEXT broker listener?",
        );
        assert!(refused.says_more_than(&away) && refused.says_more_than(&all_down));
        assert!(no_tls.says_more_than(&all_down));
        // This may have been a broker on its way down: now it is.
        assert!(!no_tls.says_more_than(&away));
        assert!(!refused.says_more_than(&trouble(Code::Authentication, "")));
        assert!(!away.says_more_than(&all_down));
    }
}
