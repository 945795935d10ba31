//! Passes connections on to a broker, and reads along what the client asks for.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

/// The numbers of a method of AMQP: of its class, and its own.
type Method = (u16, u16);

const CHANNEL_OPEN: Method = (20, 10);
const BASIC_CONSUME: Method = (60, 20);
const BASIC_CANCEL: Method = (60, 30);

/// Time limit for what must happen.
const PATIENCE: Duration = Duration::from_secs(120);

/// A port in front of a broker.
pub(crate) struct Wiretap {
    address: SocketAddr,
    heard: Arc<(Mutex<Heard>, Condvar)>,
}

#[derive(Default)]
struct Heard {
    asked: Vec<Method>,
    /// Connections that are over.
    over: usize,
    /// While so many channels were asked for, nothing is answered.
    silent: Vec<Range<usize>>,
    /// The queue of which nothing is answered once it is consumed, and then its channel.
    mute_queue: Option<String>,
    mute_channel: Option<u16>,
    /// Bytes that the client sends, and as many that go on in their place.
    replaced: Option<(Vec<u8>, Vec<u8>)>,
}

impl Heard {
    fn count(&self, method: Method) -> usize {
        self.asked.iter().filter(|asked| **asked == method).count()
    }

    fn hear(&mut self, frame: &Frame) {
        let Some(method) = frame.method() else { return };
        self.asked.push(method);
        if method == BASIC_CONSUME && self.mute_queue.as_deref() == frame.queue() {
            self.mute_channel = Some(frame.channel());
        }
    }

    fn replace(&self, mut bytes: Vec<u8>) -> Vec<u8> {
        if let Some((from, to)) = &self.replaced
            && let Some(at) = bytes.windows(from.len()).position(|window| window == from)
        {
            bytes[at..at + to.len()].copy_from_slice(to);
        }
        bytes
    }

    fn is_silent(&mut self) -> bool {
        let channels = self.count(CHANNEL_OPEN);
        self.over == 0 && self.silent.iter().any(|silent| silent.contains(&channels))
    }
}

