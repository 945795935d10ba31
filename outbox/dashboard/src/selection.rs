//! Selections: filters of a list, as an address and as a store's filter.

use outbox::admin::{Filter, Listed};
use outbox::error::NameError;
use outbox::{Key, MessageId, Route, Timestamp, Topic};

use crate::cause::Cause;
use crate::format;
use crate::params::Params;
use crate::problem::Problem;

/// Names of the parameters of a selection.
pub(crate) const NAMES: &[&str] =
    &["route", "topic", "key", "type", "id", "since", "before", "cause", "text"];

/// Name of the parameter of the order of a list. Operations have none: they begin with the oldest.
pub(crate) const ORDER: &str = "order";

/// Its value for a list from its end.
pub(crate) const NEWEST: &str = "newest";

/// Largest number of items before a page.
const MAX_OFFSET: usize = 1_000_000_000;

/// Number of items of a page.
pub(crate) const PAGE: usize = 50;

/// A selection of messages or keys.
#[derive(Clone, Debug)]
pub(crate) struct Selection {
    /// Filter for the store.
    pub(crate) filter: Filter,
    /// Only dead letters of this cause.
    pub(crate) cause: Option<String>,
    /// Only messages that contain this text, in lower case.
    pub(crate) text: Option<String>,
    /// Number of items before the page.
    pub(crate) offset: usize,
}

impl Selection {
    /// Reads a selection from an address or a form.
    pub(crate) fn of(params: &Params, now: Timestamp) -> Result<Self, Problem> {
        let named = |error: NameError| Problem::bad(error.to_string(), "correct the filter");
        let instant = |name: &str| {
            let text = params.get(name).map(|text| format::instant(text, now)).transpose();
            text.map_err(|text| Problem::bad(text, "correct the filter"))
        };
        let ids: Vec<MessageId> = params
            .all("id")
            .map(|id| {
                id.parse().map_err(|_| {
                    let text = format!("{id:?} is not the id of a message");
                    Problem::bad(text, "copy the whole id, as 01a2158c-efd6-723c-b6b2-b0f1ff9e50d7")
                })
            })
            .collect::<Result<_, _>>()?;
        let filter = Filter {
            route: params.get("route").map(Route::new).transpose().map_err(named)?,
            topic: params.get("topic").map(Topic::new).transpose().map_err(named)?,
            key: params.get("key").map(Key::new).transpose().map_err(named)?,
            event_type: params.get("type").map(str::to_owned),
            ids: Some(ids).filter(|ids| !ids.is_empty()),
            since: instant("since")?,
            before: instant("before")?,
            newest: params.get(ORDER) == Some(NEWEST),
            ..Filter::all_routes()
        };
        let offset = params.get("offset").and_then(|offset| offset.parse().ok()).unwrap_or(0).min(MAX_OFFSET);
        Ok(Self {
            filter,
            cause: params.get("cause").map(str::to_owned),
            text: params.get("text").map(str::to_lowercase),
            offset,
        })
    }

    /// Returns the filter of some items.
    pub(crate) fn page(&self, offset: usize, limit: usize) -> Filter {
        Filter { limit: Some(limit), offset, ..self.filter.clone() }
    }

    /// Returns true if the store alone can select.
    pub(crate) const fn is_plain(&self) -> bool {
        self.cause.is_none() && self.text.is_none()
    }

    /// Returns true if it selects all of one route, or everything.
    pub(crate) const fn is_whole(&self) -> bool {
        let Filter { topic, key, event_type, ids, since, before, .. } = &self.filter;
        self.is_plain()
            && topic.is_none()
            && key.is_none()
            && event_type.is_none()
            && ids.is_none()
            && since.is_none()
            && before.is_none()
    }

    /// Returns true for a message that the store has selected and that fits the rest.
    pub(crate) fn takes(&self, listed: &Listed) -> bool {
        let fits_cause = self.cause.as_ref().is_none_or(|cause| Cause::of(listed).code() == *cause);
        fits_cause && self.text.as_ref().is_none_or(|text| contains(listed, text))
    }
}

/// Returns true if a message has this text anywhere but in its payload and headers.
fn contains(listed: &Listed, text: &str) -> bool {
    let message = &listed.stored.message;
    let has = |field: &str| field.to_lowercase().contains(text);
    let death = listed.death.as_ref();
    let failures = death.into_iter().flat_map(|death| [&death.first_failure, &death.last_failure]);
    has(message.topic.as_str())
        || message.key.as_ref().is_some_and(|key| has(key.as_str()))
        || has(&message.event_type)
        || death.is_some_and(|death| has(&death.reason))
        || failures.flatten().any(|failure| has(&failure.message) || has(&failure.class))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(query: &str) -> Result<Selection, Problem> {
        Selection::of(&Params::parse(query.as_bytes()), Timestamp::from_micros(7_200_000_000))
    }

    #[test]
    fn a_selection_is_read_from_an_address() {
        let selection =
            read("route=default&topic=&type=order.placed&since=1h&offset=50&text=No+Such").unwrap();
        assert_eq!(selection.filter.route, Some(Route::default()));
        assert_eq!((selection.filter.topic.clone(), selection.offset), (None, 50));
        assert_eq!(selection.filter.since, Some(Timestamp::from_micros(3_600_000_000)));
        assert_eq!((selection.text.as_deref(), selection.is_plain()), (Some("no such"), false));
        assert_eq!(selection.filter.event_type.as_deref(), Some("order.placed"));
        assert_eq!(selection.filter.ids, None, "no id is no empty list");
        assert!(read("route=default").unwrap().is_whole() && !read("before=1h").unwrap().is_whole());
        assert!(!read("type=a").unwrap().is_whole());
    }

    #[test]
    fn a_wrong_filter_is_told_with_its_value() {
        let wrong = [("since=noon", "noon"), ("id=12", "12"), ("key=a%0Ab", "U+000A")];
        for (query, said) in wrong {
            let problem = read(query).unwrap_err();
            assert!(problem.text.contains(said), "{problem:?}");
        }
    }
}
