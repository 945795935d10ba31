//! The fence: no relay takes a bucket while a step under its lease is under way; and which commits
//! must be durable.

use std::collections::BTreeSet;
use std::time::Duration;

use outbox_contract::admin::Filter;
use outbox_contract::backend::{
    KeyTransition, Lease, Leased, LowWater, Position, RelayId, RowId, Step, Stored, Then, Transitioned,
};
use outbox_contract::{Admin, AdminExt, Failure, Outgoing, Route, Store, Timestamp, Transactional};

use super::hidden::as_a_role;
use super::support::{Fixture, append, fetch, lease, lease_request, message, messages, run, text};

fn failing(relay: RelayId, stored: &Stored, leases: &[Lease]) -> KeyTransition {
    let key = stored.message.key_id();
    let lease = leases.iter().find(|lease| lease.bucket == key.bucket()).unwrap();
    KeyTransition::new(
        Route::default(),
        relay,
        (lease.bucket, lease.epoch),
        key,
        None,
        Step::Fail {
            row: RowId { position: stored.position, id: stored.message.id },
            attempts: 1,
            first: Failure::new("test", "first"),
            last: Failure::new("test", "last"),
            then: Then::RetryAfter(Duration::from_secs(3_600)),
            behind: Vec::new(),
        },
    )
}

/// A step that was valid when it checked is still valid when it commits: the heartbeat of a
/// successor waits for it.
#[tokio::test]
async fn a_bucket_does_not_change_hands_while_a_step_is_under_way() {
    let Some(fixture) = Fixture::new().await else { return };
    append(&fixture.store, [message("a")]).await;
    let old = RelayId::new();
    let leases = lease(&fixture.store, old).await.leases;
    let stored = messages(&fetch(&fixture.store, old).await).remove(0);

    // The step stops where it opens the row of the key, with its lease checked already.
    let mut barrier = fixture.connection().await;
    run(&mut barrier, "begin; insert into outbox_key values ('default', 'orders', 'a', 0, -7, false, null, null, 0, null, null, 0)").await;
    let step = [failing(old, &stored, &leases)];
    let transitioning = fixture.store.transition(&step);
    let taking = async {
        fixture.until_waiting(1).await;
        // The relay's lease is over, and another one starts.
        fixture.run("update outbox_relay set expires_at = 0").await;
        let successor = fixture.another().await;
        let request = lease_request(RelayId::new());
        let taken = tokio::spawn(async move { successor.lease(&request).await });
        let looked = async {
            fixture.until_waiting(2).await;
            assert!(!taken.is_finished(), "a bucket was taken while a step under its lease was under way");
            run(&mut barrier, "rollback").await;
        };
        looked.await;
        taken.await.unwrap().unwrap()
    };
    let (transitioned, taken) = tokio::join!(transitioning, taking);
    assert!(matches!(transitioned.unwrap()[..], [Transitioned::Done(Some(_))]));
    assert_eq!(taken.leases.len(), 256);
    // From now on the old one is refused.
    let late = fixture.store.transition(&[failing(old, &stored, &leases)]).await.unwrap();
    assert_eq!(late, [Transitioned::LeaseLost]);
}

/// Records with which `synchronous_commit` rows are inserted and deleted.
const WATCH: &str = "
    create table seen (what text, how text);
    create function watch() returns trigger language plpgsql as $$
    begin
        insert into seen values (tg_op || ' ' || tg_table_name, current_setting('synchronous_commit'));
        return coalesce(new, old);
    end $$;
    create trigger watch after delete on outbox_message for each row execute function watch();
    create trigger watch after insert on outbox_parked for each row execute function watch();
    create trigger watch after insert on outbox_key for each row execute function watch();
    create trigger watch after delete on outbox_dead for each row execute function watch();
    create trigger watch after delete on outbox_scheduled for each row execute function watch();
    create trigger watch after insert or delete on outbox_pause for each row execute function watch();
";

async fn how(fixture: &Fixture, what: &str) -> String {
    let question =
        format!("select coalesce(string_agg(distinct how, ','), 'never') from seen where what = '{what}'");
    text(fixture.store.pool(), &question).await
}

