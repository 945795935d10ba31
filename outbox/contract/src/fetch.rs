//! Fetching: what a relay reads of the outbox.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::bucket::{Bucket, BucketSet};
use crate::clock::Timestamp;
use crate::id::{MessageId, Position, RelayId};
use crate::message::Message;
use crate::name::{KeyId, Route, Topic};
use crate::stripe::Stripe;

/// How a store's positions relate to its commits: which rule keeps a reader from passing a message that is still to be
/// committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Ordering {
    /// One writer at a time: when a position can be seen, nothing can be committed below it any more.
    Single,
    /// Several writers: positions are taken under a lock on the key that is held to commit, so they are in order within a
    /// key, but a lower position of *another* key may be committed later. [`Store::writers`](crate::Store::writers) tells who may.
    Writers,
    /// Several writers, and every row carries a [`Stripe`]. Numbers and positions are taken under a lock on the stripe that is held to commit,
    /// so both are in order within a stripe, but a lower position of *another* stripe may be committed later.
    /// [`Store::stripes`](crate::Store::stripes) tells how far each stripe was committed.
    Stripes,
}

/// Who was writing, and how far positions had been given out by then. Once none of `open` is left, nothing can be committed at or below
/// `last` any more, whether or not anybody has read that far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Writers {
    /// Transactions that have taken, or may have taken, positions and are not over yet. Opaque: compared only with an earlier answer.
    pub open: BTreeSet<String>,
    /// The highest position that was ever given out, read *before* `open` was: each position up to it belongs to a transaction that is over
    /// or in `open`. [`Position::START`] while none was given out, or where the store can't tell.
    pub last: Position,
}

/// One fetch.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FetchRequest {
    /// The route.
    pub route: Route,
    /// Who reads: only buckets whose unexpired lease this relay holds are read.
    pub relay: RelayId,
    /// Of those, only these.
    pub buckets: BucketSet,
    /// Of those, only this part.
    pub scope: Scope,
    /// Only rows behind this position.
    pub after: Position,
    /// Only rows up to this position, it included.
    pub until: Position,
    /// Not these rows: they are in flight. In ascending order.
    pub except: Vec<Position>,
    /// Rows of these come as [`FetchedRow::Muted`], without their content.
    pub muted: Vec<Scope>,
    /// At most this many rows of any kind, at least 1.
    pub limit: usize,
    /// At most this many bytes of payload and headers together; the first row comes whatever it has.
    pub bytes: usize,
}

impl FetchRequest {
    /// A fetch of everything in these buckets: 1,000 rows, 8 MiB.
    #[must_use]
    pub fn new(route: Route, relay: RelayId, buckets: BucketSet) -> Self {
        Self {
            route,
            relay,
            buckets,
            scope: Scope::Everything,
            after: Position::START,
            until: Position::END,
            except: Vec::new(),
            muted: Vec::new(),
            limit: 1_000,
            bytes: 8 * 1024 * 1024,
        }
    }
}

/// A part of what is read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// All of it.
    Everything,
    /// One topic.
    Topic(Topic),
    /// One key.
    Key(KeyId),
}

impl Scope {
    /// Whether a key is in this part.
    #[must_use]
    pub fn covers(&self, key: &KeyId) -> bool {
        match self {
            Self::Everything => true,
            Self::Topic(topic) => *topic == key.topic,
            Self::Key(scope) => scope == key,
        }
    }
}

/// The answer to a fetch.
#[derive(Clone, Debug, Default)]
pub struct Fetched {
    /// The rows, in ascending order of position.
    pub rows: Vec<FetchedRow>,
    /// Whether a limit cut it short: there may be more behind the last row.
    pub full: bool,
    /// How far it has looked, where that is beyond the last row: in this snapshot, nothing that was asked for stands behind the last row up to
    /// this position. Rows of other routes and of other relays' buckets need not be walked over again. [`Position::START`] when it was cut
    /// short, when the relay did not hold every bucket that it asked for, or when the store can't tell.
    pub reached: Position,
}

/// A row as a fetch saw it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum FetchedRow {
    /// To be published.
    Message(Arc<Stored>),
    /// Its key is failing: to be parked behind it, not published. Content is not read.
    Failing(Waiting),
    /// Of a part that the request muted.
    Muted(Position),
    /// Something that is not a message (a program wrote nonsense): becomes a dead letter, with the reason.
    Malformed(Waiting, String),
}

impl FetchedRow {
    /// Where the row stands.
    #[must_use]
    pub fn position(&self) -> Position {
        match self {
            Self::Message(stored) => stored.position,
            Self::Failing(row) | Self::Malformed(row, _) => row.at.position,
            Self::Muted(position) => *position,
        }
    }
}

/// A message as it stands in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stored {
    /// Where it stands.
    pub position: Position,
    /// Its bucket, as stored.
    pub bucket: Bucket,
    /// Its number in its stripe, on stores that order by stripes.
    pub stripe: Option<Stripe>,
    /// When it was appended, by the database's clock.
    pub appended_at: Timestamp,
    /// The message.
    pub message: Message,
}

impl Stored {
    /// A message at a position, on a store that orders by position.
    #[must_use]
    pub fn new(position: Position, appended_at: Timestamp, message: Message) -> Self {
        Self { position, bucket: message.bucket(), stripe: None, appended_at, message }
    }

    /// The row, as statements that remove or move it name it.
    #[must_use]
    pub fn row(&self) -> RowId {
        RowId { position: self.position, id: self.message.id }
    }
}

/// Names a row exactly: by position *and* id, because positions come back after a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowId {
    /// Where it stands.
    pub position: Position,
    /// What stands there.
    pub id: MessageId,
}

/// A row that is not read whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Which row.
    pub at: RowId,
    /// Its key.
    pub key: KeyId,
    /// Its bucket.
    pub bucket: Bucket,
    /// Its number in its stripe, on stores that order by stripes.
    pub stripe: Option<Stripe>,
}

/// A question for failing keys that are due.
#[derive(Clone, Debug)]
pub struct DueRequest {
    /// The route.
    pub route: Route,
    /// Who reads: only buckets whose unexpired lease this relay holds.
    pub relay: RelayId,
    /// Of those, only these.
    pub buckets: BucketSet,
    /// Not these keys: they are being worked on.
    pub except: Vec<KeyId>,
    /// Not these parts: they are paused or broken.
    pub muted: Vec<Scope>,
    /// At most this many keys.
    pub keys: usize,
    /// At most this many parked messages of each, the oldest ones.
    pub messages: usize,
    /// At most this many bytes of payload and headers in all; only the first message of the first key comes whatever it has. A later key whose
    /// first message does not fit is left for another call, and so is whatever is due after it.
    pub bytes: usize,
}

/// Failing keys whose time has come.
#[derive(Clone, Debug, Default)]
pub struct Due {
    /// The keys, the longest due first.
    pub keys: Vec<DueKey>,
    /// In how long the next key is due that is not among them. None: no such key. Zero: there are more now.
    pub next: Option<std::time::Duration>,
}

/// A failing key whose time has come.
#[derive(Clone, Debug)]
pub struct DueKey {
    /// Which key.
    pub key: KeyId,
    /// Its bucket.
    pub bucket: Bucket,
    /// Which state of it: every change makes the next.
    pub version: i64,
    /// The message that failed, when it is still the first.
    pub failing: Option<MessageId>,
    /// How often that message was tried.
    pub attempts: u32,
    /// How the first of these attempts failed.
    pub first_failure: Option<crate::failure::Failure>,
    /// Its parked messages, in order. Empty: nothing is parked, and the key may be released.
    pub parked: Vec<Arc<Stored>>,
}
