//! The connection beside a broker that a test plays, word by word.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

use amq_protocol::frame::AMQPFrame;
use amq_protocol::protocol::channel;
use amq_protocol::protocol::connection::AMQPMethod;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::frames::{self, HELLO};
use crate::pool::Pool;
use crate::transport::RabbitMqTransport;

/// Time for which a test waits for what should come at once, on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(20);

/// The side of the broker.
struct Broker {
    socket: TcpStream,
    incoming: Incoming,
}

impl Broker {
    async fn next(&mut self) -> Option<AMQPFrame> {
        let mut bytes = [0; 1_024];
        loop {
            if let Some(frame) = self.incoming.next().unwrap() {
                return Some(frame);
            }
            match self.socket.read(&mut bytes).await {
                Ok(0) | Err(_) => return None,
                Ok(count) => self.incoming.push(&bytes[..count]),
            }
        }
    }

    async fn say(&mut self, channel: u16, method: AMQPClass) {
        let mut bytes = Vec::new();
        frames::method(&mut bytes, channel, method).unwrap();
        self.socket.write_all(&bytes).await.unwrap();
    }

    async fn say_of_connection(&mut self, method: AMQPMethod) {
        self.say(0, AMQPClass::Connection(method)).await;
    }

    async fn greet(&mut self) {
        let mut hello = [0; 8];
        self.socket.read_exact(&mut hello).await.unwrap();
        assert_eq!(hello, HELLO);
        self.say_of_connection(AMQPMethod::Start(connection::Start {
            mechanisms: "PLAIN".into(),
            ..connection::Start::default()
        }))
        .await;
    }

    async fn let_in(&mut self) {
        self.greet().await;
        assert!(matches!(self.next().await, Some(AMQPFrame::Method(0, _))), "who it is");
        let tune = connection::Tune { channel_max: 10, frame_max: 131_072, heartbeat: 60 };
        self.say_of_connection(AMQPMethod::Tune(tune)).await;
        assert!(matches!(self.next().await, Some(AMQPFrame::Method(0, _))), "what is agreed on");
        assert!(matches!(self.next().await, Some(AMQPFrame::Method(0, _))), "the vhost");
        self.say_of_connection(AMQPMethod::OpenOk(connection::OpenOk {})).await;
    }

    /// The next word about the connection.
    async fn next_of_connection(&mut self) -> Option<AMQPMethod> {
        loop {
            match self.next().await? {
                AMQPFrame::Method(0, AMQPClass::Connection(method)) => return Some(method),
                _ => continue,
            }
        }
    }
}

/// Connects to a broker that does this.
async fn open<T: Send + 'static>(plays: impl AsyncFnOnce(Broker) -> T) -> (Result<Arc<Wire>, Fault>, T) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("amqp://shop:s3cret@{}", listener.local_addr().unwrap());
    let builder =
        RabbitMqTransport::builder(url).heartbeat(Duration::from_secs(1)).timeout(Duration::from_secs(2));
    let config = builder.config().unwrap();
    let playing = async {
        let (socket, _) = listener.accept().await.unwrap();
        plays(Broker { socket, incoming: Incoming::new(131_072) }).await
    };
    tokio::join!(Wire::open(&config, "tests"), playing)
}

/// A connection, and the broker that let it in.
async fn connected() -> (Arc<Wire>, Broker) {
    let (wire, broker) = open(async |mut broker| {
        broker.let_in().await;
        broker
    })
    .await;
    (wire.unwrap(), broker)
}

async fn over(wire: &Wire) -> String {
    timeout(PATIENCE, poll_fn(|context| wire.board().poll_over(context))).await.unwrap();
    wire.board().over().unwrap().to_string()
}

#[tokio::test]
async fn a_broker_that_falls_silent_is_given_up_after_two_heartbeats() {
    let (wire, _broker) = connected().await;
    let words = over(&wire).await;
    assert!(words.contains("nothing came from the broker for 2s"), "{words}");
    assert!(!wire.is_usable());
}

/// A relay waits for a batch for a while only: what was begun for it is of use to the next one.
#[tokio::test]
async fn an_attempt_to_connect_goes_on_when_nobody_waits_for_it() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("amqp://shop:s3cret@{}", listener.local_addr().unwrap());
    let config = RabbitMqTransport::builder(url).connections(1).timeout(PATIENCE).config().unwrap();
    let (_close, closed) = tokio::sync::watch::channel(false);
    let pool = Pool::new(Arc::new(config), closed);
    let socket = tokio::select! {
        accepted = listener.accept() => accepted.unwrap().0,
        _ = pool.borrow() => panic!("no waiter was let in"),
    };
    let mut broker = Broker { socket, incoming: Incoming::new(131_072) };
    broker.let_in().await;
    let answers = async {
        loop {
            match broker.next().await.unwrap() {
                AMQPFrame::Method(id, AMQPClass::Channel(channel::AMQPMethod::Open(_))) => {
                    let opened = channel::AMQPMethod::OpenOk(channel::OpenOk {});
                    broker.say(id, AMQPClass::Channel(opened)).await;
                }
                AMQPFrame::Method(id, AMQPClass::Confirm(confirm::AMQPMethod::Select(_))) => {
                    let selected = confirm::AMQPMethod::SelectOk(confirm::SelectOk {});
                    broker.say(id, AMQPClass::Confirm(selected)).await;
                }
                _ => {}
            }
        }
    };
    let borrowed = tokio::select! {
        borrowed = timeout(PATIENCE, pool.borrow()) => borrowed.unwrap(),
        () = answers => unreachable!("it answers until it is dropped"),
    };
    assert!(borrowed.is_ok(), "{:?}", borrowed.err());
}

