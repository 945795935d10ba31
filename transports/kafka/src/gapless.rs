//! A producer that leaves no gap: what follows a message that failed does not go out by it.
//!
//! Idempotence alone does not do that: after a message fails for good, librdkafka starts a new
//! epoch and sends the rest, later messages of the same key among them. `enable.gapless.guarantee`
//! makes such a failure fatal; but a producer that failed once may also hold back everything else
//! without a word. So this one is closed at its first failure, and another takes its place.

use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use outbox_contract::{Topic, TransportError, TransportErrorKind};
use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;
use rdkafka::message::{DeliveryResult, Message as _, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer, ProducerContext, PurgeConfig};
use rdkafka::types::RDKafkaErrorCode;
use tokio::sync::watch;

use crate::config::{Config, not_taken};
use crate::connection_error::ConnectionError;
use crate::context::Events;
use crate::flight::{Flight, Flights, Heard, Ticket};
use crate::record::Record;
use crate::send_queue::{HandedOver, Parcel, SendQueue};
use crate::under_way::Ahead;

/// Time for which a partition counts as one whose broker knows this producer, after its last
/// acknowledgement. Brokers forget an idle producer after `producer.id.expiration.ms`: a day by
/// default, and no sensible setting is below this.
const WARM: Duration = Duration::from_secs(600);

/// Interval at which the thread of a producer looks whether it shall end. Reports do not wait for
/// it.
const LOOK: Duration = Duration::from_secs(1);

/// A partition of a topic.
pub(crate) type Partition = (Topic, i32);

/// One life of the producer. Closed at its first failure, for good.
pub(crate) struct Gapless {
    client: Arc<BaseProducer<Reports>>,
    warm: Mutex<HashMap<Partition, Instant>>,
    leads: Mutex<HashMap<Partition, Arc<tokio::sync::Mutex<()>>>>,
    over: Arc<AtomicBool>,
}

/// Receiver of the client library's reports.
struct Reports {
    events: Events,
    flights: Flights,
    gate: Gate,
    /// True if failures close the producer.
    closes: bool,
    /// The client that reports: what waits for a report is handed over when it comes.
    client: OnceLock<Weak<BaseProducer<Self>>>,
}

/// Open until the first failure. Held while messages are handed over, so that none is after a
/// purge: it would go out without the purged ones before it.
#[derive(Debug)]
struct Gate {
    /// Whose turn it is on each partition. None: closed.
    queue: Mutex<Option<SendQueue>>,
    broken: watch::Sender<bool>,
}

impl Gate {
    fn lock(&self) -> MutexGuard<'_, Option<SendQueue>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) {
        let queue = self.lock().take();
        self.broken.send_replace(true);
        for parcel in queue.into_iter().flat_map(|mut queue| queue.clear()) {
            parcel.flight.handed_over(0);
        }
    }
}

impl ClientContext for Reports {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, words: &str) {
        self.events.log(level, facility, words);
    }

    fn stats(&self, statistics: rdkafka::Statistics) {
        self.events.stats(statistics);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        if self.closes && error.rdkafka_error_code() == Some(RDKafkaErrorCode::Fatal) {
            self.gate.close();
        }
        self.events.error(error, reason);
    }
}

impl ProducerContext for Reports {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, ticket: usize) {
        let heard = match result {
            // A broker that lost its memory of the producer takes any first number; then a message
            // whose request failed is reported as persisted, with no offset, and is not in the log.
            Ok(message) if message.offset() < 0 => Heard::WithoutOffset,
            Ok(_) => Heard::Acknowledged,
            Err((error, _)) => Heard::Failed(error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown)),
        };
        if heard == Heard::Acknowledged {
            self.events.clear();
        } else if self.closes {
            self.gate.close();
        }
        // Failures of a producer for single messages leave it as it is; there, none waits for
        // another.
        if let Some(flight) = self.flights.heard(Ticket(ticket), heard)
            && self.closes
        {
            self.turn_over(&flight);
        }
    }
}

impl Reports {
    /// All of a flight has been reported: hands over what waits for it.
    fn turn_over(&self, flight: &Flight) {
        let Some(client) = self.client.get().and_then(Weak::upgrade) else { return };
        let mut gate = self.gate.lock();
        let Some(queue) = gate.as_mut() else { return };
        let refused = queue.go_on(flight.partition(), flight.len(), |Parcel { number, flight, records }| {
            hand_over(&client, number, &flight, records)
        });
        drop(gate);
        if refused {
            self.gate.close();
        }
    }
}

