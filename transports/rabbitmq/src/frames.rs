//! Frames of AMQP 0-9-1: to bytes and back. Pure.
//!
//! `amq-protocol`, the codec of the client library, writes methods and reads frames. The three
//! frames of a message are written here, without a copy of its payload and without a table of its
//! headers in between: they are what a publishing connection spends its time with.

use std::io;

use amq_protocol::frame::{AMQPFrame, gen_frame, parse_frame};
use amq_protocol::protocol::{AMQPClass, constants};
use outbox_contract::{Failure, Rejection};

/// First bytes of a client.
pub(crate) const HELLO: &[u8] = b"AMQP\0\x00\x09\x01";

/// Says that this side is there.
pub(crate) const HEARTBEAT: [u8; 8] = [constants::FRAME_HEARTBEAT, 0, 0, 0, 0, 0, 0, constants::FRAME_END];

const KINDS: [u8; 4] =
    [constants::FRAME_METHOD, constants::FRAME_HEADER, constants::FRAME_BODY, constants::FRAME_HEARTBEAT];

/// The bytes of a frame around its content: kind, channel and length in front of it, a mark behind
/// it.
const AROUND: usize = 8;

/// Writes a method.
///
/// # Errors
///
/// Only for a method that the codec can't write, such as one with a table of over 4 GiB.
pub(crate) fn method(out: &mut Vec<u8>, channel: u16, method: AMQPClass) -> io::Result<()> {
    let written = gen_frame(&AMQPFrame::Method(channel, method))(std::mem::take(out).into());
    let (bytes, _) = written.map_err(|error| io::Error::other(format!("{error:?}")))?.into_inner();
    *out = bytes;
    Ok(())
}

/// So much of the frame of a message's headers is left to the broker, which adds some when it
/// delivers a message once more, or drops it into the dead letters.
const LEFT_TO_THE_BROKER: usize = 1_024;

/// A message on its way to an exchange.
pub(crate) struct Publish<'m> {
    pub(crate) channel: u16,
    pub(crate) exchange: &'m str,
    pub(crate) routing_key: &'m str,
    pub(crate) payload: &'m [u8],
}

impl Publish<'_> {
    /// Writes the frames of a message: the method, the properties, and as many pieces of the
    /// payload as it takes with frames of at most so many bytes.
    ///
    /// # Errors
    ///
    /// A message that can never be sent; nothing of it is written.
    pub(crate) fn write(
        &self,
        out: &mut Vec<u8>,
        max_frame_bytes: usize,
        properties: impl FnOnce(&mut Vec<u8>) -> Result<(), Rejection>,
    ) -> Result<(), Rejection> {
        let start = out.len();
        let written = self.write_all(out, max_frame_bytes, properties);
        if written.is_err() {
            out.truncate(start);
        }
        written
    }

    fn write_all(
        &self,
        out: &mut Vec<u8>,
        max_frame_bytes: usize,
        properties: impl FnOnce(&mut Vec<u8>) -> Result<(), Rejection>,
    ) -> Result<(), Rejection> {
        // Method 40 (publish) of class 60 (basic); an unused ticket; mandatory: what reaches no
        // queue comes back, instead of being confirmed and dropped.
        frame(out, constants::FRAME_METHOD, self.channel, |out| {
            out.extend_from_slice(&[0, 60, 0, 40, 0, 0]);
            short(out, "exchange", self.exchange)?;
            short(out, "routing key", self.routing_key)?;
            out.push(1);
            Ok(())
        })?;
        let start = out.len();
        frame(out, constants::FRAME_HEADER, self.channel, |out| {
            // The class, and an unused weight.
            out.extend_from_slice(&[0, 60, 0, 0]);
            out.extend_from_slice(&(self.payload.len() as u64).to_be_bytes());
            properties(out)
        })?;
        let bytes = out.len() - start;
        // Who consumes has agreed on frames of the same size, and the broker adds headers.
        let most = max_frame_bytes.saturating_sub(LEFT_TO_THE_BROKER);
        if bytes > most {
            let words = format!(
                "its headers have {bytes} bytes, over the {most} that one frame has room for beside what the broker adds; shorten them, or raise frame_max of the broker and of the URLs of all that publish and consume"
            );
            return Err(Rejection(Failure::new("headers-too-large", words)));
        }
        for piece in self.payload.chunks(max_frame_bytes - AROUND) {
            frame(out, constants::FRAME_BODY, self.channel, |out| {
                out.extend_from_slice(piece);
                Ok(())
            })?;
        }
        Ok(())
    }
}

