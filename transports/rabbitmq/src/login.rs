//! The first words with a broker: who we are, what is agreed on, which vhost.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use amq_protocol::auth::{Credentials, SASLMechanism};
use amq_protocol::frame::AMQPFrame;
use amq_protocol::protocol::AMQPClass;
use amq_protocol::protocol::connection::{self, AMQPMethod};
use futures_util::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::uri::AMQPUri;

use crate::broker::Broker;
use crate::error::said_by_broker;
use crate::frames::{self, HELLO, Incoming};
use crate::multiplexer::other;

/// Parameters that both sides agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Agreed {
    pub(crate) max_channels: u16,
    pub(crate) max_frame_bytes: usize,
    /// None: neither side sends heartbeats.
    pub(crate) heartbeat: Option<Duration>,
}

/// Introduces us to the broker at the other end of a socket.
///
/// # Errors
///
/// The refusal of the broker, or the error of the socket.
pub(crate) async fn login(
    socket: &mut (impl AsyncRead + AsyncWrite + Unpin),
    incoming: &mut Incoming,
    uri: &AMQPUri,
    name: String,
) -> Result<(Broker, Agreed), lapin::Error> {
    let mut talk = Talk { socket, incoming };
    talk.write(HELLO).await?;
    let AMQPMethod::Start(greeting) = talk.next().await? else { return Err(unexpected("a greeting")) };
    let mechanism = uri.query.auth_mechanism.unwrap_or(SASLMechanism::Plain);
    let credentials = Credentials::from(uri.authority.userinfo.clone());
    let start = connection::StartOk {
        client_properties: properties(name),
        mechanism: ShortString::try_new(mechanism.to_string()).unwrap_or_default(),
        response: credentials.sasl_auth_string(mechanism),
        locale: "en_US".into(),
    };
    talk.say(AMQPMethod::StartOk(start)).await?;
    let AMQPMethod::Tune(offered) = talk.next().await? else {
        return Err(unexpected(
            "the tuning of the connection (does the mechanism need more than one answer?)",
        ));
    };
    let (tune, agreed) = agree(&offered, uri)?;
    talk.say(AMQPMethod::TuneOk(tune)).await?;
    talk.incoming.set_max_frame_bytes(agreed.max_frame_bytes);
    let virtual_host = ShortString::try_new(uri.vhost.as_str())
        .map_err(|_| other(format!("the name of vhost {:?} is over 255 bytes", uri.vhost)))?;
    talk.say(AMQPMethod::Open(connection::Open { virtual_host })).await?;
    let AMQPMethod::OpenOk(_) = talk.next().await? else {
        return Err(unexpected("the confirmation of the vhost"));
    };
    Ok((Broker::new(&greeting.server_properties), agreed))
}

struct Talk<'t, S> {
    socket: &'t mut S,
    incoming: &'t mut Incoming,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Talk<'_, S> {
    async fn write(&mut self, bytes: &[u8]) -> Result<(), lapin::Error> {
        self.socket.write_all(bytes).await.map_err(of_socket)?;
        self.socket.flush().await.map_err(of_socket)
    }

    async fn say(&mut self, method: AMQPMethod) -> Result<(), lapin::Error> {
        let mut bytes = Vec::new();
        frames::method(&mut bytes, 0, AMQPClass::Connection(method)).map_err(of_socket)?;
        self.write(&bytes).await
    }

    async fn next(&mut self) -> Result<AMQPMethod, lapin::Error> {
        let mut bytes = [0; 4_096];
        loop {
            match self.incoming.next().map_err(of_socket)? {
                Some(AMQPFrame::Method(0, AMQPClass::Connection(AMQPMethod::Close(close)))) => {
                    // It has refused us already: whether it hears that we heard makes no
                    // difference.
                    let _ = self.say(AMQPMethod::CloseOk(connection::CloseOk {})).await;
                    return Err(said_by_broker(close.reply_code, close.reply_text));
                }
                Some(AMQPFrame::Method(0, AMQPClass::Connection(method))) => return Ok(method),
                Some(AMQPFrame::Heartbeat) => {}
                Some(AMQPFrame::ProtocolHeader(version)) => {
                    return Err(other(format!(
                        "the broker speaks another version of AMQP than 0-9-1: {version}"
                    )));
                }
                Some(_) => return Err(unexpected("a method of the connection")),
                None => {
                    let count = self.socket.read(&mut bytes).await.map_err(of_socket)?;
                    if count == 0 {
                        return Err(of_socket(io::ErrorKind::UnexpectedEof.into()));
                    }
                    self.incoming.push(&bytes[..count]);
                }
            }
        }
    }
}

