//! The commands, and their calls of the engine.

use std::time::Duration;

use bson::{Bson, Document, doc};

use crate::engine::{Connection, bytes};
use crate::refusal::{BAD_VALUE, COMMAND_NOT_FOUND, Code, NAMESPACE_NOT_FOUND, Refusal};
use crate::replies;

/// Calls a function of the engine that takes a database and a command.
macro_rules! call {
    ($function:literal) => {
        concat!($function, "($1, $2::bytea::documentdb_core.bson)")
    };
    ($function:literal, $more:literal) => {
        concat!($function, "($1, $2::bytea::documentdb_core.bson, ", $more, ")")
    };
}

/// Runs a write: in the transaction of the caller, or on its own.
macro_rules! plain {
    ($call:expr) => {
        concat!("select p_result::bytea from ", $call)
    };
}

/// Runs a write once, however often it is requested: its answer is stored in the statement that
/// performs it.
macro_rules! once {
    ($call:expr) => {
        concat!(
            "with done as materialized (select p_result::bytea as answer from ",
            $call,
            ") insert into outbox_front.done (session, number, answer) select $3, $4, answer from done ",
            "on conflict (session) do update set number = excluded.number, answer = excluded.answer, at = now() ",
            "returning answer"
        )
    };
}

/// Returns the first page of a cursor.
macro_rules! first_page {
    ($function:literal) => {
        concat!(
            "select cursorpage::bytea, continuation::bytea, persistconnection from documentdb_api.",
            call!($function, "$3")
        )
    };
}

const NEXT_PAGE: &str = "select cursorpage::bytea, continuation::bytea from documentdb_api.cursor_get_more(\
    $1, $2::bytea::documentdb_core.bson, $3::bytea::documentdb_core.bson)";

/// A command as a client sent it.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    pub(crate) name: String,
    pub(crate) database: String,
    /// The session's id; empty if the client named none.
    pub(crate) session: Vec<u8>,
    /// The number of the transaction, or of a retryable command.
    pub(crate) number: Option<i64>,
    /// True if it belongs to a transaction.
    pub(crate) in_transaction: bool,
    /// True if it is the first of its transaction.
    pub(crate) starts: bool,
    pub(crate) spec: Document,
}

impl Command {
    pub(crate) fn read(spec: Document) -> Result<Self, Refusal> {
        let name = spec.keys().next().cloned();
        let name = name.ok_or_else(|| Refusal::new(BAD_VALUE, "a command without a name"))?;
        let database = spec.get_str("$db").unwrap_or("admin").to_owned();
        let session = session(&spec);
        let number = spec.get("txnNumber").and_then(whole);
        let in_transaction = spec.get_bool("autocommit").is_ok_and(|auto| !auto);
        let starts = spec.get_bool("startTransaction").unwrap_or_default();
        if (in_transaction || number.is_some()) && (session.is_empty() || number.is_none()) {
            return Err(Refusal::new(BAD_VALUE, format!("{name}: lsid and txnNumber go together")));
        }
        Ok(Self { name, database, session, number, in_transaction, starts, spec })
    }

    /// Returns the database and collection that it is about.
    pub(crate) fn namespace(&self) -> String {
        format!("{}.{}", self.database, self.collection().unwrap_or("$cmd"))
    }

    /// Returns its time limit, if it has one.
    pub(crate) fn time_limit(&self) -> Option<Duration> {
        let millis = self.spec.get("maxTimeMS").and_then(whole)?;
        u64::try_from(millis).ok().filter(|millis| *millis > 0).map(Duration::from_millis)
    }

    pub(crate) fn is_write(&self) -> bool {
        matches!(self.name.as_str(), "insert" | "update" | "delete" | "findAndModify" | "findandmodify")
    }

    fn collection(&self) -> Result<&str, Refusal> {
        let collection = self.spec.get_str(&self.name);
        collection.map_err(|_| Refusal::new(BAD_VALUE, format!("{} names no collection", self.name)))
    }
}