/// Hands messages of a flight over, in order, and stops at the first that is refused.
fn hand_over<R: Borrow<Record>>(
    client: &BaseProducer<Reports>,
    number: usize,
    flight: &Arc<Flight>,
    records: impl IntoIterator<Item = (R, OwnedHeaders)>,
) -> HandedOver {
    let flights = &client.context().flights;
    flights.sending(flight);
    let mut count = 0;
    let mut refused = false;
    for (slot, (record, headers)) in records.into_iter().enumerate() {
        let record: &Record = record.borrow();
        count += 1;
        let ticket = Flights::ticket(number, slot);
        let mut message = BaseRecord::with_opaque_to(record.topic().as_str(), ticket.0)
            .partition(record.partition)
            .headers(headers);
        if let Some(payload) = record.payload() {
            message = message.payload(payload);
        }
        if let Some(key) = record.key() {
            message = message.key(key.as_str());
        }
        if let Err((error, _)) = client.send(message) {
            let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown);
            flight.heard(slot, Heard::Failed(code));
            refused = true;
            break;
        }
    }
    match (refused, flights.handed_over(flight, count)) {
        (true, _) => HandedOver::Refused,
        (false, true) => HandedOver::Reported,
        (false, false) => HandedOver::All,
    }
}

impl Gapless {
    /// A producer that leaves no gap, with batches of so many bytes. `lingers`: whether it waits for
    /// more messages. Connects by itself.
    pub(crate) fn new(config: &Config, batch_bytes: usize, lingers: bool) -> Result<Self, TransportError> {
        Self::with_client(&config.gapless(batch_bytes, lingers), true)
    }

    /// A producer for single messages, which failures do not close.
    pub(crate) fn for_single_messages(config: &Config) -> Result<Self, TransportError> {
        Self::with_client(&config.alone(), false)
    }

    fn with_client(config: &rdkafka::ClientConfig, closes: bool) -> Result<Self, TransportError> {
        let max_bytes = config.get("batch.size").and_then(|bytes| bytes.parse().ok()).unwrap_or(usize::MAX);
        let gate =
            Gate { queue: Mutex::new(Some(SendQueue::new(max_bytes))), broken: watch::Sender::new(false) };
        let (events, flights) = (Events::default(), Flights::default());
        let reports = Reports { events, flights, gate, closes, client: OnceLock::new() };
        let client: BaseProducer<Reports> =
            config.create_with_context(reports).map_err(|error| not_taken("build", error))?;
        let (client, over) = (Arc::new(client), Arc::new(AtomicBool::new(false)));
        // Nothing is reported before something was sent.
        let _ = client.context().client.set(Arc::downgrade(&client));
        let polled = (Arc::clone(&client), Arc::clone(&over));
        let thread = std::thread::Builder::new().name("outbox-kafka-reports".to_owned());
        thread.spawn(move || poll(&polled.0, &polled.1)).map_err(|error| {
            TransportError::new(TransportErrorKind::Other, "build", "could not start the producer's thread")
                .with_source(error)
        })?;
        Ok(Self { client, warm: Mutex::default(), leads: Mutex::default(), over })
    }

    fn reports(&self) -> &Reports {
        self.client.context()
    }

    /// The client, for questions about topics.
    pub(crate) fn client(&self) -> &rdkafka::client::Client<impl ClientContext + use<>> {
        self.client.client()
    }

    /// Last error of its connections.
    pub(crate) fn trouble(&self) -> Option<ConnectionError> {
        self.reports().events.last()
    }

    /// Waits until something is wrong with its connections that does not pass by waiting, and no
    /// broker has answered for a moment.
    pub(crate) async fn lasting_trouble(&self) -> ConnectionError {
        self.reports().events.lasting().await
    }

    /// The broker has answered: what was wrong with its connections is over.
    pub(crate) fn answered(&self) {
        self.reports().events.clear();
    }

    /// Why the broker lets this client do nothing at all, if that is how it ended. A client that
    /// ended stays so, whatever is granted later.
    pub(crate) fn refused(&self) -> Option<ConnectionError> {
        let (code, words) = self.client.client().fatal_error()?;
        Some(ConnectionError { code, words }).filter(ConnectionError::is_refusal)
    }

