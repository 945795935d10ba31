#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

use amq_protocol::protocol::basic;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use amq_protocol::frame::AMQPContentHeader;
use amq_protocol::protocol::{BasicProperties, confirm};
use lapin::types::{AMQPValue, FieldTable};
use outbox_contract::MessageId;
use outbox_contract::backend::Position;

use super::*;
use crate::channel_state::{Said, Wants};
use crate::frames::Incoming;
use crate::publication::Returned;

/// Counts how often somebody was woken.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A switchboard, with one who waits and a look at what is written.
struct Test {
    board: Multiplexer,
    woken: Arc<Woken>,
}

impl Test {
    fn new(max_channels: u16) -> Self {
        Self { board: Multiplexer::new(max_channels), woken: Arc::default() }
    }

    /// One with a channel on which something is on its way.
    fn with_channel() -> (Self, u16) {
        let mut test = Self::new(10);
        let id = test.board.new_channel().unwrap();
        (test, id)
    }

    fn news(&mut self, id: u16, room: bool) -> Option<News> {
        self.news_of(id, Wants { room, end_of_block: false })
    }

    fn news_of(&mut self, id: u16, wants: Wants) -> Option<News> {
        let waker = Waker::from(Arc::clone(&self.woken));
        match self.board.poll_news(id, wants, &mut Context::from_waker(&waker)) {
            Poll::Ready(news) => Some(news),
            Poll::Pending => None,
        }
    }

    fn said(&mut self, id: u16) -> Vec<Said> {
        match self.news(id, false) {
            Some(News::Said(said)) => said,
            None => Vec::new(),
            Some(other) => panic!("{other:?}"),
        }
    }

    /// Returns what is written next, as frames; none: the end.
    fn written(&mut self) -> Option<Vec<AMQPFrame>> {
        let mut incoming = Incoming::new(usize::MAX);
        let mut all = Vec::new();
        loop {
            match self.board.poll_write(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(Write::Bytes(bytes)) => {
                    self.board.written(bytes.len());
                    incoming.push(&bytes);
                }
                Poll::Ready(Write::End) if all.is_empty() => return None,
                _ => return Some(all),
            }
            while let Some(frame) = incoming.next().unwrap() {
                all.push(frame);
            }
        }
    }

    fn wakes(&self) -> usize {
        self.woken.0.swap(0, Ordering::Relaxed)
    }
}

fn of_channel(id: u16, method: channel::AMQPMethod) -> AMQPFrame {
    AMQPFrame::Method(id, AMQPClass::Channel(method))
}

fn of_connection(method: connection::AMQPMethod) -> AMQPFrame {
    AMQPFrame::Method(0, AMQPClass::Connection(method))
}

fn ack(id: u16, tag: u64, multiple: bool) -> AMQPFrame {
    AMQPFrame::Method(
        id,
        AMQPClass::Basic(basic::AMQPMethod::Ack(basic::Ack { delivery_tag: tag, multiple })),
    )
}

fn nack(id: u16, tag: u64, multiple: bool) -> AMQPFrame {
    let nack = basic::Nack { delivery_tag: tag, multiple, requeue: false };
    AMQPFrame::Method(id, AMQPClass::Basic(basic::AMQPMethod::Nack(nack)))
}

fn close(id: u16, code: u16) -> AMQPFrame {
    let close = channel::Close { reply_code: code, reply_text: "no".into(), ..channel::Close::default() };
    of_channel(id, channel::AMQPMethod::Close(close))
}

fn sequence(position: i64) -> FieldTable {
    let mut headers = FieldTable::default();
    headers.insert("cloudEvents:sequence".into(), AMQPValue::LongString(format!("{position:020}").into()));
    headers
}

