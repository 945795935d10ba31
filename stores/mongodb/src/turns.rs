//! Turns: which messages are behind others of their keys that wait for the consumer.
//!
//! Nothing in the hot collection leads from a key to its messages but a walk along the route: an
//! index would cost every writer. So a batch walks once for all of its keys, and no further than to
//! the last of its own messages, where these wait themselves.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};

use mongodb::ClientSession;
use mongodb::bson::{Bson, Document, doc};
use outbox_contract::backend::Position;
use outbox_contract::{Consumer, KeyId, Message, MessageId, Route};

use crate::database::Database;
use crate::deduplicate::noted;
use crate::error::Failed;
use crate::fetch::{key_names, range};
use crate::keys::name as key_name;
use crate::row::{Raw, ids, message_id};

/// Maximum number of waiting messages that are read beyond those that are asked about.
const MAX_OTHERS: usize = 1_000;

/// Maximum number of messages of one key that are read at once for the first that is not handled,
/// behind the very first one.
const MAX_AT_ONCE: i64 = 50;

/// An inbox in whose transaction turns are read.
#[derive(Clone, Copy)]
pub(crate) struct Inbox<'a> {
    pub(crate) database: &'a Database,
    pub(crate) consumer: &'a Consumer,
    pub(crate) route: &'a Route,
}

/// Turns of a batch of messages.
pub(crate) struct Turns<'a> {
    inbox: Inbox<'a>,
    /// Keys that are failing or held: their messages are looked up one by one.
    failing: BTreeSet<KeyId>,
    /// Messages of the other keys in the hot collection that are not handled, in order.
    hot: BTreeMap<KeyId, VecDeque<MessageId>>,
    /// True if more may wait than were read.
    is_cut: bool,
}

impl<'a> Turns<'a> {
    /// Reads what waits of the keys of these messages, none of which is handled.
    pub(crate) async fn read(
        inbox: Inbox<'a>,
        session: &mut ClientSession,
        messages: &[&Message],
    ) -> Result<Self, Failed> {
        let keys: BTreeSet<KeyId> = messages.iter().map(|message| message.key_id()).collect();
        let names: Vec<Document> = keys.iter().map(|key| key_name(inbox.route.as_str(), key)).collect();
        let failing = key_names(inbox.database, session, doc! { "_id": { "$in": names } }, 0).await?;
        let mut turns = Self { inbox, failing, hot: BTreeMap::new(), is_cut: false };
        // Nothing in the hot collection is ordered with a message that has no key.
        let keyed = |message: &&&Message| message.key.is_some() && !turns.failing.contains(&message.key_id());
        let messages: Vec<&Message> = messages.iter().filter(keyed).copied().collect();
        if messages.is_empty() {
            return Ok(turns);
        }
        let until = inbox.last_of(session, &messages).await?;
        turns.read_hot(session, &messages, until.unwrap_or(Position::END)).await?;
        if until.is_some() && !messages.iter().all(|message| turns.has(message)) {
            turns.read_hot(session, &messages, Position::END).await?;
        }
        Ok(turns)
    }

    fn has(&self, message: &Message) -> bool {
        self.hot.get(&message.key_id()).is_some_and(|waiting| waiting.contains(&message.id))
    }

    async fn read_hot(
        &mut self,
        session: &mut ClientSession,
        messages: &[&Message],
        until: Position,
    ) -> Result<(), Failed> {
        let mut keys: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for message in messages {
            let key = message.key.as_ref().map(|key| key.as_str());
            keys.entry(message.topic.as_str()).or_default().extend(key);
        }
        let of_topic = |(topic, keys): (&str, BTreeSet<&str>)| {
            doc! { "topic": topic, "key": { "$in": Vec::from_iter(keys) } }
        };
        let keys: Vec<Document> = keys.into_iter().map(of_topic).collect();
        let most = messages.len() + MAX_OTHERS;
        let mut cursor = self
            .inbox
            .database
            .messages()
            .find(doc! { "_id": range(self.inbox.route.as_str(), Position::START, until), "$or": keys })
            .sort(doc! { "_id": 1 })
            .projection(doc! { "topic": 1, "key": 1 })
            .limit(i64::try_from(most).unwrap_or(i64::MAX))
            .session(&mut *session)
            .await?;
        let (mut read, mut waiting) = (0, Vec::new());
        while let Some(row) = cursor.next(session).await {
            let row = Raw::new(row?);
            read += 1;
            waiting.extend(row.id().map(|id| (row.key_id(), id)));
        }
        self.is_cut = read >= most;
        let ids: Vec<MessageId> = waiting.iter().map(|(_, id)| *id).collect();
        let handled = noted(self.inbox.database, session, self.inbox.consumer, &ids).await?;
        self.hot.clear();
        for (key, id) in waiting.into_iter().filter(|(_, id)| !handled.contains(id)) {
            self.hot.entry(key).or_default().push_back(id);
        }
        Ok(())
    }

