//! Every statement, by name: the files of `queries/`. And lists and literals as statements take
//! them.
//!
//! One list, so that `check` can have the server prepare all of them: what it prepares has the
//! tables and columns it needs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use outbox_contract::backend::RowId;
use outbox_contract::backend::rules::leases::BucketRow;
use outbox_contract::{Message, MessageId};

outbox_store_sql::statements! {
    DEDUPLICATE = "deduplicate";
    DEDUPLICATE_FIRST = "deduplicate_first";
    DEDUPLICATE_NOTED = "deduplicate_noted";
    DEDUPLICATE_ALONE = "deduplicate_alone";
    DEDUPLICATE_NEXT = "deduplicate_next";
    DEDUPLICATE_ONE = "deduplicate_one";
    DEDUPLICATE_TOGETHER = "deduplicate_together";
    IS_HANDLED = "is_handled";
    APPEND = "append";
    AUDIT_WRITE = "audit_write";
    BACKLOG = "backlog";
    BELOW = "below";
    BURY_PARKED = "bury_parked";
    BURY_PENDING = "bury_pending";
    CANCEL_IDS = "cancel_ids";
    CANCEL_SCHEDULED = "cancel_scheduled";
    CONTENT = "content";
    DISCARD = "discard";
    DUE_MESSAGES = "due_messages";
    DUE_SIZES = "due_sizes";
    EDIT = "edit";
    ELECT = "elect";
    ELECT_FIRST = "elect_first";
    FENCE_GUARDED = "fence_guarded";
    IDENTITY = "identity";
    IDENTITY_FIRST = "identity_first";
    IDENTITY_RENEW = "identity_renew";
    FENCE_PARKED = "fence_parked";
    HELD = "held";
    KEY_PUT = "key_put";
    KEY_REMOVE = "key_remove";
    KEY_STATE = "key_state";
    KEY_STEP = "key_step";
    KEY_VERSIONS = "key_versions";
    LEASE_BUCKETS = "lease_buckets";
    LEASE_END = "lease_end";
    LEASE_HEARTBEAT = "lease_heartbeat";
    LEASE_LEAVE = "lease_leave";
    LEASE_LOCK = "lease_lock";
    LEASE_PUT = "lease_put";
    LEASE_RELAYS = "lease_relays";
    LEASE_ROWS = "lease_rows";
    HANDLED_FORGET = "handled_forget";
    MAINTAIN_AUDIT = "maintain_audit";
    MAINTAIN_CONSUMER = "maintain_consumer";
    MAINTAIN_HANDLED = "maintain_handled";
    MAINTAIN_LATEST = "maintain_latest";
    MAINTAIN_NEXT_DUE = "maintain_next_due";
    MAINTAIN_RELAYS = "maintain_relays";
    MAINTAIN_RETENTIONS = "maintain_retentions";
    NOW = "now";
    PARK = "park";
    PARK_REMOVE = "park_remove";
    PARKED_FIRST = "parked_first";
    PARKED_IDS = "parked_ids";
    PARKED_REMOVE = "parked_remove";
    PAUSE = "pause";
    PAUSED = "paused";
    PROMOTE = "promote";
    PROMOTE_REMOVE = "promote_remove";
    PROMOTING = "promoting";
    RECORD_RETENTION = "record_retention";
    REPLAY = "replay";
    REQUEUE = "requeue";
    REQUEUE_REMOVE = "requeue_remove";
    RESUME = "resume";
    RESUME_HISTORY = "resume_history";
    ROUTES = "routes";
    ROUTE_STATUS = "route_status";
    SCHEDULE = "schedule";
    SESSIONS = "sessions";
    SESSION_HOLD = "session_hold";
    SESSION_LOST = "session_lost";
    SETTLE = "settle";
    SETTLE_HISTORY = "settle_history";
    STRIPES = "stripes";
    STRIPES_MADE = "stripes_made";
    STRIPES_MAKE = "stripes_make";
    TOPICS = "topics";
    UNPAUSE = "unpause";
    UNSERVED_DUE = "unserved_due";
    UNSERVED_NEXT = "unserved_next";
    UNSERVED_NEXT_PARKED = "unserved_next_parked";
    UNSERVED_OLDEST = "unserved_oldest";
    UNSERVED_OLDEST_PARKED = "unserved_oldest_parked";
    UNSERVED_SERVED = "unserved_served";
    WATCH = "watch";
    WHERE_IS = "where_is";
}

/// Rows as a JSON array of pairs, for `json_table`: position, and id in hexadecimal digits.
pub(crate) fn rows(rows: &[RowId]) -> String {
    list(rows, |json, row| write!(json, "[{},\"{:X}\"]", row.position.0, row.id.as_uuid().simple()))
}

/// Ids as a JSON array of hexadecimal digits, for `json_table`.
pub(crate) fn ids(ids: impl IntoIterator<Item = MessageId>) -> String {
    list(ids, |json, id| write!(json, "\"{:X}\"", id.as_uuid().simple()))
}

/// Messages as a JSON array of arrays for `json_table`: id, topic and, if there is one, key of
/// each, in hexadecimal digits.
pub(crate) fn handled<'m>(messages: impl IntoIterator<Item = &'m Message>) -> String {
    let hex = |json: &mut String, bytes: &[u8]| bytes.iter().try_for_each(|byte| write!(json, "{byte:02X}"));
    list(messages, |json, message| {
        write!(json, "[\"{:X}\",\"", message.id.as_uuid().simple())?;
        hex(json, message.topic.as_str().as_bytes())?;
        match &message.key {
            Some(key) => {
                json.push_str("\",\"");
                hex(json, key.as_str().as_bytes())?;
                json.push_str("\"]");
            }
            None => json.push_str("\"]"),
        }
        Ok(())
    })
}

