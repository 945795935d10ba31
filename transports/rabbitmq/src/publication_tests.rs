#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

use std::sync::Arc;

use lapin::protocol::AMQPError;
use outbox_contract::backend::Position;
use outbox_contract::{Message, Timestamp, Topic};
use proptest::prelude::*;

use super::*;

/// A batch with one message for each of these keys, in order; a space is no key.
fn batch(keys: &str) -> Vec<Arc<Stored>> {
    let topic = Topic::new("orders").unwrap();
    let message = |key: char| {
        let message = Message::new(topic.clone(), "x").unwrap();
        if key == ' ' { message } else { message.with_key(key.to_string()).unwrap() }
    };
    (1..)
        .zip(keys.chars())
        .map(|(at, key)| Arc::new(Stored::new(Position(at), Timestamp::now(), message(key))))
        .collect()
}

fn started(publication: &mut Publication) -> Vec<usize> {
    std::iter::from_fn(|| publication.start()).collect()
}

fn answered(publication: &mut Publication, answers: Vec<Answer>) -> Vec<(usize, &'static str)> {
    let reports = publication.answered(answers, |_| "orders".to_owned(), |_| refusal());
    reports.into_iter().map(|(index, outcome)| (index, name(&outcome))).collect()
}

fn refusal() -> Failure {
    Failure::new("refused", "full")
}

fn name(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Delivered => "delivered",
        Outcome::Rejected(_) => "rejected",
        Outcome::Failed(_) => "failed",
        Outcome::Postponed(..) => "postponed",
        Outcome::Unavailable(Unavailable::Route, _) => "no route",
        Outcome::Unavailable(Unavailable::Topic, _) => "no topic",
        Outcome::Unknown(_) => "unknown",
        Outcome::Blocked => "blocked",
    }
}

const fn confirmed(index: usize) -> Answer {
    Answer::Confirmed(index)
}

fn returned(stored: &Stored) -> Answer {
    let (id, position) = (Some(stored.message.id), Some(stored.position));
    Answer::Returned(Returned { id, position, reason: "312 NO_ROUTE".to_owned() })
}

fn broken(code: u16) -> Answer {
    let error = AMQPError::from_id(code, "said the broker".into()).unwrap();
    Answer::Broken(Fault::asking("publishing", lapin::ErrorKind::ProtocolError(error).into()))
}

#[test]
fn one_message_of_a_key_is_in_flight_and_all_keys_are() {
    let mut publication = Publication::new(&batch("aab b a"));
    assert_eq!(started(&mut publication), [0, 2, 3, 5]);
    assert_eq!(answered(&mut publication, vec![confirmed(0)]), [(0, "delivered")]);
    assert_eq!(started(&mut publication), [1]);
    answered(&mut publication, vec![confirmed(2), confirmed(1)]);
    assert_eq!(started(&mut publication), [4, 6]);
    answered(&mut publication, vec![confirmed(3), confirmed(4), confirmed(5)]);
    assert!(!publication.is_complete());
    answered(&mut publication, vec![confirmed(6)]);
    assert!(publication.is_complete());
}

#[test]
fn behind_a_refused_message_its_key_is_blocked() {
    let mut publication = Publication::new(&batch("aaab"));
    started(&mut publication);
    let reports = answered(&mut publication, vec![Answer::Refused(0), confirmed(3)]);
    assert_eq!(reports, [(0, "no topic"), (1, "blocked"), (2, "blocked"), (3, "delivered")]);
    assert!(publication.is_complete() && publication.start().is_none());
}

#[test]
fn what_came_back_is_known_by_its_id_whenever_it_is_confirmed() {
    let messages = batch("abb");
    let mut publication = Publication::new(&messages);
    started(&mut publication);
    assert_eq!(answered(&mut publication, vec![returned(&messages[1]), confirmed(0)]), [(0, "delivered")]);
    assert_eq!(answered(&mut publication, vec![confirmed(1)]), [(1, "no topic"), (2, "blocked")]);
}

