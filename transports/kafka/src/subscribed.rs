//! Topics that a member asks its group for. A machine without waiting.

use std::collections::BTreeSet;

use outbox_contract::Topic;

/// Topics of a member, and those among them that its group would refuse.
///
/// Where the broker divides the partitions (KIP-848), it refuses the heartbeat of a member that asks
/// for a topic without the right to describe it: such a member is given nothing of any topic. So it
/// asks for the others alone until it has the right.
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

    /// Returns the topics to ask for from now on, if they are others than before.
    pub(crate) fn ask(&mut self) -> Option<&[Topic]> {
        let wanted = self.wanted();
        if wanted == self.asked {
            return None;
        }
        self.asked = wanted;
        Some(&self.asked)
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
        assert_eq!(subscribed.ask(), None);
        subscribed.is_hidden(&other, false);
        assert_eq!(subscribed.ask().unwrap(), [one.clone(), other.clone()]);
        subscribed.is_hidden(&one, true);
        assert_eq!(subscribed.ask().unwrap(), std::slice::from_ref(&other));
        subscribed.is_hidden(&other, true);
        assert_eq!(subscribed.ask().unwrap(), [one, other]);
    }
}