/// Relays as a JSON array of hexadecimal digits, for `json_table`.
pub(crate) fn relays<'r>(relays: impl IntoIterator<Item = &'r [u8]>) -> String {
    list(relays, |json, relay| {
        json.push('"');
        relay.iter().try_for_each(|byte| write!(json, "{byte:02X}"))?;
        json.push('"');
        Ok(())
    })
}

/// Buckets as a JSON array of arrays, for `json_table`: without an end, where it has none.
pub(crate) fn buckets(rows: &[BucketRow]) -> String {
    list(rows, |json, row| {
        let owned = u8::from(row.owner.is_some());
        let since = row.since.as_micros();
        write!(json, "[{},{owned},{},{},{since}", row.bucket.0, row.epoch.0, row.low_water.0)?;
        row.ends_at.map_or(Ok(()), |ends_at| write!(json, ",{}", ends_at.as_micros()))?;
        json.push(']');
        Ok(())
    })
}

/// Numbers as a JSON array, for `json_table`.
pub(crate) fn numbers(numbers: impl IntoIterator<Item = i64>) -> String {
    list(numbers, |json, number| write!(json, "{number}"))
}

fn list<T>(
    items: impl IntoIterator<Item = T>,
    write_item: impl Fn(&mut String, T) -> std::fmt::Result,
) -> String {
    let mut json = String::from("[");
    for item in items {
        if json.len() > 1 {
            json.push(',');
        }
        write_item(&mut json, item).unwrap_or_else(|_| unreachable!("a string takes whatever is written"));
    }
    json.push(']');
    json
}

/// Text as a literal that no setting of a session reads otherwise: its bytes in hexadecimal digits.
pub(crate) fn literal(text: &str) -> String {
    let mut literal = String::with_capacity(3 + 2 * text.len());
    literal.push_str("x'");
    for byte in text.bytes() {
        write!(literal, "{byte:02x}").unwrap_or_else(|_| unreachable!("a string takes whatever is written"));
    }
    literal.push('\'');
    literal
}

/// Literals, or numbers, with commas between them.
pub(crate) fn commas<T: std::fmt::Display>(items: impl IntoIterator<Item = T>) -> String {
    let mut text = String::new();
    for item in items {
        let separator = if text.is_empty() { "" } else { "," };
        write!(text, "{separator}{item}")
            .unwrap_or_else(|_| unreachable!("a string takes whatever is written"));
    }
    text
}

/// The condition that a route and a number are among these, in parentheses; each route once, in
/// order, so that the primary key is walked in its order.
pub(crate) fn among<'r, N: Ord + std::fmt::Display>(
    route: &str,
    number: &str,
    pairs: impl IntoIterator<Item = (&'r str, N)>,
) -> String {
    let mut by_route: BTreeMap<&str, BTreeSet<N>> = BTreeMap::new();
    for (name, of_route) in pairs {
        by_route.entry(name).or_default().insert(of_route);
    }
    let conditions: Vec<String> = by_route
        .iter()
        .map(|(name, numbers)| format!("({route} = {} and {number} in ({}))", literal(name), commas(numbers)))
        .collect();
    // Of none, nothing is.
    if conditions.is_empty() { "(false)".to_owned() } else { format!("({})", conditions.join(" or ")) }
}

#[cfg(test)]
mod tests {
    use outbox_contract::Timestamp;
    use outbox_contract::backend::{Bucket, Epoch, Position, RelayId};
    use uuid::Uuid;

    use super::*;

    #[test]
    fn every_file_of_queries_is_a_statement_and_says_what_it_is() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/queries");
        assert_eq!(outbox_store_sql::statements::unlisted(folder, ALL).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn lists_are_json() {
        assert_eq!(numbers([]), "[]");
        assert_eq!(numbers([1, -2, 3]), "[1,-2,3]");
        let owner = Some(RelayId::from_uuid(Uuid::nil()));
        let kept = BucketRow {
            owner,
            epoch: Epoch(3),
            since: Timestamp::from_micros(5),
            ..BucketRow::new(Bucket(7))
        };
        let given_up = BucketRow { ends_at: Some(Timestamp::from_micros(9)), ..kept };
        assert_eq!(
            buckets(&[kept, given_up, BucketRow::new(Bucket(8))]),
            "[[7,1,3,0,5],[7,1,3,0,5,9],[8,0,0,0,0]]"
        );
        let id = MessageId::from_uuid(Uuid::from_u128(0xab));
        let row = RowId { position: Position(7), id };
        assert_eq!(rows(&[row]), "[[7,\"000000000000000000000000000000AB\"]]");
        assert_eq!(ids([id]), "[\"000000000000000000000000000000AB\"]");
    }

    #[test]
    fn a_literal_has_nothing_that_could_end_it() {
        assert_eq!(literal("a'\\\""), "x'61275c22'");
        assert_eq!(literal(""), "x''");
        assert_eq!(commas([1, 2]), "1,2");
        let among_these = among("r", "n", [("b", 1), ("a", 3), ("b", 0), ("b", 1)]);
        assert_eq!(among_these, "((r = x'61' and n in (3)) or (r = x'62' and n in (0,1)))");
        assert_eq!(among::<u16>("r", "n", []), "(false)");
    }
}
