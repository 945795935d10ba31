//! Settings of the tuned relay.

use std::str::FromStr;

use outbox_engine::RelayBuilder;
use serde::{Deserialize, Serialize};

/// A setting of the relay, such as `fetch_batch=2000`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Setting {
    name: Name,
    value: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Name {
    FetchBatch,
    PublishBatch,
    MaxInFlight,
    MaxInFlightBytes,
    MaxUnconfirmedBatches,
    PerKey,
}

const NAMES: [(&str, Name); 6] = [
    ("fetch_batch", Name::FetchBatch),
    ("publish_batch", Name::PublishBatch),
    ("max_in_flight", Name::MaxInFlight),
    ("max_in_flight_bytes", Name::MaxInFlightBytes),
    ("max_unconfirmed_batches", Name::MaxUnconfirmedBatches),
    ("per_key", Name::PerKey),
];

/// Larger batches in more memory.
const TUNED: [(Name, usize); 4] = [
    (Name::FetchBatch, 2_000),
    (Name::MaxInFlight, 8_000),
    (Name::MaxInFlightBytes, 64 << 20),
    (Name::MaxUnconfirmedBatches, 8),
];

/// Returns the settings of the tuned relay: the defaults here, and then the requested ones.
pub(crate) fn tuned(asked: &[Setting]) -> Vec<Setting> {
    let ours = TUNED.into_iter().map(|(name, value)| Setting { name, value });
    ours.chain(asked.iter().copied()).collect()
}

/// Returns a relay with these settings. Of two with one name the later one counts.
pub(crate) fn apply(settings: &[Setting], relay: RelayBuilder) -> RelayBuilder {
    settings.iter().fold(relay, |relay, Setting { name, value }| match name {
        Name::FetchBatch => relay.fetch_batch(*value),
        Name::PublishBatch => relay.publish_batch(*value),
        Name::MaxInFlight => relay.max_in_flight(*value),
        Name::MaxInFlightBytes => relay.max_in_flight_bytes(*value),
        Name::MaxUnconfirmedBatches => relay.max_unconfirmed_batches(*value),
        Name::PerKey => relay.per_key(*value),
    })
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').ok_or("this is not NAME=NUMBER")?;
        let known = NAMES.iter().find(|(known, _)| *known == name);
        let Some((_, name)) = known else {
            let names: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
            return Err(format!("there is no setting {name:?}; there are {}", names.join(", ")));
        };
        let value = value.parse().map_err(|error| format!("{value:?} is no number: {error}"))?;
        Ok(Self { name: *name, value })
    }
}
