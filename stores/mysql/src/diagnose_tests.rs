//! Findings about the server, each made to happen on real ones.

use std::time::Duration;

use outbox_contract::Store;
use outbox_contract::admin::{Diagnosis, DiagnosisKind};
use outbox_servers::{MariaDb, MySql, MySqlServer, OrSkip};
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::{AssertSqlSafe, Connection};

use crate::MySqlStore;
use crate::diagnose::{LIMITS, Limits, find};
use crate::history;

/// Longer than any wait of a test, even on a slow machine.
const LONG: Duration = Duration::from_secs(120);

/// Limits that little is over. A file grows by four extents of 1 MiB at once, so each table may have
/// as much free space.
const LOW: Limits = Limits { transaction: Duration::ZERO, history: 1, free: 8 << 20 };

/// Servers of the test's own: transactions and settings are those of a whole server.
fn servers() -> Vec<MySqlServer> {
    let wishes = [MySql::newest(), MariaDb::newest(), MariaDb::oldest()];
    let own_files = |wish: MySql| wish.config("innodb-file-per-table = ON").start().or_skip();
    wishes.into_iter().filter_map(own_files).collect()
}

async fn migrated(server: &MySqlServer) -> (String, MySqlConnection) {
    let url = server.fresh_database();
    let store = MySqlStore::connect(&url).await.unwrap();
    store.migrate().await.unwrap();
    store.pool().close().await;
    let connection = MySqlConnection::connect(&url).await.unwrap();
    (url, connection)
}

async fn run(connection: &mut MySqlConnection, statements: &str) {
    sqlx::raw_sql(AssertSqlSafe(statements.to_owned())).execute(connection).await.unwrap();
}

/// Returns the texts of findings of a kind.
async fn found(connection: &mut MySqlConnection, kind: DiagnosisKind, limits: Limits) -> Vec<String> {
    let found = find(connection, limits).await.unwrap().into_iter().filter(|found| found.kind == kind);
    found.map(|Diagnosis { text, remedy, .. }| format!("{text} / {remedy}")).collect()
}

