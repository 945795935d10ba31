//! Rows that a statement does not see though they exist: answers of a standby that lags, and
//! policies.

use std::time::Duration;

use outbox_contract::backend::{BucketSet, FetchRequest, FetchedRow, Position, RelayId};
use outbox_contract::{Route, Store, StoreErrorKind};
use outbox_servers::{OrSkip, Postgres};
use outbox_store_postgres::{PostgresOptions, PostgresStore};
use sqlx::postgres::{PgConnectOptions, PgPool};

use super::support::{Fixture, append, fetch, lease, message, messages, open, options, relay};

/// Opens a store as a role of its own, which is no superuser and owns nothing: rows can be hidden
/// from such a role.
pub(super) async fn as_a_role(fixture: &Fixture) -> (String, PostgresStore) {
    as_a_role_with(fixture, options()).await
}

async fn as_a_role_with(fixture: &Fixture, options: PostgresOptions) -> (String, PostgresStore) {
    let database = super::support::text(fixture.store.pool(), "select current_database()::text").await;
    let role = format!("role_{database}");
    fixture
        .run(&format!(
            "create role {role} login; grant usage on schema public to {role}; \
             grant select, insert, update, delete on all tables in schema public to {role}; \
             grant usage, select on all sequences in schema public to {role}"
        ))
        .await;
    let address: PgConnectOptions = fixture.url.parse().unwrap();
    let pool = PgPool::connect_with(address.username(&role)).await.unwrap();
    (role, PostgresStore::with_options(pool, options).unwrap())
}

/// Models a pooler that sends the second statement to a standby without the row: the policy hides
/// rows from that statement alone.
#[tokio::test]
async fn content_that_is_missing_ends_the_fetch_and_is_never_passed() {
    let Some(fixture) = Fixture::new().await else { return };
    let (_, store) = as_a_role(&fixture).await;
    let hide = "create table hiding (hidden boolean); insert into hiding values (true); grant select on hiding to public;
                alter table outbox_message enable row level security;
                create policy hiding on outbox_message using
                    (current_query() not like '-- The headers and payloads%' or not (select h.hidden from hiding h))";
    fixture.run(hide).await;
    let large = |key: &str| message(key).with_payload(vec![b'x'; 100_000]);
    append(&fixture.store, [message("a"), large("b"), message("c")]).await;
    let relay = relay(&store).await;

    let first = fetch(&store, relay).await;
    assert_eq!(messages(&first)[0].message.key.as_ref().unwrap().as_str(), "a");
    assert_eq!(
        (first.rows.len(), first.full, first.reached),
        (1, true, Position::START),
        "it ends in front of it"
    );
    let mut request = FetchRequest::new(Route::default(), relay, BucketSet::ALL);
    request.after = first.rows[0].position();
    let hidden = store.fetch(&request).await.unwrap_err();
    assert_eq!(hidden.kind(), StoreErrorKind::Unavailable, "{hidden}");
    for word in ["position 2", "content", "standby"] {
        assert!(hidden.to_string().contains(word), "{hidden}");
    }
    fixture.run("update hiding set hidden = false").await;
    let shown = store.fetch(&request).await.unwrap();
    assert_eq!((shown.rows.len(), shown.full), (2, false));
    assert!(shown.rows.iter().all(|row| matches!(row, FetchedRow::Message(_))), "{shown:?}");
}

/// A row that is settled between the two statements is gone, and the fetch continues without an
/// error.
#[tokio::test]
async fn content_that_is_gone_with_its_row_costs_no_error() {
    let Some(fixture) = Fixture::new().await else { return };
    let (_, store) = as_a_role(&fixture).await;
    // The second statement finds nothing, and the next first one neither.
    let hide = "create sequence looks; grant usage on looks to public;
                alter table outbox_message enable row level security;
                create function first_look() returns boolean language sql volatile as
                    $$ select case when current_query() like '-- The headers and payloads%' then nextval('looks') < 0
                              else not (select l.is_called from looks l) end $$;
                grant select on looks to public;
                create policy hiding on outbox_message using (key <> 'b' or first_look())";
    fixture.run(hide).await;
    append(&fixture.store, [message("b").with_payload(vec![b'x'; 100_000]), message("c")]).await;
    let relay = relay(&store).await;
    let shown = fetch(&store, relay).await;
    assert_eq!(messages(&shown)[0].message.key.as_ref().unwrap().as_str(), "c");
    assert_eq!((shown.rows.len(), shown.full), (1, false));
}

