//! Stripes: how several writers at once number what they append.
//!
//! Each stripe of a route is a document. An append adds to its counters in the user's transaction:
//! from then until that transaction ends, whoever else touches the document conflicts. So numbers
//! and positions of a stripe are in the order of commits, and committed numbers have no gaps. The
//! documents are made ahead, outside of transactions: two that made the same one would conflict for
//! nothing.

use std::collections::BTreeMap;

use mongodb::ClientSession;
use mongodb::bson::{Bson, Document, doc};
use mongodb::options::{ReadConcern, ReturnDocument};
use outbox_contract::backend::{BucketSet, Position, STRIPES, Stripe, StripeId, StripeMark};
use outbox_contract::{Route, StoreError, StoreErrorKind};

use crate::database::{Database, STRIPE, instant};
use crate::error::{Failed, is_duplicate};
use crate::migrate;

/// Distance of positions of one stripe: each leaves room for the same place in all others.
const STEP: i64 = STRIPES as i64;

/// Positions for each millisecond of the database's clock: a thousand of each stripe.
const PER_MILLISECOND: i64 = 1_000 * STEP;

/// Numbers that an append takes of one stripe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Take {
    /// Messages that are published as soon as they are committed.
    messages: i64,
    /// Messages that are due later.
    scheduled: i64,
    /// The places of the first and the last of the messages among all of the append.
    first: i64,
    last: i64,
}

impl Take {
    /// One more message, at this place of the append.
    pub(crate) fn message(&mut self, place: i64) {
        if self.messages == 0 {
            self.first = place;
        }
        self.last = place;
        self.messages += 1;
    }

    pub(crate) fn scheduled(&mut self) {
        self.scheduled += 1;
    }
}

/// Numbers that an append has taken of one stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    number: i64,
    position: i64,
    place: i64,
    scheduled: i64,
    /// The database's clock, in microseconds.
    pub(crate) at: i64,
}

impl Taken {
    /// The number and position of the next message, at this place of the append. Those of one
    /// append stand in the order in which they were given, whichever stripes they are of, unless a
    /// clock was set back.
    pub(crate) fn message(&mut self, place: i64) -> (i64, i64) {
        self.number += 1;
        (self.number - 1, self.position + (place - self.place) * STEP)
    }

    /// The turn of the next scheduled message.
    pub(crate) fn turn(&mut self) -> i64 {
        self.scheduled += 1;
        self.scheduled - 1
    }
}

/// Those numbers, by route and stripe: in one order, always.
pub(crate) type Takes<T> = BTreeMap<(String, StripeId), T>;

fn id(route: &str, stripe: StripeId) -> String {
    format!("{route}/{}", stripe.0)
}

/// The update that takes. A position is the database's clock or the next one of the stripe,
/// whichever is higher, with the stripe in its last ten bits: it ascends whatever the clock does,
/// and no two stripes of a route share one.
fn update(stripe: StripeId, take: Take) -> Vec<Document> {
    let bits = i64::from(stripe.0);
    let mut counters = doc! { "at": "$$NOW", "scheduled": { "$add": ["$scheduled", take.scheduled] } };
    if take.messages == 0 {
        return vec![doc! { "$set": counters }];
    }
    let by_clock = doc! { "$add": [
        { "$multiply": [{ "$toLong": "$$NOW" }, PER_MILLISECOND] }, take.first.saturating_mul(STEP),
    ] };
    let next = doc! { "$add": ["$position", STEP - bits] };
    counters.insert("previous_position", "$position");
    counters.insert("first_number", doc! { "$add": ["$number", 1_i64] });
    counters.insert("number", doc! { "$add": ["$number", take.messages] });
    counters.insert("first_position", doc! { "$add": [{ "$max": [by_clock, next] }, bits] });
    let last = doc! { "$add": ["$first_position", (take.last - take.first).saturating_mul(STEP)] };
    vec![doc! { "$set": counters }, doc! { "$set": { "position": last } }]
}