    /// Returns true if others of its key wait for the consumer in front of a message that it has
    /// not handled. `noted`: messages that it has, also those of this batch.
    pub(crate) async fn is_behind(
        &mut self,
        session: &mut ClientSession,
        message: &Message,
        noted: &HashSet<MessageId>,
    ) -> Result<bool, Failed> {
        let key = message.key_id();
        if self.failing.contains(&key) {
            return self.inbox.is_behind(session, message, noted).await;
        }
        let waiting = self.hot.entry(key).or_default();
        while waiting.front().is_some_and(|first| noted.contains(first)) {
            waiting.pop_front();
        }
        match waiting.front() {
            Some(first) => Ok(*first != message.id),
            None if self.is_cut => self.inbox.is_behind(session, message, noted).await,
            None => Ok(false),
        }
    }
}

impl Inbox<'_> {
    /// Returns the last position of these messages in the hot collection. None: not all of them
    /// wait there.
    async fn last_of(
        self,
        session: &mut ClientSession,
        messages: &[&Message],
    ) -> Result<Option<Position>, Failed> {
        let mut missing: HashSet<MessageId> = messages.iter().map(|message| message.id).collect();
        let names: Vec<Bson> = missing.iter().flat_map(|id| ids(*id)).collect();
        let all = range(self.route.as_str(), Position::START, Position::END);
        let mut cursor = self
            .database
            .messages()
            .find(doc! { "_id": all, "_id.id": { "$in": names } })
            .sort(doc! { "_id": 1 })
            .projection(doc! { "_id": 1 })
            .limit(i64::try_from(missing.len()).unwrap_or(i64::MAX))
            .session(&mut *session)
            .await?;
        let mut last = None;
        while let Some(row) = cursor.next(session).await {
            let row = Raw::new(row?);
            last = Some(row.position());
            if let Some(id) = row.id() {
                missing.remove(&id);
            }
        }
        Ok(last.filter(|_| missing.is_empty()))
    }

    /// Looks a message up by itself, among those that are parked, and then in the hot collection.
    async fn is_behind(
        self,
        session: &mut ClientSession,
        message: &Message,
        noted: &HashSet<MessageId>,
    ) -> Result<bool, Failed> {
        let (database, route, key) = (self.database, self.route.as_str(), message.key_id());
        let (topic, order_key) = (key.topic.as_str(), key.key.as_str());
        let behind = doc! { "route": route, "topic": topic, "order_key": order_key };
        let parked = Waiting { collection: database.parked(), filter: behind, id: "id", order: "number" };
        let mut first = parked.first(self, session, noted).await?;
        if let (None, Some(key)) = (first, &message.key) {
            let mut filter = doc! { "_id": range(route, Position::START, Position::END) };
            filter.extend(doc! { "topic": topic, "key": key.as_str() });
            let hot = Waiting { collection: database.messages(), filter, id: "_id.id", order: "_id" };
            first = hot.first(self, session, noted).await?;
        }
        if first.is_some_and(|first| first != message.id) {
            return Ok(true);
        }
        let held = doc! { "_id": key_name(route, &key), "held": true };
        Ok(database.keys().find_one(held).session(session).await?.is_some())
    }
}

/// Messages of a key that wait.
struct Waiting {
    collection: mongodb::Collection<Document>,
    filter: Document,
    id: &'static str,
    order: &'static str,
}

impl Waiting {
    /// Returns the first that the consumer has not handled. Mostly it is the very first, which is
    /// read alone: with a higher limit, the server would search for more to the end of the route.
    async fn first(
        &self,
        inbox: Inbox<'_>,
        session: &mut ClientSession,
        handled: &HashSet<MessageId>,
    ) -> Result<Option<MessageId>, Failed> {
        let mut passed = 0_u64;
        loop {
            let mut cursor = self
                .collection
                .find(self.filter.clone())
                .sort(doc! { self.order: 1 })
                .projection(doc! { self.id: 1 })
                .skip(passed)
                .limit(if passed == 0 { 1 } else { MAX_AT_ONCE })
                .session(&mut *session)
                .await?;
            let mut ids = Vec::new();
            while let Some(row) = cursor.next(session).await {
                let row = row?;
                let id = row.get("id").or_else(|| row.get_document("_id").ok()?.get("id"));
                ids.extend(message_id(id));
                passed += 1;
            }
            if ids.is_empty() {
                return Ok(None);
            }
            let noted = noted(inbox.database, session, inbox.consumer, &ids).await?;
            let first = ids.into_iter().find(|id| !noted.contains(id) && !handled.contains(id));
            if first.is_some() {
                return Ok(first);
            }
        }
    }
}
