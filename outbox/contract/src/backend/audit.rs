//! Entries of the audit, as a store writes and reads them.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use crate::admin::{Actor, AuditEntry, Edit, Filter, HandledFilter};
use crate::backend::{KeyOperation, KeyTransition, Step};
use crate::clock::Timestamp;
use crate::id::{MessageId, OutboxId};
use crate::name::{Key, KeyId, Route, Topic};

/// Columns of an entry that are known before the operation. The store adds the time, and the number
/// and ids of the messages.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuditNote {
    /// Whoever acts.
    pub actor: Actor,
    /// The operation.
    pub operation: &'static str,
    /// The route that it names.
    pub route: Option<Route>,
    /// The topic that it names.
    pub topic: Option<Topic>,
    /// The key that it names.
    pub key: Option<Key>,
    /// Its other arguments, as a JSON object.
    pub detail: String,
}

impl AuditNote {
    fn new(actor: &Actor, operation: &'static str) -> Self {
        let actor = actor.clone();
        Self { actor, operation, route: None, topic: None, key: None, detail: "{}".to_owned() }
    }

    /// Creates the note of an operation on a key.
    #[must_use]
    pub fn on_key(actor: &Actor, operation: KeyOperation, route: &Route, key: &KeyId) -> Self {
        Self {
            route: Some(route.clone()),
            topic: Some(key.topic.clone()),
            key: Some(key.key.clone()),
            ..Self::new(actor, operation.name())
        }
    }

    /// Creates the note of an operation on the messages of a filter: `requeue`, `replay` or
    /// `purge`.
    #[must_use]
    pub fn on_messages(actor: &Actor, operation: &'static str, filter: &Filter) -> Self {
        Self {
            route: filter.route.clone(),
            topic: filter.topic.clone(),
            key: filter.key.clone(),
            detail: Value::Object(bounds(filter)).to_string(),
            ..Self::new(actor, operation)
        }
    }

    /// Creates the note of a correction of a dead letter: the names of its fields, without values.
    #[must_use]
    pub fn edited(actor: &Actor, filter: &Filter, edit: &Edit) -> Self {
        let mut detail = bounds(filter);
        detail.insert("edited".to_owned(), json!(edit.fields()));
        let detail = Value::Object(detail).to_string();
        Self { detail, ..Self::on_messages(actor, "requeue_edited", filter) }
    }

    /// Creates the note of a pause or of its end.
    #[must_use]
    pub fn paused(actor: &Actor, route: &Route, topic: Option<&Topic>, paused: bool) -> Self {
        let operation = if paused { "pause" } else { "resume" };
        Self { route: Some(route.clone()), topic: topic.cloned(), ..Self::new(actor, operation) }
    }

    /// Creates the note of a transition that deletes a message, with the message's id: `drop`, and
    /// not `discard`, which leaves dead letters. `None`: the transition deletes none.
    #[must_use]
    pub fn discarded(actor: &Actor, transition: &KeyTransition) -> Option<(Self, MessageId)> {
        let Step::Bury { discard: true, row, reason, attempts, last, .. } = &transition.step else {
            return None;
        };
        let detail = json!({ "reason": reason, "attempts": attempts, "class": last.class }).to_string();
        let note = Self {
            route: Some(transition.route.clone()),
            topic: Some(transition.key.topic.clone()),
            key: Some(transition.key.key.clone()),
            detail,
            ..Self::new(actor, "drop")
        };
        Some((note, row.id))
    }

    /// Creates the note of scheduled messages that are removed.
    #[must_use]
    pub fn canceled(actor: &Actor) -> Self {
        Self::new(actor, "cancel_scheduled")
    }

    /// Creates the note of handled ids that a consumer forgets.
    #[must_use]
    pub fn forgotten(actor: &Actor, filter: &HandledFilter) -> Self {
        let instants = [("since", filter.since), ("before", filter.before)];
        let mut detail = Map::new();
        detail.insert("consumer".to_owned(), json!(filter.consumer.as_str()));
        detail.extend(
            instants.into_iter().filter_map(|(name, at)| Some((name.to_owned(), json!(at?.to_string())))),
        );
        Self {
            topic: filter.topic.clone(),
            key: filter.key.clone(),
            detail: Value::Object(detail).to_string(),
            ..Self::new(actor, "forget")
        }
    }

    /// Creates the note of a new identity.
    #[must_use]
    pub fn identity(actor: &Actor, identity: OutboxId) -> Self {
        let detail = json!({ "identity": identity.to_string() }).to_string();
        Self { detail, ..Self::new(actor, "renew_identity") }
    }

    /// Returns the entry of this operation.
    #[must_use]
    pub fn entry(&self, at: Timestamp, affected: u64, ids: &[MessageId]) -> AuditEntry {
        let mut entry = AuditEntry::new(at, self.actor.clone(), self.operation);
        (entry.route, entry.topic, entry.key) = (self.route.clone(), self.topic.clone(), self.key.clone());
        (entry.detail, entry.affected) = (self.detail.clone(), affected);
        entry.ids = ids.iter().take(AuditEntry::MAX_IDS).copied().collect();
        entry
    }