impl Wiretap {
    /// In front of the broker of this URL.
    pub(crate) fn of(url: &str) -> Self {
        let broker = address_of(url).to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let heard: Arc<(Mutex<Heard>, Condvar)> = Arc::default();
        let all = Arc::clone(&heard);
        thread::spawn(move || {
            for client in listener.incoming() {
                let (client, server) = (client.unwrap(), TcpStream::connect(&broker).unwrap());
                let (to_client, from_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                let (heard, answered) = (Arc::clone(&all), Arc::clone(&all));
                thread::spawn(move || {
                    let mut frames = Frames { bytes: Vec::new(), greeted: true };
                    pass(&from_server, &to_client, |bytes| {
                        let (heard, changed) = &*answered;
                        let heard = changed.wait_while(heard.lock().unwrap(), Heard::is_silent).unwrap();
                        let mut frames = frames.read(bytes);
                        frames.retain(|frame| heard.mute_channel != Some(frame.channel()));
                        frames.into_iter().flat_map(|frame| frame.0).collect()
                    });
                });
                thread::spawn(move || {
                    let tell = |change: &mut dyn FnMut(&mut Heard)| {
                        change(&mut heard.0.lock().unwrap());
                        heard.1.notify_all();
                    };
                    let mut frames = Frames::default();
                    pass(&client, &server, |bytes| {
                        let frames = frames.read(bytes);
                        tell(&mut |heard| frames.iter().for_each(|frame| heard.hear(frame)));
                        heard.0.lock().unwrap().replace(bytes.to_vec())
                    });
                    tell(&mut |heard| heard.over += 1);
                });
            }
        });
        Self { address, heard }
    }

    /// The same URL, past here.
    pub(crate) fn url(&self, url: &str) -> String {
        url.replace(address_of(url), &self.address.to_string())
    }

    /// Answers nothing while the number of channels that were asked for is one of these.
    pub(crate) fn silent_while(self, channels: impl IntoIterator<Item = Range<usize>>) -> Self {
        self.heard.0.lock().unwrap().silent.extend(channels);
        self
    }

    /// Passes these bytes on in place of those, where a client sends them in one piece.
    pub(crate) fn replace(self, from: &[u8], to: &[u8]) -> Self {
        assert_eq!(from.len(), to.len(), "everything else stays where it is");
        self.heard.0.lock().unwrap().replaced = Some((from.to_vec(), to.to_vec()));
        self
    }

    /// Answers nothing of this queue once it is consumed.
    pub(crate) fn mute(self, queue: &str) -> Self {
        self.heard.0.lock().unwrap().mute_queue = Some(queue.to_owned());
        self
    }

    /// Waits until so many connections are over, with all that was asked over them, or a consumer
    /// is cancelled. Blocks.
    pub(crate) fn wait_until_over(&self, connections: usize) {
        let (heard, changed) = &*self.heard;
        let open = |heard: &mut Heard| heard.over < connections && !heard.asked.contains(&BASIC_CANCEL);
        let (heard, waited) = changed.wait_timeout_while(heard.lock().unwrap(), PATIENCE, open).unwrap();
        assert!(!waited.timed_out(), "{} of {connections} connections are over", heard.over);
    }

    /// Returns the number of times that a queue began to be consumed.
    pub(crate) fn consumed(&self) -> usize {
        self.count(BASIC_CONSUME)
    }

    /// Returns the number of times that a consumer was cancelled.
    pub(crate) fn cancelled(&self) -> usize {
        self.count(BASIC_CANCEL)
    }

    fn count(&self, method: Method) -> usize {
        self.heard.0.lock().unwrap().count(method)
    }
}

fn address_of(url: &str) -> &str {
    let (_, rest) = url.split_once('@').unwrap();
    rest.split('/').next().unwrap()
}

/// Until one of the two ends. What `look` makes of the bytes is passed on.
fn pass(mut from: &TcpStream, mut to: &TcpStream, mut look: impl FnMut(&[u8]) -> Vec<u8>) {
    let mut buffer = vec![0; 64 * 1024];
    let passed: io::Result<()> = (|| {
        loop {
            let length = from.read(&mut buffer)?;
            if length == 0 {
                return Ok(());
            }
            to.write_all(&look(&buffer[..length]))?;
        }
    })();
    // An ended channel is over for both sides, whichever of them ended it.
    drop(passed);
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// Bytes that are sent: by a client a greeting of 8 bytes, then frames.
#[derive(Default)]
struct Frames {
    bytes: Vec<u8>,
    greeted: bool,
}

impl Frames {
    fn read(&mut self, bytes: &[u8]) -> Vec<Frame> {
        self.bytes.extend_from_slice(bytes);
        if !self.greeted && self.bytes.len() >= 8 {
            self.bytes.drain(..8);
            self.greeted = true;
        }
        let mut frames = Vec::new();
        while self.greeted && self.bytes.len() >= 7 {
            let size = [self.bytes[3], self.bytes[4], self.bytes[5], self.bytes[6]];
            let size = 8 + u32::from_be_bytes(size) as usize;
            if self.bytes.len() < size {
                break;
            }
            frames.push(Frame(self.bytes.drain(..size).collect()));
        }
        frames
    }
}

/// Type, channel, size, as much, and a last byte.
struct Frame(Vec<u8>);

impl Frame {
    fn number(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.0[at], self.0[at + 1]])
    }

    fn channel(&self) -> u16 {
        self.number(1)
    }

    fn method(&self) -> Option<Method> {
        (self.0[0] == 1).then(|| (self.number(7), self.number(9)))
    }

    /// The queue that is asked to be consumed.
    fn queue(&self) -> Option<&str> {
        let length = usize::from(self.0[13]);
        std::str::from_utf8(&self.0[14..14 + length]).ok()
    }
}
