//! Findings about the server, each made to happen on a real one.

use std::time::Duration;

use outbox_contract::admin::{Diagnosis, DiagnosisKind};
use outbox_contract::{Admin, Store};
use outbox_servers::{OrSkip, Postgres, PostgresServer};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, Connection};

use crate::PostgresStore;
use crate::diagnose::{LIMITS, Limits, find};
use crate::diagnose_history;

/// Longer than any wait of a test, even on a slow machine.
const LONG: Duration = Duration::from_secs(120);

/// Limits that everything is over.
const NONE: Limits =
    Limits { transaction: Duration::ZERO, slot: 0, overdue: 0, vacuumed: Duration::from_secs(600), file: 1 };

/// A migrated database.
struct Place {
    url: String,
    connection: PgConnection,
}

impl Place {
    async fn on(server: &PostgresServer) -> Self {
        let url = server.fresh_database();
        let store = PostgresStore::connect(&url).await.unwrap();
        store.migrate().await.unwrap();
        store.pool().close().await;
        let connection = PgConnection::connect(&url).await.unwrap();
        Self { url, connection }
    }

    async fn shared() -> Option<Self> {
        Some(Self::on(&Postgres::newest().shared().or_skip()?).await)
    }

    async fn another(&self) -> PgConnection {
        PgConnection::connect(&self.url).await.unwrap()
    }

    async fn run(&mut self, statements: &str) {
        run(&mut self.connection, statements).await;
    }

    /// Returns the texts of findings of a kind.
    async fn found(&mut self, kind: DiagnosisKind, limits: Limits) -> Vec<String> {
        of_kind(&mut self.connection, kind, limits).await
    }