/// Waits until there are findings, or until there are none.
async fn until(
    connection: &mut MySqlConnection,
    limits: Limits,
    is: impl Fn(&[String]) -> bool,
) -> Vec<String> {
    let waiting = async {
        loop {
            let all = find(connection, limits).await.unwrap();
            let all: Vec<String> = all.into_iter().map(|it| format!("{} / {}", it.text, it.remedy)).collect();
            if is(&all) {
                return all;
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    };
    tokio::time::timeout(LONG, waiting).await.expect("it comes true")
}

#[tokio::test]
async fn settings_that_may_lose_commits_are_found_on_servers() {
    for server in servers() {
        let (_, mut connection) = migrated(&server).await;
        let durability = found(&mut connection, DiagnosisKind::Durability, LIMITS).await;
        assert!(durability[0].starts_with("innodb_flush_log_at_trx_commit is 2"), "{durability:?}");
        run(&mut connection, "set global innodb_flush_log_at_trx_commit = 1, global sync_binlog = 1").await;
        let left = find(&mut connection, LIMITS).await.unwrap();
        assert_eq!(left, [], "a healthy server");
    }
}

#[tokio::test]
async fn a_table_with_more_free_space_than_content_is_found() {
    for server in servers() {
        let (_, mut connection) = migrated(&server).await;
        run(
            &mut connection,
            "insert into outbox_dead (position, stripe, number, id, route, topic, order_key, event_type, schema_version, content_type, headers, payload, \
                                      occurred_at, appended_at, reason, attempts, died_at) \
             select a.n * 40 + b.n, 0, 0, unhex(replace(uuid(), '-', '')), 'default', 'orders', 'k', 'x', 1, 't', '', repeat('x', 20000), 0, 0, 'exhausted', 1, 0 \
             from (select row_number() over (order by column_name) n from information_schema.columns limit 20) a, \
                  (select row_number() over (order by column_name) n from information_schema.columns limit 40) b",
        )
        .await;
        let limits = Limits { transaction: Duration::from_secs(600), history: u64::MAX, ..LOW };
        let bloat = async |connection: &mut _| found(connection, DiagnosisKind::Bloat, limits).await;
        // The server estimates a table's content, and does so again in the background.
        run(&mut connection, "analyze table outbox_dead").await;
        assert!(bloat(&mut connection).await.is_empty(), "a full table");
        run(&mut connection, "delete from outbox_dead").await;
        // The purge gives back pages a little later.
        let is = |all: &[String]| all.iter().any(|text| text.starts_with("outbox_dead has "));
        until(&mut connection, limits, is).await;
        let texts = bloat(&mut connection).await;
        assert!(matches!(&texts[..], [text] if text.contains("optimize table outbox_dead")), "{texts:?}");
        assert!(found(&mut connection, DiagnosisKind::Bloat, LIMITS).await.is_empty(), "it is little");
        run(&mut connection, "optimize table outbox_dead").await;
        assert!(bloat(&mut connection).await.is_empty(), "after the remedy");
    }
}

#[tokio::test]
async fn a_transaction_that_holds_back_the_purge_is_found_with_the_history() {
    for server in servers() {
        let (url, mut connection) = migrated(&server).await;
        let mut other = MySqlConnection::connect(&url).await.unwrap();
        let id: u64 = sqlx::query_scalar("select connection_id()").fetch_one(&mut other).await.unwrap();
        run(&mut other, "set session transaction isolation level repeatable read").await;
        run(&mut other, "start transaction with consistent snapshot").await;
        run(&mut other, "select count(*) from outbox_message").await;
        for n in 0..20 {
            run(&mut connection, &format!("insert into outbox_role (role, relay, expires_at, lasts) values ('{n}', repeat('x', 16), 0, 0)")).await;
            run(&mut connection, "delete from outbox_role").await;
        }
        let begins = format!("session {id} (user root, Sleep) has had a transaction open for ");
        let is = |all: &[String]| all.iter().any(|text| text.starts_with(&begins));
        let all = until(&mut connection, Limits { history: 20, ..LOW }, is).await;
        assert!(all.iter().any(|text| text.contains(&format!("end it: kill {id}; "))), "{all:?}");
        let is = |all: &[String]| all.iter().any(|text| text.starts_with("removed rows of "));
        until(&mut connection, Limits { history: 20, ..LOW }, is).await;
        assert!(found(&mut connection, DiagnosisKind::Cleanup, LIMITS).await.is_empty(), "it is young");
        run(&mut other, "rollback").await;
        let is_over = |all: &[String]| !all.iter().any(|text| text.contains("transaction"));
        until(&mut connection, Limits { history: 20, free: u64::MAX, ..LOW }, |all| {
            is_over(all)
                || all.iter().all(|text| text.starts_with("innodb_flush") || text.starts_with("sync_binlog"))
        })
        .await;
    }
}

#[tokio::test]
async fn a_user_that_may_not_see_the_transactions_of_others_is_told_so() {
    for server in servers() {
        let (url, mut connection) = migrated(&server).await;
        let database = url.rsplit('/').next().unwrap().split('?').next().unwrap().to_owned();
        run(
            &mut connection,
            &format!("create user low@'127.0.0.1'; grant select, insert, update, delete on `{database}`.* to low@'127.0.0.1'"),
        )
        .await;
        let options: MySqlConnectOptions = url.parse().unwrap();
        let mut low = MySqlConnection::connect_with(&options.username("low")).await.unwrap();
        let unseen = found(&mut low, DiagnosisKind::Unseen, LIMITS).await;
        assert_eq!(unseen.len(), 1, "{unseen:?}");
        assert!(unseen[0].contains("the age of transactions"), "{unseen:?}");
        assert!(unseen[0].contains("grant process on *.* to 'low'@'127.0.0.1'"), "{unseen:?}");
        // MariaDB shows the history to all.
        let is_mysql = !server.query(&url, "select version()").contains("MariaDB");
        assert_eq!(unseen[0].contains("the length of the undo history"), is_mysql, "{unseen:?}");
        run(&mut connection, "grant process on *.* to low@'127.0.0.1'").await;
        let mut low =
            MySqlConnection::connect_with(&url.parse::<MySqlConnectOptions>().unwrap().username("low"))
                .await
                .unwrap();
        assert!(found(&mut low, DiagnosisKind::Unseen, LIMITS).await.is_empty());
    }
}

#[tokio::test]
async fn partitions_of_the_history_that_are_missing_or_over_are_found_until_a_turn() {
    let week = Duration::from_secs(7 * 86_400);
    for server in servers() {
        let (_, mut connection) = migrated(&server).await;
        let texts = async |connection: &mut MySqlConnection, kept: Option<Duration>| {
            let found = history::find(connection, kept).await.unwrap();
            found.into_iter().map(|it| format!("{} / {}", it.text, it.remedy)).collect::<Vec<_>>()
        };
        assert_eq!(texts(&mut connection, Some(week)).await, [""; 0], "nothing was delivered");
        for minutes in [20, 0] {
            run(
                &mut connection,
                &format!(
                    "insert into outbox_history (delivered_at, position, stripe, number, id, route, topic, order_key, event_type, schema_version, \
                                                 content_type, headers, payload, occurred_at, appended_at) \
                     select floor(unix_timestamp(now(6)) * 1000000) - {minutes} * 60000000, {minutes}, 0, 0, unhex(replace(uuid(), '-', '')), \
                            'default', 'orders', 'a', 'x', 1, 't', '', '', 0, 0"
                ),
            )
            .await;
        }
        for kept in [Some(week), None] {
            let found = texts(&mut connection, kept).await;
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(
                found[0].starts_with("outbox_history has no partition for what is delivered now"),
                "{found:?}"
            );
            assert!(found[0].contains("a user with alter and drop on outbox_history"), "{found:?}");
        }
        run(&mut connection, "set @outbox_locks = 1").await;
        history::turn(&mut connection, week).await.unwrap();
        assert_eq!(texts(&mut connection, Some(week)).await, [""; 0]);

        let (_, mut connection) = migrated(&server).await;
        run(&mut connection, "set @outbox_locks = 1").await;
        run(
            &mut connection,
            "alter table outbox_history reorganize partition rest into (partition until_1000 values less than (1000), \
                                                                      partition rest values less than maxvalue)",
        )
        .await;
        let found = texts(&mut connection, Some(week)).await;
        assert!(found.len() == 1 && found[0].contains("were not dropped: until_1000 /"), "{found:?}");
        assert_eq!(texts(&mut connection, None).await, [""; 0], "the retention is not known");
        history::turn(&mut connection, week).await.unwrap();
        assert_eq!(texts(&mut connection, Some(week)).await, [""; 0]);
    }
}
