//! What the reader asks for, and what it makes of the answer.

use outbox_contract::Position;
use outbox_contract::fetch::{FetchRequest, FetchedRow};

use super::horizon::Claim;
use super::marks::Marks;
use super::part::Part;

/// How much a reader may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReaderLimits {
    /// The most rows of one fetch.
    pub(crate) rows: usize,
    /// The most bytes of one fetch.
    pub(crate) bytes: usize,
    /// The most messages of one key in memory; what is beyond it gets a window of its own.
    pub(crate) per_key: usize,
    /// The most rows in memory that are to be parked or buried. They are small, and take no credit: else keys that the store is slow to park would
    /// stop all others.
    pub(crate) waiting: usize,
    /// The most keys with a window of their own, before the wider windows wait for them.
    pub(crate) key_gaps: usize,
    /// How many positions each fetch may walk over again while a writer stays open, before it pays to ask after each fetch who is writing.
    pub(crate) walk: i64,
}

/// A fetch to carry out.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// What to ask the store.
    pub(crate) request: FetchRequest,
    /// Which fetch this is, counted in the order in which they begin.
    pub(crate) sequence: u64,
    pub(super) changes: u64,
    pub(super) window: Option<Part>,
    pub(super) horizon: Position,
    pub(super) claim: Option<Claim>,
    /// How far stripes were committed before it begins.
    pub(super) marks: Marks,
    /// How often the store had been asked who is writing. None: the answer needs no confirming.
    pub(super) to_confirm: Option<u64>,
}

impl Plan {
    /// Whether the store is to be asked who is writing when this fetch has returned, and the reader told, before it takes the rows.
    pub(crate) fn wants_writers(&self) -> bool {
        self.to_confirm.is_some()
    }
}

/// What a fetch brought.
#[derive(Debug, Default)]
pub(crate) struct Read {
    /// Rows to be worked on, in order. Their positions are in flight from now on.
    pub(crate) rows: Vec<FetchedRow>,
    /// How many rows the store sent.
    pub(crate) seen: usize,
    /// Whether there were rows that count for nothing yet: committed after the store was asked how far its stripes are.
    pub(crate) early: bool,
}
