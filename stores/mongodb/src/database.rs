//! The database: its collections, with the concerns that the promises need, and sessions that see
//! what this process has written.

use std::sync::{Mutex, PoisonError};

use mongodb::bson::{Document, Timestamp, doc};
use mongodb::options::{DatabaseOptions, ReadConcern, ReadPreference, SelectionCriteria, WriteConcern};
use mongodb::{Client, ClientSession, ClusterTime, Collection};
use outbox_contract::{StoreError, StoreErrorKind};

use crate::config::MongoDbOptions;
use crate::error::{Failed, is_conflict_code, is_duplicate};
use crate::ownership::Ownership;
use crate::unnamed::Unnamed;

/// The collections of one outbox.
///
/// Everything is read from the primary with read concern *majority*: what is only on one server can
/// still be rolled back, and publishing it would tell of something that never was. Everything is
/// written with write concern *majority*, but for settlements.
pub(crate) struct Database {
    pub(crate) client: Client,
    pub(crate) inner: mongodb::Database,
    pub(crate) options: MongoDbOptions,
    pub(crate) unnamed: Unnamed,
    seen: Mutex<Seen>,
}

/// The latest time of the cluster that this process has heard of. A majority read may be behind a
/// write of our own that returned before: sessions carry this along, so that the server waits until
/// it is not.
#[derive(Default)]
struct Seen {
    operation: Option<Timestamp>,
    cluster: Option<ClusterTime>,
}

impl Database {
    pub(crate) fn new(client: Client, name: &str, options: MongoDbOptions) -> Self {
        let concerns = DatabaseOptions::builder()
            .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
            .read_concern(ReadConcern::majority())
            .write_concern(WriteConcern::majority())
            .build();
        let inner = client.database_with_options(name, concerns);
        Self { client, inner, options, unnamed: Unnamed::default(), seen: Mutex::default() }
    }

    /// A session whose reads see every write of this process that has returned.
    pub(crate) async fn session(&self) -> Result<ClientSession, Failed> {
        let mut session = self.client.start_session().causal_consistency(true).await?;
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(operation) = seen.operation {
            session.advance_operation_time(operation);
        }
        if let Some(cluster) = &seen.cluster {
            session.advance_cluster_time(cluster);
        }
        drop(seen);
        Ok(session)
    }

    /// Notes how far a session has come, for those that are begun later.
    pub(crate) fn note(&self, session: &ClientSession) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(operation) = session.operation_time()
            && seen.operation.is_none_or(|before| before < operation)
        {
            seen.operation = Some(operation);
        }
        if let Some(cluster) = session.cluster_time()
            && seen.cluster.as_ref().is_none_or(|before| before < cluster)
        {
            seen.cluster = Some(cluster.clone());
        }
    }

    /// Messages to be published.
    pub(crate) fn messages(&self) -> Collection<Document> {
        self.inner.collection(MESSAGE)
    }

    pub(crate) fn stripes(&self) -> Collection<Document> {
        self.inner.collection(STRIPE)
    }

    pub(crate) fn routes(&self) -> Collection<Ownership> {
        self.inner.collection(ROUTE)
    }

    /// Failing and held keys.
    pub(crate) fn keys(&self) -> Collection<Document> {
        self.inner.collection(KEY)
    }

    pub(crate) fn parked(&self) -> Collection<Document> {
        self.inner.collection(PARKED)
    }

    pub(crate) fn dead(&self) -> Collection<Document> {
        self.inner.collection(DEAD)
    }

    pub(crate) fn history(&self) -> Collection<Document> {
        self.inner.collection(HISTORY)
    }

    pub(crate) fn scheduled(&self) -> Collection<Document> {
        self.inner.collection(SCHEDULED)
    }

    pub(crate) fn handled(&self) -> Collection<Document> {
        self.inner.collection(IS_HANDLED)
    }

    /// Retentions that processes were opened with.
    pub(crate) fn retentions(&self) -> Collection<Document> {
        self.inner.collection(RETENTION)
    }

    pub(crate) fn roles(&self) -> Collection<Document> {
        self.inner.collection(ROLE)
    }

    /// Record of admin operations.
    pub(crate) fn audit(&self) -> Collection<Document> {
        self.inner.collection(AUDIT)
    }

    pub(crate) fn identity(&self) -> Collection<Document> {
        self.inner.collection(IDENTITY)
    }

    pub(crate) fn schema(&self) -> Collection<Document> {
        self.inner.collection(SCHEMA)
    }

    /// Updates documents of one collection, each in its own way, in one command and in the
    /// session's transaction. A key that is there meanwhile is a conflict: it was not when it was
    /// looked for.
    pub(crate) async fn update_each(
        &self,
        session: &mut ClientSession,
        collection: &str,
        updates: Vec<Document>,
    ) -> Result<Document, Failed> {
        let command = doc! { "update": collection, "updates": updates };
        let primary = SelectionCriteria::ReadPreference(ReadPreference::Primary);
        let answer = self.inner.run_command(command).selection_criteria(primary).session(session).await;
        let conflict = |words: &str| -> Failed {
            StoreError::new(
                StoreErrorKind::Conflict,
                "update",
                format!("write conflict with another transaction; abort this one and start again from its beginning ({words})"),
            )
            .into()
        };
        let answer = match answer {
            Err(error) if is_duplicate(&error) => {
                return Err(conflict("another transaction inserted the key first"));
            }
            answer => answer?,
        };
        let first = answer.get_array("writeErrors").ok().and_then(|errors| errors.first()?.as_document());
        let Some(error) = first else { return Ok(answer) };
        let words = error.get_str("errmsg").unwrap_or("no words");
        if error.get_i32("code").is_ok_and(is_conflict_code) {
            return Err(conflict(words));
        }
        let words = format!("the server refused to update {collection}: {words}");
        Err(StoreError::new(StoreErrorKind::Other, "update", words).into())
    }

    /// The database's clock, in microseconds since 1970; it has milliseconds.
    pub(crate) async fn now(&self, session: &mut ClientSession) -> Result<i64, Failed> {
        let pipeline = [doc! { "$limit": 1 }, doc! { "$project": { "_id": 0, "now": "$$NOW" } }];
        let mut cursor = self.schema().aggregate(pipeline).session(&mut *session).await?;
        let row = cursor.next(session).await.transpose()?;
        let Some(row) = row else {
            return Err(crate::migrate::not_migrated("now").into());
        };
        Ok(instant(&row, "now"))
    }
}

pub(crate) const MESSAGE: &str = "outbox_message";
pub(crate) const STRIPE: &str = "outbox_stripe";
pub(crate) const ROUTE: &str = "outbox_route";
pub(crate) const KEY: &str = "outbox_key";
pub(crate) const PARKED: &str = "outbox_parked";
pub(crate) const DEAD: &str = "outbox_dead";
pub(crate) const HISTORY: &str = "outbox_history";
pub(crate) const SCHEDULED: &str = "outbox_scheduled";
pub(crate) const IS_HANDLED: &str = "outbox_handled";
pub(crate) const RETENTION: &str = "outbox_retention";
pub(crate) const ROLE: &str = "outbox_role";
pub(crate) const SCHEMA: &str = "outbox_schema";
pub(crate) const AUDIT: &str = "outbox_audit";
pub(crate) const IDENTITY: &str = "outbox_identity";

/// An instant of the server's as the collections have it: microseconds.
pub(crate) fn instant(row: &Document, field: &str) -> i64 {
    row.get_datetime(field).map(|at| at.timestamp_millis().saturating_mul(1_000)).unwrap_or_default()
}