fn frame(
    out: &mut Vec<u8>,
    kind: u8,
    channel: u16,
    content: impl FnOnce(&mut Vec<u8>) -> Result<(), Rejection>,
) -> Result<(), Rejection> {
    out.push(kind);
    out.extend_from_slice(&channel.to_be_bytes());
    counted(out, content)?;
    out.push(constants::FRAME_END);
    Ok(())
}

/// Writes something with its length, in four bytes, in front of it.
pub(crate) fn counted(
    out: &mut Vec<u8>,
    content: impl FnOnce(&mut Vec<u8>) -> Result<(), Rejection>,
) -> Result<(), Rejection> {
    let at = out.len();
    out.extend_from_slice(&[0; 4]);
    content(out)?;
    let length = u32::try_from(out.len() - at - 4)
        .map_err(|_| Rejection(Failure::new("message-too-large", "more than 4 GiB in one frame")))?;
    out[at..at + 4].copy_from_slice(&length.to_be_bytes());
    Ok(())
}

/// Writes a short text: at most 255 bytes.
pub(crate) fn short(out: &mut Vec<u8>, what: &str, text: &str) -> Result<(), Rejection> {
    let Ok(length) = u8::try_from(text.len()) else {
        let shown: String = text.chars().take(64).collect();
        let words =
            format!("the {what} {shown:?}… has {} bytes, and AMQP takes 255 at most; shorten it", text.len());
        return Err(Rejection(Failure::new("header-not-valid", words)));
    };
    out.push(length);
    out.extend_from_slice(text.as_bytes());
    Ok(())
}

/// Bytes as they come, of which frames are made.
#[derive(Debug)]
pub(crate) struct Incoming {
    bytes: Vec<u8>,
    /// Number of bytes that were read as frames.
    read: usize,
    max_frame_bytes: usize,
}

impl Incoming {
    /// Frames of at most so many bytes are taken.
    pub(crate) const fn new(max_frame_bytes: usize) -> Self {
        Self { bytes: Vec::new(), read: 0, max_frame_bytes }
    }

    /// Maximum size that was agreed on with the broker, once it was.
    pub(crate) const fn set_max_frame_bytes(&mut self, bytes: usize) {
        self.max_frame_bytes = bytes;
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..std::mem::take(&mut self.read));
        self.bytes.extend_from_slice(bytes);
    }

    /// The next frame, if all of it has come.
    ///
    /// # Errors
    ///
    /// Bytes that are no frame, or one that is larger than was agreed on. Nothing that comes after
    /// it can be read.
    pub(crate) fn next(&mut self) -> io::Result<Option<AMQPFrame>> {
        let unread = &self.bytes[self.read..];
        match unread {
            [kind, _, _, length @ ..] if KINDS.contains(kind) => {
                let bytes = length.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
                let (bytes, most) = (AROUND as u64 + u64::from(bytes), self.max_frame_bytes);
                if bytes > most as u64 {
                    return Err(invalid(format!(
                        "the broker sent a frame of {bytes} bytes, over the negotiated frame_max of {most}"
                    )));
                }
            }
            [kind, ..] if !KINDS.contains(kind) && *kind != HELLO[0] => return Err(no_frame()),
            _ => {}
        }
        match parse_frame(unread) {
            Ok((rest, frame)) => {
                self.read = self.bytes.len() - rest.len();
                Ok(Some(frame))
            }
            Err(error) if error.is_incomplete() => Ok(None),
            Err(_) => Err(no_frame()),
        }
    }
}

fn no_frame() -> io::Error {
    invalid("the answer is not an AMQP 0-9-1 frame; check that the address is RabbitMQ".to_owned())
}

fn invalid(words: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, words)
}

#[cfg(test)]
mod tests {
    use amq_protocol::protocol::{basic, channel};
    use proptest::prelude::*;

    use super::*;

    fn frames(bytes: &[u8]) -> Vec<AMQPFrame> {
        let mut incoming = Incoming::new(4_096);
        incoming.push(bytes);
        std::iter::from_fn(|| incoming.next().unwrap()).collect()
    }

    fn published(payload: &[u8]) -> Vec<AMQPFrame> {
        let mut out = Vec::new();
        let publish = Publish { channel: 7, exchange: "outbox", routing_key: "orders", payload };
        publish
            .write(&mut out, 4_096, |out| {
                out.extend_from_slice(&[0, 0]);
                Ok(())
            })
            .unwrap();
        frames(&out)
    }

