//! The address of a broker: read once, shown without its password.

use std::fmt;

use lapin::uri::{AMQPScheme, AMQPUri};

/// Address of the broker, with our user and vhost.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Address {
    uri: AMQPUri,
}

impl Address {
    /// Reads `amqp://user:password@host:port/vhost`, or `amqps://` for TLS.
    ///
    /// The error never shows the text: it has a password in it.
    pub(crate) fn parse(url: &str) -> Result<Self, String> {
        let mut uri: AMQPUri = url.parse().map_err(|_| {
            "invalid broker URL; write amqp://user:password@host:port/vhost, or amqps:// for \
             TLS, with special characters as %xx, and one host: of several nodes, a name that has all their addresses"
                .to_owned()
        })?;
        // The parser of URIs knows names and IPv4 only, and takes localhost for whatever else.
        if let Some(host) = ipv6_of(url) {
            host.clone_into(&mut uri.authority.host);
        }
        Ok(Self { uri })
    }

    /// The same address with what is to be agreed on with the broker: seconds between heartbeats,
    /// bytes in a frame.
    pub(crate) fn uri(&self, heartbeat_s: u16, frame_bytes: u32) -> AMQPUri {
        let mut uri = self.uri.clone();
        uri.query.heartbeat.get_or_insert(heartbeat_s);
        uri.query.frame_max.get_or_insert(frame_bytes);
        uri
    }

    pub(crate) fn host(&self) -> &str {
        &self.uri.authority.host
    }

    pub(crate) const fn port(&self) -> u16 {
        self.uri.authority.port
    }

    pub(crate) fn user(&self) -> &str {
        &self.uri.authority.userinfo.username
    }

    pub(crate) fn vhost(&self) -> &str {
        &self.uri.vhost
    }

    pub(crate) fn is_tls(&self) -> bool {
        self.uri.scheme == AMQPScheme::AMQPS
    }
}

/// The host in square brackets, if there is one.
fn ipv6_of(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    Some(host.strip_prefix('[')?.split_once(']')?.0)
}

/// Without the password.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls() { "amqps" } else { "amqp" };
        write!(f, "{scheme}://{}:{}, vhost {:?}", self.host(), self.port(), self.vhost())
    }
}

/// Without the password.
impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({self}, user {:?})", self.user())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_is_printed_has_the_password() {
        let address = Address::parse("amqp://shop:s3cret@broker:5673/%2f").unwrap();
        let shown = format!("{address} {address:?}");
        assert!(!shown.contains("s3cret"), "{shown}");
        assert!(shown.contains("shop") && shown.contains("broker:5673"), "{shown}");
        for wrong in ["amqp:s3cret", "s3cret", "http://shop:s3cret@broker/"] {
            let error = Address::parse(wrong).unwrap_err();
            assert!(!error.contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn names_and_numbers_of_hosts_are_kept() {
        let host = |url: &str| Address::parse(url).unwrap().host().to_owned();
        assert_eq!(host("amqp://broker"), "broker");
        assert_eq!(host("amqp://a:b@127.0.0.1:5673/x"), "127.0.0.1");
        assert_eq!(host("amqp://a:b@[::1]:5673/x"), "::1");
        assert_eq!(host("amqp://a:b@[2001:db8::7]"), "2001:db8::7");
    }

    #[test]
    fn what_the_url_says_of_heartbeats_wins() {
        let address = Address::parse("amqp://broker?heartbeat=3").unwrap();
        assert_eq!(address.uri(10, 32_768).query.heartbeat, Some(3));
        assert_eq!(address.uri(10, 32_768).query.frame_max, Some(32_768));
    }
}
