//! Fetching: requests with which a relay reads the outbox, and the answers.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::backend::{Bucket, BucketSet, Position, RelayId, Stripe};
use crate::clock::Timestamp;
use crate::id::MessageId;
use crate::message::Message;
use crate::name::{KeyId, Route, Topic};

/// Relation between a store's positions and its commits: the rule that keeps a reader from passing
/// a message that is yet to be committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Ordering {
    /// One writer at a time: once a position is visible, no lower position can be committed.
    Single,
    /// Several writers. A writer takes positions under a lock on the key, held until commit.
    /// Positions are therefore in order within a key, but a lower position of *another* key may be
    /// committed later. [`OpenWriters`](crate::backend::OpenWriters) returns the open writers.
    Writers,
    /// Several writers, and every row carries a [`Stripe`]. A writer takes numbers and positions
    /// under a lock on the stripe, held until commit. Both are therefore in order within a stripe,
    /// but a lower position of *another* stripe may be committed later.
    /// [`StripeMarks`](crate::backend::StripeMarks) returns the committed mark of each stripe.
    Stripes,
}

/// Open writers, and the highest position assigned before. Once no member of `open` remains open,
/// no row at or below `last` can be committed, whether or not a reader has read that far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Writers {
    /// Open transactions that have taken, or may have taken, positions. Opaque: compare only with
    /// an earlier answer.
    pub open: BTreeSet<String>,
    /// The highest position ever assigned, read *before* `open`: each position up to it belongs to
    /// a transaction that has ended or is in `open`. [`Position::START`] if none was assigned, or
    /// if the store can't tell.
    pub last: Position,
}

impl Writers {
    /// Creates the answer.
    #[must_use]
    pub const fn new(open: BTreeSet<String>, last: Position) -> Self {
        Self { open, last }
    }
}

/// One fetch request.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FetchRequest {
    /// The route.
    pub route: Route,
    /// The relay that reads. Only buckets whose unexpired lease it holds are read.
    pub relay: RelayId,
    /// Restriction to these buckets.
    pub buckets: BucketSet,
    /// Restriction to this scope.
    pub scope: Scope,
    /// Only rows after this position.
    pub after: Position,
    /// Only rows up to and including this position.
    pub until: Position,
    /// Rows to exclude, because they are in flight. In ascending order.
    pub except: Vec<Position>,
    /// Scopes whose rows are returned as [`FetchedRow::Muted`], without content, those of failing
    /// keys included.
    pub muted: Vec<Scope>,
    /// Maximum number of rows of any kind, at least 1.
    pub limit: usize,
    /// Maximum bytes of payload and headers together; the first row is always returned. Rows
    /// without content use up none.
    pub bytes: usize,
    /// The [life](crate::backend::Leased::life) of the database in which the relay has read so
    /// far. In another one, positions that it passed may have come back for other messages.
    /// `None`: any.
    pub life: Option<i64>,
}

impl FetchRequest {
    /// Creates a fetch of everything in these buckets: 1,000 rows, 8 MiB, in any life of the
    /// database.
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
            life: None,
        }
    }
}

/// A part of the messages to read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// All messages.
    Everything,
    /// One topic.
    Topic(Topic),
    /// One key.
    Key(KeyId),
}

impl Scope {
    /// Returns true if the key is in this scope.
    #[must_use]
    pub fn covers(&self, key: &KeyId) -> bool {
        match self {
            Self::Everything => true,
            Self::Topic(topic) => *topic == key.topic,
            Self::Key(scope) => scope == key,
        }
    }
}

/// The answer to a fetch. The default is empty and whole.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Fetched {
    /// The rows, in ascending order of position.
    pub rows: Vec<FetchedRow>,
    /// True if a limit cut the fetch short: more rows may follow the last one.
    pub full: bool,
    /// End of the range that the fetch searched, if beyond the last row: in this snapshot, no
    /// requested row exists between the last row and this position. Later fetches need not scan
    /// rows of other routes and of other relays' buckets there again. Never above
    /// [`until`](FetchRequest::until), nor above the last position that was given out: relays read
    /// on behind it, and would pass what is written there later. [`Position::START`] if a limit cut
    /// the fetch short, if the relay did not hold every requested bucket, or if the store can't
    /// tell.
    pub reached: Position,
    /// True if the relay did not hold an unexpired lease of every requested bucket. Then missing
    /// rows prove nothing: the relay discards the answer, and fetches again after its next
    /// heartbeat.
    pub lapsed: bool,
}

impl Fetched {
    /// Creates the answer.
    #[must_use]
    pub const fn new(rows: Vec<FetchedRow>, full: bool, reached: Position, lapsed: bool) -> Self {
        Self { rows, full, reached, lapsed }
    }
}

/// A row as returned by a fetch.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum FetchedRow {
    /// A message to publish.
    Message(Arc<Stored>),
    /// A row whose key is failing: park it behind the key, don't publish it. Its content is not
    /// read.
    Failing(Waiting),
    /// A row in a scope that the request muted.
    Muted(Position),
    /// A row that is not a valid message, because a program wrote invalid data. It becomes a dead
    /// letter with this reason.
    Malformed(Waiting, String),
}