    #[test]
    fn what_is_published_is_what_the_codec_reads() {
        let payload: Vec<u8> = (0..=u8::MAX).cycle().take(10_000).collect();
        let all = published(&payload);
        let method = basic::Publish {
            exchange: "outbox".into(),
            routing_key: "orders".into(),
            mandatory: true,
            immediate: false,
        };
        let expected = AMQPFrame::Method(7, AMQPClass::Basic(basic::AMQPMethod::Publish(method)));
        assert_eq!(all[0], expected);
        assert!(
            matches!(&all[1], AMQPFrame::Header(7, header) if header.body_size == 10_000 && header.class_id == 60)
        );
        let bodies: Vec<&Vec<u8>> = all[2..]
            .iter()
            .map(|frame| if let AMQPFrame::Body(7, body) = frame { body } else { panic!("{frame:?}") })
            .collect();
        assert_eq!(bodies.iter().map(|body| body.len()).collect::<Vec<_>>(), [4_088, 4_088, 1_824]);
        assert_eq!(bodies.into_iter().flatten().copied().collect::<Vec<u8>>(), payload);
        assert_eq!(published(b"").len(), 2, "no payload, no piece of it");
    }

    #[test]
    fn what_can_not_be_sent_leaves_nothing_behind() {
        let mut out = b"before".to_vec();
        let publish =
            Publish { channel: 1, exchange: "outbox", routing_key: &"k".repeat(256), payload: b"x" };
        let Rejection(failure) = publish.write(&mut out, 4_096, |_| Ok(())).unwrap_err();
        assert!(failure.message.contains("routing key") && failure.message.contains("256"), "{failure:?}");
        let publish = Publish { routing_key: "k", ..publish };
        let error = publish.write(&mut out, 4_096, |out| {
            out.extend_from_slice(&[0; 5_000]);
            Ok(())
        });
        let Err(Rejection(failure)) = error else { panic!("headers of 5,000 bytes in a frame of 4,096") };
        assert_eq!((failure.class.as_ref(), out.as_slice()), ("headers-too-large", &b"before"[..]));
        // 8 bytes around, 12 in front of the properties, and those of the broker.
        for (bytes, fits) in [(4_096 - 1_024 - 20, true), (4_096 - 1_024 - 19, false)] {
            let written = publish.write(&mut Vec::new(), 4_096, |out| {
                out.extend_from_slice(&vec![0; bytes]);
                Ok(())
            });
            assert_eq!(written.is_ok(), fits, "{bytes}");
        }
    }

    #[test]
    fn a_frame_that_is_larger_than_agreed_is_not_waited_for() {
        let mut incoming = Incoming::new(4_096);
        incoming.push(&[constants::FRAME_BODY, 0, 1, 0, 0, 0x0f, 0xf8]);
        assert!(matches!(incoming.next(), Ok(None)), "just as large");
        let mut incoming = Incoming::new(4_096);
        incoming.push(&[constants::FRAME_BODY, 0, 1, 0, 0, 0x0f, 0xf9]);
        assert!(incoming.next().unwrap_err().to_string().contains("4097"));
    }

    proptest! {
        #[test]
        fn frames_come_in_pieces(cuts in proptest::collection::vec(0..5_000_usize, 0..8), size in 0..4_000_usize) {
            let mut bytes = HEARTBEAT.to_vec();
            method(&mut bytes, 3, AMQPClass::Channel(channel::AMQPMethod::CloseOk(channel::CloseOk {}))).unwrap();
            let publish = Publish { channel: 3, exchange: "e", routing_key: "r", payload: &vec![7; size] };
            publish.write(&mut bytes, 1_100, |out| { out.extend_from_slice(&[0, 0]); Ok(()) }).unwrap();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).chain([0, bytes.len()]).collect();
            cuts.sort_unstable();
            let mut incoming = Incoming::new(4_096);
            let mut all = Vec::new();
            for piece in cuts.windows(2) {
                incoming.push(&bytes[piece[0]..piece[1]]);
                while let Some(frame) = incoming.next().unwrap() {
                    all.push(frame);
                }
            }
            prop_assert_eq!(all, frames(&bytes));
        }

        #[test]
        fn whatever_comes_is_a_frame_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut incoming = Incoming::new(4_096);
            incoming.push(&bytes);
            while let Ok(Some(_)) = incoming.next() {}
        }
    }
}
