//! Upcasters: how an event of an old schema version becomes one of the next.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use outbox_contract::{Bytes, Codec};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::handler::HandlerFailure;

type Upcast<C> = Arc<dyn Fn(&C, &[u8]) -> Result<Bytes, HandlerFailure> + Send + Sync>;

/// Steps from one version to another, by type and the version that each starts from.
pub(crate) struct Upcasters<C>(BTreeMap<(String, u32), (u32, Upcast<C>)>);

impl<C> Default for Upcasters<C> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<C: Codec> Upcasters<C> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the types of which there are steps.
    pub(crate) fn types(&self) -> BTreeSet<&str> {
        self.0.keys().map(|(event_type, _)| event_type.as_str()).collect()
    }

    /// Adds a step. Says whether there was none from this version yet, and whether it leads to a
    /// later one.
    pub(crate) fn add<Old, New>(
        &mut self,
        event_type: &str,
        from: u32,
        to: u32,
        upcast: impl Fn(Old) -> New + Send + Sync + 'static,
    ) -> Result<(), String>
    where
        Old: DeserializeOwned,
        New: Serialize,
    {
        if from == 0 || to <= from {
            return Err(format!(
                "the upcaster of {event_type} leads from version {from} to {to}; versions count from 1, and it must lead to a later one"
            ));
        }
        let step: Upcast<C> = Arc::new(move |codec, payload| {
            let old: Old = codec.decode(payload).map_err(|error| unreadable(&error))?;
            codec.encode(&upcast(old)).map_err(|error| unreadable(&error))
        });
        if self.0.insert((event_type.to_owned(), from), (to, step)).is_some() {
            return Err(format!("{event_type} has two upcasters from version {from}; give it one"));
        }
        Ok(())
    }

    /// Brings a payload to a version, as far as there are steps. Without a step it stays as it is:
    /// the type itself may read it.
    pub(crate) fn raise(
        &self,
        codec: &C,
        event_type: &str,
        version: u32,
        known: u32,
        payload: &Bytes,
    ) -> Result<Bytes, HandlerFailure> {
        if version > known {
            return Err(HandlerFailure::too_new(
                "schema",
                format!(
                    "{event_type} has schema version {version}, and this program knows up to {known}; deploy a newer version"
                ),
            ));
        }
        let (mut at, mut payload) = (version, payload.clone());
        while at < known
            && let Some((to, step)) = self.0.get(&(event_type.to_owned(), at))
        {
            payload = step(codec, &payload)?;
            at = *to;
        }
        if at > known {
            return Err(HandlerFailure::rejected(
                "schema",
                format!(
                    "the upcasters of {event_type} lead from version {version} to {at}, past {known}, which the handler reads"
                ),
            ));
        }
        Ok(payload)
    }
}

/// A payload that can't be read is not read better the next time.
pub(crate) fn unreadable(error: &outbox_contract::CodecError) -> HandlerFailure {
    HandlerFailure::rejected("unreadable", error.to_string())
}

impl<C> fmt::Debug for Upcasters<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use outbox_contract::Json;

    use super::*;

    fn upcasters() -> Upcasters<Json> {
        let mut upcasters = Upcasters::default();
        upcasters.add("placed", 1, 2, |cents: u32| [cents]).unwrap();
        upcasters.add("placed", 2, 3, |[cents]: [u32; 1]| [cents, 1]).unwrap();
        upcasters
    }

    fn raise(version: u32, known: u32, payload: &'static str) -> Result<Bytes, HandlerFailure> {
        upcasters().raise(&Json, "placed", version, known, &payload.into())
    }

    #[test]
    fn an_old_version_goes_through_every_step() {
        assert_eq!(raise(1, 3, "7").unwrap(), "[7,1]");
        assert_eq!(raise(2, 3, "[7]").unwrap(), "[7,1]");
        assert_eq!(raise(3, 3, "as it is").unwrap(), "as it is");
        assert_eq!(raise(1, 1, "7").unwrap(), "7");
    }

    #[test]
    fn a_newer_version_waits_for_a_newer_program_and_what_is_unreadable_does_not() {
        assert!(!raise(4, 3, "[]").unwrap_err().is_rejected());
        assert!(raise(1, 3, "seven").unwrap_err().is_rejected());
    }

    #[test]
    fn a_step_leads_to_a_later_version_and_there_is_one_of_each() {
        let mut upcasters = upcasters();
        assert!(upcasters.add("placed", 3, 3, |same: u32| same).is_err());
        assert!(upcasters.add("placed", 1, 2, |same: u32| same).is_err());
        assert!(upcasters.add("placed", 0, 2, |same: u32| same).is_err());
    }
}
