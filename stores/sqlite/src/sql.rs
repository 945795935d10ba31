//! Every statement, by name: the files of `queries/`.
//!
//! One list, so that `check` can have the database compile all of them: a statement that compiles
//! has the tables and columns it needs.

outbox_store_sql::statements! {
    DEDUPLICATE = "deduplicate";
    DEDUPLICATE_FIRST = "deduplicate_first";
    DEDUPLICATE_WAITS = "deduplicate_waits";
    IS_HANDLED = "is_handled";
    APPEND = "append";
    AUDIT = "audit";
    AUDIT_WRITE = "audit_write";
    BACKLOG = "backlog";
    BELOW = "below";
    BROWSE_DEAD = "browse_dead";
    BROWSE_HISTORY = "browse_history";
    BROWSE_KEYS = "browse_keys";
    BROWSE_PARKED = "browse_parked";
    BROWSE_SCHEDULED = "browse_scheduled";
    BROWSE_WAITING = "browse_waiting";
    BURY_PARKED = "bury_parked";
    BURY_PENDING = "bury_pending";
    CANCEL_SCHEDULED = "cancel_scheduled";
    CONTENT = "content";
    TRANSITION_LEASE = "transition_lease";
    DUE_KEYS = "due_keys";
    DUE_MESSAGES = "due_messages";
    DUE_SIZES = "due_sizes";
    EDIT = "edit";
    EDIT_CHOOSE = "edit_choose";
    ELECT = "elect";
    FENCE = "fence";
    IDENTITY = "identity";
    IDENTITY_FIRST = "identity_first";
    IDENTITY_RENEW = "identity_renew";
    FETCH = "fetch";
    KEY_NEXT_VERSION = "key_next_version";
    KEY_PUT = "key_put";
    KEY_REMOVE = "key_remove";
    KEY_STATE = "key_state";
    LEASE_HEARTBEAT = "lease_heartbeat";
    LEASE_LEAVE = "lease_leave";
    LEASE_PUT = "lease_put";
    LEASE_RELAYS = "lease_relays";
    LEASE_ROWS = "lease_rows";
    HANDLED_COUNT = "handled_count";
    HANDLED_FORGET = "handled_forget";
    MAINTAIN_AUDIT = "maintain_audit";
    MAINTAIN_CONSUMER = "maintain_consumer";
    MAINTAIN_HANDLED = "maintain_handled";
    MAINTAIN_LATEST = "maintain_latest";
    MAINTAIN_HISTORY = "maintain_history";
    MAINTAIN_NEXT_DUE = "maintain_next_due";
    MAINTAIN_PROMOTE = "maintain_promote";
    MAINTAIN_PROMOTED = "maintain_promoted";
    MAINTAIN_RELAYS = "maintain_relays";
    MAINTAIN_RETENTIONS = "maintain_retentions";
    NOW = "now";
    PARK = "park";
    PARK_REMOVE = "park_remove";
    PARKED_FIRST = "parked_first";
    PARKED_IDS = "parked_ids";
    PARKED_REMOVE = "parked_remove";
    PARKED_TO_DEAD = "parked_to_dead";
    PAUSE = "pause";
    PAUSED = "paused";
    PLACE = "place";
    PURGE = "purge";
    RECORD_RETENTION = "record_retention";
    REPLAY = "replay";
    REPLAY_CHOOSE = "replay_choose";
    REQUEUE = "requeue";
    REQUEUE_CHOOSE = "requeue_choose";
    REQUEUE_REMOVE = "requeue_remove";
    RESUME = "resume";
    RESUME_HISTORY = "resume_history";
    ROUTES = "routes";
    SCHEDULE = "schedule";
    SETTLE = "settle";
    SETTLE_HISTORY = "settle_history";
    TOPICS = "topics";
    UNPAUSE = "unpause";
    UNPLACED = "unplaced";
    UNSERVED = "unserved";
    WATCH = "watch";
    WHERE_IS = "where_is";
}

/// Begins a transaction that has the write lock from its start, so that it never has to start again
/// because of another writer.
pub(crate) const BEGIN: &str = "begin immediate";

/// Numbers as a JSON array, for `json_each`.
pub(crate) fn numbers(numbers: impl IntoIterator<Item = i64>) -> String {
    use std::fmt::Write;
    let mut json = String::from("[");
    for number in numbers {
        let separator = if json.len() == 1 { "" } else { "," };
        write!(json, "{separator}{number}")
            .unwrap_or_else(|_| unreachable!("a string takes whatever is written"));
    }
    json.push(']');
    json
}

/// Pairs of numbers as a JSON array of arrays, for `json_each`.
pub(crate) fn pairs(pairs: impl IntoIterator<Item = (i64, i64)>) -> String {
    serde_json::Value::from_iter(pairs.into_iter().map(|(left, right)| serde_json::json!([left, right])))
        .to_string()
}

#[cfg(test)]
mod tests {
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
        assert_eq!(pairs([(1, 2), (3, 4)]), "[[1,2],[3,4]]");
    }
}