/// Takes numbers and positions, in the transaction.
pub(crate) async fn take(
    database: &Database,
    session: &mut ClientSession,
    takes: &Takes<Take>,
) -> Result<Takes<Taken>, Failed> {
    let documents = match takes.iter().next() {
        None => return Ok(Takes::new()),
        Some(((route, stripe), take)) if takes.len() == 1 => {
            let taken = database
                .stripes()
                .find_one_and_update(doc! { "_id": id(route, *stripe) }, update(*stripe, *take))
                .return_document(ReturnDocument::After)
                .session(session)
                .await?;
            taken.into_iter().collect()
        }
        Some(_) => take_many(database, session, takes).await?,
    };
    let mut taken = Takes::new();
    for document in &documents {
        let number = |field| document.get(field).and_then(Bson::as_i64).unwrap_or_default();
        let stripe = document.get_i32("stripe").ok().and_then(|stripe| u16::try_from(stripe).ok());
        let (Ok(route), Some(stripe)) = (document.get_str("route"), stripe.map(StripeId)) else { continue };
        let name = (route.to_owned(), stripe);
        let Some(take) = takes.get(&name) else { continue };
        let first = Taken {
            number: number("first_number"),
            position: number("first_position"),
            place: take.first,
            scheduled: number("scheduled") - take.scheduled + 1,
            at: instant(document, "at"),
        };
        taken.insert(name, first);
    }
    match takes.keys().find(|name| !taken.contains_key(*name)) {
        None => Ok(taken),
        Some((route, stripe)) => Err(StoreError::new(
            StoreErrorKind::Conflict,
            "append",
            format!(
                "stripe {} of the route {route} is missing, or was created after this transaction began; abort it and start again from its \
                 beginning",
                stripe.0
            ),
        )
        .into()),
    }
}

/// One command for all, since each is a document of its own; then what they are now.
async fn take_many(
    database: &Database,
    session: &mut ClientSession,
    takes: &Takes<Take>,
) -> Result<Vec<Document>, Failed> {
    let updates: Vec<Document> = takes
        .iter()
        .map(|((route, stripe), take)| doc! { "q": { "_id": id(route, *stripe) }, "u": update(*stripe, *take) })
        .collect();
    database.update_each(session, STRIPE, updates).await?;
    let ids: Vec<String> = takes.keys().map(|(route, stripe)| id(route, *stripe)).collect();
    let mut cursor = database.stripes().find(doc! { "_id": { "$in": ids } }).session(&mut *session).await?;
    let mut documents = Vec::with_capacity(takes.len());
    while let Some(document) = cursor.next(session).await {
        documents.push(document?);
    }
    Ok(documents)
}

/// Makes the documents of a route, those that are not there.
pub(crate) async fn make(database: &Database, route: &Route) -> Result<(), Failed> {
    migrate::require(database, "append").await?;
    let stripes = database.stripes();
    let there = stripes.count_documents(doc! { "route": route.as_str() }).await?;
    if there == u64::from(STRIPES) {
        return Ok(());
    }
    let documents = (0..STRIPES).map(StripeId).map(|stripe| {
        doc! {
            "_id": id(route.as_str(), stripe),
            "route": route.as_str(),
            "stripe": i32::from(stripe.0),
            "number": 0_i64,
            "position": i64::from(stripe.0),
            "first_number": 0_i64,
            "first_position": 0_i64,
            "previous_position": 0_i64,
            "scheduled": 0_i64,
        }
    });
    match stripes.insert_many(documents).ordered(false).await {
        Err(error) if !is_duplicate(&error) => Err(error.into()),
        _ => Ok(()),
    }
}

/// Returns the marks of stripes.
pub(crate) async fn marks(
    database: &Database,
    route: &Route,
    buckets: &BucketSet,
) -> Result<Vec<StripeMark>, Failed> {
    let mut session = database.session().await?;
    let mut wanted = doc! { "route": route.as_str(), "number": { "$gt": 0_i64 } };
    if *buckets != BucketSet::ALL {
        let stripes = buckets.iter().flat_map(|bucket| (0..4).map(move |of| i32::from(bucket.0) * 4 + of));
        wanted.insert("stripe", doc! { "$in": stripes.collect::<Vec<i32>>() });
    }
    let mut cursor = database
        .stripes()
        .find(wanted)
        .read_concern(ReadConcern::majority())
        .batch_size(u32::from(STRIPES) + 1)
        .session(&mut session)
        .await?;
    let mut marks = Vec::new();
    while let Some(document) = cursor.next(&mut session).await {
        marks.extend(mark(&document?));
    }
    database.note(&session);
    marks.sort_by_key(|mark| mark.last.stripe);
    Ok(marks)
}