    /// Waits until a finding has this text: the server counts with a delay.
    async fn until(&mut self, kind: DiagnosisKind, limits: Limits, text: &str) -> String {
        let waiting = async {
            loop {
                let found = self.found(kind, limits).await;
                if let Some(found) = found.into_iter().find(|found| found.contains(text)) {
                    return found;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(LONG, waiting).await.unwrap_or_else(|_| panic!("never found: {text}"))
    }

    /// Makes and removes rows of the hot table, without its triggers.
    async fn removed(&mut self, rows: u32, payload: &str) {
        self.run(&format!(
            "set session_replication_role = replica; \
             insert into outbox_message (position, bucket, topic, event_type, payload) \
             select n, 0, 'orders', 'x', convert_to({payload}, 'UTF8') from generate_series(1, {rows}) n; \
             delete from outbox_message"
        ))
        .await;
    }
}

async fn run(connection: &mut PgConnection, statements: &str) {
    sqlx::raw_sql(AssertSqlSafe(statements.to_owned())).execute(connection).await.unwrap();
}

async fn of_kind(connection: &mut PgConnection, kind: DiagnosisKind, limits: Limits) -> Vec<String> {
    let found: Vec<Diagnosis> = find(connection, None, limits).await.unwrap();
    let found = found.into_iter().filter(|found| found.kind == kind);
    found.map(|Diagnosis { text, remedy, .. }| format!("{text} / {remedy}")).collect()
}

#[tokio::test]
async fn a_healthy_server_has_no_finding_and_one_that_may_lose_commits_has() {
    let Some(server) = Postgres::newest().durable().start().or_skip() else { return };
    let url = server.fresh_database();
    let store = PostgresStore::connect(&url).await.unwrap();
    store.migrate().await.unwrap();
    assert_eq!(store.diagnose().await.unwrap(), []);
    let database = url.rsplit('/').next().unwrap();
    let mut connection = PgConnection::connect(&url).await.unwrap();
    run(&mut connection, &format!("alter database \"{database}\" set synchronous_commit = off")).await;
    let found = PostgresStore::connect(&url).await.unwrap().diagnose().await.unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].kind, DiagnosisKind::Durability);
    assert!(found[0].text.contains("synchronous_commit is off"), "{found:?}");
}

#[tokio::test]
async fn a_server_without_fsync_or_autovacuum_is_found() {
    let Some(server) = Postgres::newest().config("autovacuum = off").start().or_skip() else { return };
    let mut place = Place::on(&server).await;
    let durability = place.found(DiagnosisKind::Durability, LIMITS).await;
    assert!(durability.len() == 1 && durability[0].contains("fsync is off"), "{durability:?}");
    let bloat = place.found(DiagnosisKind::Bloat, LIMITS).await;
    assert!(bloat.len() == 1 && bloat[0].contains("autovacuum is off: "), "{bloat:?}");
}

#[tokio::test]
async fn a_table_whose_autovacuum_is_off_is_found_with_its_dead_rows() {
    let Some(mut place) = Place::shared().await else { return };
    assert!(place.found(DiagnosisKind::Bloat, LIMITS).await.is_empty());
    place.run("alter table outbox_message set (autovacuum_enabled = off)").await;
    place.removed(500, "'{}'").await;
    let text = "autovacuum is off for outbox_message, which has 500 dead rows beside 0";
    place.until(DiagnosisKind::Bloat, LIMITS, text).await;
    place.run("alter table outbox_message reset (autovacuum_enabled)").await;
    assert!(place.found(DiagnosisKind::Bloat, LIMITS).await.is_empty());
}

#[tokio::test]
async fn a_table_that_vacuum_has_left_behind_is_found_until_it_is_vacuumed() {
    let Some(mut place) = Place::shared().await else { return };
    place.removed(500, "'{}'").await;
    let limits = Limits { file: i64::MAX, ..NONE };
    let text = "outbox_message has 500 dead rows beside 0; it was never vacuumed";
    let found = place.until(DiagnosisKind::Bloat, limits, text).await;
    assert!(found.contains("/ vacuum outbox_message; autovacuum is behind"), "{found}");
    assert!(place.found(DiagnosisKind::Bloat, LIMITS).await.is_empty(), "autovacuum does not begin yet");
    place.removed(500, "'{}'").await;
    place.run("vacuum outbox_message").await;
    assert!(place.found(DiagnosisKind::Bloat, limits).await.is_empty());
}

#[tokio::test]
async fn a_table_and_an_index_that_are_too_large_for_their_rows_are_found() {
    let Some(mut place) = Place::shared().await else { return };
    place.run("alter table outbox_message alter payload set storage external").await;
    place.removed(4_000, "repeat('x', 1000)").await;
    place.removed(100, "repeat('x', 100000)").await;
    place.run("vacuum outbox_message").await;
    let limits = Limits { file: 64 << 10, overdue: i64::MAX, ..NONE };
    let found = place.found(DiagnosisKind::Bloat, limits).await;
    let is_found =
        |begins: &str, ends: &str| found.iter().any(|text| text.starts_with(begins) && text.ends_with(ends));
    assert_eq!(found.len(), 4, "{found:?}");
    let quiet = "while no relay runs and nothing is appended";
    assert!(is_found("outbox_message takes 5 MiB for 0 rows / ", quiet), "{found:?}");
    assert!(is_found("outbox_message (long values) takes 10 MiB for 0 rows / ", quiet), "{found:?}");
    let index = "the index outbox_message_pkey of outbox_message takes 1 MiB for 0 rows / ";
    assert!(is_found(index, "reindex index concurrently outbox_message_pkey, in quiet hours"), "{found:?}");
    // The index of the table of long values.
    assert!(
        is_found("the index pg_toast_", "reindex table concurrently outbox_message, in quiet hours"),
        "{found:?}"
    );
    place.run("vacuum full outbox_message").await;
    assert!(place.found(DiagnosisKind::Bloat, limits).await.is_empty());
}

#[tokio::test]
async fn the_oldest_transaction_that_holds_back_vacuum_is_found() {
    let Some(mut place) = Place::shared().await else { return };
    let mut other = place.another().await;
    let pid: i32 = sqlx::query_scalar("select pg_backend_pid()").fetch_one(&mut other).await.unwrap();
    run(&mut other, "set application_name = 'report'; begin isolation level repeatable read").await;
    // Without a snapshot, nothing is held back.
    assert!(place.found(DiagnosisKind::Cleanup, NONE).await.is_empty());
    run(&mut other, "select 1").await;
    let found = place.found(DiagnosisKind::Cleanup, NONE).await;
    assert_eq!(found.len(), 1, "{found:?}");
    let session = format!("session {pid} (role postgres, application report, idle in transaction) has had");
    assert!(found[0].starts_with(&session), "{found:?}");
    assert!(found[0].contains(&format!("pg_terminate_backend({pid})")), "{found:?}");
    assert!(place.found(DiagnosisKind::Cleanup, LIMITS).await.is_empty(), "it is young");
    run(&mut other, "rollback").await;
    assert!(place.found(DiagnosisKind::Cleanup, NONE).await.is_empty());
}

#[tokio::test]
async fn a_prepared_transaction_that_nobody_ends_is_found() {
    let Some(mut place) = Place::shared().await else { return };
    let gid = format!("it''s {}", std::process::id());
    place
        .run(&format!("begin; select outbox_now(), pg_current_xact_id(); prepare transaction '{gid}'"))
        .await;
    let found = place.found(DiagnosisKind::Cleanup, NONE).await;
    assert!(place.found(DiagnosisKind::Cleanup, LIMITS).await.is_empty(), "it is young");
    place.run(&format!("rollback prepared '{gid}'")).await;
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("a transaction of postgres has been prepared for "), "{found:?}");
    assert!(found[0].ends_with(&format!("rollback prepared '{gid}'")), "{found:?}");
    assert!(place.found(DiagnosisKind::Cleanup, NONE).await.is_empty());
}

