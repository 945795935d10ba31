//! Turns: which messages are behind others of their keys that wait for the consumer.
//!
//! Nothing in the hot collection leads from a key to its messages but a walk along the route: an
//! index would cost every writer. So a batch walks once for all of its keys, from the front, and
//! continues each page where the one before ended. A page has room for as many messages as are not
//! found yet, so it ends with the last of these at the latest, where they wait themselves.

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

/// Number of pages after which the end of the walk is looked up: these were full of messages that
/// are handled, and not settled yet.
const SHORT_PAGES: usize = 2;

/// Maximum number of messages in each page after that.
const LONG_PAGE: usize = 1_000;

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
    /// Messages of the other keys in the hot collection that are not handled, in order: all that
    /// wait in front of the last one of the batch, or the first at least.
    hot: BTreeMap<KeyId, VecDeque<MessageId>>,
}

/// Messages that are to be found yet, by key.
type Open = BTreeMap<KeyId, HashSet<MessageId>>;

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
        let mut turns = Self { inbox, failing, hot: BTreeMap::new() };
        let mut open = Open::new();
        for message in messages {
            let key = message.key_id();
            // Nothing in the hot collection is ordered with a message that has no key.
            if message.key.is_some() && !turns.failing.contains(&key) {
                open.entry(key).or_default().insert(message.id);
            }
        }
        turns.read_hot(session, open).await?;
        Ok(turns)
    }

    async fn read_hot(&mut self, session: &mut ClientSession, mut open: Open) -> Result<(), Failed> {
        let batch: HashSet<MessageId> = open.values().flatten().copied().collect();
        let mut names = range(self.inbox.route.as_str(), Position::START, Position::END);
        for page in 0.. {
            let missing: usize = open.values().map(HashSet::len).sum();
            if missing == 0 {
                break;
            }
            if page == SHORT_PAGES
                && let Some(last) = self.inbox.last_of(session, &names, &open).await?
            {
                names.remove("$lt");
                names.insert("$lte", last);
            }
            let limit = if page < SHORT_PAGES { missing } else { LONG_PAGE };
            let rows = self.inbox.page(session, &names, (&open, limit)).await?;
            let ids: Vec<MessageId> = rows.iter().filter_map(Raw::id).collect();
            let handled = noted(self.inbox.database, session, self.inbox.consumer, &ids).await?;
            for row in &rows {
                let Some(id) = row.id().filter(|id| !handled.contains(id)) else { continue };
                let key = row.key_id();
                let is_found = open.get_mut(&key).is_some_and(|missing| {
                    missing.remove(&id);
                    missing.is_empty()
                });
                // Behind one that is not of the batch, all others of its key are out of turn.
                if is_found || !batch.contains(&id) {
                    open.remove(&key);
                }
                self.hot.entry(key).or_default().push_back(id);
            }
            let Some(last) = rows.last().filter(|_| rows.len() == limit).and_then(Raw::name) else { break };
            names.remove("$gte");
            names.insert("$gt", last.clone());
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
        Ok(waiting.front().is_some_and(|first| *first != message.id))
    }
}

impl Inbox<'_> {
    /// Returns the first messages of these keys in a range of names.
    async fn page(
        self,
        session: &mut ClientSession,
        names: &Document,
        (open, limit): (&Open, usize),
    ) -> Result<Vec<Raw>, Failed> {
        let mut keys: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for key in open.keys() {
            keys.entry(key.topic.as_str()).or_default().push(key.key.as_str());
        }
        let of_topic = |(topic, keys): (&str, Vec<&str>)| doc! { "topic": topic, "key": { "$in": keys } };
        let keys: Vec<Document> = keys.into_iter().map(of_topic).collect();
        let filter = doc! { "_id": names, "$or": keys };
        self.find(session, filter, doc! { "topic": 1, "key": 1 }, limit).await
    }

    /// Returns the name of the last one of these messages in a range of names. None: not all of
    /// them are there.
    async fn last_of(
        self,
        session: &mut ClientSession,
        names: &Document,
        open: &Open,
    ) -> Result<Option<Bson>, Failed> {
        let missing: Vec<MessageId> = open.values().flatten().copied().collect();
        let wanted: Vec<Bson> = missing.iter().flat_map(|id| ids(*id)).collect();
        let filter = doc! { "_id": names, "_id.id": { "$in": wanted } };
        let rows = self.find(session, filter, doc! { "_id": 1 }, missing.len()).await?;
        let found: HashSet<MessageId> = rows.iter().filter_map(Raw::id).collect();
        Ok(rows.last().filter(|_| found.len() == missing.len()).and_then(Raw::name).cloned())
    }

    /// Returns the first documents of the hot collection, in the order of their names.
    async fn find(
        self,
        session: &mut ClientSession,
        filter: Document,
        fields: Document,
        limit: usize,
    ) -> Result<Vec<Raw>, Failed> {
        let mut cursor = self
            .database
            .messages()
            .find(filter)
            .sort(doc! { "_id": 1 })
            .projection(fields)
            .limit(i64::try_from(limit).unwrap_or(i64::MAX))
            .session(&mut *session)
            .await?;
        let mut rows = Vec::new();
        while let Some(row) = cursor.next(session).await {
            rows.push(Raw::new(row?));
        }
        Ok(rows)
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