/// Losing a settlement costs a repeat; losing a step would let a follower go first.
#[tokio::test]
async fn settlements_commit_asynchronously_and_steps_synchronously_whatever_the_default() {
    for default in ["on", "off"] {
        let Some(fixture) = Fixture::new().await else { return };
        let name = fixture.url.rsplit('/').next().unwrap().to_owned();
        fixture.run(&format!("alter database {name} set synchronous_commit = {default}")).await;
        let store = fixture.another().await;
        append(&store, [message("a"), message("b")]).await;
        let relay = RelayId::new();
        let leases = lease(&store, relay).await.leases;
        let read = messages(&fetch(&store, relay).await);
        fixture.run(WATCH).await;

        store.settle(&Route::default(), &[read[0].row()]).await.unwrap();
        assert_eq!(how(&fixture, "DELETE outbox_message").await, "off");
        store.transition(&[failing(relay, &read[1], &leases)]).await.unwrap();
        assert_eq!(how(&fixture, "INSERT outbox_parked").await, "on", "by default {default}");
        store.hold(&Route::default(), &message("c").key_id()).await.unwrap();
        assert_eq!(how(&fixture, "INSERT outbox_key").await, "on", "by default {default}");
    }
}

/// A result reported to an operator is durable.
#[tokio::test]
async fn verbs_of_operators_commit_synchronously_whatever_the_default() {
    for default in ["on", "off"] {
        let Some(fixture) = Fixture::new().await else { return };
        let name = fixture.url.rsplit('/').next().unwrap().to_owned();
        fixture.run(&format!("alter database {name} set synchronous_commit = {default}")).await;
        let store = fixture.another().await;
        append(&store, [message("a")]).await;
        let relay = RelayId::new();
        let leases = lease(&store, relay).await.leases;
        let read = messages(&fetch(&store, relay).await);
        store.transition(&[failing(relay, &read[0], &leases)]).await.unwrap();
        store.skip(&Route::default(), &read[0].message.key_id()).await.unwrap();
        let scheduled = message("b");
        let due_at = Timestamp::now().plus(Duration::from_secs(3_600));
        let outgoing = Outgoing::from(scheduled.clone()).due_at(due_at);
        let mut tx = store.begin().await.unwrap();
        store.append(&mut tx, &[outgoing]).await.unwrap();
        store.commit(tx).await.into_result().unwrap();
        fixture.run(WATCH).await;

        assert_eq!(store.purge(&outbox_contract::admin::Filter::all_routes()).await.unwrap(), 1);
        assert_eq!(store.purge(&outbox_contract::admin::Filter::all_routes()).await.unwrap(), 0);
        assert_eq!(store.cancel_scheduled(&[scheduled.id]).await.unwrap(), 1);
        assert_eq!(store.cancel_scheduled(&[scheduled.id]).await.unwrap(), 0);
        for topic in [None, Some(&scheduled.topic)] {
            store.pause(&Route::default(), topic).await.unwrap();
            store.pause(&Route::default(), topic).await.unwrap();
            store.resume(&Route::default(), topic).await.unwrap();
            store.resume(&Route::default(), topic).await.unwrap();
        }
        for what in
            ["DELETE outbox_dead", "DELETE outbox_scheduled", "INSERT outbox_pause", "DELETE outbox_pause"]
        {
            assert_eq!(how(&fixture, what).await, "on", "{what}, by default {default}");
        }
    }
}

fn mark(leased: &Leased, position: i64) -> LowWater {
    let covered = leased.leases.iter().map(|lease| (lease.bucket, lease.epoch)).collect();
    LowWater::new(Position(position), covered, leased.life)
}

fn marks(leased: &Leased) -> BTreeSet<i64> {
    leased.leases.iter().map(|lease| lease.low_water.0).collect()
}

/// A mark that covers a bucket is stored in its relay's row alone. Wherever that row goes, the mark
/// stays: taken over by another, or long gone.
#[tokio::test]
async fn the_mark_of_a_relay_outlives_it() {
    let Some(fixture) = Fixture::new().await else { return };
    let store = &fixture.store;
    let mut request = lease_request(RelayId::new());
    request.low_water = mark(&store.lease(&request).await.unwrap(), 100);
    assert_eq!(marks(&store.lease(&request).await.unwrap()), [100].into());
    fixture.run("update outbox_relay set expires_at = 0").await;
    let mut second = lease_request(RelayId::new());
    let taken = store.lease(&second).await.unwrap();
    assert_eq!(marks(&taken), [100].into());
    second.low_water = mark(&taken, 200);
    store.lease(&second).await.unwrap();
    fixture.run("update outbox_relay set expires_at = 0").await;
    assert_eq!(store.maintain(10).await.unwrap().relays_removed, 2);
    assert_eq!(marks(&lease(store, RelayId::new()).await), [200].into());
}