/// The frames of a message that comes back.
fn comes_back(channel: u16, id: &str, pieces: &[&str]) -> Vec<AMQPFrame> {
    let returned =
        basic::Return { reply_code: 312, reply_text: "NO_ROUTE".into(), ..basic::Return::default() };
    let header = AMQPContentHeader {
        class_id: 60,
        body_size: pieces.iter().map(|piece| piece.len() as u64).sum(),
        properties: BasicProperties::default().with_message_id(id.into()).with_headers(sequence(7)),
    };
    let bodies = pieces.iter().map(|piece| AMQPFrame::Body(channel, piece.as_bytes().to_vec()));
    let method = AMQPFrame::Method(channel, AMQPClass::Basic(basic::AMQPMethod::Return(returned)));
    [method, AMQPFrame::Header(channel, header)].into_iter().chain(bodies).collect()
}

#[test]
fn what_the_broker_says_comes_in_its_order_to_the_channel_that_it_is_about() {
    let (mut test, first) = Test::with_channel();
    let second = test.board.new_channel().unwrap();
    assert!(test.news(first, false).is_none());
    test.board.take(ack(first, 1, false));
    test.board.take(ack(second, 9, true));
    test.board.take(nack(first, 2, true));
    assert_eq!(test.wakes(), 1);
    let confirmed = Said::Confirmed { tag: 1, several: false };
    assert_eq!(test.said(first), [confirmed, Said::Refused { tag: 2, several: true }]);
    assert_eq!(test.said(second), [Said::Confirmed { tag: 9, several: true }]);
    assert_eq!(test.said(first), []);
    test.board.take(ack(77, 1, false));
}

#[test]
fn a_message_has_come_back_when_all_of_it_is_there() {
    let (mut test, id) = Test::with_channel();
    let message = MessageId::new();
    let reason = "312 NO_ROUTE".to_owned();
    let returned = Returned { id: Some(message), position: Some(Position(7)), reason };
    for pieces in [&["abc", "de"][..], &["abcde"], &[]] {
        let frames = comes_back(id, &message.to_string(), pieces);
        let last = frames.len() - 1;
        for (at, frame) in frames.into_iter().enumerate() {
            assert_eq!(test.said(id), [], "before frame {at} of {last}");
            test.board.take(frame);
        }
        test.board.take(ack(id, 1, false));
        assert_eq!(
            test.said(id),
            [Said::Returned(returned.clone()), Said::Confirmed { tag: 1, several: false }]
        );
    }
    // Pieces of a message that never began are nothing.
    test.board.take(AMQPFrame::Body(id, b"abc".to_vec()));
    assert_eq!(test.said(id), []);
}

#[test]
fn what_was_said_is_heard_before_the_end() {
    let (mut test, id) = Test::with_channel();
    test.board.take(ack(id, 1, false));
    test.board.take(close(id, 404));
    assert_eq!(test.said(id).len(), 1);
    // An answer may let more frames go: they are not sent behind the end of their channel, over
    // which the broker would end the whole connection.
    assert!(!test.board.has_room_for(id));
    test.board.send(id, HEARTBEAT.to_vec());
    test.board.ask(id, AMQPClass::Channel(channel::AMQPMethod::Open(channel::Open {})));
    let Some(News::Over(error)) = test.news(id, true) else { panic!("the channel is over") };
    assert!(matches!(error.kind(), ErrorKind::ProtocolError(said) if said.get_id() == 404), "{error}");
    assert_eq!(test.written().unwrap(), [of_channel(id, channel::AMQPMethod::CloseOk(channel::CloseOk {}))]);
    // Over already: nothing more is said of it, and its number is free.
    test.board.give_back(id, None);
    assert_eq!((test.written().unwrap(), test.board.closing()), (vec![], 0));
}

