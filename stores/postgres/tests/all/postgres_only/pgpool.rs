//! Pgpool-II that sends reads to a standby whose replay is paused: what the store reads there would
//! be old, so it reads nothing there.

use std::time::Duration;

use outbox_contract::admin::{Filter, HandledFilter};
use outbox_contract::backend::{BucketSet, FetchRequest, RelayId};
use outbox_contract::{Admin, AdminExt, Route, Store, StoreErrorKind};
use outbox_servers::{OrSkip, Pgpool, PgpoolServer, Postgres, PostgresServer};
use outbox_store_postgres::PostgresStore;

use super::pooler::whole_way;
use super::support::{LONG, append, due_request, fetch, message, messages, open, options, relay};

/// A primary, a standby, and a pool that sends every read to the standby.
struct Spread {
    primary: PostgresServer,
    standby: PostgresServer,
    pooler: PgpoolServer,
}

impl Spread {
    /// None: there is no server, and the test skips.
    fn with(config: &[&str]) -> Option<Self> {
        let primary = Postgres::newest().config("log_statement = 'all'").start().or_skip()?;
        let standby = primary.standby().or_skip()?;
        let pooler = config.iter().fold(Pgpool::new(&primary, &standby), |pooler, line| pooler.config(line));
        let pooler = pooler.start().or_skip()?;
        let spread = Self { primary, standby, pooler };
        let asked =
            spread.primary.query(&spread.url(), "select pg_is_in_recovery() or current_setting('port') = ''");
        assert_eq!(asked, "f", "a volatile function is called on the primary");
        let port = spread.primary.query(&spread.url(), "-- A comment.\nselect current_setting('port')");
        assert_eq!(port, spread.standby.tcp_port().to_string(), "other reads go to the standby");
        Some(spread)
    }

    fn url(&self) -> String {
        self.pooler.url(&self.primary.url())
    }

    async fn store(&self) -> PostgresStore {
        open(&self.url(), options()).await
    }

    /// Waits until the standby has everything, and stops its replay there.
    async fn pause(&self) {
        let written = self.primary.query(&self.primary.url(), "select pg_current_wal_lsn()");
        let replayed = format!("select pg_last_wal_replay_lsn() >= '{written}'");
        self.until_standby(&replayed, "t").await;
        self.standby.query(&self.standby.url(), "select pg_wal_replay_pause()");
        self.until_standby("select pg_get_wal_replay_pause_state()", "paused").await;
    }

    async fn until_standby(&self, sql: &str, answer: &str) {
        let waiting = async {
            while self.standby.query(&self.standby.url(), sql) != answer {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(LONG, waiting).await.unwrap_or_else(|_| panic!("never {answer}: {sql}"));
    }

    /// Statements that named a table or a function of the outbox, in the log of the standby.
    fn asked_of_standby(&self) -> Vec<String> {
        self.standby.log().lines().filter(|line| line.contains("outbox_")).map(str::to_owned).collect()
    }
}

/// Every read of operators and of measurements.
async fn look_at_everything(store: &PostgresStore) {
    let (all, route) = (Filter::all_routes(), Route::default());
    store.waiting(&all).await.unwrap();
    store.parked(&all).await.unwrap();
    store.dead_letters(&all).await.unwrap();
    store.history(&all).await.unwrap();
    store.scheduled(&all).await.unwrap();
    store.failing_keys(&all).await.unwrap();
    store.audit(&all).await.unwrap();
    store.ownership(&route).await.unwrap();
    store.routes().await.unwrap();
    store.topics(&route).await.unwrap();
    store.unserved(Duration::ZERO).await.unwrap();
    store.identity().await.unwrap();
    store.due(&due_request(RelayId::new())).await.unwrap();
    store.count_handled(&HandledFilter::of("inventory").unwrap()).await.unwrap();
    assert!(store.misplaced().await.unwrap().is_empty());
}

/// A small and a large message: the content of the large one is read by a statement of its own.
async fn small_and_large(store: &PostgresStore) {
    let relay = relay(store).await;
    let sizes = [1_024, 100_000];
    append(store, sizes.map(|size| message("a").with_payload(vec![b'x'; size]))).await;
    assert_eq!(store.backlog(&Route::default()).await.unwrap().pending, 2);
    let read = messages(&fetch(store, relay).await);
    assert_eq!(read.iter().map(|stored| stored.message.payload.len()).collect::<Vec<_>>(), sizes);
    let rows: Vec<_> = read.iter().map(|stored| stored.row()).collect();
    store.settle(&Route::default(), &rows).await.unwrap();
    assert_eq!(store.backlog(&Route::default()).await.unwrap().pending, 0);
    store.give_back(relay, &Route::default(), &[], &Default::default(), true).await.unwrap();
}

async fn nothing_is_read_at_the_standby(config: &[&str]) {
    let Some(spread) = Spread::with(config) else { return };
    let store = spread.store().await;
    store.migrate().await.unwrap();
    store.check().await.unwrap();
    spread.pause().await;
    small_and_large(&spread.store().await).await;
    whole_way(&spread.store().await).await;
    look_at_everything(&store).await;
    assert_eq!(spread.asked_of_standby(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_pooler_that_spreads_reads_nothing_is_read_at_a_standby() {
    nothing_is_read_at_the_standby(&[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_pooler_that_spreads_every_statement_nothing_is_read_at_a_standby() {
    let config = ["statement_level_load_balance = on", "disable_load_balance_on_write = 'off'"];
    nothing_is_read_at_the_standby(&config).await;
}

/// As the book says it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_pooler_that_is_told_which_functions_write_nothing_is_read_at_a_standby() {
    nothing_is_read_at_the_standby(&["write_function_list = 'outbox_.*,pg_is_in_recovery'"]).await;
}

/// A standby that has no tables yet does not make the outbox one that was never migrated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outbox_that_the_standby_does_not_know_yet_is_found_at_the_primary() {
    let Some(spread) = Spread::with(&[]) else { return };
    spread.pause().await;
    let store = spread.store().await;
    store.migrate().await.unwrap();
    store.migrate().await.unwrap();
    store.check().await.unwrap();
    small_and_large(&store).await;
}

/// Pgpool can be told which functions write, and then asks a standby for all others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_that_sends_the_stores_reads_to_a_standby_is_refused() {
    let Some(spread) = Spread::with(&[]) else { return };
    let store = spread.store().await;
    store.migrate().await.unwrap();
    append(&store, [message("a").with_payload(vec![b'x'; 100_000])]).await;
    spread.pause().await;
    let pooler = Pgpool::new(&spread.primary, &spread.standby).config("write_function_list = 'nextval'");
    let pooler = pooler.start().unwrap();
    let misled = open(&pooler.url(&spread.primary.url()), options()).await;
    let request = FetchRequest::new(Route::default(), RelayId::new(), BucketSet::ALL);
    let refused = [misled.check().await.map(drop), misled.fetch(&request).await.map(drop)];
    for refused in refused {
        let refused = refused.unwrap_err();
        assert_eq!(refused.kind(), StoreErrorKind::Unavailable, "{refused}");
        assert!(refused.to_string().contains("load_balance_mode"), "{refused}");
    }
}
