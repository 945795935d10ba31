//! Messages above the counters of their stripes, where none should stand.
//!
//! A message and its counter are committed together. Counters that are behind were restored, set
//! back or lost without the messages: a relay that believed them would never count these. It looks
//! for them by itself, with [`fetch_below`](outbox_contract::Store::fetch_below); here it is said
//! to whoever checks.

use std::collections::BTreeMap;

use mongodb::ClientSession;
use mongodb::bson::{Document, doc};
use outbox_contract::admin::Misplaced;
use outbox_contract::backend::Position;

use crate::database::Database;
use crate::error::Failed;
use crate::fetch::range;
use crate::keys::number;

/// Finds messages above the counters of any route: one range of the hot collection for each, up to
/// the limit, so that a backlog of any size is not walked over.
pub(crate) async fn find(database: &Database) -> Result<Vec<Misplaced>, Failed> {
    let mut session = database.session().await?;
    let mut found = Vec::new();
    let routes = database.routes().distinct("_id", doc! {}).session(&mut session).await?;
    for route in routes.iter().filter_map(|route| route.as_str()) {
        // The messages first: what was committed with them is in the counters then.
        let highest = highest(database, &mut session, route).await?;
        let counters = numbers(database, &mut session, route).await?;
        let is_above =
            |(stripe, number): &(&i64, &i64)| **number > counters.get(*stripe).copied().unwrap_or(0);
        let above: Vec<i64> = highest.iter().filter(is_above).map(|(stripe, _)| *stripe).collect();
        if let Some(stripe) = above.first() {
            let text = format!(
                "messages are above the counters of {} stripes, as of stripe {stripe}, as after a restore, an import or a loss of outbox_stripe alone",
                above.len()
            );
            found.push(Misplaced::new(route, text, "Restore outbox_stripe together with outbox_message"));
        }
    }
    Ok(found)
}

/// The highest number of each stripe among the first messages of a route.
async fn highest(
    database: &Database,
    session: &mut ClientSession,
    route: &str,
) -> Result<BTreeMap<i64, i64>, Failed> {
    let pipeline = [
        doc! { "$match": { "_id": range(route, Position::START, Position::END) } },
        doc! { "$sort": { "_id": 1 } },
        doc! { "$limit": i64::from(database.options.counting_limit) },
        doc! { "$group": { "_id": "$stripe", "number": { "$max": "$number" } } },
    ];
    let mut cursor = database.messages().aggregate(pipeline).session(&mut *session).await?;
    let mut highest = BTreeMap::new();
    while let Some(group) = cursor.next(session).await {
        let group = group?;
        highest.extend(number(&group, "_id").zip(number(&group, "number")));
    }
    Ok(highest)
}

/// The counters of a route.
async fn numbers(
    database: &Database,
    session: &mut ClientSession,
    route: &str,
) -> Result<BTreeMap<i64, i64>, Failed> {
    let stripes = database.stripes();
    let of_route = stripes.find(doc! { "route": route }).projection(doc! { "stripe": 1, "number": 1 });
    let mut cursor = of_route.session(&mut *session).await?;
    let mut numbers = BTreeMap::new();
    while let Some(document) = cursor.next(session).await {
        let document: Document = document?;
        numbers.extend(number(&document, "stripe").zip(number(&document, "number")));
    }
    Ok(numbers)
}
