//! Publication of a batch: which messages go to which stream, and what each answer says of them.
//! Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use outbox_contract::backend::flow::CutKeys;
use outbox_contract::backend::{Bucket, Outcome, Outcomes, PublishBatch, Stored, Unavailable, Unit};
use outbox_contract::{Failure, Topic};
use redis::Value;

use crate::connection::{list, number, text};
use crate::error::Error;
use crate::{record, routing};

/// The messages of a batch that go to one stream, in order, and where they stand in the batch.
#[derive(Debug)]
pub(crate) struct StreamAppend {
    pub(crate) unit: Unit,
    pub(crate) messages: Vec<(usize, Arc<Stored>)>,
}

impl StreamAppend {
    /// The buckets of its messages.
    pub(crate) fn buckets(&self) -> BTreeSet<Bucket> {
        self.messages.iter().map(|(_, stored)| stored.bucket).collect()
    }
}

/// Fate of the messages for one stream.
#[derive(Debug)]
pub(crate) struct Appended {
    /// So many messages, from the first one on, were appended or refused.
    through: usize,
    /// The error that stopped it there.
    failed: Option<Error>,
    /// The buckets that have a newer owner.
    fenced: BTreeSet<Bucket>,
    /// The version of the epochs before the script, and behind it.
    versions: Option<(String, String)>,
}

impl Appended {
    /// Of a stream that refused no bucket.
    pub(crate) const fn of(through: usize, failed: Option<Error>) -> Self {
        Self { through, failed, fenced: BTreeSet::new(), versions: None }
    }

    /// Reads an answer of the script.
    pub(crate) fn read(answer: &Value) -> Result<Self, Error> {
        let [through, failed, before, after, fenced @ ..] = list(answer)? else {
            return Err(Error::unexpected("a script"));
        };
        let failed = text(failed)?;
        let fenced = fenced.iter().map(|bucket| {
            let bucket = u8::try_from(number(bucket)?).map_err(|_| Error::unexpected("a script"))?;
            Ok(Bucket(bucket))
        });
        Ok(Self {
            through: usize::try_from(number(through)?).unwrap_or(usize::MAX),
            failed: (!failed.is_empty()).then(|| Error::refused(&failed)),
            fenced: fenced.collect::<Result<_, Error>>()?,
            versions: Some((text(before)?, text(after)?)),
        })
    }

    /// The versions before and behind an append of which no bucket was refused.
    pub(crate) fn accepted(&self) -> Option<(&str, &str)> {
        let (before, after) = self.versions.as_ref()?;
        (self.fenced.is_empty() && !after.is_empty()).then_some((before, after))
    }
}

/// Deals a batch out to streams. What can't go is reported at once, and what follows it of its key
/// is blocked.
pub(crate) fn plan(
    batch: &PublishBatch,
    units: &BTreeMap<Topic, Result<u32, Error>>,
    max_bytes: usize,
    outcomes: &Outcomes,
) -> Vec<StreamAppend> {
    let mut appends: BTreeMap<Unit, StreamAppend> = BTreeMap::new();
    let mut cut = CutKeys::default();
    for (slot, stored) in batch.messages.iter().enumerate() {
        let message = &stored.message;
        if cut.blocks(message) {
            outcomes.report(slot, Outcome::Blocked);
            continue;
        }
        let undelivered = match (record::validate(message, max_bytes), units.get(&message.topic)) {
            (Err(rejection), _) => Outcome::Rejected(rejection.0),
            (_, Some(Ok(units))) => {
                let unit = routing::unit_of(&message.topic, stored.bucket, *units);
                let append = appends.entry(unit.clone());
                let append = append.or_insert_with(|| StreamAppend { unit, messages: Vec::new() });
                append.messages.push((slot, Arc::clone(stored)));
                continue;
            }
            (_, Some(Err(error))) => error.outcome(),
            (_, None) => Outcome::Blocked,
        };
        outcomes.report(slot, undelivered);
        cut.cut(message);
    }
    appends.into_values().collect()
}

/// Says what became of the messages of a stream. `kept` tells whether replicas and disk have what
/// was written, where that was asked for.
pub(crate) fn report(
    append: &StreamAppend,
    appended: Result<Appended, Error>,
    kept: &Result<(), Error>,
    outcomes: &Outcomes,
) {
    let appended = match appended {
        Ok(appended) => appended,
        Err(error) => {
            append.messages.iter().for_each(|(slot, _)| outcomes.report(*slot, error.outcome()));
            return;
        }
    };
    for (index, (slot, stored)) in append.messages.iter().enumerate() {
        let outcome = if appended.fenced.contains(&stored.bucket) {
            Outcome::Unavailable(Unavailable::Topic, fenced(stored.bucket, &append.unit))
        } else if index >= appended.through {
            appended.failed.as_ref().map_or(Outcome::Blocked, Error::outcome)
        } else if let Err(error) = kept {
            error.outcome()
        } else {
            Outcome::Delivered
        };
        outcomes.report(*slot, outcome);
    }
}