/// Returns the id of the session of a command; empty if it names none.
fn session(spec: &Document) -> Vec<u8> {
    spec.get_document("lsid").ok().and_then(session_id).unwrap_or_default()
}

/// Returns the id in a session's own document.
pub(crate) fn session_id(session: &Document) -> Option<Vec<u8>> {
    match session.get("id") {
        Some(Bson::Binary(id)) => Some(id.bytes.clone()),
        _ => None,
    }
}

/// Returns a whole number, whatever its type.
pub(crate) fn whole(value: &Bson) -> Option<i64> {
    match value {
        Bson::Int32(number) => Some(i64::from(*number)),
        Bson::Int64(number) => Some(*number),
        #[expect(clippy::cast_possible_truncation, reason = "rounded and saturated, as meant")]
        Bson::Double(number) if number.fract() == 0.0 => Some(*number as i64),
        _ => None,
    }
}

/// A cursor that stays open after a page.
#[derive(Debug)]
pub(crate) struct Continues {
    pub(crate) number: i64,
    pub(crate) continuation: Vec<u8>,
    /// True if the engine can continue only on the same connection.
    pub(crate) pinned: bool,
}

/// Result of a command.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) answer: Document,
    pub(crate) cursor: Option<Continues>,
}

impl From<Document> for Done {
    fn from(answer: Document) -> Self {
        Self { answer, cursor: None }
    }
}

/// Runs a command on a connection. `cursor` is the number of its cursor, if it opens one.
pub(crate) async fn run(
    connection: &mut Connection,
    command: &Command,
    cursor: i64,
) -> Result<Done, Refusal> {
    let page = match command.name.as_str() {
        "find" => first_page!("find_cursor_first_page"),
        "aggregate" => first_page!("aggregate_cursor_first_page"),
        "listIndexes" => first_page!("list_indexes_cursor_first_page"),
        "listCollections" => first_page!("list_collections_cursor_first_page"),
        _ if command.is_write() => return write(connection, command).await.map(Done::from),
        _ => return other(connection, command).await.map(Done::from),
    };
    let spec = bytes(&command.spec)?;
    let row = connection.row(page, &[&command.database, &spec, &cursor]).await?;
    let row = row.ok_or_else(|| Refusal::new(BAD_VALUE, "no page came"))?;
    let pinned = row.try_get::<_, bool>(2).unwrap_or_default();
    paged(&row, cursor, pinned)
}

/// Returns the next page of a cursor.
pub(crate) async fn next_page(
    connection: &mut Connection,
    command: &Command,
    cursor: i64,
    continuation: &[u8],
) -> Result<Done, Refusal> {
    let spec = bytes(&command.spec)?;
    let row = connection.row(NEXT_PAGE, &[&command.database, &spec, &continuation]).await?;
    let row = row.ok_or_else(|| Refusal::new(BAD_VALUE, "no page came"))?;
    paged(&row, cursor, false)
}

fn paged(row: &tokio_postgres::Row, number: i64, pinned: bool) -> Result<Done, Refusal> {
    let page: &[u8] = row.try_get(0)?;
    let mut answer = crate::wire::parse(page).map_err(|error| Refusal::new(BAD_VALUE, error.to_string()))?;
    let continuation: Option<Vec<u8>> = row.try_get(1)?;
    let cursor = continuation.map(|continuation| Continues { number, continuation, pinned });
    if let Ok(page) = answer.get_document_mut("cursor") {
        page.insert("id", cursor.as_ref().map_or(0, |cursor| cursor.number));
    }
    Ok(Done { answer, cursor })
}

