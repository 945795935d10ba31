//! Examination of the collections: free space within their files.
//!
//! WiredTiger uses the space of removed documents again, and gives little of it back. What could
//! hold back its cleaning can't last: the server ends transactions after a minute.

use mongodb::bson::{Bson, Document, doc};
use outbox_contract::admin::Diagnosis;

use crate::database::{AUDIT, DEAD, Database, HISTORY, IS_HANDLED, KEY, MESSAGE, PARKED, SCHEDULED};
use crate::error::{Failed, code};

/// Free space within a collection that is a finding, in bytes, if it is more than the content.
const FREE: u64 = 1 << 30;
/// Unauthorized.
const DENIED: i32 = 13;
/// No such command.
const UNKNOWN: i32 = 59;

/// Collections that lose documents in operation.
const COLLECTIONS: [&str; 8] = [MESSAGE, KEY, PARKED, DEAD, SCHEDULED, IS_HANDLED, AUDIT, HISTORY];

/// Examines the collections.
pub(crate) async fn find(database: &Database) -> Result<Vec<Diagnosis>, Failed> {
    let mut found = Vec::new();
    for name in COLLECTIONS {
        let stats = database.inner.run_command(doc! { "collStats": name }).await;
        let stats = match stats {
            Ok(stats) => stats,
            Err(error) if code(&error) == Some(DENIED) => return Ok(vec![denied()]),
            Err(error) if code(&error) == Some(UNKNOWN) => return Ok(vec![unknown()]),
            Err(error) => return Err(error.into()),
        };
        match free_space(name, &stats) {
            Some(diagnosis) => found.extend(diagnosis),
            None => return Ok(vec![unknown()]),
        }
    }
    Ok(found)
}

fn denied() -> Diagnosis {
    Diagnosis::unseen(
        "the sizes of the collections are hidden from this user",
        "grant it the role `read` on the database, which has the action collStats",
    )
}

fn unknown() -> Diagnosis {
    Diagnosis::unseen(
        "this server does not report the free space of its collections",
        "look for it with the tools of its engine",
    )
}

/// Judges the answer about a collection. None: it does not have the figures. Pure.
fn free_space(name: &str, stats: &Document) -> Option<Option<Diagnosis>> {
    let number = |field: &str| match stats.get(field)? {
        Bson::Int32(number) => u64::try_from(*number).ok(),
        Bson::Int64(number) => u64::try_from(*number).ok(),
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a size")]
        Bson::Double(number) => Some(*number as u64),
        _ => None,
    };
    let size = number("storageSize")?;
    // A collection that does not exist yet has no such field.
    let free = if size == 0 { 0 } else { number("freeStorageSize")? };
    if free < FREE || free <= size.saturating_sub(free) {
        return Some(None);
    }
    Some(Some(Diagnosis::bloat(
        format!("{} of the {} of {name} are free", Diagnosis::size(free), Diagnosis::size(size)),
        format!("the space is used again. To give it back: compact {name}, on one member after the other"),
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collection_with_more_free_space_than_content_is_found() {
        let judged = |stats: Document| free_space("outbox_message", &stats);
        assert_eq!(judged(doc! { "count": 3 }), None, "no figures");
        assert_eq!(judged(doc! { "storageSize": 4_096, "freeStorageSize": 0 }), Some(None));
        assert_eq!(judged(doc! { "storageSize": 8_i64 << 30, "freeStorageSize": 4_i64 << 30 }), Some(None));
        assert_eq!(judged(doc! { "storageSize": 900 << 20, "freeStorageSize": 800 << 20 }), Some(None));
        let found = judged(doc! { "storageSize": (8_i64 << 30) as f64, "freeStorageSize": 5_i64 << 30 });
        let text = found.flatten().unwrap().text;
        assert_eq!(text, "5.0 GiB of the 8.0 GiB of outbox_message are free");
    }
}
