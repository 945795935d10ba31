//! What goes over a publishing connection: its channels, what is asked and confirmed on them, what waits to be written. Pure: it neither reads
//! nor writes, and wakes who waits.

use std::collections::{HashMap, VecDeque};
use std::task::{Context, Poll, Waker};

use amq_protocol::frame::AMQPFrame;
use amq_protocol::protocol::{AMQPClass, basic, channel, connection};
use lapin::{ConnectionState, ErrorKind};

use crate::error::said_by_broker;
use crate::frames::{self, HEARTBEAT};
use crate::publication::Returned;
use crate::record;
use crate::tags::Tags;

/// So many bytes wait to be written at most, and one message.
const MAX_QUEUED_BYTES: usize = 1024 * 1024;

/// What there is to know for who publishes over a channel.
#[derive(Debug)]
pub(crate) enum News {
    /// What the broker said of messages, in the order in which it said it.
    Said(Vec<Said>),
    /// The channel or the connection is over.
    Over(lapin::Error),
    /// The broker takes nothing for now, and why.
    Blocked(String),
    /// More can be sent.
    Room,
}

/// What the broker says of messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// A message came back. Its confirmation comes later.
    Returned(Returned),
    /// It took the message of this number; with `several` all up to it.
    Confirmed { tag: u64, several: bool },
    /// It did not take them.
    Refused { tag: u64, several: bool },
}

/// What the writer does next.
pub(crate) enum Write {
    Bytes(Vec<u8>),
    /// Everything is written, and nothing more comes.
    End,
}

pub(crate) struct Switchboard {
    lines: HashMap<u16, Line>,
    /// Channels on which everything is confirmed, ready for the next batch.
    idle: Vec<(u16, Tags)>,
    max_channels: u16,
    /// The channel that was opened last.
    last: u16,
    queue: VecDeque<Vec<u8>>,
    queued_bytes: usize,
    writer: Option<Waker>,
    blocked: Option<String>,
    over: Option<lapin::Error>,
    /// Who closes it, and waits until the broker has confirmed that.
    closer: Option<Waker>,
}

/// A channel.
#[derive(Default)]
struct Line {
    said: Vec<Said>,
    is_asked: bool,
    answer: Option<AMQPClass>,
    over: Option<lapin::Error>,
    waiting: Option<Waker>,
    /// We closed it, and the broker has not yet confirmed that.
    is_closing: bool,
    returning: Option<Returning>,
}

/// A message that is coming back, in several frames.
struct Returning {
    returned: Returned,
    /// How much of its payload is still to come; none before its properties came.
    bytes_left: Option<u64>,
}

impl Switchboard {
    pub(crate) fn new(max_channels: u16) -> Self {
        Self {
            lines: HashMap::new(),
            idle: Vec::new(),
            max_channels,
            last: 0,
            queue: VecDeque::new(),
            queued_bytes: 0,
            writer: None,
            blocked: None,
            over: None,
            closer: None,
        }
    }

    pub(crate) const fn over(&self) -> Option<&lapin::Error> {
        self.over.as_ref()
    }

    pub(crate) const fn blocked(&self) -> Option<&String> {
        self.blocked.as_ref()
    }

    const fn has_room(&self) -> bool {
        self.queued_bytes < MAX_QUEUED_BYTES
    }

    /// Whether more may be sent on a channel.
    pub(crate) fn has_room_for(&self, id: u16) -> bool {
        self.has_room() && self.is_open(id)
    }

    /// Whether neither side has closed it.
    fn is_open(&self, id: u16) -> bool {
        self.over.is_none() && self.lines.get(&id).is_some_and(|line| line.over.is_none() && !line.is_closing)
    }

    /// How many channels were closed without the broker having said so.
    pub(crate) fn closing(&self) -> usize {
        self.lines.values().filter(|line| line.is_closing).count()
    }

    /// A channel on which everything is confirmed, if there is one.
    pub(crate) fn take_idle(&mut self) -> Option<(u16, Tags)> {
        self.idle.pop()
    }

    /// The number of a new channel, which is still to be opened. None: there are as many as the broker lets us have.
    pub(crate) fn new_line(&mut self) -> Option<u16> {
        for _ in 0..self.max_channels {
            self.last = if self.last >= self.max_channels { 1 } else { self.last + 1 };
            if let std::collections::hash_map::Entry::Vacant(vacant) = self.lines.entry(self.last) {
                vacant.insert(Line::default());
                return Some(self.last);
            }
        }
        None
    }

