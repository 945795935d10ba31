//! Ranges: old rows that were read next to each other are removed by a range of the primary key,
//! exactly, and in no writer's way. Servers log their statements, so that a test sees the range.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use outbox_contract::backend::{Bucket, BucketSet, FetchRequest, Position, RelayId, RowId, Scope};
use outbox_contract::{MessageId, Outgoing, Route, Store, Topic, Transactional};
use outbox_servers::{MariaDb, MySql, OrSkip};
use outbox_store_mysql::MySqlOptions;
use sqlx::mysql::MySqlConnection;
use sqlx::{AssertSqlSafe, Connection, Row};
use tokio::time::timeout;

use super::support::{Fixture, LONG, append, fetch, message, messages, number, options, relay, run};

/// A time that is long ago, in seconds since 1970. Each append has one of its own, so that its
/// positions stand in the log of one test only.
static PAST: AtomicI64 = AtomicI64::new(1_000_000_000);

const LEFT: &str = "select count(*) from outbox_message";

/// One fixture on each server, with the server's log of statements in a table.
async fn logging(options: MySqlOptions) -> Vec<Fixture> {
    let mut fixtures = Vec::new();
    for wish in [MySql::newest(), MariaDb::newest(), MariaDb::oldest()] {
        let wish = wish.config("general-log = ON").config("log-output = TABLE");
        if let Some(server) = wish.shared().or_skip() {
            fixtures.push(Fixture::on(server, options.clone()).await);
        }
    }
    fixtures
}

fn with_history() -> MySqlOptions {
    let mut options = options();
    options.history = Some(Duration::from_secs(3_600));
    options
}

/// Appends messages, each of a key of its own, behind those before, as if it were long ago.
async fn append_old(fixture: &Fixture, count: usize) {
    let clock = PAST.fetch_add(1, Ordering::Relaxed);
    let outgoing: Vec<Outgoing> = (0..count).map(|n| message(&format!("key-{n}")).into()).collect();
    let mut connection = fixture.connection().await;
    let mut tx = connection.begin().await.unwrap();
    run(&mut tx, &format!("set timestamp = {clock}")).await;
    fixture.store.append(&mut tx, &outgoing).await.unwrap();
    tx.commit().await.unwrap();
}

/// Appends messages as if it were long ago, and reads everything.
async fn old_backlog(fixture: &Fixture, count: usize) -> (RelayId, Vec<RowId>) {
    let relay = relay(&fixture.store).await;
    append_old(fixture, count).await;
    let rows = read(fixture, relay, Position::START).await;
    assert_eq!(rows.len(), count);
    (relay, rows)
}

/// Reads everything behind a position.
async fn read(fixture: &Fixture, relay: RelayId, after: Position) -> Vec<RowId> {
    let mut request = FetchRequest::new(Route::default(), relay, BucketSet::ALL);
    request.after = after;
    read_by(fixture, &request).await
}

async fn read_by(fixture: &Fixture, request: &FetchRequest) -> Vec<RowId> {
    let fetched = fixture.store.fetch(request).await.unwrap();
    messages(&fetched).iter().map(|stored| stored.row()).collect()
}

async fn settle(fixture: &Fixture, rows: &[RowId]) {
    let route = Route::default();
    let settling = fixture.store.settle(&route, rows);
    timeout(LONG / 2, settling).await.expect("it waits for no writer").unwrap();
}

/// The condition that a logged statement removes a range that begins with this row.
fn is_range_from(first: RowId) -> String {
    format!(
        "from mysql.general_log where argument like '%delete m from%position between {} and%' and argument not like 'select%'",
        first.position.0
    )
}

async fn ranges_from(fixture: &Fixture, first: RowId) -> i64 {
    fixture.number(&format!("select count(*) {}", is_range_from(first))).await
}

/// A position between two of these rows, where none stands, and the number of rows before it.
fn between(rows: &[RowId]) -> (i64, usize) {
    let middle = rows.len() / 2;
    let gap = (middle..).find(|at| rows[at + 1].position.0 - rows[*at].position.0 > 1).unwrap();
    (rows[gap].position.0 + 1, gap + 1)
}

/// A connection whose transactions lock nothing that they only read.
async fn writer(fixture: &Fixture) -> MySqlConnection {
    let mut connection = fixture.connection().await;
    run(&mut connection, "set session transaction isolation level read committed").await;
    connection
}