#[tokio::test]
async fn what_a_standby_answers_a_relay_is_refused() {
    let Some(server) = Postgres::newest().start().or_skip() else { return };
    let Some(standby) = server.standby().or_skip() else { return };
    let primary = open(&server.url(), options()).await;
    primary.migrate().await.unwrap();
    let relay = RelayId::new();
    lease(&primary, relay).await;
    append(&primary, [message("a")]).await;
    let followed = async {
        while standby.try_query(&standby.url(), "select count(*) from outbox_message").ok().as_deref()
            != Some("1")
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(super::support::LONG, followed).await.unwrap();

    let lagging = open(&standby.url(), options()).await;
    let request = FetchRequest::new(Route::default(), relay, BucketSet::ALL);
    for refused in [lagging.fetch(&request).await.map(drop), lagging.frontier().writers().await.map(drop)] {
        let refused = refused.unwrap_err();
        assert_eq!(refused.kind(), StoreErrorKind::Unavailable, "{refused}");
        assert!(refused.to_string().contains("a standby answered"), "{refused}");
    }
    assert_eq!(messages(&fetch(&primary, relay).await).len(), 1);
}

#[tokio::test]
async fn a_role_from_which_rows_are_hidden_is_refused() {
    let Some(fixture) = Fixture::new().await else { return };
    let (role, store) = as_a_role(&fixture).await;
    store.check().await.unwrap();
    let view = "alter table outbox_parked rename to outbox_parked_of_all;
                create view outbox_parked as select * from outbox_parked_of_all where route <> 'x'";
    let view_back = "drop view outbox_parked; alter table outbox_parked_of_all rename to outbox_parked";
    for (hide, back, words) in [
        (
            "alter table outbox_message enable row level security".to_owned(),
            "alter table outbox_message disable row level security".to_owned(),
            ["row-level security", "outbox_message"],
        ),
        (view.to_owned(), view_back.to_owned(), ["view", "outbox_parked"]),
        (
            format!("revoke delete on outbox_message from {role}"),
            format!("grant delete on outbox_message to {role}"),
            ["may not delete", "outbox_message"],
        ),
        (
            format!("revoke select on outbox_message_position from {role}"),
            format!("grant select on outbox_message_position to {role}"),
            ["grant select on sequence outbox_message_position to it", "outbox_message_position"],
        ),
        (
            format!("revoke usage on outbox_key_version from {role}"),
            format!("grant usage on outbox_key_version to {role}"),
            ["lacks usage", "grant usage on sequence outbox_key_version to it"],
        ),
        (
            format!("revoke insert on outbox_message from {role}"),
            format!("grant insert on outbox_message to {role}"),
            ["may not insert", "outbox_message"],
        ),
    ] {
        fixture.run(&hide).await;
        let refused = store.check().await.unwrap_err();
        for word in words {
            assert!(refused.to_string().contains(word), "{hide}: {refused}");
        }
        fixture.run(&back).await;
        store.check().await.unwrap();
    }
    // The owner of the tables sees them all.
    fixture.run("alter table outbox_message enable row level security").await;
    fixture.store.check().await.unwrap();
}

/// Rows of the default partition are removed by its own name: what is granted on all of the history
/// says nothing of that, and without it nothing is maintained at all, messages that are due among
/// it.
#[tokio::test]
async fn a_grant_that_is_missing_on_one_partition_is_named() {
    let Some(fixture) = Fixture::new().await else { return };
    let mut keeping = options();
    keeping.history = Some(Duration::from_secs(3_600));
    let (role, store) = as_a_role_with(&fixture, keeping).await;
    store.check().await.unwrap();
    for (hide, back, words) in [
        (
            format!("revoke delete on outbox_history_rest from {role}"),
            format!("grant delete on outbox_history_rest to {role}"),
            "may not delete on outbox_history_rest: grant delete on outbox_history_rest",
        ),
        (
            format!("revoke usage on outbox_history_number from {role}"),
            format!("grant usage on outbox_history_number to {role}"),
            "lacks usage on sequence outbox_history_number: grant usage on sequence outbox_history_number",
        ),
        (
            "alter table outbox_history_rest enable row level security".to_owned(),
            "alter table outbox_history_rest disable row level security".to_owned(),
            "row-level security is in force on outbox_history_rest",
        ),
    ] {
        fixture.run(&hide).await;
        let refused = store.check().await.unwrap_err();
        assert_eq!(refused.kind(), StoreErrorKind::NotPermitted);
        assert!(refused.to_string().contains(words), "{hide}: {refused}");
        let keeps_none = PostgresStore::with_options(store.pool().clone(), options()).unwrap();
        keeps_none.check().await.unwrap();
        fixture.run(&back).await;
        store.check().await.unwrap();
        store.maintain(100).await.unwrap();
    }
}
