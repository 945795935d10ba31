//! The arguments of a queue: what they should be, and what a queue with others would do to
//! messages. Pure.

use std::collections::BTreeMap;

use lapin::types::{AMQPValue, FieldTable, ShortString};

use crate::config::Config;
use crate::inequivalent::Inequivalent;

/// The arguments of a queue.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Arguments(BTreeMap<String, AMQPValue>);

const KIND: &str = "x-queue-type";
const SINGLE: &str = "x-single-active-consumer";
const LIMIT: &str = "x-delivery-limit";
const DEAD_LETTERS: &str = "x-dead-letter-exchange";
const LENGTH: &str = "x-max-length";
const OVERFLOW: &str = "x-overflow";

impl Arguments {
    /// As it is declared.
    pub(crate) fn table(&self) -> FieldTable {
        let entries = self
            .0
            .iter()
            .map(|(name, value)| (ShortString::try_new(name.as_str()).unwrap_or_default(), value.clone()));
        entries.collect::<BTreeMap<_, _>>().into()
    }

    fn text(value: &str) -> AMQPValue {
        AMQPValue::LongString(value.into())
    }

    pub(crate) fn of_dead_letters() -> Self {
        Self(BTreeMap::from([
            (KIND.to_owned(), Self::text("quorum")),
            (LIMIT.to_owned(), AMQPValue::LongInt(-1)),
        ]))
    }

    /// Arguments with which a queue of ours is declared.
    pub(crate) fn wanted(config: &Config) -> Self {
        let mut arguments = Self::of_dead_letters().0;
        arguments.insert(SINGLE.to_owned(), AMQPValue::Boolean(true));
        if let Some(limit) = config.delivery_limit {
            arguments.insert(LIMIT.to_owned(), AMQPValue::LongLongInt(limit.into()));
        }
        if let Some(most) = config.max_waiting {
            arguments.insert(LENGTH.to_owned(), AMQPValue::LongLongInt(most.into()));
            arguments.insert(OVERFLOW.to_owned(), Self::text("reject-publish"));
        }
        if let Some(exchange) = &config.dead_letters {
            arguments.insert(DEAD_LETTERS.to_owned(), Self::text(exchange.as_str()));
        }
        Self(arguments)
    }

    /// Takes over what the queue that is there has; refuses what can't be lived with.
    pub(crate) fn become_like(&mut self, difference: &Inequivalent) -> Result<(), String> {
        let Inequivalent { argument, current, value } = difference;
        let shown = current.as_deref().unwrap_or("not set");
        match argument.as_str() {
            KIND => Err(format!(
                "its {KIND} is {shown}; only quorum queues keep confirmed messages and support a delivery limit"
            )),
            SINGLE => Err(format!(
                "its {SINGLE} is {shown}; without it several consumers get messages of one key at once"
            )),
            "durable" | "exclusive" | "auto_delete" => {
                Err(format!("{argument} is {shown}; it should be durable and nothing else"))
            }
            _ if current.is_none() => {
                self.0.remove(argument);
                Ok(())
            }
            _ => match value {
                Some(value) => {
                    self.0.insert(argument.clone(), value.clone());
                    Ok(())
                }
                None => Err(format!("its {argument} is {shown}, which this version does not know")),
            },
        }
    }

    /// Returns how a queue like this would lose messages without a word, if it would.
    pub(crate) fn problem(&self) -> Option<String> {
        if self.0.contains_key("x-expires") {
            return Some("it has x-expires, which deletes the queue with its messages".to_owned());
        }
        if self.0.contains_key(DEAD_LETTERS) {
            return None;
        }
        let limit = self.0.get(LIMIT).and_then(number);
        if limit.is_none_or(|limit| limit >= 0) {
            let shown = limit.map_or("not set, which means 20".to_owned(), |limit| limit.to_string());
            return Some(format!(
                "its {LIMIT} is {shown}, and it has no {DEAD_LETTERS}: messages delivered more often, also after lost connections, are dropped \
                 silently; set it to -1, or set {DEAD_LETTERS}"
            ));
        }
        if self.0.contains_key("x-message-ttl") {
            return Some(format!(
                "it has x-message-ttl and no {DEAD_LETTERS}: messages that wait longer are dropped silently"
            ));
        }
        let bounded = [LENGTH, "x-max-length-bytes"].iter().any(|argument| self.0.contains_key(*argument));
        (bounded && self.0.get(OVERFLOW) != Some(&Self::text("reject-publish"))).then(|| {
            format!("its length is bounded, and its {OVERFLOW} is not reject-publish: when it is full it drops the oldest messages silently")
        })
    }
}

fn number(value: &AMQPValue) -> Option<i64> {
    match value {
        AMQPValue::LongInt(value) => Some((*value).into()),
        AMQPValue::LongLongInt(value) => Some(*value),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn like(differences: &[(&str, Option<&str>, Option<AMQPValue>)]) -> Result<Option<String>, String> {
        let mut arguments = Arguments::of_dead_letters();
        for (argument, current, value) in differences {
            let current = current.map(ToOwned::to_owned);
            arguments.become_like(&Inequivalent {
                argument: (*argument).to_owned(),
                current,
                value: value.clone(),
            })?;
        }
        Ok(arguments.problem())
    }

    fn number_of(value: i64) -> Option<AMQPValue> {
        Some(AMQPValue::LongLongInt(value))
    }

    #[test]
    fn a_queue_that_drops_in_silence_is_refused() {
        assert_eq!(like(&[]), Ok(None));
        let dead = (DEAD_LETTERS, Some("dead"), Some(Arguments::text("dead")));
        let reject = (OVERFLOW, Some("reject-publish"), Some(Arguments::text("reject-publish")));
        let drops = [
            (LIMIT, None, None),
            (LIMIT, Some("20"), number_of(20)),
            ("x-message-ttl", Some("1"), number_of(1)),
            (LENGTH, Some("9"), number_of(9)),
        ];
        for difference in drops {
            assert!(like(std::slice::from_ref(&difference)).unwrap().is_some(), "{difference:?}");
            assert_eq!(like(&[difference, dead.clone()]), Ok(None));
        }
        assert_eq!(like(&[(LENGTH, Some("9"), number_of(9)), reject]), Ok(None));
        assert!(like(&[dead, ("x-expires", Some("1"), number_of(1))]).unwrap().is_some());
    }

    #[test]
    fn a_queue_that_breaks_the_order_is_refused() {
        assert!(like(&[(KIND, Some("classic"), Some(Arguments::text("classic")))]).is_err());
        assert!(like(&[(SINGLE, None, None)]).is_err());
        assert!(like(&[("durable", Some("false"), None)]).is_err());
        assert!(like(&[("x-new", Some("[]"), None)]).is_err());
    }
}