impl FetchedRow {
    /// Returns the position of the row.
    #[must_use]
    pub fn position(&self) -> Position {
        match self {
            Self::Message(stored) => stored.position,
            Self::Failing(row) | Self::Malformed(row, _) => row.at.position,
            Self::Muted(position) => *position,
        }
    }
}

/// A message as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stored {
    /// Its position.
    pub position: Position,
    /// Its bucket, as stored.
    pub bucket: Bucket,
    /// Its number in its stripe, on stores that order by stripes.
    pub stripe: Option<Stripe>,
    /// Time of the append, by the database's clock.
    pub appended_at: Timestamp,
    /// The message.
    pub message: Message,
}

impl Stored {
    /// Creates a message at a position, on a store that orders by position.
    #[must_use]
    pub fn new(position: Position, appended_at: Timestamp, message: Message) -> Self {
        Self { position, bucket: message.bucket(), stripe: None, appended_at, message }
    }

    /// Returns the row's name, as used by statements that remove or move it.
    #[must_use]
    pub fn row(&self) -> RowId {
        RowId { position: self.position, id: self.message.id }
    }
}

/// Exact name of a row: position *and* id, because positions can be reused after a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowId {
    /// Position of the row.
    pub position: Position,
    /// Id of the message at that position.
    pub id: MessageId,
}

/// A row whose content is not read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiting {
    /// The row.
    pub at: RowId,
    /// Its key.
    pub key: KeyId,
    /// Its bucket.
    pub bucket: Bucket,
    /// Its number in its stripe, on stores that order by stripes.
    pub stripe: Option<Stripe>,
}

impl Waiting {
    /// Creates a row.
    #[must_use]
    pub const fn new(at: RowId, key: KeyId, bucket: Bucket, stripe: Option<Stripe>) -> Self {
        Self { at, key, bucket, stripe }
    }
}

/// A request for failing keys that are due.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DueRequest {
    /// The route.
    pub route: Route,
    /// The relay that reads. Only buckets whose unexpired lease it holds are read.
    pub relay: RelayId,
    /// Restriction to these buckets.
    pub buckets: BucketSet,
    /// Keys to exclude, because they are in progress.
    pub except: Vec<KeyId>,
    /// Scopes to exclude, because they are paused or broken.
    pub muted: Vec<Scope>,
    /// Maximum number of keys.
    pub keys: usize,
    /// Maximum number of parked messages per key, the oldest first.
    pub messages: usize,
    /// Maximum bytes of payload and headers in total. Only the first message of the first key is
    /// always returned. A later key whose first message does not fit is left for another call, and
    /// so are all keys due after it.
    pub bytes: usize,
}

impl DueRequest {
    /// Creates a request for 100 keys in these buckets: 1,000 messages each, 8 MiB.
    #[must_use]
    pub const fn new(route: Route, relay: RelayId, buckets: BucketSet) -> Self {
        Self {
            route,
            relay,
            buckets,
            except: Vec::new(),
            muted: Vec::new(),
            keys: 100,
            messages: 1_000,
            bytes: 8 * 1024 * 1024,
        }
    }
}

/// Failing keys that are due.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Due {
    /// The keys, the longest due first. Those that can't be read are left out, and hold up no
    /// others.
    pub keys: Vec<DueKey>,
    /// Time until the next key outside this answer is due, of those that the request asks for: not
    /// an excluded or muted one, nor one of a bucket without its lease. `None`: no such key. Zero:
    /// more are due now.
    pub next: Option<std::time::Duration>,
}

impl Due {
    /// Creates the answer.
    #[must_use]
    pub const fn new(keys: Vec<DueKey>, next: Option<std::time::Duration>) -> Self {
        Self { keys, next }
    }
}

/// A failing key that is due.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DueKey {
    /// The key.
    pub key: KeyId,
    /// Its bucket.
    pub bucket: Bucket,
    /// Version of its row: every change creates the next one.
    pub version: i64,
    /// The message that failed, if it is still the first.
    pub failing: Option<MessageId>,
    /// Number of attempts for that message.
    pub attempts: u32,
    /// Failure of the first of these attempts.
    pub first_failure: Option<crate::failure::Failure>,
    /// Its parked messages, in order. Empty: no message is parked, and the key may be released.
    pub parked: Vec<Arc<Stored>>,
}

impl DueKey {
    /// Creates a key without attempts.
    #[must_use]
    pub const fn new(key: KeyId, bucket: Bucket, version: i64, parked: Vec<Arc<Stored>>) -> Self {
        Self { key, bucket, version, failing: None, attempts: 0, first_failure: None, parked }
    }

    /// Adds the message that failed, with its attempts, if it is still the first.
    #[must_use]
    pub fn with_failing(
        mut self,
        failing: Option<MessageId>,
        attempts: u32,
        first_failure: Option<crate::failure::Failure>,
    ) -> Self {
        if failing.is_some() && self.parked.first().map(|first| first.message.id) == failing {
            (self.failing, self.attempts, self.first_failure) = (failing, attempts, first_failure);
        }
        self
    }
}
