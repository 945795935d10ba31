//! Appending through a driver that is not the store's: `AppendSql` with tokio-postgres.

use std::collections::BTreeSet;
use std::time::Duration;

use outbox_contract::{AppendSql, Message, Outgoing, Route, Store, Timestamp};
use outbox_servers::{OrSkip, PgBouncer, Postgres};
use outbox_store_postgres::PostgresStore;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, NoTls};

use super::support::{Fixture, append, fetch, message, messages, options, relay};

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Appends in a transaction of its own.
async fn append_by(client: &mut Client, message: impl Into<Outgoing>) {
    let append = AppendSql::new(message).unwrap();
    let tx = client.transaction().await.unwrap();
    tx.execute(append.postgres(), &[&append.payload, &append.fields]).await.unwrap();
    tx.commit().await.unwrap();
}

async fn read(store: &PostgresStore) -> Vec<Message> {
    let relay = relay(store).await;
    messages(&fetch(store, relay).await).iter().map(|stored| stored.message.clone()).collect()
}

/// A message with a value in every field that could be lost or changed on the way.
fn unusual() -> Message {
    message("Zürich \"1\\2\"")
        .with_payload(vec![0x00, 0x5c, 0xff])
        .with_schema_version(u32::MAX)
        .with_content_type("application/octet-stream")
        .with_header("tenant", "a\"b\\c ü \u{1f4a1}")
        .unwrap()
        .with_subject("line-1")
        .unwrap()
        .with_occurred_at(Timestamp::from_micros(253_402_300_799_999_999))
}

#[tokio::test]
async fn a_message_of_another_driver_is_the_message_that_was_given() {
    let Some(fixture) = Fixture::new().await else { return };
    let mut client = connect(&fixture.url).await;
    let keyless = Message::new("orders", "order.placed").unwrap();
    let large = message("large").with_payload("x".repeat(3_000_000));
    let given = vec![unusual(), keyless, large];
    for message in given.clone() {
        append_by(&mut client, message).await;
    }
    assert_eq!(read(&fixture.store).await, given);
}

