//! The fence of a transaction that acts on keys of a route: what it was decided from is still so
//! when it commits.
//!
//! A transaction reads the route's document first, does its steps, and changes the document last,
//! right before it commits. Whoever else has changed that document since (a relay that took buckets
//! over, another step, a verb of an operator) is in conflict with this change, and one of the two
//! starts again: whatever two such transactions have read, and whatever else they write, they meet
//! here. Changed first, the document would be locked for as long as the transaction is open. When
//! its program dies the server keeps it open for a minute, and no heartbeat of the route would come
//! through.

use mongodb::ClientSession;
use mongodb::bson::{Document, doc};
use outbox_contract::{Route, StoreError, StoreErrorKind};

use crate::database::Database;
use crate::error::Failed;
use crate::lease;
use crate::ownership::Ownership;

/// State of a route as a transaction has read it, and the numbers that its steps take.
pub(crate) struct Fence {
    read: Ownership,
    taken: i64,
}

impl Fence {
    /// Reads the route, as the first statement of a transaction.
    pub(crate) async fn open(
        database: &Database,
        session: &mut ClientSession,
        route: &Route,
    ) -> Result<Self, Failed> {
        match lease::read(database, session, route, None).await? {
            Some(read) => Ok(Self { read, taken: 0 }),
            None => Err(conflict(format!(
                "the route {route} was created while this operation ran; start it again"
            ))),
        }
    }

    /// Returns the ownership of buckets when the transaction began.
    pub(crate) const fn ownership(&self) -> &Ownership {
        &self.read
    }

    /// The number of the next step.
    pub(crate) fn step(&mut self) -> i64 {
        self.taken += 1;
        self.read.steps.saturating_add(self.taken)
    }

    /// Changes the route, as the last statement before the commit. A conflict: somebody else has
    /// changed it since it was read.
    pub(crate) async fn close(
        self,
        database: &Database,
        session: &mut ClientSession,
        route: &Route,
    ) -> Result<(), Failed> {
        // A server with weaker transactions would look at the document as it is now: then the
        // filter finds out.
        let as_read = doc! { "_id": route.as_str(), "version": self.read.version, "steps": self.read.steps };
        // Always a change: an update that changes nothing would conflict with none.
        let update = doc! { "$inc": { "steps": self.taken.max(1) } };
        let closed = database
            .routes()
            .clone_with_type::<Document>()
            .find_one_and_update(as_read, update)
            .projection(doc! { "_id": 1 })
            .session(session)
            .await?;
        match closed {
            Some(_) => Ok(()),
            None => Err(conflict(format!("write conflict: another relay has changed the route {route}"))),
        }
    }
}

fn conflict(words: String) -> Failed {
    StoreError::new(StoreErrorKind::Conflict, "fence", words).into()
}