/// Such as by a panic, or by the end of the runtime that it was begun on.
#[tokio::test]
async fn a_task_that_ends_ends_the_connection() {
    let (wire, _broker) = connected().await;
    wire.task.abort();
    over(&wire).await;
    assert!(!wire.is_usable());
}

#[tokio::test]
async fn the_broker_sees_that_we_are_there() {
    let (_wire, mut broker) = connected().await;
    for _ in 0..2 {
        assert_eq!(timeout(PATIENCE, broker.next()).await.unwrap(), Some(AMQPFrame::Heartbeat));
    }
}

#[tokio::test]
async fn a_broker_that_ends_the_connection_gets_an_answer() {
    let (wire, mut broker) = connected().await;
    let close =
        connection::Close { reply_code: 320, reply_text: "shutdown".into(), ..connection::Close::default() };
    broker.say_of_connection(AMQPMethod::Close(close)).await;
    let answer = timeout(PATIENCE, broker.next_of_connection()).await.unwrap();
    assert_eq!(answer, Some(AMQPMethod::CloseOk(connection::CloseOk {})));
    assert!(over(&wire).await.contains("shutdown"));
    let end = timeout(PATIENCE, broker.next_of_connection()).await.unwrap();
    assert_eq!(end, None, "the socket is closed");
}

#[tokio::test]
async fn a_polite_end_waits_for_the_broker_and_not_for_ever() {
    let (wire, mut broker) = connected().await;
    let answers = async {
        let close = broker.next_of_connection().await;
        assert!(matches!(close, Some(AMQPMethod::Close(_))), "{close:?}");
        broker.say_of_connection(AMQPMethod::CloseOk(connection::CloseOk {})).await;
    };
    tokio::join!(wire.close(), answers);
    assert!(!wire.is_usable());

    let (wire, _broker) = connected().await;
    timeout(PATIENCE, wire.close()).await.unwrap();
    assert!(!wire.is_usable());
}

#[tokio::test]
async fn a_question_that_is_not_answered_is_an_error_and_a_channel_less() {
    let (wire, mut broker) = connected().await;
    // It lives, but says nothing of channels.
    let heartbeats = async {
        loop {
            broker.socket.write_all(&frames::HEARTBEAT).await.unwrap();
            assert!(broker.next().await.is_some());
        }
    };
    let asked = async {
        let fault = wire.channel().await.err().unwrap();
        assert!(fault.to_string().contains("opening a channel: no answer within 2s"), "{fault}");
    };
    tokio::select! {
        () = asked => {}
        () = heartbeats => {}
    }
    assert_eq!(wire.board().closing(), 1);
}

#[tokio::test]
async fn a_channel_that_the_broker_does_not_open_says_why() {
    let (wire, mut broker) = connected().await;
    let refuses = async {
        while let Some(frame) = broker.next().await {
            if let AMQPFrame::Method(1, _) = frame {
                break;
            }
        }
        let close =
            channel::Close { reply_code: 504, reply_text: "no more".into(), ..channel::Close::default() };
        broker.say(1, AMQPClass::Channel(channel::AMQPMethod::Close(close))).await;
    };
    let (opened, ()) = tokio::join!(wire.channel(), refuses);
    let fault = opened.err().unwrap();
    assert!(fault.to_string().contains("no more"), "{fault}");
    assert!(wire.is_usable(), "other channels go on");
}

#[tokio::test]
async fn who_is_no_broker_is_told_as_an_error_without_the_password() {
    let others: [(&[u8], &str); 4] = [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "not an AMQP 0-9-1 frame"),
        (b"AMQP\0\x01\x00\x00", "another version of AMQP than 0-9-1: 1.0.0"),
        (&[1, 0, 0, 0xff, 0xff, 0xff, 0xff], "4294967303 bytes"),
        (b"", "connect"),
    ];
    for (says, words) in others {
        let (opened, ()) = open(async |mut broker| {
            broker.socket.write_all(says).await.unwrap();
            broker.socket.shutdown().await.unwrap();
        })
        .await;
        let fault = opened.err().unwrap().to_string();
        assert!(fault.contains(words) && !fault.contains("s3cret"), "{fault}");
    }
}

#[tokio::test]
async fn a_broker_that_does_not_answer_is_given_up_in_time() {
    let (opened, _broker) = open(async |mut broker| {
        broker.greet().await;
        broker
    })
    .await;
    let fault = opened.err().unwrap();
    assert!(fault.to_string().contains("did not answer within 2s"), "{fault}");
}
