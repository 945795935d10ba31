//! The frontier: how a relay learns up to where a store's rows are committed.

use std::fmt;

use async_trait::async_trait;

use crate::backend::{BucketSet, Ordering, StripeMark, Writers};
use crate::error::StoreError;
use crate::name::Route;

/// Relation between a store's positions and its commits, with the means to ask for it. A store that
/// names an [`Ordering`] can thus not forget the question that belongs to it.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub enum Frontier<'a> {
    /// [`Ordering::Single`]: what is visible is final, and there is nothing to ask.
    Single,
    /// [`Ordering::Writers`]: ask for the open writers.
    Writers(&'a dyn OpenWriters),
    /// [`Ordering::Stripes`]: ask for the marks of the stripes.
    Stripes(&'a dyn StripeMarks),
}

impl Frontier<'_> {
    /// Returns the ordering alone.
    #[must_use]
    pub const fn ordering(&self) -> Ordering {
        match self {
            Self::Single => Ordering::Single,
            Self::Writers(_) => Ordering::Writers,
            Self::Stripes(_) => Ordering::Stripes,
        }
    }

    /// Returns the [open writers](OpenWriters::writers); none on a store of another ordering.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn writers(self) -> Result<Writers, StoreError> {
        match self {
            Self::Writers(store) => store.writers().await,
            Self::Single | Self::Stripes(_) => Ok(Writers::default()),
        }
    }

    /// Returns the [marks of the stripes](StripeMarks::stripes); none on a store of another
    /// ordering.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn stripes(self, route: &Route, buckets: &BucketSet) -> Result<Vec<StripeMark>, StoreError> {
        match self {
            Self::Stripes(store) => store.stripes(route, buckets).await,
            Self::Single | Self::Writers(_) => Ok(Vec::new()),
        }
    }
}

impl fmt::Debug for Frontier<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ordering().fmt(f)
    }
}

/// The question of stores that order by [writers](Ordering::Writers).
#[async_trait]
pub trait OpenWriters: Send + Sync {
    /// Returns the writers that may still commit a row below a visible position.
    ///
    /// - *Effect*: none. *Ordering*: the answer contains every transaction that took a position
    ///   before the call and has not ended at its return. It also contains every open transaction
    ///   that took a position up to `last`, which is read first. A transaction that has ended is in
    ///   no answer whose call begins later.
    /// - *Units and limits*: at most five calls a second per relay. *Errors*: `Unavailable`.
    /// - *Cancellation*, *Concurrency*, *Repeat*: harmless.
    async fn writers(&self) -> Result<Writers, StoreError>;
}

/// The question of stores that order by [stripes](Ordering::Stripes).
#[async_trait]
pub trait StripeMarks: Send + Sync {
    /// Returns the committed mark of each stripe of these buckets. A relay calls it before each
    /// fetch.
    ///
    /// - *Effect*: none; locks nothing. *Ordering*: by stripe; omits a stripe without any commit
    ///   for the route. Every row up to a mark's number is visible to each fetch that begins after
    ///   this returns, unless it was removed. Every row that a fetch returned before this begins is
    ///   within its mark, unless counters were set back.
    /// - *Units and limits*: at most four for each bucket. *Errors*: as
    ///   [`fetch`](crate::Store::fetch).
    /// - *Cancellation*, *Concurrency*, *Repeat*: harmless.
    async fn stripes(&self, route: &Route, buckets: &BucketSet) -> Result<Vec<StripeMark>, StoreError>;
}
