//! A channel of a publishing connection, for as long as a batch or a question is on its way.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;

use amq_protocol::protocol::{AMQPClass, channel};

use crate::channel_state::{News, Said, Wants};
use crate::error::Fault;
use crate::publication::Answer;
use crate::tags::Tags;
use crate::wire::Wire;

/// A channel. Dropped, it is kept for the next batch if everything on it is confirmed, else it is
/// closed: what was sent on it may arrive or not.
pub(crate) struct Channel {
    wire: Arc<Wire>,
    id: u16,
    is_confirming: bool,
    is_asking: bool,
    tags: Tags,
}

/// News of a batch on its way.
pub(crate) enum Word {
    /// Answers about messages, by their places in the batch.
    Answers(Vec<Answer>),
    /// The broker takes nothing for now, and why; none: it takes messages again.
    Blocked(Option<String>),
    /// More can be sent.
    Room,
}

impl Channel {
    pub(crate) async fn open(wire: Arc<Wire>) -> Result<Self, Fault> {
        let Some(id) = wire.board().new_channel() else { return Err(Fault::no_channel()) };
        let mut this = Self { wire, id, is_confirming: false, is_asking: false, tags: Tags::new() };
        let open = channel::AMQPMethod::Open(channel::Open {});
        this.ask("opening a channel", AMQPClass::Channel(open)).await?;
        Ok(this)
    }

    /// One that was used before.
    pub(crate) const fn again(wire: Arc<Wire>, id: u16, tags: Tags) -> Self {
        Self { wire, id, is_confirming: true, is_asking: false, tags }
    }

    /// From now on the broker confirms what is sent on it.
    pub(crate) const fn confirms(&mut self) {
        self.is_confirming = true;
    }

    pub(crate) const fn id(&self) -> u16 {
        self.id
    }

    /// The connection that it belongs to.
    pub(crate) const fn wire(&self) -> &Arc<Wire> {
        &self.wire
    }

    pub(crate) fn max_frame_bytes(&self) -> usize {
        self.wire.max_frame_bytes
    }

    /// Asks the broker something.
    ///
    /// Cancellation: the channel is of no use any more, and is closed when it is dropped.
    pub(crate) async fn ask(
        &mut self,
        what: impl fmt::Display,
        method: AMQPClass,
    ) -> Result<AMQPClass, Fault> {
        self.is_asking = true;
        self.wire.board().ask(self.id, method);
        let answer = poll_fn(|context| self.wire.board().poll_answer(self.id, context));
        let answer = self.wire.answer(what, answer).await?;
        self.is_asking = false;
        Ok(answer)
    }

    /// Returns true if more can be sent now.
    pub(crate) fn has_room(&self) -> bool {
        self.wire.board().has_room_for(self.id)
    }

    /// Sends the frames of these messages, in this order.
    pub(crate) fn send(&mut self, bytes: Vec<u8>, messages: impl IntoIterator<Item = usize>) {
        messages.into_iter().for_each(|index| self.tags.sent(index));
        self.wire.board().send(self.id, bytes);
    }

    /// Waits for news.
    ///
    /// Cancellation: safe.
    pub(crate) async fn news(&mut self, wants: Wants) -> Word {
        let news = poll_fn(|context| self.wire.board().poll_news(self.id, wants, context)).await;
        match news {
            News::Said(said) => Word::Answers(said.into_iter().flat_map(|said| self.answers(said)).collect()),
            News::Over(error) => Word::Answers(vec![Answer::Broken(Fault::asking("publishing", error))]),
            News::Blocked(reason) => Word::Blocked(reason),
            News::Room => Word::Room,
        }
    }

    fn answers(&mut self, said: Said) -> Vec<Answer> {
        match said {
            Said::Returned(returned) => vec![Answer::Returned(returned)],
            Said::Confirmed { tag, several } => {
                self.tags.take(tag, several).into_iter().map(Answer::Confirmed).collect()
            }
            Said::Refused { tag, several } => {
                self.tags.take(tag, several).into_iter().map(Answer::Refused).collect()
            }
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        let is_reusable = self.is_confirming && !self.is_asking && self.tags.is_empty();
        let reusable = is_reusable.then(|| std::mem::replace(&mut self.tags, Tags::new()));
        self.wire.board().give_back(self.id, reusable);
    }
}
