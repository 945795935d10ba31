//! Appending: documents in the user's transaction.
//!
//! First the numbers, then the documents. Two round trips for messages of one stripe, three for
//! messages of many. Whatever goes wrong on the way ends here: the server has aborted the
//! transaction by then, and only the user can start it again.

use mongodb::ClientSession;
use mongodb::bson::{Document, doc};
use mongodb::error::ErrorKind;
use mongodb::options::WriteConcern;
use outbox_contract::backend::StripeId;
use outbox_contract::{AppendError, DueTime, Outgoing, StoreError, StoreErrorKind, Timestamp};

use crate::database::Database;
use crate::error::{Failed, store_error};
use crate::row::{self, uuid};
use crate::stripes::{self, Take, Taken, Takes};

/// A document on its way into its stripe.
pub(crate) struct Row {
    pub(crate) route: String,
    pub(crate) stripe: StripeId,
    pub(crate) id: mongodb::bson::Bson,
    /// Time at which it joins its key. None: at once.
    pub(crate) due: Option<DueTime>,
    /// Content of the message, without its place.
    pub(crate) content: Document,
}

impl Row {
    fn of(outgoing: &Outgoing) -> Self {
        let message = &outgoing.message;
        Self {
            route: outgoing.route.as_str().to_owned(),
            stripe: StripeId::of(message.topic.as_str(), message.order_key().as_str()),
            id: uuid(message.id.as_uuid()),
            due: outgoing.due,
            content: row::content(message),
        }
    }
}

/// Checks that these can be appended in this session: all of them are messages, and it is in a
/// transaction. Nothing is sent.
pub(crate) async fn check(session: &mut ClientSession, messages: &[Outgoing]) -> Result<(), AppendError> {
    for outgoing in messages {
        outgoing.message.validate()?;
        if let Some(bytes) = row::too_large(&outgoing.message) {
            return Err(StoreError::new(
                StoreErrorKind::Invalid,
                "append",
                format!(
                    "the message {} takes {bytes} bytes with its headers, and a document of MongoDB holds 16 MiB; store the data elsewhere \
                     and send a reference",
                    outgoing.message.id
                ),
            )
            .into());
        }
    }
    Ok(require_transaction(session).await?)
}

/// Messages as documents, in the order given.
pub(crate) fn rows(messages: &[Outgoing]) -> Vec<Row> {
    messages.iter().map(Row::of).collect()
}

/// Refuses a session that is in no transaction: whatever is written in it is committed at once and
/// alone (promise P1). The driver does not say whether there is one, but it refuses to begin one in
/// another, without asking the server. It refuses for other reasons too, in errors of the same
/// kind: in a snapshot, and on a client that asks for no confirmation. So one is asked for that
/// confirms, and only one answer is a yes.
pub(crate) async fn require_transaction(session: &mut ClientSession) -> Result<(), StoreError> {
    let none = || {
        StoreError::new(
            StoreErrorKind::NotInTransaction,
            "append",
            "the session has no open transaction; call start_transaction on it first, and pass it to your own writes too",
        )
    };
    match session.start_transaction().write_concern(WriteConcern::majority()).await {
        Err(error) => match &*error.kind {
            ErrorKind::Transaction { message, .. } if message.contains("already in progress") => Ok(()),
            ErrorKind::Transaction { .. } => Err(none().with_source(error)),
            _ => Err(store_error("append", error)),
        },
        Ok(()) => {
            // Nothing was sent in it, so nothing is sent to end it.
            session.abort_transaction().await.map_err(|error| store_error("append", error))?;
            Err(none())
        }
    }
}

/// Numbers documents and writes them, in the order given.
pub(crate) async fn write(
    database: &Database,
    session: &mut ClientSession,
    rows: Vec<Row>,
) -> Result<(), Failed> {
    let mut takes: Takes<Take> = Takes::new();
    for (row, at) in rows.iter().zip(0..) {
        let take = takes.entry((row.route.clone(), row.stripe)).or_default();
        if row.due.is_some() { take.scheduled() } else { take.message(at) }
    }
    let mut taken = stripes::take(database, session, &takes).await?;
    let (mut at_once, mut later) = (Vec::new(), Vec::new());
    for (row, at) in rows.into_iter().zip(0..) {
        let name = (row.route, row.stripe);
        let Some(place) = taken.get_mut(&name) else { continue };
        let row = Row { route: name.0, ..row };
        if let Some(due) = row.due {
            later.push(scheduled(row, due, place))
        } else {
            at_once.push(hot(row, at, place))
        }
    }
    if !at_once.is_empty() {
        database.messages().insert_many(at_once).session(&mut *session).await?;
    }
    if !later.is_empty() {
        database.scheduled().insert_many(later).session(session).await?;
    }
    Ok(())
}

fn hot(row: Row, at: i64, place: &mut Taken) -> Document {
    let (number, position) = place.message(at);
    let mut document = doc! { "_id": { "route": row.route, "position": position, "id": row.id } };
    document.extend(row.content);
    document.extend(doc! { "stripe": i32::from(row.stripe.0), "number": number, "appended_at": place.at });
    document
}

fn scheduled(row: Row, due: DueTime, place: &mut Taken) -> Document {
    let due_at = due.at(Timestamp::from_micros(place.at)).as_micros();
    let mut document = doc! { "route": row.route, "id": row.id, "due_at": due_at };
    document.extend(row.content);
    let stripe = i32::from(row.stripe.0);
    document.extend(doc! { "stripe": stripe, "turn": place.turn(), "appended_at": place.at });
    document
}