async fn write(connection: &mut Connection, command: &Command) -> Result<Document, Refusal> {
    let spec = bytes(&command.spec)?;
    let number = command.number.filter(|_| !command.in_transaction);
    let (plain, once) = match command.name.as_str() {
        "insert" => (plain!(call!("documentdb_api.insert")), once!(call!("documentdb_api.insert"))),
        "update" => (plain!(call!("documentdb_api.update")), once!(call!("documentdb_api.update"))),
        "delete" => (plain!(call!("documentdb_api.delete")), once!(call!("documentdb_api.delete"))),
        _ => {
            (plain!(call!("documentdb_api.find_and_modify")), once!(call!("documentdb_api.find_and_modify")))
        }
    };
    let answer = match number {
        None => connection.document(plain, &[&command.database, &spec]).await?,
        Some(number) => {
            connection.document(once, &[&command.database, &spec, &command.session, &number]).await?
        }
    };
    replies::of_write(answer, &command.namespace(), command.in_transaction)
}

async fn other(connection: &mut Connection, command: &Command) -> Result<Document, Refusal> {
    let (database, spec) = (&command.database, bytes(&command.spec)?);
    match command.name.as_str() {
        "count" => {
            let sql = concat!("select document::bytea from ", call!("documentdb_api.count_query"));
            connection.document(sql, &[database, &spec]).await
        }
        "distinct" => {
            let sql = concat!("select document::bytea from ", call!("documentdb_api.distinct_query"));
            connection.document(sql, &[database, &spec]).await
        }
        "create" => {
            let sql = concat!("select ", call!("documentdb_api.create_collection_view"), "::bytea");
            connection.document(sql, &[database, &spec]).await
        }
        "createIndexes" => {
            let sql = concat!(
                "select ",
                call!("documentdb_api_internal.create_indexes_non_concurrently", "true"),
                "::bytea"
            );
            indexes(&connection.document(sql, &[database, &spec]).await?)
        }
        "dropIndexes" => {
            let sql = "call documentdb_api.drop_indexes($1, $2::bytea::documentdb_core.bson, null)";
            indexes(&connection.document(sql, &[database, &spec]).await?)
        }
        "drop" => {
            let sql = "select documentdb_api.drop_collection($1, $2)";
            let dropped = connection.row(sql, &[database, &command.collection()?]).await?;
            let dropped = dropped.is_some_and(|row| row.try_get(0).unwrap_or_default());
            if dropped { Ok(replies::ok()) } else { Err(Refusal::new(NAMESPACE_NOT_FOUND, "ns not found")) }
        }
        "dropDatabase" => {
            connection.row("select documentdb_api.drop_database($1)::text", &[database]).await?;
            Ok(replies::ok())
        }
        "collMod" => {
            let sql = "select documentdb_api.coll_mod($1, $2, $3::bytea::documentdb_core.bson)::bytea";
            connection.document(sql, &[database, &command.collection()?, &spec]).await
        }
        "collStats" => {
            let sql = "select documentdb_api.coll_stats($1, $2)::bytea";
            connection.document(sql, &[database, &command.collection()?]).await
        }
        "dbStats" => connection.document("select documentdb_api.db_stats($1)::bytea", &[database]).await,
        "listDatabases" => {
            let sql = "select documentdb_api.list_databases($1::bytea::documentdb_core.bson)::bytea";
            connection.document(sql, &[&spec]).await
        }
        name => Err(Refusal::new(COMMAND_NOT_FOUND, format!("no such command: '{name}'"))),
    }
}

/// The engine answers as a cluster does, shard by shard; it has one. It reports success in more
/// than one way.
fn indexes(answer: &Document) -> Result<Document, Refusal> {
    let shard = answer.get_document("raw").and_then(|raw| raw.get_document("defaultShard"));
    let said = shard.unwrap_or(answer);
    let well = match said.get("ok") {
        Some(Bson::Boolean(well)) => *well,
        Some(number) => whole(number) == Some(1),
        None => false,
    };
    if !well {
        let code = Code::of_packed_state(said.get_i32("code").unwrap_or_default());
        return Err(Refusal::new(code, said.get_str("errmsg").unwrap_or("it was not done")));
    }
    let mut answer = doc! {};
    for field in ["numIndexesBefore", "numIndexesAfter", "nIndexesWas", "createdCollectionAutomatically"] {
        answer.extend(said.get(field).map(|value| (field.to_owned(), value.clone())));
    }
    answer.insert("ok", 1.0);
    Ok(answer)
}