#[test]
fn a_channel_on_which_something_is_open_is_closed_and_its_number_waits_for_the_broker() {
    let mut test = Test::new(1);
    let id = test.board.new_channel().unwrap();
    assert_eq!(test.board.new_channel(), None, "no more than the broker lets us have");
    test.board.give_back(id, None);
    assert!(matches!(
        test.written().unwrap()[..],
        [AMQPFrame::Method(1, AMQPClass::Channel(channel::AMQPMethod::Close(_)))]
    ));
    // The broker may close it at the same time, and that is answered too.
    test.board.take(close(id, 406));
    assert_eq!(test.written().unwrap().len(), 1);
    assert_eq!((test.board.closing(), test.board.new_channel()), (1, None));
    test.board.take(of_channel(id, channel::AMQPMethod::CloseOk(channel::CloseOk {})));
    assert_eq!((test.board.closing(), test.board.new_channel()), (0, Some(1)));
    assert_eq!(test.said(id), [], "nothing of the one before");
}

#[test]
fn a_channel_on_which_all_is_confirmed_is_used_again_unless_the_broker_closed_it() {
    let (mut test, id) = Test::with_channel();
    let mut tags = Tags::new();
    tags.sent(0);
    tags.take(1, false);
    test.board.give_back(id, Some(tags));
    assert_eq!(test.written().unwrap(), []);
    let (again, mut tags) = test.board.take_idle().unwrap();
    tags.sent(7);
    assert_eq!((again, tags.take(2, false)), (id, vec![7]), "numbers go on");
    test.board.give_back(id, Some(Tags::new()));
    test.board.take(close(id, 504));
    assert!(test.board.take_idle().is_none());
    assert_eq!(test.written().unwrap().len(), 1, "the broker is answered all the same");
}

#[test]
fn a_question_has_one_answer() {
    let (mut test, id) = Test::with_channel();
    let waker = Waker::from(Arc::clone(&test.woken));
    let mut context = Context::from_waker(&waker);
    let select_ok = || AMQPClass::Confirm(confirm::AMQPMethod::SelectOk(confirm::SelectOk {}));
    test.board.take(AMQPFrame::Method(id, select_ok()));
    test.board.ask(id, AMQPClass::Confirm(confirm::AMQPMethod::Select(confirm::Select { nowait: false })));
    assert!(test.board.poll_answer(id, &mut context).is_pending(), "it was not asked for that one");
    test.board.take(AMQPFrame::Method(id, select_ok()));
    assert_eq!(test.wakes(), 1);
    assert!(
        matches!(test.board.poll_answer(id, &mut context), Poll::Ready(Ok(answer)) if answer == select_ok())
    );
    test.board.take(close(id, 403));
    assert!(matches!(test.board.poll_answer(id, &mut context), Poll::Ready(Err(_))));
}

#[test]
fn a_broker_that_takes_nothing_says_so_to_everybody() {
    let (mut test, id) = Test::with_channel();
    assert!(test.news(id, false).is_none());
    let blocked = connection::Blocked { reason: "low on memory".into() };
    test.board.take(of_connection(connection::AMQPMethod::Blocked(blocked)));
    assert_eq!(test.wakes(), 1);
    test.board.take(ack(id, 1, false));
    assert_eq!(test.said(id).len(), 1, "what is confirmed is confirmed");
    assert!(matches!(test.news(id, true), Some(News::Blocked(Some(reason))) if reason == "low on memory"));
    let waits = Wants { room: true, end_of_block: true };
    assert!(test.news_of(id, waits).is_none() && !test.board.has_room_for(id), "until it is over");
    test.board.take(of_connection(connection::AMQPMethod::Unblocked(connection::Unblocked {})));
    assert_eq!(test.wakes(), 1);
    assert!(matches!(test.news_of(id, waits), Some(News::Blocked(None))));
    assert!(test.news(id, false).is_none() && test.board.has_room_for(id));
}

#[test]
fn what_waits_to_be_written_is_bounded() {
    let (mut test, id) = Test::with_channel();
    assert!(matches!(test.news(id, true), Some(News::Room)));
    let mut pieces = 0;
    while test.board.has_room_for(id) {
        test.board.send(id, vec![0; 64 * 1024]);
        pieces += 1;
    }
    assert_eq!(pieces, MAX_QUEUED_BYTES / (64 * 1024));
    assert!(test.news(id, true).is_none());
    test.board.written(64 * 1024);
    assert_eq!(test.wakes(), 1);
    assert!(matches!(test.news(id, true), Some(News::Room)));
}

