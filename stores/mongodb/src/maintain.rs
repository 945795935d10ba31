//! Maintenance: what one elected relay does for all, in short transactions.
//!
//! Ids that consumers have handled, and the history, are removed by the server itself, through indexes that know each document's time.

use std::time::Duration;

use mongodb::ClientSession;
use mongodb::bson::{Bson, Document, doc};
use outbox_contract::maintain::Maintained;
use outbox_contract::{Route, StoreError, async_trait};

use crate::admin::{MOST_AT_ONCE, again};
use crate::append;
use crate::database::Database;
use crate::error::Failed;
use crate::keys::number;
use crate::lease;
use crate::row::Raw;
use crate::store::MongoDbStore;
use crate::transaction::{Work, transact};

/// A relay that has been dead for this long is removed.
const RELAYS_KEPT: Duration = Duration::from_secs(3_600);

pub(crate) async fn maintain(store: &MongoDbStore, limit: usize) -> Result<Maintained, StoreError> {
    let limit = limit.max(1);
    let mut maintained = Maintained::default();
    let mut left = limit;
    while left > 0 {
        let most = left.min(MOST_AT_ONCE);
        let round = promote(store, most).await?;
        maintained.next_due = round.next_due;
        maintained.promoted += u64::try_from(round.promoted).unwrap_or_default();
        left -= round.promoted.min(left);
        if round.promoted < most {
            break;
        }
    }
    maintained.relays_removed = bury_relays(store.database()).await?;
    maintained.more = left == 0;
    Ok(maintained)
}

struct Round {
    promoted: usize,
    next_due: Option<Duration>,
}

/// The next due first; of one due time, in the order in which a stripe's were scheduled.
async fn next(
    database: &Database,
    session: &mut ClientSession,
    filter: Document,
    most: usize,
) -> Result<Vec<Document>, Failed> {
    let mut cursor = database
        .scheduled()
        .find(filter)
        .sort(doc! { "due_at": 1, "turn": 1 })
        .limit(i64::try_from(most).unwrap_or(i64::MAX))
        .session(&mut *session)
        .await?;
    let mut rows = Vec::new();
    while let Some(row) = cursor.next(session).await {
        rows.push(row?);
    }
    Ok(rows)
}

/// Appends what is due, and says in how long the next is due.
async fn promote(store: &MongoDbStore, most: usize) -> Result<Round, StoreError> {
    let database = store.database();
    let failed = |failed: Failed| failed.in_step("maintain");
    let mut session = database.session().await.map_err(failed)?;
    let now = database.now(&mut session).await.map_err(failed)?;
    let is_due = doc! { "due_at": { "$lte": now } };
    let due = next(database, &mut session, is_due, most).await.map_err(failed)?;
    for row in &due {
        let route = Route::new(row.get_str("route").unwrap_or_default()).unwrap_or_default();
        store.know_stripes("maintain", &route).await?;
    }
    let promoted = if due.is_empty() { 0 } else { transact(database, "maintain", &Promote { due }).await? };
    let mut session = database.session().await.map_err(failed)?;
    let later = next(database, &mut session, Document::new(), 1).await.map_err(failed)?;
    let next_due = later.first().and_then(|row| number(row, "due_at"));
    let next_due = next_due
        .map(|due_at| Duration::from_micros(u64::try_from(due_at.saturating_sub(now)).unwrap_or_default()));
    Ok(Round { promoted, next_due })
}

struct Promote {
    due: Vec<Document>,
}

#[async_trait]
impl Work for Promote {
    type Done = usize;

    /// Only what is still there: somebody else may have been faster, or an operator have cancelled it.
    async fn run(&self, database: &Database, session: &mut ClientSession) -> Result<usize, Failed> {
        let names: Vec<Bson> = self.due.iter().filter_map(|row| row.get("_id").cloned()).collect();
        let filter = doc! { "_id": { "$in": names } };
        let due = next(database, session, filter.clone(), self.due.len()).await?;
        let promoted = due.len();
        let rows = due.into_iter().map(|mut row| {
            let order_key = Raw::new(row.clone()).key_id().key;
            row.insert("order_key", order_key.as_str());
            again(&row)
        });
        append::write(database, session, rows.collect()).await?;
        database.scheduled().delete_many(filter).session(session).await?;
        Ok(promoted)
    }
}

/// Relays that are long gone, on every route.
async fn bury_relays(database: &Database) -> Result<u64, StoreError> {
    let failed = |error| Failed::from(error).in_step("maintain");
    let routes = database.routes().distinct("_id", doc! {}).await.map_err(failed)?;
    let mut removed = 0;
    for name in &routes {
        let Some(route) = name.as_str().and_then(|name| Route::new(name).ok()) else { continue };
        let mut session = database.session().await.map_err(|failed| failed.in_step("maintain"))?;
        let concern = Some(mongodb::options::ReadConcern::majority());
        let read = lease::read(database, &mut session, &route, concern).await;
        let read = read.map_err(|failed| failed.in_step("maintain"))?;
        // Looked at first: a change that changes nothing would still make others start again.
        if read.is_some_and(|mut route| route.bury_relays(RELAYS_KEPT) > 0) {
            removed +=
                lease::change(database, "maintain", &route, |route| route.bury_relays(RELAYS_KEPT)).await?;
        }
    }
    Ok(removed)
}
