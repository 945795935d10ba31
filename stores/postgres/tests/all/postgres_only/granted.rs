//! Grants: a role that has what `check` asks for does all that a relay does, and nothing is left to
//! be refused later, in the middle of its work.

use std::time::Duration;

use outbox_contract::backend::{
    BucketSet, DueKey, FetchRequest, KeyTransition, RelayId, RowId, Step, Then, Transitioned,
};
use outbox_contract::{Admin, Failure, KeyId, Outgoing, Route, Store, StoreErrorKind, Topic, Transactional};
use outbox_store_postgres::{PostgresOptions, PostgresStore};
use sqlx::postgres::{PgConnectOptions, PgPool};

use super::support::{
    Fixture, append, due_request, fetch, lease, lease_request, message, messages, options, text,
};

/// Opens a store as a role that may do nothing but find the tables and their version.
async fn as_a_role_without_grants(fixture: &Fixture, options: PostgresOptions) -> (String, PostgresStore) {
    let database = text(fixture.store.pool(), "select current_database()::text").await;
    let role = format!("bare_{database}");
    fixture
        .run(&format!(
            "create role {role} login; grant usage on schema public to {role}; \
             grant select on outbox_schema to {role}"
        ))
        .await;
    let address: PgConnectOptions = fixture.url.parse().unwrap();
    let pool = PgPool::connect_with(address.username(&role)).await.unwrap();
    (role, PostgresStore::with_options(pool, options).unwrap())
}

/// Grants what `check` names, as an operator does who reads its errors, until it is content.
/// Returns the grants.
async fn grant_what_is_named(fixture: &Fixture, role: &str, store: &PostgresStore) -> Vec<String> {
    let mut grants = Vec::new();
    for _ in 0..10 {
        let Err(refused) = store.check().await else { return grants };
        assert_eq!(refused.kind(), StoreErrorKind::NotPermitted, "{refused}");
        let refused = refused.to_string();
        let remedies = refused.split(": grant ").skip(1);
        let named: Vec<String> =
            remedies.filter_map(|rest| Some(rest.split_once(" to it")?.0.into())).collect();
        assert!(!named.is_empty(), "it names no grant: {refused}");
        for grant in &named {
            fixture.run(&format!("grant {grant} to {role}")).await;
        }
        grants.extend(named);
    }
    panic!("check is never content: {grants:?}")
}

/// A relay of a role: every step, settlements, due messages, and all that it maintains.
struct Working<'s> {
    store: &'s PostgresStore,
    relay: RelayId,
}

impl Working<'_> {
    async fn step(&self, key: &str, version: Option<i64>, step: Step) -> Option<i64> {
        let key: KeyId = message(key).key_id();
        let leased = lease(self.store, self.relay).await;
        let (route, bucket) = (Route::default(), key.bucket());
        let epoch = leased.leases.iter().find(|lease| lease.bucket == bucket).unwrap().epoch;
        let relay = self.relay;
        let step = KeyTransition::new(route, relay, (bucket, epoch), key, version, step);
        match self.store.transition(&[step]).await.unwrap()[..] {
            [Transitioned::Done(version)] => version,
            ref refused => panic!("{refused:?}"),
        }
    }

    async fn row(&self, key: &str) -> RowId {
        let read = messages(&fetch(self.store, self.relay).await);
        read.iter().find(|stored| stored.message.key.as_ref().unwrap().as_str() == key).unwrap().row()
    }

    async fn due_key(&self) -> DueKey {
        self.store.due(&due_request(self.relay)).await.unwrap().keys.remove(0)
    }

    /// Publishes, fails, recovers, buries and discards.
    async fn steps(&self) {
        let failure = || Failure::new("test", "no");
        let row = self.row("settled").await;
        self.store.settle(&Route::default(), &[row]).await.unwrap();
        for last in ["resumed", "buried"] {
            let (row, then) = (self.row(last).await, Then::RetryAfter(Duration::ZERO));
            let (first, last_failure) = (failure(), failure());
            let fail = Step::Fail { row, attempts: 1, first, last: last_failure, then, behind: Vec::new() };
            self.step(last, None, fail).await.unwrap();
            let due = self.due_key().await;
            let row = due.parked[0].row();
            let step =
                if last == "resumed" { Step::Resume { delivered: vec![row] } } else { bury(row, false) };
            let version = self.step(last, Some(due.version), step).await;
            if version.is_some() {
                assert_eq!(self.step(last, version, Step::Resume { delivered: Vec::new() }).await, None);
            }
        }
        for (hot, discard) in [("dead", false), ("discarded", true)] {
            let step = bury(self.row(hot).await, discard);
            self.step(hot, None, step).await;
        }
    }
}

