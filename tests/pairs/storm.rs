//! A storm: every database with every broker, and one fault after the other, of every kind that the
//! pair supports, in an order from a seed. After each of them messages must flow again, and in the
//! end nothing is lost, phantom or out of order.
//!
//! All pairs together take `OUTBOX_STORM_SECONDS`: an hour with `tests/run --nightly`, which alone
//! runs it separately, and two minutes by default. `OUTBOX_STORM_SEED` repeats an order of faults.

mod fault;
mod servers;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fastrand::Rng;
use outbox_tests::kind::StoreKind::{self, MongoDb, MySql, Postgres, Sqlite};
use outbox_tests::kind::TransportKind::{self, Kafka, RabbitMq, Redis};

use crate::process::Process;
use crate::world::World;
use fault::Fault;
use servers::Servers;

/// Number of pairs.
const PAIRS: u32 = 12;

/// Maximum pause between two faults.
const MAX_PAUSE: Duration = Duration::from_secs(3);

/// Minimum number of messages between a fault and the next one.
const BEHIND: u64 = 50;

/// Pairs share the machine: one after the other, so that each has the same storm on every machine.
static ONE_AT_A_TIME: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

macro_rules! storms {
    ($($name:ident: $store:expr, $transport:expr;)*) => {$(
        #[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            storm(stringify!($name), $store, $transport).await;
        }
    )*};
}

storms! {
    sqlite_to_rabbitmq: Sqlite, RabbitMq;
    sqlite_to_kafka: Sqlite, Kafka;
    sqlite_to_redis: Sqlite, Redis;
    postgres_to_rabbitmq: Postgres, RabbitMq;
    postgres_to_kafka: Postgres, Kafka;
    postgres_to_redis: Postgres, Redis;
    mysql_to_rabbitmq: MySql, RabbitMq;
    mysql_to_kafka: MySql, Kafka;
    mysql_to_redis: MySql, Redis;
    mongodb_to_rabbitmq: MongoDb, RabbitMq;
    mongodb_to_kafka: MongoDb, Kafka;
    mongodb_to_redis: MongoDb, Redis;
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}: a number is meant")))
}

/// Returns the duration of all storms; two minutes by default.
fn seconds() -> u64 {
    if std::env::var("OUTBOX_NIGHTLY").is_ok_and(|nightly| nightly == "1") { 3_600 } else { 120 }
}

async fn storm(name: &str, store: StoreKind, transport: TransportKind) {
    let _turn = ONE_AT_A_TIME.lock().await;
    let Some(servers) = Servers::start(store, transport).await else { return };
    let lasts = Duration::from_secs(setting("OUTBOX_STORM_SECONDS").unwrap_or_else(seconds)) / PAIRS;
    let seed = setting("OUTBOX_STORM_SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("{name}: a storm of {lasts:.0?}, OUTBOX_STORM_SEED={seed}");
    let mut world = World::new(servers.pair.clone()).await;
    world.consume().await;
    world.write(4, 20);
    let mut relays = Relays::new(&servers);
    world.more(BEHIND).await;
    let mut faults = faults_in_turn(Fault::of(store, transport), Rng::with_seed(seed));
    let mut count = BTreeMap::new();
    let end = Instant::now() + lasts;
    while Instant::now() < end
        && let Some((fault, lasts)) = faults.next()
    {
        println!("{name}: {fault:?} for {lasts:.1?}");
        *count.entry(fault).or_insert(0) += 1;
        fault.happen(&servers, &mut relays, lasts).await;
        world.more(BEHIND).await;
    }
    println!("{name}: {} faults: {count:?}", count.values().sum::<u32>());
    world.finish().await;
}

/// Returns each fault once in a random order, then each again in another one; with random
/// durations.
fn faults_in_turn(kinds: Vec<Fault>, mut random: Rng) -> impl Iterator<Item = (Fault, Duration)> {
    let mut turn = Vec::new();
    std::iter::from_fn(move || {
        if turn.is_empty() {
            turn.clone_from(&kinds);
            random.shuffle(&mut turn);
        }
        Some((turn.pop()?, MAX_PAUSE.mul_f64(random.f64())))
    })
}

/// Two relays, of which one is killed or paused at a time.
pub(crate) struct Relays {
    by: outbox_tests::pair::Pair,
    all: Vec<Process>,
}

impl Relays {
    fn new(servers: &Servers) -> Self {
        let by = servers.by_proxy.clone();
        Self { all: (0..2).map(|_| Process::relay(&by)).collect(), by }
    }

    /// Kills the older one and starts another.
    fn kill(&mut self) {
        self.all.remove(0).kill();
        self.all.push(Process::relay(&self.by));
    }

    /// Pauses the older one for this long.
    async fn pause(&self, lasts: Duration) {
        self.all[0].pause();
        tokio::time::sleep(lasts).await;
        self.all[0].resume();
    }
}