/// As text, `\\` would become `\` on its way to bytes.
#[tokio::test]
async fn a_payload_given_as_text_is_refused_and_not_changed() {
    let Some(fixture) = Fixture::new().await else { return };
    let client = connect(&fixture.url).await;
    let append = AppendSql::new(message("a")).unwrap();
    let as_text =
        [(&r#"{"folder":"C:\\"}"# as &(dyn ToSql + Sync), Type::TEXT), (&append.fields, Type::TEXT)];
    let error = client.execute_typed(append.postgres(), &as_text).await.unwrap_err();
    assert!(error.as_db_error().unwrap().message().contains("text and bytea"), "{error:?}");
}

#[tokio::test]
async fn a_rollback_of_another_driver_removes_its_message() {
    let Some(fixture) = Fixture::new().await else { return };
    let mut client = connect(&fixture.url).await;
    let append = AppendSql::new(message("a")).unwrap();
    let tx = client.transaction().await.unwrap();
    tx.execute(append.postgres(), &[&append.payload, &append.fields]).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(read(&fixture.store).await, []);
}

/// Each holds the key until its commit, so the other one's position is behind it.
#[tokio::test]
async fn a_key_keeps_its_order_whichever_driver_writes_it() {
    let Some(fixture) = Fixture::new().await else { return };
    let mut client = connect(&fixture.url).await;
    let [first, second, third] = [(); 3].map(|()| message("a"));
    append(&fixture.store, [first.clone()]).await;
    let sql = AppendSql::new(second.clone()).unwrap();
    let tx = client.transaction().await.unwrap();
    tx.execute(sql.postgres(), &[&sql.payload, &sql.fields]).await.unwrap();
    let waiting = {
        let (store, third) = (fixture.store.clone(), third.clone());
        tokio::spawn(async move { append(&store, [third]).await })
    };
    fixture.until_waiting(1).await;
    tx.commit().await.unwrap();
    waiting.await.unwrap();
    assert_eq!(read(&fixture.store).await, [first, second, third]);
}

#[tokio::test]
async fn a_scheduled_message_of_another_driver_comes_when_it_is_due() {
    let Some(fixture) = Fixture::new().await else { return };
    let mut client = connect(&fixture.url).await;
    let due = unusual();
    append_by(&mut client, Outgoing::from(due.clone()).due_at(Timestamp::from_micros(1))).await;
    append_by(&mut client, Outgoing::from(message("a")).after(Duration::from_secs(3_600))).await;
    append_by(&mut client, Outgoing::from(message("b")).after(Duration::MAX)).await;
    let done = fixture.store.maintain(100).await.unwrap();
    assert_eq!(done.promoted, 1);
    let next = done.next_due.unwrap();
    assert!(next > Duration::from_secs(1_800) && next <= Duration::from_secs(3_600), "{next:?}");
    assert_eq!(read(&fixture.store).await, [due]);
}

/// Neither the schema in the `search_path` nor rights beyond those of the book.
#[tokio::test]
async fn a_role_that_only_appends_writes_to_an_outbox_in_a_schema() {
    let Some(server) = Postgres::newest().shared().or_skip() else { return };
    let mut options = options();
    options.schema = Some("shop".to_owned());
    let fixture = Fixture::on(server, options).await;
    let database = fixture.url.rsplit('/').next().unwrap().split('?').next().unwrap().to_owned();
    let role = format!("writer_{database}");
    fixture
        .run(&format!(
            "create role {role} login; grant usage on schema shop to {role}; \
             grant insert on shop.outbox_message, shop.outbox_scheduled to {role}; \
             grant usage on all sequences in schema shop to {role}"
        ))
        .await;
    let mut config: tokio_postgres::Config = fixture.url.parse().unwrap();
    let (mut client, connection) = config.user(&role).connect(NoTls).await.unwrap();
    tokio::spawn(connection);
    let given = message("a");
    for outgoing in
        [Outgoing::from(given.clone()), Outgoing::from(message("b")).after(Duration::from_secs(60))]
    {
        let append = AppendSql::new(outgoing).unwrap();
        let tx = client.transaction().await.unwrap();
        let statement = append.postgres_in("shop");
        tx.execute(statement.as_str(), &[&append.payload, &append.fields]).await.unwrap();
        tx.commit().await.unwrap();
    }
    assert_eq!(read(&fixture.store).await, [given]);
    assert_eq!(fixture.number("select count(*) from shop.outbox_scheduled").await, 1);
}

#[tokio::test]
async fn a_message_of_another_driver_takes_the_route_that_it_names() {
    let Some(fixture) = Fixture::new().await else { return };
    let mut client = connect(&fixture.url).await;
    append_by(&mut client, Outgoing::from(message("a")).by(Route::new("audit").unwrap())).await;
    assert_eq!(fixture.store.backlog(&Route::new("audit").unwrap()).await.unwrap().pending, 1);
}

/// As many at once as there are connections to the server, so that statements meet other sessions
/// than those that parsed them.
async fn behind(pooler: PgBouncer, fixture: &Fixture) {
    let Some(pooler) = pooler.start().or_skip() else { return };
    let database = fixture.url.rsplit('/').next().unwrap();
    let url = pooler.url(&fixture.url);
    assert!(url.contains(database), "{url}");
    let writers = (0..30).map(|writer| {
        let url = url.clone();
        tokio::spawn(async move {
            let mut client = connect(&url).await;
            for _ in 0..5 {
                let append = AppendSql::new(message(&format!("key-{writer}"))).unwrap();
                let tx = client.transaction().await.unwrap();
                let parameters: [(&(dyn ToSql + Sync), Type); 2] =
                    [(&append.payload, Type::BYTEA), (&append.fields, Type::TEXT)];
                tx.execute_typed(append.postgres(), &parameters).await.unwrap();
                tx.commit().await.unwrap();
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    let ids: BTreeSet<_> = read(&fixture.store).await.iter().map(|message| message.id).collect();
    assert_eq!(ids.len(), 150);
}

/// `execute_typed` prepares nothing that outlives it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_driver_appends_behind_a_pooler_without_prepared_statements() {
    let Some(fixture) = Fixture::new().await else { return };
    behind(PgBouncer::oldest(&fixture.server), &fixture).await;
}