    /// Sends messages of one partition, in order, up to the first that is refused: at once, or when
    /// those of the same partition that are under way are reported. Nothing is handed over once the
    /// producer is closed.
    pub(crate) fn send(&self, records: &[&Record], flight: &Arc<Flight>) -> Sent<'_> {
        let reports = self.reports();
        let number = reports.flights.add(flight);
        let sent = Sent { flights: &reports.flights, number, flight: Arc::clone(flight) };
        // Made before they are handed over: what takes longer than the client lingers goes out in
        // two requests, the second after the first.
        let headers: Vec<OwnedHeaders> = records.iter().map(|record| record.headers()).collect();
        let mut gate = reports.gate.lock();
        let Some(queue) = gate.as_mut() else {
            flight.handed_over(0);
            return sent;
        };
        if reports.closes && !queue.take(flight.partition(), records.len()) {
            let records = records.iter().map(|record| (*record).clone()).zip(headers).collect();
            queue.wait(Parcel { number, flight: Arc::clone(flight), records });
            return sent;
        }
        let handed_over = hand_over(&self.client, number, flight, records.iter().copied().zip(headers));
        drop(gate);
        match handed_over {
            HandedOver::Refused if reports.closes => reports.gate.close(),
            HandedOver::Reported if reports.closes => reports.turn_over(flight),
            _ => {}
        }
        sent
    }

    /// Returns what stands before the next answer of each partition to which something is under
    /// way.
    pub(crate) fn ahead(&self) -> BTreeMap<Partition, Ahead> {
        self.reports().flights.ahead()
    }

    /// Returns true if nothing is queued or under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.client.in_flight_count() == 0
    }

    /// Waits until the producer has failed or was closed.
    pub(crate) async fn broken(&self) {
        let mut broken = self.reports().gate.broken.subscribe();
        // The sender lives as long as this producer.
        let _ = broken.wait_for(|broken| *broken).await;
    }

    /// Returns true if it has failed or was closed.
    pub(crate) fn is_broken(&self) -> bool {
        *self.reports().gate.broken.borrow()
    }

    /// Takes nothing more.
    pub(crate) fn close(&self) {
        self.reports().gate.close();
    }

    /// Gives up what is queued and under way: all of it is reported. Blocks for some milliseconds.
    pub(crate) fn purge(&self) {
        self.client.purge(PurgeConfig::default().queue().inflight());
    }

    /// Returns true if the broker of a partition knows this producer: it has lately acknowledged
    /// something, with an offset.
    pub(crate) fn is_warm(&self, partition: &Partition) -> bool {
        self.warm().get(partition).is_some_and(|since| since.elapsed() < WARM)
    }

    /// The broker of a partition has acknowledged something, with an offset.
    pub(crate) fn warmed(&self, partition: &Partition) {
        let mut warm = self.warm();
        match warm.get_mut(partition) {
            Some(since) => *since = Instant::now(),
            None => drop(warm.insert(partition.clone(), Instant::now())),
        }
    }

    fn warm(&self) -> MutexGuard<'_, HashMap<Partition, Instant>> {
        self.warm.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Held while the first message of a cold partition is under way.
    pub(crate) fn lead(&self, partition: &Partition) -> Arc<tokio::sync::Mutex<()>> {
        let mut leads = self.leads.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(leads.entry(partition.clone()).or_default())
    }
}

impl Drop for Gapless {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for Gapless {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gapless").field("broken", &self.is_broken()).finish_non_exhaustive()
    }
}

/// Messages that were handed over. When it goes, later reports of them go nowhere.
pub(crate) struct Sent<'a> {
    flights: &'a Flights,
    number: usize,
    flight: Arc<Flight>,
}

impl Sent<'_> {
    /// Waits until all of it has been reported.
    pub(crate) async fn done(&self) {
        self.flight.done().await;
    }
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        self.flights.remove(self.number);
    }
}

/// The thread of a producer: passes reports on as they come. The client ends here, as its end
/// blocks for a while.
fn poll(client: &Arc<BaseProducer<Reports>>, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        client.poll(LOOK);
    }
    while Arc::strong_count(client) > 1 {
        client.poll(LOOK / 20);
    }
}
