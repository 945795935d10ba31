//! Topics: how many units each has, as Redis knows it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outbox_contract::backend::BUCKETS;
use outbox_contract::{Topic, TransportErrorKind};
use redis::{Pipeline, Value};

use crate::config;
use crate::connection::{Link, number};
use crate::error::{Error, Reach};
use crate::routing::Routing;

/// The number of units is written once, by whoever names the topic first, and stands for good: so
/// all members of all services agree on where a key is.
#[derive(Debug)]
pub(crate) struct Topics {
    routing: Routing,
    units: u32,
    made: config::Topics,
    within: Duration,
    // A plain mutex: held for one look or one store.
    known: Mutex<BTreeMap<Topic, u32>>,
}

impl Topics {
    pub(crate) fn new(routing: Routing, config: &config::Config) -> Self {
        Self {
            routing,
            units: config.units,
            made: config.topics,
            within: config.request_timeout,
            known: Mutex::default(),
        }
    }

    /// The units of each of these topics, or why it can't be used.
    ///
    /// # Errors
    ///
    /// An error that concerns all of them.
    pub(crate) async fn units(
        &self,
        link: &Link,
        topics: &BTreeSet<&Topic>,
    ) -> Result<BTreeMap<Topic, Result<u32, Error>>, Error> {
        let mut units = BTreeMap::new();
        for topic in topics {
            let known = self.known().get(*topic).copied();
            let found = match known {
                Some(known) => Ok(known),
                None => self.ask(link, topic, self.made == config::Topics::MadeByName).await,
            };
            match found.map_err(Error::before_anything) {
                Err(error) if error.reach != Reach::Topic => return Err(error),
                found => units.insert((*topic).clone(), found),
            };
        }
        Ok(units)
    }

    /// Makes a topic where it is not there yet; says how many units it has.
    pub(crate) async fn make(&self, link: &Link, topic: &Topic) -> Result<u32, Error> {
        self.ask(link, topic, true).await
    }

    async fn ask(&self, link: &Link, topic: &Topic, make: bool) -> Result<u32, Error> {
        let key = self.routing.topic(topic);
        let mut look = Pipeline::new();
        look.cmd("HGET").arg(&key).arg("units");
        let mut answers = link.request(&look, self.within).await?;
        // Only then: a server without memory makes nothing, and what is there can be used all the
        // same.
        if make && answers == [Value::Nil] {
            let mut pipeline = Pipeline::new();
            pipeline.cmd("HSETNX").arg(&key).arg("units").arg(self.units);
            pipeline.cmd("HGET").arg(&key).arg("units");
            answers = link.request(&pipeline, self.within).await?;
        }
        // A refusal to make it says more than that it is not there.
        if let Some(refused) = answers.iter().find_map(crate::connection::refusal) {
            return Err(refused);
        }
        let units = match answers.last() {
            Some(Value::Nil) | None => {
                return Err(Error::topic(
                    "unknown-topic",
                    TransportErrorKind::Missing,
                    format!(
                        "topic {topic} does not exist: there is no key {key}; create it with create_topic"
                    ),
                ));
            }
            Some(units) => valid(topic, &key, units)?,
        };
        self.known().insert(topic.clone(), units);
        Ok(units)
    }

    /// Returns true if a topic that does not exist is made by the first message for it.
    pub(crate) fn are_made_by_name(&self) -> bool {
        self.made == config::Topics::MadeByName
    }

    /// Looks up the units of topics, and makes none. None: there is no such topic.
    ///
    /// # Errors
    ///
    /// An error that concerns all of them.
    pub(crate) async fn look(
        &self,
        link: &Link,
        topics: &[&Topic],
    ) -> Result<Vec<Result<Option<u32>, Error>>, Error> {
        let keys: Vec<String> = topics.iter().map(|topic| self.routing.topic(topic)).collect();
        let mut question = Pipeline::new();
        for key in &keys {
            question.cmd("HGET").arg(key).arg("units");
        }
        if topics.is_empty() {
            return Ok(Vec::new());
        }
        let answers = link.request(&question, self.within).await?;
        let units = topics.iter().zip(&keys).zip(&answers).map(|((topic, key), answer)| {
            match crate::connection::refusal(answer) {
                Some(refused) => Err(refused),
                None if *answer == Value::Nil => Ok(None),
                None => valid(topic, key, answer).map(Some),
            }
        });
        Ok(units.collect())
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<Topic, u32>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads a number of units.
fn valid(topic: &Topic, key: &str, units: &Value) -> Result<u32, Error> {
    let units = number(units)?;
    u32::try_from(units).ok().filter(|units| (1..=256).contains(units)).ok_or_else(|| {
        Error::topic(
            "invalid-topic",
            TransportErrorKind::Invalid,
            format!("topic {topic} has {units} units according to the key {key}; it must be 1 to {BUCKETS}"),
        )
    })
}