#[tokio::test]
async fn a_replication_slot_whose_standby_is_gone_is_found() {
    let Some(server) = Postgres::newest().start().or_skip() else { return };
    let Some(standby) = server.standby().or_skip() else { return };
    let mut place = Place::on(&server).await;
    place.run("select pg_create_physical_replication_slot('follower')").await;
    assert!(place.found(DiagnosisKind::Cleanup, LIMITS).await.is_empty(), "it holds nothing yet");
    let mut there = PgConnection::connect(&standby.url()).await.unwrap();
    for setting in ["primary_slot_name = 'follower'", "hot_standby_feedback = on"] {
        run(&mut there, &format!("alter system set {setting}")).await;
    }
    run(&mut there, "select pg_reload_conf()").await;
    // In use, and of no age.
    place.until(DiagnosisKind::Cleanup, Limits { slot: -1, ..LIMITS }, "slot follower (in use)").await;
    assert!(place.found(DiagnosisKind::Cleanup, LIMITS).await.is_empty());
    drop(there);
    drop(standby);
    let found = place.until(DiagnosisKind::Cleanup, LIMITS, "slot follower (unused)").await;
    assert!(found.ends_with("select pg_drop_replication_slot('follower')"), "{found}");
}

#[tokio::test]
async fn a_role_that_may_not_see_the_transactions_of_others_is_told_so() {
    let Some(mut place) = Place::shared().await else { return };
    let role = format!("diagnoses_{}", std::process::id());
    place.run(&format!("create role {role} login")).await;
    let mut other = place.another().await;
    run(&mut other, "begin isolation level repeatable read; select 1").await;
    let options: PgConnectOptions = place.url.parse().unwrap();
    let mut low = PgConnection::connect_with(&options.username(&role)).await.unwrap();
    let unseen = of_kind(&mut low, DiagnosisKind::Unseen, NONE).await;
    assert_eq!(unseen.len(), 1, "{unseen:?}");
    assert!(unseen[0].contains(&format!("2 sessions of other roles is hidden from {role}")), "{unseen:?}");
    assert!(unseen[0].contains(&format!("grant pg_read_all_stats to {role}")), "{unseen:?}");
    assert!(of_kind(&mut low, DiagnosisKind::Cleanup, NONE).await.is_empty());
    assert!(place.found(DiagnosisKind::Unseen, NONE).await.is_empty(), "a superuser sees all");
    place.run(&format!("grant pg_read_all_stats to {role}")).await;
    assert!(of_kind(&mut low, DiagnosisKind::Unseen, NONE).await.is_empty());
    assert_eq!(of_kind(&mut low, DiagnosisKind::Cleanup, NONE).await.len(), 1);
}

#[tokio::test]
async fn partitions_of_the_history_that_are_missing_or_over_are_found_until_a_turn() {
    let Some(mut place) = Place::shared().await else { return };
    let texts = async |place: &mut Place, kept: Option<Duration>, max_rest: i64| {
        let found = diagnose_history::find(&mut place.connection, None, kept, max_rest).await.unwrap();
        found.into_iter().map(|it| format!("{} / {}", it.text, it.remedy)).collect::<Vec<_>>()
    };
    let week = Some(Duration::from_secs(7 * 86_400));
    assert_eq!(texts(&mut place, week, 0).await, [""; 0], "nothing was delivered");
    place
        .run(
            "insert into outbox_history (position, occurred_at, appended_at, delivered_at, schema_version, id, bucket, route, topic, order_key, \
                                         event_type, content_type, headers, payload) \
             select n, 0, 0, outbox_now() - n * 20 * 60000000::bigint, 1, gen_random_uuid(), 0, 'default', 'orders', 'a', 'x', 't', '', '' \
             from generate_series(0, 1) n",
        )
        .await;
    for kept in [week, None] {
        let found = texts(&mut place, kept, i64::MAX).await;
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].starts_with("outbox_history has no partition for what is delivered now"),
            "{found:?}"
        );
        assert!(found[0].contains("as role postgres, which owns outbox_history"), "{found:?}");
    }
    let too_large = texts(&mut place, week, 0).await;
    assert_eq!(too_large.len(), 2, "{too_large:?}");
    assert!(too_large[1].ends_with("select outbox_turn_history(604800000000, null)"), "{too_large:?}");
    place.run("select outbox_turn_history(604800000000, null)").await;
    assert_eq!(texts(&mut place, week, i64::MAX).await, [""; 0]);

    let old = "create table outbox_history_1000_2000 partition of outbox_history for values from (1000000000) to (2000000000)";
    place.run(old).await;
    let found = texts(&mut place, week, i64::MAX).await;
    assert!(found.len() == 1 && found[0].contains("not dropped: outbox_history_1000_2000 /"), "{found:?}");
    assert_eq!(texts(&mut place, None, i64::MAX).await, [""; 0], "the retention is not known");
    place.run("select outbox_turn_history(604800000000, null)").await;
    assert_eq!(texts(&mut place, week, i64::MAX).await, [""; 0]);
}