    /// Returns ids as the text of a column: the first of them, with a space between two.
    #[must_use]
    pub fn ids(ids: impl IntoIterator<Item = MessageId>) -> String {
        let mut text = String::new();
        for id in ids.into_iter().take(AuditEntry::MAX_IDS) {
            let separator = if text.is_empty() { "" } else { " " };
            // Writing to a string does not fail.
            let _ = write!(text, "{separator}{id}");
        }
        text
    }

    /// Returns the ids of such a text. Leaves out what is none: other programs can write too.
    fn read_ids(text: &str) -> Vec<MessageId> {
        text.split(' ').filter_map(|id| id.parse().ok()).take(AuditEntry::MAX_IDS).collect()
    }
}

/// Columns of an entry, as a store reads them: any program can write them.
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "each is the column of that name")]
pub struct AuditColumns<'a> {
    pub at: i64,
    pub actor: &'a str,
    pub operation: &'a str,
    pub route: Option<&'a str>,
    pub topic: Option<&'a str>,
    pub key: Option<&'a str>,
    pub detail: &'a str,
    pub affected: i64,
    pub ids: &'a str,
}

impl AuditColumns<'_> {
    /// Returns the entry. Leaves out a name that can be none.
    #[must_use]
    pub fn entry(&self) -> AuditEntry {
        let (at, actor) = (Timestamp::from_micros(self.at), Actor::new(self.actor));
        let mut entry = AuditEntry::new(at, actor, clean(self.operation, Actor::MAX_BYTES));
        entry.route = self.route.and_then(|route| Route::new(route).ok());
        entry.topic = self.topic.and_then(|topic| Topic::new(topic).ok());
        entry.key = self.key.and_then(|key| Key::new(key).ok());
        self.detail.clone_into(&mut entry.detail);
        entry.affected = u64::try_from(self.affected).unwrap_or_default();
        entry.ids = AuditNote::read_ids(self.ids);
        entry
    }
}

/// Bounds of a filter that no column has.
fn bounds(filter: &Filter) -> Map<String, Value> {
    let mut bounds = Map::new();
    bounds.extend(filter.event_type.iter().map(|event_type| ("type".to_owned(), json!(event_type))));
    let instants = [("since", filter.since), ("before", filter.before)];
    bounds.extend(
        instants.into_iter().filter_map(|(name, at)| Some((name.to_owned(), json!(at?.to_string())))),
    );
    let numbers = [
        ("ids", filter.ids.as_ref().map(Vec::len)),
        ("limit", filter.limit),
        ("offset", Some(filter.offset).filter(|offset| *offset > 0)),
    ];
    bounds.extend(numbers.into_iter().filter_map(|(name, number)| Some((name.to_owned(), json!(number?)))));
    bounds
}

/// Returns text with control characters replaced, of at most so many bytes.
pub(crate) fn clean(text: &str, max_bytes: usize) -> String {
    let mut clean = String::new();
    for letter in text.chars().map(|letter| if letter.is_control() { '\u{fffd}' } else { letter }) {
        if clean.len() + letter.len_utf8() > max_bytes {
            break;
        }
        clean.push(letter);
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_has_the_arguments_of_its_operation() {
        let actor = Actor::new("ann");
        let filter = Filter {
            since: Some(Timestamp::from_micros(0)),
            ids: Some(vec![MessageId::new(); 3]),
            limit: Some(7),
            ..Filter::route("default").unwrap().with_topic("orders").unwrap().with_event_type("order.placed")
        };
        let note = AuditNote::on_messages(&actor, "purge", &filter);
        assert_eq!((note.actor.as_str(), note.operation), ("ann", "purge"));
        assert_eq!((note.route.clone(), note.topic.clone()), (filter.route.clone(), filter.topic.clone()));
        assert_eq!(
            note.detail,
            r#"{"ids":3,"limit":7,"since":"1970-01-01T00:00:00.000000Z","type":"order.placed"}"#
        );
        let edit = Edit { payload: Some("secret".into()), ..Edit::default() };
        let note = AuditNote::edited(&actor, &Filter::all_routes(), &edit);
        assert_eq!(note.detail, r#"{"edited":["payload"]}"#);
        let paused = AuditNote::paused(&actor, &Route::default(), None, false);
        assert_eq!((paused.operation, paused.detail.as_str()), ("resume", "{}"));
    }

    #[test]
    fn ids_are_a_bounded_text() {
        let ids: Vec<MessageId> = (0..200).map(|_| MessageId::new()).collect();
        let text = AuditNote::ids(ids.iter().copied());
        assert_eq!(AuditNote::read_ids(&text), ids[..AuditEntry::MAX_IDS]);
        assert_eq!(AuditNote::read_ids(&format!("x  {}", ids[0])), ids[..1]);
        assert_eq!(AuditNote::ids([]), "");
        let entry = AuditNote::canceled(&Actor::new("ann")).entry(Timestamp::from_micros(1), 200, &ids);
        assert_eq!((entry.affected, entry.ids.len()), (200, AuditEntry::MAX_IDS));
    }
}
