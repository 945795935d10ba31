//! State of a channel that publishes: what the broker said on it, and a message that is coming
//! back. Pure.

use std::task::Waker;

use amq_protocol::frame::AMQPContentHeader;
use amq_protocol::protocol::{AMQPClass, basic};

use crate::publication::Returned;
use crate::record;

/// News for who publishes over a channel.
#[derive(Debug)]
pub(crate) enum News {
    /// Answers of the broker about messages, in the order in which it gave them.
    Said(Vec<Said>),
    /// The channel or the connection is over.
    Over(lapin::Error),
    /// The broker takes nothing for now, and why; none: it takes messages again.
    Blocked(Option<String>),
    /// More can be sent.
    Room,
}

/// News that somebody waits for, besides answers and the end.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wants {
    /// That more can be sent.
    pub(crate) room: bool,
    /// That the broker takes messages: so far it is known to take nothing.
    pub(crate) end_of_block: bool,
}

/// Answer of the broker about messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// A message came back. Its confirmation comes later.
    Returned(Returned),
    /// It took the message of this number; with `several` all up to it.
    Confirmed { tag: u64, several: bool },
    /// It did not take them.
    Refused { tag: u64, several: bool },
}

/// A channel.
#[derive(Default)]
pub(crate) struct ChannelState {
    pub(crate) said: Vec<Said>,
    pub(crate) is_asked: bool,
    pub(crate) answer: Option<AMQPClass>,
    pub(crate) over: Option<lapin::Error>,
    pub(crate) waiting: Option<Waker>,
    /// We closed it, and the broker has not yet confirmed that.
    pub(crate) is_closing: bool,
    returning: Option<Returning>,
}

/// A message that is coming back, in several frames.
struct Returning {
    returned: Returned,
    /// Number of bytes of its payload that are still to come; none before its properties came.
    bytes_left: Option<u64>,
}

impl ChannelState {
    /// Takes in what the broker sent.
    pub(crate) fn take(&mut self, method: AMQPClass) {
        match method {
            AMQPClass::Basic(basic::AMQPMethod::Ack(ack)) => {
                self.said.push(Said::Confirmed { tag: ack.delivery_tag, several: ack.multiple });
            }
            AMQPClass::Basic(basic::AMQPMethod::Nack(nack)) => {
                self.said.push(Said::Refused { tag: nack.delivery_tag, several: nack.multiple });
            }
            AMQPClass::Basic(basic::AMQPMethod::Return(returned)) => {
                let reason = format!("{} {}", returned.reply_code, returned.reply_text);
                let returned = Returned { id: None, position: None, reason };
                self.returning = Some(Returning { returned, bytes_left: None });
            }
            method if self.is_asked => (self.is_asked, self.answer) = (false, Some(method)),
            _ => {}
        }
    }

    /// Takes in the properties of a message that is coming back.
    pub(crate) fn take_header(&mut self, header: &AMQPContentHeader) {
        if let Some(returning) = &mut self.returning {
            returning.returned.id = record::id_of(&header.properties);
            returning.returned.position = record::position_of(&header.properties);
            returning.bytes_left = Some(header.body_size);
        }
        self.came_back();
    }

    /// Takes in a piece of its payload.
    pub(crate) fn take_body(&mut self, bytes: usize) {
        if let Some(Returning { bytes_left: Some(left), .. }) = &mut self.returning {
            *left = left.saturating_sub(bytes as u64);
        }
        self.came_back();
    }

    /// A message has come back once all of it is there.
    fn came_back(&mut self) {
        if let Some(Returning { returned, .. }) =
            self.returning.take_if(|returning| returning.bytes_left == Some(0))
        {
            self.said.push(Said::Returned(returned));
        }
    }
}