/// Copies a row to another position, with another id.
async fn insert(connection: &mut MySqlConnection, position: i64, like: RowId) {
    let insert = format!(
        "insert into outbox_message (route, stripe, position, number, id, topic, `key`, event_type) \
         select route, stripe, {position}, number + 1, unhex(replace(uuid(), '-', '')), topic, `key`, event_type \
         from outbox_message where route = 'default' and position = {}",
        like.position.0
    );
    run(connection, &insert).await;
}

#[tokio::test]
async fn a_backlog_is_removed_by_ranges() {
    for (keeps, options) in [(false, options()), (true, with_history())] {
        for fixture in logging(options).await {
            let (_, rows) = old_backlog(&fixture, 300).await;
            let mut delivered = rows.clone();
            delivered.reverse();
            // Two runs, and some rows by themselves.
            let (kept, delivered): (Vec<_>, Vec<_>) =
                delivered.into_iter().partition(|row| [rows[100], rows[110], rows[299]].contains(row));
            settle(&fixture, &delivered).await;
            assert_eq!(ranges_from(&fixture, rows[0]).await, 1);
            assert_eq!(fixture.number(LEFT).await, 3);
            settle(&fixture, &kept).await;
            assert_eq!(fixture.number(LEFT).await, 0);
            let past = fixture.number("select count(distinct id) from outbox_history").await;
            assert_eq!(past, if keeps { 300 } else { 0 });
        }
    }
}

#[tokio::test]
async fn other_rows_are_removed_by_their_own_positions() {
    for fixture in logging(options()).await {
        let relay = relay(&fixture.store).await;
        let everything = FetchRequest::new(Route::default(), relay, BucketSet::ALL);
        let removed_by_ranges = async |rows: &[RowId]| {
            settle(&fixture, rows).await;
            let by_ranges = ranges_from(&fixture, rows[0]).await;
            fixture.run("delete from outbox_message").await;
            by_ranges
        };
        append_old(&fixture, 200).await;
        assert_eq!(removed_by_ranges(&read_by(&fixture, &everything).await).await, 1);

        append_old(&fixture, 63).await;
        assert_eq!(removed_by_ranges(&read_by(&fixture, &everything).await).await, 0, "few");
        append(&fixture.store, (0..200).map(|n| message(&format!("young-{n}")))).await;
        assert_eq!(removed_by_ranges(&read_by(&fixture, &everything).await).await, 0, "young");
        append_old(&fixture, 200).await;
        let every_second: Vec<_> = read_by(&fixture, &everything).await.into_iter().step_by(2).collect();
        assert_eq!(removed_by_ranges(&every_second).await, 0, "not next to each other");

        let mut half = everything.clone();
        half.buckets = (0..128).map(Bucket).collect();
        append_old(&fixture, 400).await;
        let rows = read_by(&fixture, &half).await;
        assert!(rows.len() > 100);
        assert_eq!(removed_by_ranges(&rows).await, 0, "of some buckets");
        let mut muted = everything;
        muted.muted = vec![Scope::Topic(Topic::new("paused").unwrap())];
        append_old(&fixture, 200).await;
        assert_eq!(removed_by_ranges(&read_by(&fixture, &muted).await).await, 0, "with a topic muted");
    }
}

/// Rows in a range that are not in the list stay, and so do rows with another id.
#[tokio::test]
async fn a_range_removes_nothing_but_what_is_listed_by_position_and_id() {
    for options in [options(), with_history()] {
        for fixture in logging(options).await {
            let (relay, rows) = old_backlog(&fixture, 200).await;
            let (late, _) = between(&rows);
            insert(&mut fixture.connection().await, late, rows[0]).await;
            let mut delivered = rows.clone();
            delivered[10].id = MessageId::new();
            delivered[20].id = rows[21].id;
            delivered[21].id = rows[20].id;
            settle(&fixture, &delivered).await;
            assert_eq!(ranges_from(&fixture, rows[0]).await, 1);
            let left = messages(&fetch(&fixture.store, relay).await);
            let left: Vec<i64> = left.iter().map(|stored| stored.position.0).collect();
            let kept = [10, 20, 21].map(|at| rows[at].position.0);
            assert_eq!(left, [&kept[..], &[late]].concat());
        }
    }
}

