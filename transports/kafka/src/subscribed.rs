//! Topics that a member asks its group for. A machine without waiting.

use std::collections::BTreeSet;

use outbox_contract::Topic;

/// Topics of a member, and those among them that its group would refuse.
///
/// Where the broker divides the partitions (KIP-848), it refuses the heartbeat of a member that
/// asks for a topic without the right to describe it: such a member is given nothing of any topic.
/// So it asks for the others alone until it has the right.
#[derive(Debug)]
pub(crate) struct Subscribed {
    all: Vec<Topic>,
    hidden: BTreeSet<Topic>,
    asked: Vec<Topic>,
}

impl Subscribed {
    /// `hidden`: topics that are known to be refused.
    pub(crate) fn new(all: Vec<Topic>, hidden: impl IntoIterator<Item = Topic>) -> Self {
        let mut this = Self { asked: all.clone(), all, hidden: hidden.into_iter().collect() };
        this.asked = this.wanted();
        this
    }

    /// Returns the topics that the member asks for.
    pub(crate) fn asked(&self) -> &[Topic] {
        &self.asked
    }

    /// The member may describe a topic, or may not.
    pub(crate) fn is_hidden(&mut self, topic: &Topic, hidden: bool) {
        if hidden {
            self.hidden.insert(topic.clone());
        } else {
            self.hidden.remove(topic);
        }
    }

    /// Returns true if none of the topics may be described.
    pub(crate) fn is_nothing(&self) -> bool {
        self.all.iter().all(|topic| self.hidden.contains(topic))
    }

    /// Asks for the topics that the member wants now, if they are others than before. If that
    /// fails, they are asked for the next time.
    pub(crate) fn ask<E>(&mut self, subscribe: impl FnOnce(&[Topic]) -> Result<(), E>) -> Result<(), E> {
        let wanted = self.wanted();
        if wanted != self.asked {
            subscribe(&wanted)?;
            self.asked = wanted;
        }
        Ok(())
    }

    /// All of them if none would be taken: the group says why.
    fn wanted(&self) -> Vec<Topic> {
        let seen: Vec<Topic> =
            self.all.iter().filter(|topic| !self.hidden.contains(*topic)).cloned().collect();
        if seen.is_empty() { self.all.clone() } else { seen }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_asks_for_what_it_may_describe_and_for_all_if_that_is_nothing() {
        let topic = |name: &str| Topic::new(name).unwrap();
        let (one, other) = (topic("one"), topic("other"));
        let mut subscribed = Subscribed::new(vec![one.clone(), other.clone()], [other.clone()]);
        assert_eq!(subscribed.asked(), std::slice::from_ref(&one));
        let asks = |subscribed: &mut Subscribed| {
            let mut asked = None;
            let taken: Result<(), ()> = subscribed.ask(|topics| {
                asked = Some(topics.to_vec());
                Ok(())
            });
            taken.unwrap();
            asked
        };
        assert_eq!(asks(&mut subscribed), None);
        subscribed.is_hidden(&other, false);
        assert_eq!(subscribed.ask(|_| Err("not now")), Err("not now"));
        assert_eq!(asks(&mut subscribed), Some(vec![one.clone(), other.clone()]), "once more");
        assert_eq!(asks(&mut subscribed), None);
        subscribed.is_hidden(&one, true);
        assert_eq!(asks(&mut subscribed), Some(vec![other.clone()]));
        assert!(!subscribed.is_nothing());
        subscribed.is_hidden(&other, true);
        assert!(subscribed.is_nothing());
        assert_eq!(asks(&mut subscribed), Some(vec![one, other]));
    }
}
