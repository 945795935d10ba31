//! Cost of an append for its transaction, and cost of waking relays for writers.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use outbox_contract::{Message, Outbox};
use outbox_store_postgres::PostgresStore;
use serde::{Deserialize, Serialize};
use sqlx::postgres::PgConnection;

use crate::bench::{Bench, KEYS};
use crate::child::{Child, Done, finished, measured, ready, tell};
use crate::ours::{silent_store, store, topic};
use crate::report::Table;
use crate::role::Role;
use crate::stats::median;

/// Transactions to write.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Append {
    pub(crate) store: String,
    pub(crate) variant: Variant,
    pub(crate) seconds: u64,
}

/// Addition to a transaction's four statements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Variant {
    /// Nothing.
    Plain,
    /// A statement that does nothing: a round trip.
    RoundTrip,
    /// A row like a message's in a table like the outbox's, with the next number of a sequence: no
    /// key is locked, and no relay reads it. It is the lower bound of an append.
    Insert,
    /// A message.
    Message,
    /// A message, without a wake-up.
    Silent,
}

const WRITERS: u64 = 8;
const VARIANTS: [(Variant, &str); 5] = [
    (Variant::Plain, "four statements"),
    (Variant::RoundTrip, "and `select 1`"),
    (Variant::Insert, "and a plain insert of as much"),
    (Variant::Message, "and an append"),
    (Variant::Silent, "and an append, wake-up off"),
];

impl Append {
    pub(crate) async fn play(self) {
        let silent = self.variant == Variant::Silent;
        let store = if silent { silent_store(&self.store).await } else { store(&self.store).await };
        ready().await;
        let until = Instant::now() + Duration::from_secs(self.seconds);
        let mut written = 0;
        let done = measured(0, async {
            let writers =
                (0..WRITERS).map(|number| tokio::spawn(write(store.clone(), self.variant, number, until)));
            for writer in join_all(writers).await {
                written += writer.expect("a writer does not panic").expect("the database answers");
            }
        });
        let done = done.await;
        tell(&Done { messages: written, ..done });
        finished().await;
    }
}

async fn write(
    store: PostgresStore,
    variant: Variant,
    number: u64,
    until: Instant,
) -> Result<u64, sqlx::Error> {
    let outbox = Outbox::new(store.clone());
    let mut written = 0;
    while Instant::now() < until {
        let mut tx = store.pool().begin().await?;
        let insert = "insert into business (body) values ('x') returning id";
        let id: i64 = sqlx::query_scalar(insert).fetch_one(&mut *tx).await?;
        let update = sqlx::query("update business set body = 'y' where id = $1");
        update.bind(id).execute(&mut *tx).await?;
        let select = sqlx::query("select body from business where id = $1");
        select.bind(id).fetch_one(&mut *tx).await?;
        let insert = "insert into business (body) values ('z')";
        sqlx::query(insert).execute(&mut *tx).await?;
        match variant {
            Variant::Plain => {}
            Variant::RoundTrip => {
                sqlx::query("select 1").execute(&mut *tx).await?;
            }
            Variant::Insert => insert_plainly(&mut tx, &message(written * WRITERS + number)).await?,
            Variant::Message | Variant::Silent => {
                let message = message(written * WRITERS + number);
                outbox.append_message(&mut tx, message).await.expect("appended");
            }
        }
        tx.commit().await?;
        written += 1;
    }
    Ok(written)
}

fn message(number: u64) -> Message {
    let message = Message::new(topic(), "bench.made").expect("valid names").with_payload(vec![b'x'; 300]);
    message.with_key(format!("key-{}", number % KEYS)).expect("a valid key")
}

const PLAIN_TABLE: &str = "
    create table plain (like outbox_message including all);
    create sequence plain_position;
    alter table plain alter position set default nextval('plain_position')";

async fn insert_plainly(connection: &mut PgConnection, message: &Message) -> Result<(), sqlx::Error> {
    let insert = "insert into plain (id, bucket, topic, key, event_type, occurred_at, payload)
                  values ($1, 7, 'bench', $2, 'bench.made', 1, $3)";
    let insert = sqlx::query(insert).bind(message.id.as_uuid()).bind(message.order_key().as_str());
    insert.bind(&message.payload[..]).execute(connection).await?;
    Ok(())
}

pub(crate) fn run(bench: &mut Bench) {
    let (seconds, repetitions) = bench.profile.pick((3, 2), (10, 5));
    let mut runs: Vec<Vec<(f64, f64)>> = vec![Vec::new(); VARIANTS.len()];
    let store = bench.store();
    bench.postgres().query(&store, PLAIN_TABLE);
    for repetition in 1..=repetitions {
        for ((variant, label), runs) in VARIANTS.iter().zip(&mut runs) {
            bench.say(format!("append {repetition}/{repetitions}: {label}"));
            let mut child =
                Child::start(&Role::Append(Append { store: store.clone(), variant: *variant, seconds }));
            let before = bench.postgres().usage().cpu;
            child.go();
            let done: Done = child.done();
            let database = (bench.postgres().usage().cpu - before).as_secs_f64();
            runs.push((done.messages as f64 / done.seconds, database * 1e6 / done.messages as f64));
        }
    }
    let about =
        format!("{WRITERS} writers, {seconds} s each, written through to the disk; medians of {repetitions}");
    let mut table = Table::new("append", about, &["transactions/s", "database us"]);
    for ((_, label), runs) in VARIANTS.iter().zip(&runs) {
        let of = |figure: fn(&(f64, f64)) -> f64| median(&runs.iter().map(figure).collect::<Vec<_>>());
        table.row(*label, [of(|run| run.0), of(|run| run.1)]);
    }
    bench.report(table);
}
