//! Multiplexer of a publishing connection: its channels, what is asked and confirmed on them, what
//! waits to be written. Pure: it neither reads nor writes, and wakes who waits.

use std::collections::{HashMap, VecDeque};
use std::task::{Context, Poll, Waker};

use amq_protocol::frame::AMQPFrame;
use amq_protocol::protocol::{AMQPClass, channel, connection};
use lapin::{ConnectionState, ErrorKind};

use crate::channel_state::{ChannelState, News, Wants};
use crate::error::said_by_broker;
use crate::frames::{self, HEARTBEAT};
use crate::tags::Tags;

/// So many bytes wait to be written at most, and one message.
const MAX_QUEUED_BYTES: usize = 1024 * 1024;

/// Next step of the writer.
pub(crate) enum Write {
    Bytes(Vec<u8>),
    /// Everything is written, and nothing more comes.
    End,
}

pub(crate) struct Multiplexer {
    channels: HashMap<u16, ChannelState>,
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
    /// Caller that closes it, and waits until the broker has confirmed that.
    closer: Option<Waker>,
}

impl Multiplexer {
    pub(crate) fn new(max_channels: u16) -> Self {
        Self {
            channels: HashMap::new(),
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

    /// Returns true if more may be sent on a channel.
    pub(crate) fn has_room_for(&self, id: u16) -> bool {
        self.takes_more() && self.is_open(id)
    }

    fn takes_more(&self) -> bool {
        self.has_room() && self.blocked.is_none()
    }

    /// Returns true if neither side has closed it.
    fn is_open(&self, id: u16) -> bool {
        self.over.is_none()
            && self.channels.get(&id).is_some_and(|channel| channel.over.is_none() && !channel.is_closing)
    }

    /// Returns the number of channels that were closed without the broker having said so.
    pub(crate) fn closing(&self) -> usize {
        self.channels.values().filter(|channel| channel.is_closing).count()
    }

    /// A channel on which everything is confirmed, if there is one.
    pub(crate) fn take_idle(&mut self) -> Option<(u16, Tags)> {
        self.idle.pop()
    }

    /// The number of a new channel, which is still to be opened. None: there are as many as the
    /// broker lets us have.
    pub(crate) fn new_channel(&mut self) -> Option<u16> {
        for _ in 0..self.max_channels {
            self.last = if self.last >= self.max_channels { 1 } else { self.last + 1 };
            if let std::collections::hash_map::Entry::Vacant(vacant) = self.channels.entry(self.last) {
                vacant.insert(ChannelState::default());
                return Some(self.last);
            }
        }
        None
    }

    /// A channel is not needed any more: it is closed, or kept for the next batch, with the numbers
    /// of its messages.
    pub(crate) fn give_back(&mut self, id: u16, reusable: Option<Tags>) {
        let Some(channel) = self.channels.get_mut(&id) else { return };
        channel.waiting = None;
        if channel.over.is_some() || self.over.is_some() {
            self.channels.remove(&id);
        } else if let Some(tags) = reusable {
            channel.said.clear();
            self.idle.push((id, tags));
        } else {
            channel.is_closing = true;
            let close =
                channel::Close { reply_code: 200, reply_text: "OK".into(), ..channel::Close::default() };
            self.queue_method(id, AMQPClass::Channel(channel::AMQPMethod::Close(close)));
        }
    }

    /// Asks something on a channel, one thing at a time.
    pub(crate) fn ask(&mut self, id: u16, method: AMQPClass) {
        if self.is_open(id)
            && let Some(channel) = self.channels.get_mut(&id)
        {
            (channel.is_asked, channel.answer) = (true, None);
            self.queue_method(id, method);
        }
    }

    pub(crate) fn poll_answer(
        &mut self,
        id: u16,
        context: &mut Context<'_>,
    ) -> Poll<Result<AMQPClass, lapin::Error>> {
        let Some(channel) = self.channels.get_mut(&id) else { return Poll::Ready(Err(gone())) };
        if let Some(answer) = channel.answer.take() {
            return Poll::Ready(Ok(answer));
        }
        if let Some(over) = channel.over.as_ref().or(self.over.as_ref()) {
            return Poll::Ready(Err(over.clone()));
        }
        channel.waiting = Some(context.waker().clone());
        Poll::Pending
    }

    /// Polls for news. What the broker said of messages goes before what became of the channel, and
    /// that before everything else. That the broker takes nothing, or does again, is news to
    /// who does not know it.
    pub(crate) fn poll_news(&mut self, id: u16, wants: Wants, context: &mut Context<'_>) -> Poll<News> {
        let takes_more = self.takes_more();
        let Some(channel) = self.channels.get_mut(&id) else { return Poll::Ready(News::Over(gone())) };
        if !channel.said.is_empty() {
            return Poll::Ready(News::Said(std::mem::take(&mut channel.said)));
        }
        if let Some(over) = channel.over.as_ref().or(self.over.as_ref()) {
            return Poll::Ready(News::Over(over.clone()));
        }
        if self.blocked.is_some() != wants.end_of_block {
            return Poll::Ready(News::Blocked(self.blocked.clone()));
        }
        if wants.room && takes_more {
            return Poll::Ready(News::Room);
        }
        channel.waiting = Some(context.waker().clone());
        Poll::Pending
    }

    /// Sends whole frames on a channel. On one that is closed they go nowhere: the broker ends the
    /// whole connection over a frame that comes behind the end of its channel.
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
        // Waiting frames show as well that we are alive.
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

    /// Ends the connection. Answers received before can still be read.
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
        self.channels.values_mut().for_each(|channel| wake(&mut channel.waiting));
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
                        self.channels.remove(&id);
                    }
                    stays
                });
                // A channel that we are closing ourselves is over when the broker has confirmed
                // that.
                self.tell(id, |channel| channel.over = Some(error));
            }
            AMQPFrame::Method(id, AMQPClass::Channel(channel::AMQPMethod::CloseOk(_))) => {
                if self.channels.get(&id).is_some_and(|channel| channel.is_closing) {
                    self.channels.remove(&id);
                }
            }
            AMQPFrame::Method(id, method) => self.tell(id, |channel| channel.take(method)),
            AMQPFrame::Header(id, header) => self.tell(id, |channel| channel.take_header(&header)),
            AMQPFrame::Body(id, bytes) => self.tell(id, |channel| channel.take_body(bytes.len())),
            AMQPFrame::ProtocolHeader(version) => {
                self.end(other(format!("the broker speaks another version of AMQP than 0-9-1: {version}")));
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
            connection::AMQPMethod::Unblocked(_) => {
                self.blocked = None;
                self.wake_all();
            }
            _ => {}
        }
    }

    /// Changes a channel and wakes who waits for it. A channel that is being closed is of no
    /// interest.
    fn tell(&mut self, id: u16, change: impl FnOnce(&mut ChannelState)) {
        if let Some(channel) = self.channels.get_mut(&id).filter(|channel| !channel.is_closing) {
            change(channel);
            wake(&mut channel.waiting);
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
#[path = "multiplexer_tests.rs"]
mod tests;
