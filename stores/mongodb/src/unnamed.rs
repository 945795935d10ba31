//! Rows of the hot collection that can't be named: nothing could remove or move them, so nothing
//! may publish them. Each is told of once.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use mongodb::bson::{Bson, Document};

use crate::database::MESSAGE;

/// The most rows that are told of. Whoever writes that many of them makes all of them so.
const MOST: usize = 1_000;

/// The most characters of a name that are shown.
const MAX_CHARACTERS: usize = 200;

/// The names of the rows that were told of, since this program began. Written by whoever fetches.
#[derive(Default)]
pub(crate) struct Unnamed(Mutex<BTreeSet<String>>);

impl Unnamed {
    /// Tells of a row, the first time.
    pub(crate) fn tell(&self, row: &Document) {
        let Some(name) = self.note(row.get("_id")) else { return };
        tracing::error!(
            name,
            "a document of {MESSAGE} is never published, for no statement could name it: its _id must be route, position (a whole number), id (a UUID \
             of 16 bytes), in this order; write it again as the book says, and remove this one"
        );
    }

    /// A name as it is shown, where it is new.
    fn note(&self, name: Option<&Bson>) -> Option<String> {
        let name = name.map_or_else(String::new, ToString::to_string);
        let name: String = name.chars().take(MAX_CHARACTERS).collect();
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (told.len() < MOST && told.insert(name.clone())).then_some(name)
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::doc;

    use super::*;

    #[test]
    fn each_is_told_of_once_and_not_more_than_so_many() {
        let unnamed = Unnamed::default();
        let name = |at: usize| Bson::from(doc! { "route": "default", "position": 7, "id": at.to_string() });
        let shown = unnamed.note(Some(&name(0))).unwrap();
        assert!(shown.contains("default") && shown.contains('7'), "{shown}");
        assert_eq!(unnamed.note(Some(&name(0))), None);
        let long = unnamed.note(Some(&Bson::from("x".repeat(100_000)))).unwrap();
        assert_eq!(long.chars().count(), MAX_CHARACTERS);
        assert_eq!((1..2 * MOST).filter_map(|at| unnamed.note(Some(&name(at)))).count(), MOST - 2);
    }
}