fn bury(row: RowId, discard: bool) -> Step {
    let failure = || Failure::new("test", "no");
    Step::Bury { row, discard, reason: "rejected", attempts: 2, first: failure(), last: failure() }
}

/// Rows that maintenance removes or moves: expired ids and records, a relay that is gone, a message
/// that is due.
const OVER: &str = "
    insert into outbox_handled (consumer, id, handled_at, topic) select 'c', gen_random_uuid(), n, 'orders' from generate_series(1, 3) n;
    insert into outbox_handled (consumer, id, handled_at, topic) values ('c', gen_random_uuid(), outbox_now(), 'orders');
    insert into outbox_audit (at, actor, operation, detail, affected, ids) values (1, 'a', 'purge', '', 0, '');
    insert into outbox_history_rest (number, position, id, route, bucket, topic, order_key, event_type, schema_version, content_type,
                                     headers, payload, occurred_at, appended_at, delivered_at)
    values (nextval('outbox_history_number'), 1, gen_random_uuid(), 'default', 0, 'orders', 'a', 'x', 1, '', '', '', 1, 1, 1)";

#[tokio::test]
async fn a_role_with_the_grants_that_check_names_does_all_that_a_relay_does() {
    for history in [None, Some(Duration::from_secs(3_600))] {
        let Some(fixture) = Fixture::new().await else { return };
        let mut keeping = options();
        keeping.history = history;
        let (role, store) = as_a_role_without_grants(&fixture, keeping).await;
        let grants = grant_what_is_named(&fixture, &role, &store).await;

        let keys = ["settled", "resumed", "buried", "dead", "discarded"];
        append(&fixture.store, keys.map(message)).await;
        let mut tx = fixture.store.begin().await.unwrap();
        let due = Outgoing::from(message("due")).after(Duration::ZERO);
        fixture.store.append(&mut tx, &[due]).await.unwrap();
        fixture.store.commit(tx).await.into_result().unwrap();
        fixture.run(OVER).await;

        let gone = RelayId::new();
        lease(&store, gone).await;
        fixture.run("update outbox_relay set expires_at = 1").await;
        let relay = RelayId::new();
        assert_eq!(lease(&store, relay).await.leases.len(), 256, "{grants:?}");
        assert!(store.elect("maintenance", relay, Duration::from_secs(60)).await.unwrap());
        store.record_retention().await.unwrap();
        let working = Working { store: &store, relay };
        working.steps().await;
        let mut promoted = 0;
        for _ in 0..10 {
            let done = store.maintain(100).await.unwrap();
            promoted += done.promoted;
            if !done.more {
                break;
            }
        }
        assert_eq!(promoted, 1);
        assert_eq!(fixture.number("select count(*) from outbox_handled").await, 1);
        assert_eq!(fixture.number("select count(*) from outbox_audit where at = 1").await, 0);
        assert_eq!(fixture.number("select count(*) from outbox_relay where expires_at = 1").await, 0);
        let row = working.row("due").await;
        store.settle(&Route::default(), &[row]).await.unwrap();
        let kept = fixture.number("select count(*) from outbox_history where number > 1").await;
        assert_eq!(kept, if history.is_some() { 3 } else { 0 });

        let orders = Topic::new("orders").unwrap();
        store.set_paused(&Route::default(), Some(&orders), true).await.unwrap();
        store.frontier().writers().await.unwrap();
        store.fetch_below(&FetchRequest::new(Route::default(), relay, BucketSet::ALL)).await.unwrap();
        store.backlog(&Route::default()).await.unwrap();
        store.unserved(Duration::ZERO).await.unwrap();
        store.topics(&Route::default()).await.unwrap();
        store.misplaced().await.unwrap();
        store.identity().await.unwrap();
        let request = lease_request(relay);
        let leases = store.lease(&request).await.unwrap().leases;
        store.give_back(relay, &Route::default(), &leases, &request.low_water, true).await.unwrap();
    }
}