/// One event for two topics is two messages with one id.
#[test]
fn of_two_messages_with_one_id_the_one_that_came_back_is_not_delivered() {
    let mut messages = batch("ab");
    let mut copy = messages[1].message.clone();
    copy.id = messages[0].message.id;
    messages[1] = Arc::new(Stored::new(messages[1].position, Timestamp::now(), copy));
    let mut publication = Publication::new(&messages);
    started(&mut publication);
    let reports = answered(&mut publication, vec![returned(&messages[1]), confirmed(1), confirmed(0)]);
    assert_eq!(reports, [(1, "no topic"), (0, "delivered")]);
}

#[test]
fn when_it_cannot_be_told_what_came_back_nothing_is_delivered() {
    let (messages, others) = (batch("aab"), batch("a"));
    for id in [Some(others[0].message.id), None] {
        let mut publication = Publication::new(&messages);
        started(&mut publication);
        let unknown = Answer::Returned(Returned { id, position: None, reason: String::new() });
        let reports = answered(&mut publication, vec![unknown, confirmed(0), confirmed(2)]);
        assert_eq!(reports, [(0, "unknown"), (1, "blocked"), (2, "unknown")]);
        assert!(publication.is_complete());
    }
}

#[test]
fn only_a_message_alone_on_its_channel_is_rejected() {
    let mut publication = Publication::new(&batch("aab"));
    started(&mut publication);
    assert_eq!(
        answered(&mut publication, vec![broken(406)]),
        [(0, "unknown"), (1, "blocked"), (2, "unknown")]
    );
    let mut publication = Publication::new(&batch("aab"));
    started(&mut publication);
    let reports = answered(&mut publication, vec![confirmed(2), broken(406)]);
    assert_eq!(reports, [(2, "delivered"), (0, "rejected"), (1, "blocked")]);
}

#[test]
fn what_is_given_up_is_unknown_if_it_was_sent() {
    let messages = batch("aabb");
    let mut publication = Publication::new(&messages);
    publication.start();
    let reports = answered(&mut publication, vec![broken(320)]);
    assert_eq!(reports, [(0, "unknown"), (1, "blocked"), (2, "no route"), (3, "blocked")]);
    assert!(publication.is_complete() && publication.start().is_none());
}

#[test]
fn what_can_not_be_sent_is_reported_without_being_sent() {
    let mut publication = Publication::new(&batch("aa"));
    let index = publication.start().unwrap();
    let rejected = Outcome::Rejected(Failure::new("message-too-large", ""));
    let reports = publication.unsendable(index, rejected);
    assert_eq!(
        reports.iter().map(|(index, outcome)| (*index, name(outcome))).collect::<Vec<_>>(),
        [(0, "rejected"), (1, "blocked")]
    );
    assert!(publication.is_complete());
}

proptest! {
    /// A broker confirms each message, in any order; what is unroutable comes back at some time
    /// before.
    #[test]
    fn whatever_the_order_of_confirmations_no_message_that_came_back_is_delivered(
        keys in "[a-d ]{1,24}",
        unroutable in proptest::collection::vec(any::<bool>(), 24),
        picks in proptest::collection::vec((any::<proptest::sample::Index>(), 1..5_usize), 64),
    ) {
        let messages = batch(&keys);
        let mut publication = Publication::new(&messages);
        let (mut in_flight, mut delivered) = (Vec::new(), Vec::new());
        for (pick, at_once) in picks.into_iter().cycle().take(10_000) {
            let mut answers = Vec::new();
            for index in started(&mut publication) {
                if unroutable[index] {
                    answers.push(returned(&messages[index]));
                }
                in_flight.push(index);
            }
            if publication.is_complete() {
                break;
            }
            for _ in 0..at_once.min(in_flight.len()) {
                answers.push(confirmed(in_flight.swap_remove(pick.index(in_flight.len()))));
            }
            for (index, outcome) in publication.answered(answers, |_| String::new(), |_| refusal()) {
                if outcome == Outcome::Delivered {
                    prop_assert!(!unroutable[index], "message {} came back", index);
                    let key = messages[index].message.key_id();
                    let of_key = |at: &&usize| messages[**at].message.key_id() == key;
                    let earlier = messages[..index].iter().filter(|it| it.message.key_id() == key).count();
                    prop_assert_eq!(earlier, delivered.iter().filter(of_key).count());
                    delivered.push(index);
                } else {
                    prop_assert!(unroutable[index] || outcome == Outcome::Blocked);
                }
            }
        }
        prop_assert!(publication.is_complete(), "something was said of every message");
    }
}