fn fenced(bucket: Bucket, unit: &Unit) -> Failure {
    Failure::new(
        Failure::FENCED,
        format!(
            "bucket {bucket} has a newer owner than this relay, by the stream of {unit}; this relay learns of it with its next \
             heartbeat, or takes the bucket anew. If this continues, another outbox publishes under the same source: give each a source of its \
             own. If the outbox was restored from a backup, it ends by itself, or at once when the keys PREFIX:{{TOPIC:UNIT}}:epochs:* are deleted"
        ),
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use outbox_contract::backend::{Position, RelayId};
    use outbox_contract::{Message, Route, Timestamp, TransportErrorKind};

    use super::*;

    fn batch(keys: &[(&str, usize)]) -> PublishBatch {
        let messages = (1..).zip(keys).map(|(position, (key, bytes))| {
            let message = Message::new("orders", "x").unwrap().with_key(key).unwrap();
            let message = message.with_payload(vec![b'x'; *bytes]);
            Arc::new(Stored::new(Position(position), Timestamp::now(), message))
        });
        let messages = messages.collect();
        PublishBatch::new(Route::default(), RelayId::new(), "/shop".into(), messages, Duration::from_secs(1))
    }

    fn units() -> BTreeMap<Topic, Result<u32, Error>> {
        BTreeMap::from([(Topic::new("orders").unwrap(), Ok(1))])
    }

    fn answer(through: i64, failed: &str, fenced: &[u8]) -> Value {
        let text = |text: &str| Value::BulkString(text.into());
        let mut values = vec![Value::Int(through), text(failed), text("1"), text("2")];
        values.extend(fenced.iter().map(|bucket| Value::BulkString(bucket.to_string().into())));
        Value::Array(values)
    }

    fn class(outcome: Option<&Outcome>) -> String {
        match outcome {
            Some(
                Outcome::Unavailable(_, failure) | Outcome::Rejected(failure) | Outcome::Unknown(failure),
            ) => failure.class.to_string(),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn what_is_too_large_blocks_its_key_and_no_other() {
        let (batch, outcomes) = (batch(&[("a", 1), ("a", 11), ("b", 1), ("a", 1)]), Outcomes::new(4));
        let appends = plan(&batch, &units(), 10, &outcomes);
        let slots: Vec<usize> = appends[0].messages.iter().map(|(slot, _)| *slot).collect();
        assert_eq!(slots, [0, 2]);
        report(&appends[0], Appended::read(&answer(2, "", &[])), &Ok(()), &outcomes);
        let outcomes = outcomes.take();
        assert_eq!(outcomes[0], Some(Outcome::Delivered));
        assert_eq!(class(outcomes[1].as_ref()), "message-too-large");
        assert_eq!(outcomes[2], Some(Outcome::Delivered));
        assert_eq!(outcomes[3], Some(Outcome::Blocked));
    }

    #[test]
    fn only_what_was_appended_is_delivered() {
        let (batch, outcomes) = (batch(&[("a", 1), ("b", 1), ("a", 1)]), Outcomes::new(3));
        let appends = plan(&batch, &units(), 10, &outcomes);
        report(&appends[0], Appended::read(&answer(1, "OOM no room", &[])), &Ok(()), &outcomes);
        let outcomes = outcomes.take();
        assert_eq!(outcomes[0], Some(Outcome::Delivered));
        assert!(
            outcomes[1..].iter().all(|outcome| class(outcome.as_ref()) == "out-of-memory"),
            "{outcomes:?}"
        );
    }

    #[test]
    fn a_bucket_with_a_newer_owner_is_not_delivered_and_the_others_are() {
        let (batch, outcomes) = (batch(&[("a", 1), ("b", 1)]), Outcomes::new(2));
        let appends = plan(&batch, &units(), 10, &outcomes);
        let old = batch.messages[0].bucket;
        report(&appends[0], Appended::read(&answer(2, "", &[old.0])), &Ok(()), &outcomes);
        let outcomes = outcomes.take();
        assert_eq!(
            (class(outcomes[0].as_ref()).as_str(), &outcomes[1]),
            ("fenced", &Some(Outcome::Delivered))
        );
    }

    #[test]
    fn what_replicas_or_disk_may_not_have_is_unknown() {
        let (batch, outcomes) = (batch(&[("a", 1)]), Outcomes::new(1));
        let appends = plan(&batch, &units(), 10, &outcomes);
        let kept = Err(Error::unknown("not-enough-replicas", "0 of 1"));
        report(&appends[0], Appended::read(&answer(1, "", &[])), &kept, &outcomes);
        assert!(matches!(outcomes.take()[0], Some(Outcome::Unknown(_))));
    }

    #[test]
    fn an_answer_that_makes_no_sense_delivers_nothing() {
        let (batch, outcomes) = (batch(&[("a", 1)]), Outcomes::new(1));
        let appends = plan(&batch, &units(), 10, &outcomes);
        report(&appends[0], Appended::read(&Value::Okay), &Ok(()), &outcomes);
        assert!(matches!(outcomes.take()[0], Some(Outcome::Unknown(_))));
    }

    #[test]
    fn a_topic_that_is_not_there_holds_up_no_other() {
        let (batch, outcomes) = (batch(&[("a", 1), ("a", 1)]), Outcomes::new(2));
        let missing = Error::topic("unknown-topic", TransportErrorKind::Missing, "not there");
        let units = BTreeMap::from([(Topic::new("orders").unwrap(), Err(missing))]);
        assert!(plan(&batch, &units, 10, &outcomes).is_empty());
        let outcomes = outcomes.take();
        assert!(matches!(outcomes[0], Some(Outcome::Unavailable(Unavailable::Topic, _))));
        assert_eq!(outcomes[1], Some(Outcome::Blocked));
    }
}