/// After the database has lost commits, its positions may return for other messages, whichever
/// heartbeat reports the loss.
#[tokio::test]
async fn a_mark_of_another_life_of_the_database_counts_for_nothing() {
    let Some(fixture) = Fixture::new().await else { return };
    let store = &fixture.store;
    let mut request = lease_request(RelayId::new());
    let leased = store.lease(&request).await.unwrap();
    request.low_water = mark(&leased, 100);
    let before = store.lease(&request).await.unwrap();
    assert_eq!((marks(&before), before.life), ([100].into(), leased.life), "one connection, one life");

    fixture.run("select pg_terminate_backend(pid) from pg_stat_activity where query like '%heartbeat%' and pid <> pg_backend_pid() and datname = current_database()").await;
    request.low_water = mark(&leased, 9_000);
    assert!(store.lease(&request).await.is_err(), "a connection that broke is told first");
    let after = store.lease(&request).await.unwrap();
    assert_ne!(after.life, leased.life);
    assert_eq!(marks(&after), [100].into(), "the one that was saved in time is kept");

    let mut other = mark(&after, 9_000);
    other.life = leased.life;
    store.give_back(request.relay, &Route::default(), &after.leases, &other, true).await.unwrap();
    let next = lease(store, RelayId::new()).await;
    assert_eq!((marks(&next), next.life), ([100].into(), after.life));
}

/// Without a history too: positions come back after a failover, for other messages.
#[tokio::test]
async fn a_row_is_settled_by_position_and_id_together() {
    let Some(fixture) = Fixture::new().await else { return };
    append(&fixture.store, [message("a"), message("b")]).await;
    let relay = RelayId::new();
    lease(&fixture.store, relay).await;
    let read = messages(&fetch(&fixture.store, relay).await);
    let crossed = [(0, 1), (1, 0)]
        .map(|(at, of): (usize, usize)| RowId { position: read[at].position, id: read[of].message.id });
    fixture.store.settle(&Route::default(), &crossed).await.unwrap();
    assert_eq!(messages(&fetch(&fixture.store, relay).await).len(), 2);
    let both = [crossed[0], read[0].row()];
    let mut reversed = both;
    reversed.reverse();
    for rows in [both, reversed] {
        append(&fixture.store, [message("c")]).await;
        fixture.store.settle(&Route::default(), &rows).await.unwrap();
    }
    let left = messages(&fetch(&fixture.store, relay).await);
    assert_eq!(left.len(), 3, "the one of the right position and id is gone: {left:?}");
    assert!(left.iter().all(|stored| stored.row() != read[0].row()));
    // In any order, with many more that are gone already, and once with a stranger's id.
    let mut rows: Vec<RowId> =
        (1..500).map(|n| RowId { position: Position(n * 7_919), ..crossed[0] }).collect();
    rows.extend(left.iter().rev().map(|stored| stored.row()));
    rows[499].id = read[0].message.id;
    fixture.store.settle(&Route::default(), &rows).await.unwrap();
    let kept = messages(&fetch(&fixture.store, relay).await);
    assert_eq!(kept.iter().map(|stored| stored.row()).collect::<Vec<_>>(), [left[2].row()]);
}

/// The steps of a call and their entries in the audit are one transaction: while an entry can't be
/// written, no step is done. The same call does all of them later.
#[tokio::test]
async fn a_call_with_a_discard_that_can_not_be_recorded_does_nothing_until_it_can() {
    let Some(fixture) = Fixture::new().await else { return };
    let (role, store) = as_a_role(&fixture).await;
    append(&store, [message("a"), message("b")]).await;
    let relay = RelayId::new();
    let leases = lease(&store, relay).await.leases;
    let read = messages(&fetch(&store, relay).await);
    let mut discard = failing(relay, &read[1], &leases);
    let (first, last) = (Failure::new("test", "first"), Failure::new("test", "last"));
    discard.step =
        Step::Bury { row: read[1].row(), discard: true, reason: "rejected", attempts: 1, first, last };
    let steps = [failing(relay, &read[0], &leases), discard];

    fixture.run(&format!("revoke insert on outbox_audit from {role}")).await;
    let refused = store.transition(&steps).await.unwrap_err();
    assert!(refused.to_string().contains("outbox_audit"), "{refused}");
    assert_eq!(messages(&fetch(&store, relay).await), read, "both are where they were");
    assert_eq!(store.failing_keys(&Filter::all_routes()).await.unwrap(), []);

    fixture.run(&format!("grant insert on outbox_audit to {role}")).await;
    let done = store.transition(&steps).await.unwrap();
    assert!(matches!(done[..], [Transitioned::Done(Some(_)), Transitioned::Done(None)]), "{done:?}");
    assert!(fetch(&store, relay).await.rows.is_empty());
    let parked = store.parked(&Filter::all_routes()).await.unwrap();
    assert_eq!(parked.iter().map(|parked| parked.message.id).collect::<Vec<_>>(), [read[0].message.id]);
    let entries = store.audit(&Filter::all_routes()).await.unwrap();
    let told: Vec<_> = entries.iter().map(|entry| (entry.operation.as_str(), &entry.ids[..])).collect();
    assert_eq!(told, [("drop", &[read[1].message.id][..])]);
}