/// A transaction whose row is not committed, in the middle of a run: the rows are removed one by
/// one, and ranges rest.
#[tokio::test]
async fn a_range_that_meets_an_open_writer_gives_way_to_positions() {
    for options in [options(), with_history()] {
        for fixture in logging(options).await {
            let (relay, rows) = old_backlog(&fixture, 200).await;
            let (late, before) = between(&rows);
            assert!(before > 64 && before < 136);
            let mut connection = writer(&fixture).await;
            let mut open = connection.begin().await.unwrap();
            insert(&mut open, late, rows[0]).await;
            settle(&fixture, &rows).await;
            assert_eq!(ranges_from(&fixture, rows[0]).await, 1, "it was tried");
            assert_eq!(number(&mut open, LEFT).await, 1);
            open.commit().await.unwrap();
            assert_eq!(fixture.number(LEFT).await, 1, "what a writer commits later stays");

            append_old(&fixture, 200).await;
            let rows = read(&fixture, relay, Position(late)).await;
            settle(&fixture, &rows).await;
            assert_eq!(ranges_from(&fixture, rows[0]).await, 0, "the next one would wait too");
            assert_eq!(fixture.number(LEFT).await, 1);
            waits_for_long(&fixture, relay).await;
        }
    }
}

/// Afterwards a settlement has the store's own patience again.
async fn waits_for_long(fixture: &Fixture, relay: RelayId) {
    let row = read(fixture, relay, Position::START).await[0];
    let mut connection = fixture.connection().await;
    let mut holder = connection.begin().await.unwrap();
    let lock = format!("select 1 from outbox_message where position = {} for update", row.position.0);
    run(&mut holder, &lock).await;
    let store = fixture.store.clone();
    let mut settling = tokio::spawn(async move { store.settle(&Route::default(), &[row]).await });
    // Longer than a range waits.
    let waits = fixture.until_waiting_for(Duration::from_secs(3), "%delete m");
    tokio::select! {
        ended = &mut settling => panic!("it did not wait: {ended:?}"),
        () = waits => {}
    }
    holder.rollback().await.unwrap();
    settling.await.unwrap().unwrap();
    assert_eq!(fixture.number(LEFT).await, 0);
}

/// A range also locks the row behind its end: that is one of the list.
#[tokio::test]
async fn a_range_does_not_wait_for_a_writer_behind_its_end() {
    for fixture in logging(options()).await {
        let (relay, rows) = old_backlog(&fixture, 200).await;
        let last = rows[199];
        let mut connection = writer(&fixture).await;
        let mut open = connection.begin().await.unwrap();
        insert(&mut open, last.position.0 + 1, last).await;
        settle(&fixture, &rows).await;
        append_old(&fixture, 200).await;
        let rows = read(&fixture, relay, last.position).await;
        settle(&fixture, &rows).await;
        assert_eq!(ranges_from(&fixture, rows[0]).await, 1, "ranges do not rest");
        open.rollback().await.unwrap();
        assert_eq!(fixture.number(LEFT).await, 0);
        append_old(&fixture, 1).await;
        waits_for_long(&fixture, relay).await;
    }
}

/// The server finds the rows of a run at one place of the primary key, and reads on from there.
#[tokio::test]
async fn a_range_is_read_as_one() {
    for fixture in logging(options()).await {
        let (_, rows) = old_backlog(&fixture, 900).await;
        // Others stand around it.
        let listed = &rows[300..600];
        settle(&fixture, listed).await;
        let mut connection = fixture.connection().await;
        let logged = format!("select argument {}", is_range_from(listed[0]));
        let logged = sqlx::raw_sql(AssertSqlSafe(logged)).fetch_one(&mut connection).await.unwrap();
        let statement = String::from_utf8(logged.try_get_unchecked(0).unwrap()).unwrap();
        // Once more, as it was.
        let mut open = connection.begin().await.unwrap();
        for row in listed {
            insert(&mut open, row.position.0, rows[0]).await;
        }
        run(&mut open, "set @plan = 1 /*!80000 , session range_optimizer_max_mem_size = 0 */").await;
        run(&mut open, "flush status").await;
        run(&mut open, &statement).await;
        let reads = async |open: &mut MySqlConnection, name: &str| -> i64 {
            let shown = format!("show session status like 'Handler_read_{name}'");
            let row = sqlx::raw_sql(AssertSqlSafe(shown)).fetch_one(open).await.unwrap();
            String::from_utf8(row.try_get_unchecked(1).unwrap()).unwrap().parse().unwrap()
        };
        let found = reads(&mut open, "key").await;
        assert!(found <= 4, "{found} look-ups");
        let passed = reads(&mut open, "next").await;
        assert!((290..=310).contains(&passed), "{passed} rows");
        assert_eq!(reads(&mut open, "rnd_next").await, 0, "the table is not scanned");
        open.rollback().await.unwrap();
    }
}