    /// A channel is not needed any more: it is closed, or kept for the next batch, with the numbers of its messages.
    pub(crate) fn give_back(&mut self, id: u16, reusable: Option<Tags>) {
        let Some(line) = self.lines.get_mut(&id) else { return };
        line.waiting = None;
        if line.over.is_some() || self.over.is_some() {
            self.lines.remove(&id);
        } else if let Some(tags) = reusable {
            line.said.clear();
            self.idle.push((id, tags));
        } else {
            line.is_closing = true;
            let close =
                channel::Close { reply_code: 200, reply_text: "OK".into(), ..channel::Close::default() };
            self.queue_method(id, AMQPClass::Channel(channel::AMQPMethod::Close(close)));
        }
    }

    /// Asks something on a channel, one thing at a time.
    pub(crate) fn ask(&mut self, id: u16, method: AMQPClass) {
        if self.is_open(id)
            && let Some(line) = self.lines.get_mut(&id)
        {
            (line.is_asked, line.answer) = (true, None);
            self.queue_method(id, method);
        }
    }

    pub(crate) fn poll_answer(
        &mut self,
        id: u16,
        context: &mut Context<'_>,
    ) -> Poll<Result<AMQPClass, lapin::Error>> {
        let Some(line) = self.lines.get_mut(&id) else { return Poll::Ready(Err(gone())) };
        if let Some(answer) = line.answer.take() {
            return Poll::Ready(Ok(answer));
        }
        if let Some(over) = line.over.as_ref().or(self.over.as_ref()) {
            return Poll::Ready(Err(over.clone()));
        }
        line.waiting = Some(context.waker().clone());
        Poll::Pending
    }

    /// What the broker said goes before what became of the channel, and that before everything else.
    pub(crate) fn poll_news(&mut self, id: u16, wants_room: bool, context: &mut Context<'_>) -> Poll<News> {
        let has_room = self.has_room();
        let Some(line) = self.lines.get_mut(&id) else { return Poll::Ready(News::Over(gone())) };
        if !line.said.is_empty() {
            return Poll::Ready(News::Said(std::mem::take(&mut line.said)));
        }
        if let Some(over) = line.over.as_ref().or(self.over.as_ref()) {
            return Poll::Ready(News::Over(over.clone()));
        }
        if let Some(reason) = &self.blocked {
            return Poll::Ready(News::Blocked(reason.clone()));
        }
        if wants_room && has_room {
            return Poll::Ready(News::Room);
        }
        line.waiting = Some(context.waker().clone());
        Poll::Pending
    }

    /// Sends whole frames on a channel. On one that is closed they go nowhere: the broker ends the whole connection over a frame that comes behind
    /// the end of its channel.
    pub(crate) fn send(&mut self, id: u16, bytes: Vec<u8>) {
        if self.is_open(id) {
            self.queue(bytes);
        }
    }

    /// Puts whole frames behind what waits to be written.
    fn queue(&mut self, bytes: Vec<u8>) {
        if self.over.is_none() && !bytes.is_empty() {
            self.queued_bytes += bytes.len();
            self.queue.push_back(bytes);
            wake(&mut self.writer);
        }
    }

    pub(crate) fn queue_heartbeat(&mut self) {
        // What waits shows as well that we are there.
        if self.queue.is_empty() {
            self.queue(HEARTBEAT.to_vec());
        }
    }

    pub(crate) fn queue_method(&mut self, id: u16, method: AMQPClass) {
        let mut bytes = Vec::new();
        match frames::method(&mut bytes, id, method) {
            Ok(()) => self.queue(bytes),
            Err(error) => self.end(ErrorKind::IOError(std::sync::Arc::new(error)).into()),
        }
    }