#[test]
fn a_heartbeat_is_written_only_when_nothing_else_is() {
    let (mut test, id) = Test::with_channel();
    test.board.queue_heartbeat();
    test.board.queue_heartbeat();
    assert_eq!(test.written().unwrap(), [AMQPFrame::Heartbeat]);
    test.board.give_back(id, None);
    test.board.queue_heartbeat();
    assert_eq!(test.written().unwrap().len(), 1);
}

#[test]
fn a_connection_that_the_broker_ends_is_over_for_everybody_and_the_broker_is_answered() {
    let (mut test, id) = Test::with_channel();
    assert!(test.news(id, false).is_none());
    test.board.queue(vec![0; 10]);
    let close =
        connection::Close { reply_code: 320, reply_text: "shutdown".into(), ..connection::Close::default() };
    test.board.take(of_connection(connection::AMQPMethod::Close(close)));
    assert_eq!(test.wakes(), 1);
    let Some(News::Over(error)) = test.news(id, true) else { panic!("the connection is over") };
    assert!(matches!(error.kind(), ErrorKind::ProtocolError(said) if said.get_id() == 320), "{error}");
    // Nothing that was queued goes out any more.
    let answer = connection::AMQPMethod::CloseOk(connection::CloseOk {});
    assert_eq!(test.written().unwrap(), [of_connection(answer)]);
    assert!(test.written().is_none());
    test.board.queue(vec![0; 10]);
    assert!(test.written().is_none());
    test.board.give_back(id, Some(Tags::new()));
    assert!(test.board.take_idle().is_none());
}

#[test]
fn the_first_end_is_the_one_that_is_told() {
    let (mut test, id) = Test::with_channel();
    let ended = |test: &mut Test, words: &str| test.board.end(other(words.to_owned()));
    ended(&mut test, "first");
    ended(&mut test, "second");
    assert!(matches!(test.news(id, false), Some(News::Over(error)) if error.to_string().contains("first")));
    assert!(test.board.poll_over(&mut Context::from_waker(Waker::noop())).is_ready());
    assert!(matches!(test.news(99, false), Some(News::Over(_))), "a channel that there is not");
}

proptest::proptest! {
    /// Frames in any order and number: no panic, and a number has one channel at a time.
    #[test]
    fn a_broker_may_say_anything(steps in proptest::collection::vec((0..12_u8, 0..4_u16, 0..5_u64), 0..80)) {
        let mut test = Test::new(3);
        let mut held = std::collections::BTreeSet::new();
        for (step, id, tag) in steps {
            match step {
                0 => {
                    let new = test.board.new_channel().or_else(|| test.board.take_idle().map(|(id, _)| id));
                    if let Some(new) = new {
                        proptest::prop_assert!(new != 0 && held.insert(new), "channel {} twice", new);
                    }
                }
                1 if held.remove(&id) => test.board.give_back(id, (tag > 2).then(Tags::new)),
                2 => test.board.take(ack(id, tag, true)),
                3 => test.board.take(nack(id, tag, false)),
                4 => test.board.take(close(id, 404)),
                5 => test.board.take(of_channel(id, channel::AMQPMethod::CloseOk(channel::CloseOk {}))),
                6 => comes_back(id, "no id", &["abc"]).into_iter().for_each(|frame| test.board.take(frame)),
                7 => test.board.take(AMQPFrame::Body(id, vec![0; usize::try_from(tag).unwrap()])),
                8 => test.board.ask(id, AMQPClass::Channel(channel::AMQPMethod::Open(channel::Open {}))),
                9 => drop(test.news(id, tag > 2)),
                10 => drop(test.written()),
                11 if tag == 4 => test.board.end(other("over".to_owned())),
                _ => {}
            }
        }
    }
}
