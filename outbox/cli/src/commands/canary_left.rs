//! Places of canary messages that did not arrive.

use std::time::Duration;

use outbox::admin::{Filter, MAX_PER_CALL, View};
use outbox::{MessageId, StoreError};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::open::Database;

/// Places of messages that did not arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Left {
    /// In the store: the broker has not confirmed them.
    waiting: u64,
    /// Behind a failing key.
    parked: u64,
    dead: u64,
    /// Not in the store any more: the broker has confirmed them.
    confirmed: u64,
}

impl Left {
    /// Looks for messages. What a relay of another program delivers meanwhile counts as confirmed.
    pub(crate) async fn find(store: &dyn Database, ids: Vec<MessageId>, within: Duration) -> Option<Self> {
        let mut left = Self::default();
        let found = async {
            for ids in ids.chunks(MAX_PER_CALL) {
                let mut rest = ids.len() as u64;
                for (view, count) in [
                    (View::Waiting, &mut left.waiting),
                    (View::Parked, &mut left.parked),
                    (View::DeadLetters, &mut left.dead),
                ] {
                    // From the end: they are new, and a search along what waits has a limit.
                    let filter = Filter { ids: Some(ids.to_vec()), newest: true, ..Filter::all_routes() };
                    let here = store.browse(view, &filter).await?.len() as u64;
                    *count += here;
                    rest = rest.saturating_sub(here);
                }
                left.confirmed += rest;
            }
            Ok::<_, StoreError>(())
        };
        timeout(within, found).await.ok()?.ok()?;
        Some(left)
    }

    pub(crate) fn text(self) -> String {
        let Self { waiting, parked, dead, confirmed } = self;
        let places = [
            (waiting, "in the store, not confirmed by the broker"),
            (parked, "behind a failing key"),
            (dead, "dead"),
            (confirmed, "confirmed by the broker"),
        ];
        let places = places.iter().filter(|(count, _)| *count > 0);
        places.map(|(count, place)| format!("{count} {place}")).collect::<Vec<_>>().join(", ")
    }

    pub(crate) fn json(self) -> Value {
        let Self { waiting, parked, dead, confirmed } = self;
        json!({ "waiting": waiting, "parked": parked, "dead": dead, "confirmed": confirmed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_places_with_messages_are_named() {
        let left = Left { waiting: 3, dead: 1, ..Left::default() };
        assert_eq!(left.text(), "3 in the store, not confirmed by the broker, 1 dead");
        assert_eq!(left.json()["confirmed"], 0);
    }
}