    pub(crate) fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<Write> {
        match self.queue.pop_front() {
            Some(bytes) => Poll::Ready(Write::Bytes(bytes)),
            None if self.over.is_some() => Poll::Ready(Write::End),
            None => {
                self.writer = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// So many bytes were written.
    pub(crate) fn written(&mut self, bytes: usize) {
        let had_room = self.has_room();
        self.queued_bytes = self.queued_bytes.saturating_sub(bytes);
        if !had_room && self.has_room() {
            self.wake_all();
        }
    }

    /// The connection is over. What was said before is still to be had.
    pub(crate) fn end(&mut self, error: lapin::Error) {
        if self.over.is_none() {
            self.over = Some(error);
            self.idle.clear();
            self.queue.clear();
            self.queued_bytes = 0;
            wake(&mut self.writer);
            wake(&mut self.closer);
            self.wake_all();
        }
    }

    pub(crate) fn poll_over(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.over.is_some() {
            return Poll::Ready(());
        }
        self.closer = Some(context.waker().clone());
        Poll::Pending
    }

    fn wake_all(&mut self) {
        self.lines.values_mut().for_each(|line| wake(&mut line.waiting));
    }

    /// Takes in what the broker sent.
    pub(crate) fn take(&mut self, frame: AMQPFrame) {
        match frame {
            AMQPFrame::Method(0, AMQPClass::Connection(method)) => self.take_of_connection(method),
            AMQPFrame::Method(id, AMQPClass::Channel(channel::AMQPMethod::Close(close))) => {
                self.queue_method(id, AMQPClass::Channel(channel::AMQPMethod::CloseOk(channel::CloseOk {})));
                let error = said_by_broker(close.reply_code, close.reply_text);
                self.idle.retain(|(idle, _)| {
                    let stays = *idle != id;
                    if !stays {
                        self.lines.remove(&id);
                    }
                    stays
                });
                // A channel that we are closing ourselves is over when the broker has confirmed that.
                self.tell(id, |line| line.over = Some(error));
            }
            AMQPFrame::Method(id, AMQPClass::Channel(channel::AMQPMethod::CloseOk(_))) => {
                if self.lines.get(&id).is_some_and(|line| line.is_closing) {
                    self.lines.remove(&id);
                }
            }
            AMQPFrame::Method(id, AMQPClass::Basic(basic::AMQPMethod::Ack(ack))) => {
                let said = Said::Confirmed { tag: ack.delivery_tag, several: ack.multiple };
                self.tell(id, |line| line.said.push(said));
            }
            AMQPFrame::Method(id, AMQPClass::Basic(basic::AMQPMethod::Nack(nack))) => {
                let said = Said::Refused { tag: nack.delivery_tag, several: nack.multiple };
                self.tell(id, |line| line.said.push(said));
            }
            AMQPFrame::Method(id, AMQPClass::Basic(basic::AMQPMethod::Return(returned))) => {
                let reason = format!("{} {}", returned.reply_code, returned.reply_text);
                let returned = Returned { id: None, position: None, reason };
                self.tell(id, |line| line.returning = Some(Returning { returned, bytes_left: None }));
            }
            AMQPFrame::Method(id, method) => self.tell(id, |line| {
                if line.is_asked {
                    (line.is_asked, line.answer) = (false, Some(method));
                }
            }),
            AMQPFrame::Header(id, header) => self.tell(id, |line| {
                if let Some(returning) = &mut line.returning {
                    let properties = &header.properties;
                    returning.returned.id = record::id_of(properties);
                    returning.returned.position = record::position_of(properties);
                    returning.bytes_left = Some(header.body_size);
                }
                line.came_back();
            }),
            AMQPFrame::Body(id, bytes) => self.tell(id, |line| {
                if let Some(Returning { bytes_left: Some(left), .. }) = &mut line.returning {
                    *left = left.saturating_sub(bytes.len() as u64);
                }
                line.came_back();
            }),
            AMQPFrame::ProtocolHeader(version) => {
                self.end(other(format!("the broker speaks another version of AMQP: {version}")));
            }
            AMQPFrame::Heartbeat | AMQPFrame::InvalidHeartbeat(_) => {}
        }
    }

    fn take_of_connection(&mut self, method: connection::AMQPMethod) {
        match method {
            connection::AMQPMethod::Close(close) => {
                self.end(said_by_broker(close.reply_code, close.reply_text));
                // The last thing that is written.
                let mut bytes = Vec::new();
                let answer = connection::AMQPMethod::CloseOk(connection::CloseOk {});
                if frames::method(&mut bytes, 0, AMQPClass::Connection(answer)).is_ok() {
                    self.queue.push_back(bytes);
                }
            }
            connection::AMQPMethod::CloseOk(_) => {
                self.end(ErrorKind::InvalidConnectionState(ConnectionState::Closed).into());
            }
            connection::AMQPMethod::Blocked(blocked) => {
                self.blocked = Some(blocked.reason.to_string());
                self.wake_all();
            }
            connection::AMQPMethod::Unblocked(_) => self.blocked = None,
            _ => {}
        }
    }

    /// Changes a channel and wakes who waits for it. Of one that is being closed nobody wants to know.
    fn tell(&mut self, id: u16, change: impl FnOnce(&mut Line)) {
        if let Some(line) = self.lines.get_mut(&id).filter(|line| !line.is_closing) {
            change(line);
            wake(&mut line.waiting);
        }
    }
}

impl Line {
    /// A message has come back once all of it is there.
    fn came_back(&mut self) {
        if let Some(Returning { returned, .. }) =
            self.returning.take_if(|returning| returning.bytes_left == Some(0))
        {
            self.said.push(Said::Returned(returned));
        }
    }
}

fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}

fn gone() -> lapin::Error {
    ErrorKind::InvalidConnectionState(ConnectionState::Closed).into()
}

pub(crate) fn other(words: String) -> lapin::Error {
    ErrorKind::IOError(std::sync::Arc::new(std::io::Error::new(std::io::ErrorKind::InvalidData, words)))
        .into()
}

#[cfg(test)]
#[path = "switchboard_tests.rs"]
mod tests;
