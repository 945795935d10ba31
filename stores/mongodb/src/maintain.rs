//! Maintenance: what one elected relay does for all, in short transactions.
//!
//! The history is removed by the server itself, through an index that knows each document's time.

use std::time::Duration;

use mongodb::bson::{Bson, Document, doc};
use outbox_contract::backend::Maintained;
use outbox_contract::{Route, StoreError};

use crate::again::{Again, MAX_AT_ONCE, MAX_BYTES_AT_ONCE, at_once};
use crate::database::Database;
use crate::error::Failed;
use crate::handled;
use crate::keys::number;
use crate::lease;
use crate::row::{Raw, content_bytes};
use crate::store::MongoDbStore;
use crate::transaction::{Attempts, once};

/// A relay that has been dead for this long is removed.
const RELAYS_KEPT: Duration = Duration::from_secs(3_600);

/// Number of attempts at a stripe whose round has met others, before it is left for the next
/// maintenance.
const TRIES: usize = 3;

/// After how long what was left is looked at again.
const BUSY_PAUSE: Duration = Duration::from_millis(250);

/// The most stripes that are left out of one maintenance.
const MAX_BUSY: usize = 1_000;

pub(crate) async fn maintain(store: &MongoDbStore, limit: usize) -> Result<Maintained, StoreError> {
    let limit = limit.max(1);
    let mut maintained = Maintained::default();
    let mut promotion = Promotion { store, busy: Vec::new() };
    let mut left = limit;
    while left > 0 && promotion.busy.len() < MAX_BUSY {
        let round = promotion.round(left.min(MAX_AT_ONCE)).await?;
        maintained.promoted += u64::try_from(round.promoted).unwrap_or_default();
        left -= round.promoted.min(left);
        if !round.may_be_more {
            break;
        }
    }
    maintained.next_due = promotion.next_due().await?;
    let expire = handled::expire(store.database(), limit).await;
    maintained.handled_ids_removed = expire.map_err(|failed| failed.in_step("maintain"))?;
    maintained.relays_removed = bury_relays(store.database()).await?;
    maintained.more = left == 0 || maintained.handled_ids_removed >= limit as u64;
    Ok(maintained)
}

struct Round {
    promoted: usize,
    /// True if others may be due that were not in it.
    may_be_more: bool,
}

/// Scheduled messages that are due join their keys. A stripe that somebody else holds is left out,
/// with all that is due in it: others go on, and the messages of a stripe stay in their order.
struct Promotion<'a> {
    store: &'a MongoDbStore,
    /// Route and stripe of what is left out, as the documents have them.
    busy: Vec<Document>,
}

impl Promotion<'_> {
    async fn round(&mut self, most: usize) -> Result<Round, StoreError> {
        let (rows, cut) = self.due(most).await.map_err(|failed| failed.in_step("maintain"))?;
        let due = &rows[..at_once(&rows)];
        for row in due {
            let route = Route::new(row.get_str("route").unwrap_or_default()).unwrap_or_default();
            self.store.know_stripes("maintain", &route).await?;
        }
        let may_be_more = cut || due.len() < rows.len();
        if due.is_empty() {
            return Ok(Round { promoted: 0, may_be_more });
        }
        if let Some(promoted) = self.try_promote(due, 1).await? {
            return Ok(Round { promoted, may_be_more });
        }
        let mut promoted = 0;
        for (stripe, due) in by_stripe(due) {
            match self.try_promote(&due, TRIES).await? {
                Some(of_stripe) => promoted += of_stripe,
                None => {
                    tracing::debug!(%stripe, "due messages wait: another transaction has appended to their stripe");
                    self.busy.push(stripe);
                }
            }
        }
        // Those that are left out have taken the places of others.
        Ok(Round { promoted, may_be_more: may_be_more || !self.busy.is_empty() })
    }

    /// The next due first; of one due time, in the order in which a stripe's were scheduled. And
    /// whether a limit cut it short.
    async fn due(&self, most: usize) -> Result<(Vec<Document>, bool), Failed> {
        let database = self.store.database();
        let mut session = database.session().await?;
        let now = database.now(&mut session).await?;
        let mut filter = self.not_busy();
        filter.insert("due_at", doc! { "$lte": now });
        let mut cursor = database
            .scheduled()
            .find(filter)
            .sort(doc! { "due_at": 1, "turn": 1 })
            .limit(i64::try_from(most).unwrap_or(i64::MAX))
            .session(&mut session)
            .await?;
        let (mut rows, mut bytes) = (Vec::new(), 0_usize);
        while let Some(row) = cursor.next(&mut session).await {
            let mut row = row?;
            bytes = bytes.saturating_add(content_bytes(&row));
            let raw = Raw::new(row);
            let order_key = raw.key_id().key;
            row = raw.into_document();
            row.insert("order_key", order_key.as_str());
            rows.push(row);
            if bytes > MAX_BYTES_AT_ONCE {
                return Ok((rows, true));
            }
        }
        let cut = rows.len() >= most;
        Ok((rows, cut))
    }

    fn not_busy(&self) -> Document {
        if self.busy.is_empty() {
            Document::new()
        } else {
            doc! { "$nor": self.busy.clone() }
        }
    }

    /// Says how many it has appended. None: others were in the way, each time.
    async fn try_promote(&self, due: &[Document], tries: usize) -> Result<Option<usize>, StoreError> {
        let database = self.store.database();
        let mut attempts = Attempts::new(database.options.conflict_timeout);
        let work = Again { rows: due, leave: Some(database.scheduled()), note: None };
        for left in (0..tries).rev() {
            match once(database, &work, &attempts).await {
                Ok(promoted) => return Ok(Some(promoted)),
                Err(failed) if failed.is_conflict() && left == 0 => {}
                Err(failed) => attempts.after("maintain", failed).await?,
            }
        }
        Ok(None)
    }

    /// In how long the next is due.
    async fn next_due(&self) -> Result<Option<Duration>, StoreError> {
        let failed = |failed: Failed| failed.in_step("maintain");
        let database = self.store.database();
        let mut session = database.session().await.map_err(failed)?;
        let next = database
            .scheduled()
            .find_one(self.not_busy())
            .sort(doc! { "due_at": 1, "turn": 1 })
            .projection(doc! { "due_at": 1 })
            .session(&mut session)
            .await
            .map_err(|error| failed(error.into()))?;
        let due_at = next.and_then(|row| number(&row, "due_at"));
        let busy = (!self.busy.is_empty()).then_some(BUSY_PAUSE);
        let Some(due_at) = due_at else { return Ok(busy) };
        let now = database.now(&mut session).await.map_err(failed)?;
        let next = Duration::from_micros(u64::try_from(due_at.saturating_sub(now)).unwrap_or_default());
        Ok(Some(busy.map_or(next, |busy| busy.min(next))))
    }
}

/// Documents by route and stripe, each part in its order.
fn by_stripe(due: &[Document]) -> Vec<(Document, Vec<Document>)> {
    let mut parts: Vec<(Document, Vec<Document>)> = Vec::new();
    for row in due {
        // As they were written, right or wrong: what is left out must not be found again.
        let field = |field| row.get(field).cloned().unwrap_or(Bson::Null);
        let stripe = doc! { "route": field("route"), "stripe": field("stripe") };
        match parts.iter_mut().find(|(of, _)| *of == stripe) {
            Some((_, part)) => part.push(row.clone()),
            None => parts.push((stripe, vec![row.clone()])),
        }
    }
    parts
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
