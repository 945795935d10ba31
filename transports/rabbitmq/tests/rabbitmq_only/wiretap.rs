//! Passes connections on to a broker, and reads along what the client asks for.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

/// The numbers of a method of AMQP: of its class, and its own.
type Method = (u16, u16);

const BASIC_CONSUME: Method = (60, 20);
const BASIC_CANCEL: Method = (60, 30);

/// How long to wait for what must happen.
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
                thread::spawn(move || pass(&from_server, &to_client, |_| {}));
                let heard = Arc::clone(&all);
                thread::spawn(move || {
                    let tell = |change: &mut dyn FnMut(&mut Heard)| {
                        change(&mut heard.0.lock().unwrap());
                        heard.1.notify_all();
                    };
                    let mut frames = Frames::default();
                    pass(&client, &server, |bytes| {
                        let methods = frames.read(bytes);
                        tell(&mut |heard| heard.asked.extend(&methods));
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

    /// Waits until so many connections are over, with all that was asked over them, or a consumer is cancelled. Blocks.
    pub(crate) fn wait_until_over(&self, connections: usize) {
        let (heard, changed) = &*self.heard;
        let open = |heard: &mut Heard| heard.over < connections && !heard.asked.contains(&BASIC_CANCEL);
        let (heard, waited) = changed.wait_timeout_while(heard.lock().unwrap(), PATIENCE, open).unwrap();
        assert!(!waited.timed_out(), "{} of {connections} connections are over", heard.over);
    }

    /// How often a queue began to be consumed.
    pub(crate) fn consumed(&self) -> usize {
        self.count(BASIC_CONSUME)
    }

    /// How often a consumer was cancelled.
    pub(crate) fn cancelled(&self) -> usize {
        self.count(BASIC_CANCEL)
    }

    fn count(&self, method: Method) -> usize {
        self.heard.0.lock().unwrap().asked.iter().filter(|asked| **asked == method).count()
    }
}

fn address_of(url: &str) -> &str {
    let (_, rest) = url.split_once('@').unwrap();
    rest.split('/').next().unwrap()
}

/// Until one of the two ends.
fn pass(mut from: &TcpStream, mut to: &TcpStream, mut look: impl FnMut(&[u8])) {
    let mut buffer = vec![0; 64 * 1024];
    let passed: io::Result<()> = (|| {
        loop {
            let length = from.read(&mut buffer)?;
            if length == 0 {
                return Ok(());
            }
            look(&buffer[..length]);
            to.write_all(&buffer[..length])?;
        }
    })();
    // What ended is over for both, whichever of them it was.
    drop(passed);
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// What a client sends: a greeting of 8 bytes, then frames. Type, channel, size, as much, and a last byte.
#[derive(Default)]
struct Frames {
    bytes: Vec<u8>,
    greeted: bool,
}

impl Frames {
    fn read(&mut self, bytes: &[u8]) -> Vec<Method> {
        self.bytes.extend_from_slice(bytes);
        if !self.greeted && self.bytes.len() >= 8 {
            self.bytes.drain(..8);
            self.greeted = true;
        }
        let mut methods = Vec::new();
        while self.greeted && self.bytes.len() >= 7 {
            let number = |at: usize| u16::from_be_bytes([self.bytes[at], self.bytes[at + 1]]);
            let size = 8 + (usize::from(number(3)) << 16 | usize::from(number(5)));
            if self.bytes.len() < size {
                break;
            }
            if self.bytes[0] == 1 {
                methods.push((number(7), number(9)));
            }
            self.bytes.drain(..size);
        }
        methods
    }
}
