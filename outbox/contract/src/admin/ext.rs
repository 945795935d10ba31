use std::sync::Arc;

use async_trait::async_trait;

use super::{Admin, DeadLetter, Filter, Past};
use crate::backend::{Archive, KeyOperation, Listed, Stored, View};
use crate::clock::Timestamp;
use crate::error::StoreError;
use crate::id::MessageId;
use crate::message::Message;
use crate::name::{KeyId, Route, Topic};

/// Operations of [`Admin`] under the names that operators use. Every store has them, and so has
/// every `dyn Admin`.
#[async_trait]
pub trait AdminExt: Admin {
    /// Lists messages to publish, neither parked nor scheduled, in the order of their positions:
    /// about the order in which they were appended. A store looks at a bounded number of messages
    /// from the beginning, or from the end for the newest, at least 10,000: what a filter selects
    /// beyond that is not found.
    async fn waiting(&self, filter: &Filter) -> Result<Vec<Listed>, StoreError> {
        self.browse(View::Waiting, filter).await
    }

    /// Lists messages parked behind failing keys, key by key, in the order of their delivery.
    async fn parked(&self, filter: &Filter) -> Result<Vec<Arc<Stored>>, StoreError> {
        let listed = self.browse(View::Parked, filter).await?;
        Ok(listed.into_iter().map(|listed| listed.stored).collect())
    }

    /// Lists dead letters, the oldest first.
    async fn dead_letters(&self, filter: &Filter) -> Result<Vec<DeadLetter>, StoreError> {
        let listed = self.browse(View::DeadLetters, filter).await?;
        Ok(listed.into_iter().map(DeadLetter::from).collect())
    }

    /// Lists delivered messages, the oldest first. Empty if the store keeps no history.
    async fn history(&self, filter: &Filter) -> Result<Vec<Past>, StoreError> {
        let listed = self.browse(View::History, filter).await?;
        Ok(listed.into_iter().map(Past::from).collect())
    }

    /// Lists scheduled messages that have not joined their keys yet, each with its due time, the
    /// next due first. One that is due is among them until the next round of maintenance.
    async fn scheduled(&self, filter: &Filter) -> Result<Vec<(Timestamp, Message)>, StoreError> {
        let listed = self.browse(View::Scheduled, filter).await?;
        Ok(listed.into_iter().map(|listed| (listed.at, listed.stored.message.clone())).collect())
    }

    /// Holds a key: the store parks its messages from now on, until an operator releases it.
    /// Messages of the key that a relay has in flight may still be delivered.
    async fn hold(&self, route: &Route, key: &KeyId) -> Result<(), StoreError> {
        self.steer(route, key, KeyOperation::Hold).await.map(drop)
    }

    /// Lets a held or failing key retry now, with its attempts reset to 0.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::StoreErrorKind::Invalid) if the key is neither held nor failing. `skip`
    /// and `discard` return the same.
    async fn release(&self, route: &Route, key: &KeyId) -> Result<(), StoreError> {
        self.steer(route, key, KeyOperation::Release).await.map(drop)
    }

    /// Makes the first parked message of a key a dead letter (`skipped`), with its attempts and
    /// failures; the key then tries the next message immediately. Returns `None` if no message is
    /// parked.
    async fn skip(&self, route: &Route, key: &KeyId) -> Result<Option<MessageId>, StoreError> {
        Ok(self.steer(route, key, KeyOperation::Skip).await?.skipped)
    }

    /// Makes every parked message of a key a dead letter (`discarded`) and lets the key flow again.
    /// The first one keeps its attempts and failures; the others have none. Returns their number.
    async fn discard(&self, route: &Route, key: &KeyId) -> Result<u64, StoreError> {
        Ok(self.steer(route, key, KeyOperation::Discard).await?.buried)
    }

    /// Appends dead letters again, each at the end of its key, in their old order, with their old
    /// ids. Returns their number.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::StoreErrorKind::Invalid) if the database refuses some of them, because
    /// they are no messages or break a check. All others were requeued. The error says how many,
    /// and names the refused ones with column and rule. They stay dead letters.
    async fn requeue(&self, filter: &Filter) -> Result<u64, StoreError> {
        self.append_again(Archive::DeadLetters, filter).await
    }

    /// Appends delivered messages of the history again, each at the end of its key, in their old
    /// order, with their old ids. An inbox that still knows the id drops the message; a new
    /// consumer handles it. Returns their number.
    ///
    /// The messages stay in the history. To replay more than one call can take, skip what earlier
    /// calls replayed, until a call returns 0. `before` excludes messages delivered in the
    /// meantime, and with them the replayed ones. `since` excludes messages that expire and are
    /// removed in the meantime:
    ///
    /// ```
    /// # extern crate outbox_contract as outbox;
    /// # use outbox::{Admin, AdminExt, StoreError, Timestamp};
    /// # use outbox::admin::Filter;
    /// # async fn replay(store: impl Admin, since: Timestamp, before: Timestamp) -> Result<(), StoreError> {
    /// let mut filter = Filter { since: Some(since), before: Some(before), ..Filter::all_routes() };
    /// loop {
    ///     let replayed = store.replay(&filter).await?;
    ///     if replayed == 0 {
    ///         break;
    ///     }
    ///     filter.offset += usize::try_from(replayed).unwrap_or(usize::MAX);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    async fn replay(&self, filter: &Filter) -> Result<u64, StoreError> {
        self.append_again(Archive::History, filter).await
    }

    /// Pauses publishing of a route, or of one of its topics, on every relay, from the relay's next
    /// heartbeat on. No message is lost, and no attempt is counted.
    async fn pause(&self, route: &Route, topic: Option<&Topic>) -> Result<(), StoreError> {
        self.set_paused(route, topic, true).await
    }

    /// Ends a pause. Resuming a topic does not end a pause of the whole route.
    async fn resume(&self, route: &Route, topic: Option<&Topic>) -> Result<(), StoreError> {
        self.set_paused(route, topic, false).await
    }
}

impl<A: Admin + ?Sized> AdminExt for A {}
