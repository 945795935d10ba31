//! A failing key, in a transaction behind a [`Fence`](crate::fence::Fence): its state, and what is
//! parked behind it.

use mongodb::ClientSession;
use mongodb::bson::{Bson, Document, doc};
use outbox_contract::backend::rules::failing_key::KeyState;
use outbox_contract::backend::{Bucket, RowId};
use outbox_contract::{Failure, KeyId, MessageId, Route, Timestamp};

use crate::again::MAX_BYTES_AT_ONCE;
use crate::database::Database;
use crate::error::Failed;
use crate::row::{Raw, aside, content_bytes, message_id, uuid};
use crate::settle::named;

/// One key, in a transaction.
pub(crate) struct KeyIn<'a> {
    pub(crate) database: &'a Database,
    pub(crate) session: &'a mut ClientSession,
    pub(crate) route: &'a Route,
    pub(crate) key: &'a KeyId,
    /// The bucket that the key's document gets, if it has none yet.
    pub(crate) bucket: Bucket,
    /// The database's clock.
    pub(crate) now: i64,
    /// The number of this step: the version of the state that it makes. It counts the steps of the
    /// route, so that a state of a key that was closed and opened again is not taken for an older
    /// one.
    pub(crate) step: i64,
}

/// The end of a message, as its dead letter records it.
#[derive(Clone, Debug)]
pub(crate) struct Death {
    pub(crate) reason: String,
    pub(crate) attempts: i64,
    pub(crate) first_failure: Option<String>,
    pub(crate) last_failure: Option<String>,
}

/// Returns the name of a key: the `_id` of its document.
pub(crate) fn name(route: &str, key: &KeyId) -> Document {
    doc! { "route": route, "topic": key.topic.as_str(), "key": key.key.as_str() }
}

pub(crate) fn text(document: &Document, field: &str) -> Option<String> {
    document.get_str(field).ok().map(str::to_owned)
}

pub(crate) fn number(document: &Document, field: &str) -> Option<i64> {
    match document.get(field)? {
        Bson::Int64(number) => Some(*number),
        Bson::Int32(number) => Some(i64::from(*number)),
        _ => None,
    }
}

pub(crate) fn failure(document: &Document, field: &str) -> Option<Failure> {
    Failure::from_text(document.get_str(field).ok()?)
}

pub(crate) fn read_state(document: &Document) -> KeyState {
    KeyState {
        version: number(document, "version").unwrap_or_default(),
        held: document.get_bool("held").unwrap_or_default(),
        next_attempt_at: number(document, "next_attempt_at").map(Timestamp::from_micros),
        failing: message_id(document.get("failing")),
        attempts: number(document, "attempts")
            .and_then(|count| u32::try_from(count).ok())
            .unwrap_or_default(),
        first_failure: failure(document, "first_failure"),
        last_failure: failure(document, "last_failure"),
        since: Timestamp::from_micros(number(document, "since").unwrap_or_default()),
    }
}

/// Returns what names a row of the parked collection behind its key.
fn place(row: &Document) -> (Option<i64>, Option<MessageId>) {
    (number(row, "position"), message_id(row.get("id")))
}