fn mark(document: &Document) -> Option<StripeMark> {
    let number = |field| document.get(field).and_then(Bson::as_i64);
    let stripe = StripeId(u16::try_from(document.get_i32("stripe").ok()?).ok()?);
    Some(StripeMark {
        last: Stripe { stripe, number: number("number")? },
        position: Position(number("position")?),
        first_number: number("first_number")?,
        first_position: Position(number("first_position")?),
        previous_position: Position(number("previous_position").unwrap_or_default()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(places: &[i64]) -> Take {
        let mut take = Take::default();
        places.iter().for_each(|place| take.message(*place));
        take
    }

    /// Result of an update, as the server makes it: the operators that it uses, and no others.
    fn evaluate(expression: &Bson, document: &Document, now: i64) -> i64 {
        match expression {
            Bson::Int64(number) => *number,
            Bson::String(path) if path == "$$NOW" => now,
            Bson::String(path) => document.get_i64(&path[1..]).unwrap(),
            Bson::Document(call) => {
                let (operator, arguments) = call.iter().next().unwrap();
                let arguments = match arguments {
                    Bson::Array(arguments) => arguments.clone(),
                    single => vec![single.clone()],
                };
                let values = arguments.iter().map(|argument| evaluate(argument, document, now));
                match operator.as_str() {
                    "$add" => values.sum(),
                    "$multiply" => values.product(),
                    "$max" => values.max().unwrap(),
                    "$toLong" => values.sum(),
                    other => panic!("unknown operator {other}"),
                }
            }
            other => panic!("unknown expression {other}"),
        }
    }

    fn applied(document: &Document, update: &[Document], now: i64) -> Document {
        let mut document = document.clone();
        for stage in update {
            let before = document.clone();
            for (field, expression) in stage.get_document("$set").unwrap() {
                document.insert(field, evaluate(expression, &before, now));
            }
        }
        document
    }

    fn fresh(stripe: StripeId) -> Document {
        doc! {
            "number": 0_i64, "position": i64::from(stripe.0), "first_number": 0_i64, "first_position": 0_i64,
            "previous_position": 0_i64, "scheduled": 0_i64,
        }
    }

    #[test]
    fn positions_of_a_stripe_ascend_whatever_the_clock_does() {
        let stripe = StripeId(1_023);
        let mut document = fresh(stripe);
        let mut last = 0;
        for now in [1_700_000_000_000, 1_700_000_000_000, 5, 0, 1_600_000_000_000, 1_800_000_000_000] {
            document = applied(&document, &update(stripe, take(&[3, 9])), now);
            let (first, position) =
                (document.get_i64("first_position").unwrap(), document.get_i64("position").unwrap());
            assert!(first > last, "{first} after {last} at {now}");
            assert_eq!(position, first + 6 * STEP);
            assert_eq!((first % STEP, position % STEP), (1_023, 1_023), "the stripe is in the last bits");
            last = position;
        }
        assert_eq!(
            (document.get_i64("number").unwrap(), document.get_i64("first_number").unwrap()),
            (12, 11)
        );
    }

    #[test]
    fn positions_of_one_append_stand_in_the_order_given() {
        let now = 1_700_000_000_000;
        let (first, second) = (StripeId(900), StripeId(3));
        let position = |stripe: StripeId, place: i64| {
            let document = applied(&fresh(stripe), &update(stripe, take(&[place])), now);
            document.get_i64("position").unwrap()
        };
        assert!(position(first, 0) < position(second, 1));
        assert!(position(second, 1) < position(first, 2));
    }

    #[test]
    fn what_is_scheduled_takes_no_number() {
        let mut take = Take::default();
        take.scheduled();
        let document = applied(&fresh(StripeId(7)), &update(StripeId(7), take), 1_700_000_000_000);
        assert_eq!((document.get_i64("number").unwrap(), document.get_i64("position").unwrap()), (0, 7));
        assert_eq!(document.get_i64("scheduled").unwrap(), 1);
    }

    #[test]
    fn a_position_fits_until_the_year_2200() {
        let year_2200 = 7_258_118_400_000_i64;
        assert!(year_2200.checked_mul(PER_MILLISECOND).is_some());
    }
}
