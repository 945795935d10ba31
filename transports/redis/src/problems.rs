//! Topics and units of a member that Redis refuses, while it gives others.

use std::collections::BTreeMap;

use outbox_contract::Topic;
use outbox_contract::backend::Problem;

#[derive(Debug, Default)]
pub(crate) struct Problems(BTreeMap<(Topic, Option<u32>), Problem>);

impl Problems {
    /// A topic, or a unit of it, is refused. Says whether that is new.
    pub(crate) fn refused(&mut self, topic: &Topic, number: Option<u32>, words: &str) -> bool {
        let Some(known) = self.0.get_mut(&(topic.clone(), number)) else {
            self.0.insert((topic.clone(), number), Problem::new(topic.clone(), number, words));
            return true;
        };
        words.clone_into(&mut known.error);
        false
    }

    /// It is refused no more.
    pub(crate) fn over(&mut self, topic: &Topic, number: Option<u32>) {
        if !self.0.is_empty() {
            self.0.remove(&(topic.clone(), number));
        }
    }

    pub(crate) fn all(&self) -> Vec<Problem> {
        self.0.values().cloned().collect()
    }
}