impl KeyIn<'_> {
    fn name(&self) -> Document {
        doc! { "_id": name(self.route.as_str(), self.key) }
    }

    /// Returns the filter of the messages parked behind the key.
    fn behind(&self) -> Document {
        doc! { "route": self.route.as_str(), "topic": self.key.topic.as_str(), "order_key": self.key.key.as_str() }
    }

    /// Rows among those that are parked behind the key.
    fn behind_at(&self, rows: &[RowId]) -> Document {
        let mut filter = self.behind();
        let names: Vec<Document> = rows
            .iter()
            .map(|row| doc! { "position": row.position.0, "id": uuid(row.id.as_uuid()) })
            .collect();
        filter.insert("$or", names);
        filter
    }

    /// Returns the key's state, if it has one.
    pub(crate) async fn state(&mut self) -> Result<Option<KeyState>, Failed> {
        let found = self.database.keys().find_one(self.name()).session(&mut *self.session).await?;
        Ok(found.as_ref().map(read_state))
    }

    /// The first parked message.
    pub(crate) async fn first_parked(&mut self) -> Result<Option<MessageId>, Failed> {
        let first = self
            .database
            .parked()
            .find_one(self.behind())
            .sort(doc! { "number": 1 })
            .projection(doc! { "id": 1 })
            .session(&mut *self.session)
            .await?;
        Ok(first.and_then(|first| message_id(first.get("id"))))
    }

    pub(crate) async fn is_parked(&mut self, row: RowId) -> Result<bool, Failed> {
        let filter = self.behind_at(&[row]);
        let found = self
            .database
            .parked()
            .find_one(filter)
            .projection(doc! { "_id": 1 })
            .session(&mut *self.session)
            .await?;
        Ok(found.is_some())
    }

    /// Takes rows of the key out of the hot collection; those that are there, in order.
    async fn take_hot(&mut self, rows: &[RowId]) -> Result<Vec<Document>, Failed> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        // By name alone: what is no message may have a topic and a key that no filter finds.
        let filter = named(self.route.as_str(), rows);
        let messages = self.database.messages();
        let mut cursor = messages.find(filter).sort(doc! { "_id": 1 }).session(&mut *self.session).await?;
        let (mut found, mut names) = (Vec::new(), Vec::new());
        while let Some(row) = cursor.next(self.session).await {
            let row = row?;
            let (name, row) = (row.get("_id").cloned(), Raw::new(row));
            if row.key_id() == *self.key {
                names.extend(name);
                found.push(aside(row));
            }
        }
        if !names.is_empty() {
            messages.delete_many(doc! { "_id": { "$in": names } }).session(&mut *self.session).await?;
        }
        Ok(found)
    }

    /// Moves rows from the hot collection to the parked ones; passes over those that are not there.
    /// One that is parked already, as after a restore of the hot collection alone, stays as it is.
    /// Says how many it moved.
    pub(crate) async fn park(&mut self, rows: &[RowId]) -> Result<usize, Failed> {
        let mut hot = self.take_hot(rows).await?;
        let moved = hot.len();
        if moved == 0 {
            return Ok(0);
        }
        let known: Vec<(Option<i64>, Option<MessageId>)> =
            self.parked_among(rows).await?.iter().map(place).collect();
        hot.retain(|row| !known.contains(&place(row)));
        for row in &mut hot {
            row.insert("parked_at", self.now);
        }
        if !hot.is_empty() {
            self.database.parked().insert_many(hot).session(&mut *self.session).await?;
        }
        Ok(moved)
    }

    /// Returns the names of those of these rows that are parked.
    async fn parked_among(&mut self, rows: &[RowId]) -> Result<Vec<Document>, Failed> {
        let parked = self.database.parked();
        let names = doc! { "position": 1, "id": 1 };
        let found = parked.find(self.behind_at(rows)).projection(names).session(&mut *self.session);
        let mut cursor = found.await?;
        let mut known = Vec::new();
        while let Some(row) = cursor.next(self.session).await {
            known.push(row?);
        }
        Ok(known)
    }

    /// Makes a dead letter of a row, hot or parked. False: it is neither.
    pub(crate) async fn bury(&mut self, row: RowId, death: &Death) -> Result<bool, Failed> {
        let found = self.take(row).await?;
        let is_there = !found.is_empty();
        self.die(found, |_| death.clone()).await?;
        Ok(is_there)
    }

    /// Takes a row of the key out, hot or parked. Returns nothing if it is neither.
    pub(crate) async fn take(&mut self, row: RowId) -> Result<Vec<Document>, Failed> {
        let found = self.take_hot(&[row]).await?;
        if found.is_empty() { self.take_parked(self.behind_at(&[row]), 1).await } else { Ok(found) }
    }

    /// Takes parked rows in order: the first so many of them (0: all), within the bounds of a
    /// transaction where there are several.
    async fn take_parked(&mut self, filter: Document, most: i64) -> Result<Vec<Document>, Failed> {
        let parked = self.database.parked();
        let mut cursor =
            parked.find(filter).sort(doc! { "number": 1 }).limit(most).session(&mut *self.session).await?;
        let (mut found, mut names, mut bytes) = (Vec::new(), Vec::new(), 0_usize);
        while let Some(row) = cursor.next(self.session).await {
            let mut row = row?;
            bytes = bytes.saturating_add(content_bytes(&row));
            if most > 0 && bytes > MAX_BYTES_AT_ONCE && !found.is_empty() {
                break;
            }
            names.extend(row.remove("_id"));
            row.remove("parked_at");
            found.push(row);
        }
        if !names.is_empty() {
            parked.delete_many(doc! { "_id": { "$in": names } }).session(&mut *self.session).await?;
        }
        Ok(found)
    }

    /// The first parked messages, at most so many, become dead letters, with what is known of the
    /// one that failed. They are fewer, too, where they are large.
    pub(crate) async fn bury_parked(
        &mut self,
        state: &KeyState,
        reason: &'static str,
        most: i64,
    ) -> Result<Vec<MessageId>, Failed> {
        let rows = self.take_parked(self.behind(), most).await?;
        let ids = rows.iter().filter_map(|row| message_id(row.get("id"))).collect();
        self.die(rows, |id| {
            let failed = id.is_some() && id == state.failing;
            let text = |failure: &Option<Failure>| failure.as_ref().filter(|_| failed).map(Failure::to_text);
            Death {
                reason: reason.to_owned(),
                attempts: if failed { i64::from(state.attempts) } else { 0 },
                first_failure: text(&state.first_failure),
                last_failure: text(&state.last_failure),
            }
        })
        .await?;
        Ok(ids)
    }

    async fn die(
        &mut self,
        mut rows: Vec<Document>,
        death: impl Fn(Option<MessageId>) -> Death,
    ) -> Result<(), Failed> {
        for row in &mut rows {
            let death = death(message_id(row.get("id")));
            row.extend(doc! {
                "reason": death.reason,
                "attempts": death.attempts,
                "first_failure": death.first_failure,
                "last_failure": death.last_failure,
                "died_at": self.now,
                // Several die in one millisecond.
                "step": self.step,
            });
        }
        if !rows.is_empty() {
            self.database.dead().insert_many(rows).session(&mut *self.session).await?;
        }
        Ok(())
    }

    /// Removes parked rows that were delivered; to the history, where one is kept.
    pub(crate) async fn delivered(&mut self, rows: &[RowId]) -> Result<(), Failed> {
        if rows.is_empty() {
            return Ok(());
        }
        let filter = self.behind_at(rows);
        if self.database.options.history.is_none() {
            self.database.parked().delete_many(filter).session(&mut *self.session).await?;
            return Ok(());
        }
        let rows = self.take_parked(filter, 0).await?;
        crate::settle::keep(self.database, self.session, rows).await
    }

    /// Writes the key's next state, if it differs from the one before.
    pub(crate) async fn put(
        &mut self,
        before: Option<&KeyState>,
        next: Option<&KeyState>,
    ) -> Result<(), Failed> {
        if before == next {
            return Ok(());
        }
        let keys = self.database.keys();
        let Some(next) = next else {
            keys.delete_one(self.name()).session(&mut *self.session).await?;
            return Ok(());
        };
        let is = doc! {
            "version": next.version,
            "held": next.held,
            "next_attempt_at": next.next_attempt_at.map(Timestamp::as_micros),
            "failing": next.failing.map(|id| uuid(id.as_uuid())),
            "attempts": i64::from(next.attempts),
            "first_failure": next.first_failure.as_ref().map(Failure::to_text),
            "last_failure": next.last_failure.as_ref().map(Failure::to_text),
        };
        let mut opened = name(self.route.as_str(), self.key);
        opened.extend(doc! { "bucket": i32::from(self.bucket.0), "since": next.since.as_micros() });
        let change = doc! { "$set": is, "$setOnInsert": opened };
        keys.update_one(self.name(), change).upsert(true).session(&mut *self.session).await?;
        Ok(())
    }

    /// Returns the time of this transaction.
    pub(crate) const fn instant(&self) -> Timestamp {
        Timestamp::from_micros(self.now)
    }
}