/// Of each limit the lower one. 0 is none, but for the size of frames, where both sides always have
/// one.
fn agree(offered: &connection::Tune, uri: &AMQPUri) -> Result<(connection::TuneOk, Agreed), lapin::Error> {
    let lower = |ours: u32, theirs: u32| match (ours, theirs) {
        (0, limit) | (limit, 0) => limit,
        (ours, theirs) => ours.min(theirs),
    };
    let channels = lower(u32::from(uri.query.channel_max.unwrap_or(0)), u32::from(offered.channel_max));
    let max_channels = u16::try_from(channels).unwrap_or(u16::MAX);
    let frame = lower(uri.query.frame_max.unwrap_or(0), offered.frame_max);
    let frame_max = if frame == 0 { MAX_FRAME_BYTES } else { frame };
    if frame_max < LEAST_FRAME_BYTES {
        let words = format!(
            "frame_max is {frame_max} bytes; AMQP requires at least {LEAST_FRAME_BYTES}: raise frame_max of the URL or of the broker"
        );
        return Err(other(words));
    }
    // The URL or the configuration decides, as a broker takes any interval; 0 is none.
    let heartbeat = uri.query.heartbeat.unwrap_or(offered.heartbeat);
    let agreed = Agreed {
        max_channels: if max_channels == 0 { u16::MAX } else { max_channels },
        max_frame_bytes: frame_max as usize,
        heartbeat: (heartbeat > 0).then(|| Duration::from_secs(heartbeat.into())),
    };
    Ok((connection::TuneOk { channel_max: max_channels, frame_max, heartbeat }, agreed))
}

/// Minimum frame size of AMQP 0-9-1 (`frame-min-size`).
const LEAST_FRAME_BYTES: u32 = 4_096;

/// Frame size that RabbitMQ offers by default; more would only be more memory. Connections that
/// consume say the same: all headers of a message come in one frame, and one that is larger than
/// was agreed on ends the connection, again and again. The client library has buffers of 32 frames
/// for each direction of such a connection, 4 MiB each.
pub(crate) const MAX_FRAME_BYTES: u32 = 128 * 1024;

fn properties(name: String) -> FieldTable {
    let mut can = FieldTable::default();
    for capability in
        ["publisher_confirms", "basic.nack", "connection.blocked", "authentication_failure_close"]
    {
        can.insert(capability.into(), AMQPValue::Boolean(true));
    }
    let mut properties = FieldTable::default();
    let mut text = |name: &str, value: String| {
        properties.insert(name.into(), AMQPValue::LongString(value.into()));
    };
    text("connection_name", name);
    text("product", env!("CARGO_PKG_NAME").to_owned());
    text("version", env!("CARGO_PKG_VERSION").to_owned());
    text("platform", "rust".to_owned());
    properties.insert("capabilities".into(), AMQPValue::FieldTable(can));
    properties
}

pub(crate) fn of_socket(error: io::Error) -> lapin::Error {
    lapin::ErrorKind::IOError(Arc::new(error)).into()
}

fn unexpected(awaited: &str) -> lapin::Error {
    other(format!("unexpected answer from the broker in place of {awaited}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agreed(offered: (u16, u32, u16), url: &str) -> (u16, usize, Option<u64>) {
        let (channel_max, frame_max, heartbeat) = offered;
        let offered = connection::Tune { channel_max, frame_max, heartbeat };
        let (said, agreed) = agree(&offered, &url.parse().unwrap()).unwrap();
        assert_eq!(
            (said.frame_max as usize, u64::from(said.heartbeat)),
            (agreed.max_frame_bytes, agreed.heartbeat.map_or(0, |it| it.as_secs()))
        );
        (agreed.max_channels, agreed.max_frame_bytes, agreed.heartbeat.map(|it| it.as_secs()))
    }

    #[test]
    fn the_lower_limit_counts_and_no_limit_is_none() {
        let offered = (2_047, 131_072, 60);
        assert_eq!(agreed(offered, "amqp://broker?heartbeat=10"), (2_047, 131_072, Some(10)));
        assert_eq!(
            agreed(offered, "amqp://broker?heartbeat=0&channel_max=7&frame_max=16384"),
            (7, 16_384, None)
        );
        assert_eq!(agreed(offered, "amqp://broker?frame_max=99999999"), (2_047, 131_072, Some(60)));
        assert_eq!(agreed((0, 0, 0), "amqp://broker"), (u16::MAX, 131_072, None));
        assert_eq!(agreed((1, 4_096, 0), "amqp://broker"), (1, 4_096, None), "never more than was offered");
        for (offer, url) in [(1, "amqp://broker"), (131_072, "amqp://broker?frame_max=100")] {
            let offered = connection::Tune { channel_max: 0, frame_max: offer, heartbeat: 0 };
            assert!(agree(&offered, &url.parse().unwrap()).is_err(), "{offer} {url}");
        }
    }
}
