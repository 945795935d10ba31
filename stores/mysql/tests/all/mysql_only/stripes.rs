//! Order by stripes: numbers and positions are taken under a lock, in the current state of the
//! stripe, whatever the transaction has seen and whatever the clock says.

use outbox_contract::backend::{Bucket, BucketSet, StripeId};
use outbox_contract::{AppendError, Message, Outgoing, Route, Store, Transactional};
use sqlx::Connection;

use super::support::{
    Fixture, append, both, both_with, fetch, keep_to_no_snapshot, message, messages, options, relay, run,
};

const LEVELS: [&str; 3] = ["read committed", "repeatable read", "serializable"];

/// Asserts the stored messages of a key, in the order of their numbers, which have no gaps and
/// whose positions ascend.
async fn assert_in_order(fixture: &Fixture, expected: &[&Message]) {
    let relay = relay(&fixture.store).await;
    let mut read = messages(&fetch(&fixture.store, relay).await);
    read.sort_by_key(|stored| stored.stripe.unwrap().number);
    let ids: Vec<_> = read.iter().map(|stored| stored.message.id).collect();
    assert_eq!(ids, expected.iter().map(|message| message.id).collect::<Vec<_>>());
    let numbers: Vec<i64> = read.iter().map(|stored| stored.stripe.unwrap().number).collect();
    assert_eq!(numbers, (1..=i64::try_from(expected.len()).unwrap()).collect::<Vec<_>>());
    assert!(read.windows(2).all(|pair| pair[0].position < pair[1].position), "{read:?}");
    for stored in &read {
        let stripe = stored.stripe.unwrap().stripe;
        assert_eq!(stripe, StripeId::of("orders", stored.message.order_key().as_str()));
        assert_eq!(stored.position.0 % 1_024, i64::from(stripe.0), "no two stripes share a position");
    }
}

/// A transaction that looked before somebody else committed still appends behind them.
#[tokio::test]
async fn an_append_takes_the_current_number_under_every_isolation_level() {
    for level in LEVELS {
        for fixture in both().await {
            fixture.run("create table seen (id int primary key); insert into seen values (1)").await;
            let mut connection = fixture.connection().await;
            run(&mut connection, &format!("set session transaction isolation level {level}")).await;
            keep_to_no_snapshot(&mut connection).await;
            let mut tx = connection.begin().await.unwrap();
            run(&mut tx, "select * from seen").await;
            let (first, second) = (message("a"), message("a"));
            append(&fixture.another().await, [first.clone()]).await;
            fixture
                .store
                .append(&mut tx, &[second.clone().into()])
                .await
                .unwrap_or_else(|error| panic!("{level} on {}: {error}", fixture.server.name()));
            tx.commit().await.unwrap();
            assert_in_order(&fixture, &[&first, &second]).await;
        }
    }
}

/// MariaDB from 11.6.2 on does so by itself: a transaction that has read does not see past its
/// snapshot, so it can't go on.
#[tokio::test]
async fn where_snapshots_are_kept_to_an_append_behind_somebody_elses_is_a_conflict() {
    for fixture in both().await {
        let mut connection = fixture.connection().await;
        let keeps = sqlx::raw_sql("set session innodb_snapshot_isolation = 1").execute(&mut connection).await;
        // MySQL has no such setting.
        if keeps.is_err() {
            assert!(!fixture.server.name().contains("MariaDB"));
            continue;
        }
        fixture.run("create table seen (id int primary key); insert into seen values (1)").await;
        let first = message("a");
        for (level, conflicts) in [("repeatable read", true), ("read committed", false)] {
            run(&mut connection, &format!("set session transaction isolation level {level}")).await;
            let mut tx = connection.begin().await.unwrap();
            run(&mut tx, "select * from seen").await;
            append(&fixture.store, [first.clone()]).await;
            let appended = fixture.store.append(&mut tx, &[message("a").into()]).await;
            match appended {
                Err(AppendError::Conflict(error)) => {
                    assert!(
                        conflicts && error.to_string().contains("another transaction came first"),
                        "{error}"
                    );
                }
                other => assert!(!conflicts && other.is_ok(), "{level}: {other:?}"),
            }
            tx.rollback().await.unwrap();
        }
    }
}

#[tokio::test]
async fn two_writers_of_a_stripe_stand_in_line() {
    for level in LEVELS {
        for fixture in both().await {
            let (first, second) = (message("a"), message("a"));
            let mut connection = fixture.connection().await;
            run(&mut connection, &format!("set session transaction isolation level {level}")).await;
            let mut tx = connection.begin().await.unwrap();
            fixture.store.append(&mut tx, &[first.clone().into()]).await.unwrap();
            let another = fixture.another().await;
            let follower = tokio::spawn({
                let second = second.clone();
                async move { append(&another, [second]).await }
            });
            fixture.until_waiting("%insert into outbox_stripe").await;
            assert!(!follower.is_finished(), "{level}: it wrote while the first was open");
            tx.commit().await.unwrap();
            follower.await.unwrap();
            assert_in_order(&fixture, &[&first, &second]).await;
        }
    }
}

/// Under the server's default isolation too, a writer locks its stripes and no gap between them.
#[tokio::test]
async fn an_open_writer_is_in_no_other_stripes_way() {
    let mut hasty = options();
    hasty.lock_timeout = std::time::Duration::from_secs(2);
    for level in LEVELS {
        for fixture in both_with(hasty.clone()).await {
            let mut connection = fixture.connection().await;
            run(&mut connection, &format!("set session transaction isolation level {level}")).await;
            let mut tx = connection.begin().await.unwrap();
            let audit = Route::new("audit").unwrap();
            let held = [message("a").into(), Outgoing::from(message("a")).by(audit.clone())];
            fixture.store.append(&mut tx, &held).await.unwrap();
            let stripe = StripeId::of("orders", "a");
            let others = (0..400).map(|n| message(&format!("key-{n}")));
            let others: Vec<Outgoing> = others
                .filter(|other| StripeId::of("orders", other.order_key().as_str()) != stripe)
                .flat_map(|other| [Outgoing::from(other.clone()), Outgoing::from(other).by(audit.clone())])
                .collect();
            let another = fixture.another().await;
            let mut other = another.begin().await.unwrap();
            another.append(&mut other, &others).await.unwrap_or_else(|error| panic!("{level}: {error}"));
            another.commit(other).await.into_result().unwrap();
            tx.commit().await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_clock_that_is_set_back_changes_no_order() {
    for fixture in both().await {
        let all = [message("a"), message("a"), message("a")];
        append(&fixture.store, [all[0].clone()]).await;
        let mut connection = fixture.connection().await;
        let mut tx = connection.begin().await.unwrap();
        // 2001, for this session.
        run(&mut tx, "set timestamp = 1000000000").await;
        let back: Vec<Outgoing> = all[1..].iter().cloned().map(Outgoing::from).collect();
        fixture.store.append(&mut tx, &back).await.unwrap();
        tx.commit().await.unwrap();
        assert_in_order(&fixture, &[&all[0], &all[1], &all[2]]).await;
    }
}

/// Settings of the user's session that read SQL otherwise.
#[tokio::test]
async fn no_setting_of_the_users_session_changes_what_is_written() {
    let modes =
        ["''", "'ANSI,NO_BACKSLASH_ESCAPES,NO_UNSIGNED_SUBTRACTION'", "'TRADITIONAL,PIPES_AS_CONCAT'"];
    for fixture in both().await {
        let mut all = Vec::new();
        for (at, mode) in modes.into_iter().enumerate() {
            let mut connection = fixture.connection().await;
            run(
                &mut connection,
                &format!("set session sql_mode = {mode}, time_zone = '+0{at}:30'; set names latin1"),
            )
            .await;
            let mut tx = connection.begin().await.unwrap();
            all.push(message("ключ'\\\""));
            fixture.store.append(&mut tx, &[all[at].clone().into()]).await.unwrap();
            tx.commit().await.unwrap();
        }
        assert_in_order(&fixture, &[&all[0], &all[1], &all[2]]).await;
    }
}

#[tokio::test]
async fn marks_tell_what_is_committed_and_nothing_else() {
    for fixture in both().await {
        let route = Route::default();
        assert_eq!(fixture.store.frontier().stripes(&route, &BucketSet::ALL).await.unwrap(), []);
        append(&fixture.store, [message("a")]).await;
        let two = [message("a"), message("b"), message("a")];
        append(&fixture.store, two).await;
        let mut open = fixture.store.begin().await.unwrap();
        fixture.store.append(&mut open, &[message("a").into()]).await.unwrap();

        let relay = relay(&fixture.store).await;
        let read = messages(&fetch(&fixture.store, relay).await);
        let marks = fixture.store.frontier().stripes(&route, &BucketSet::ALL).await.unwrap();
        assert_eq!(marks.len(), 2);
        let stripe = StripeId::of("orders", "a");
        let mark = marks.iter().find(|mark| mark.last.stripe == stripe).unwrap();
        let of_a: Vec<_> = read.iter().filter(|stored| stored.stripe.unwrap().stripe == stripe).collect();
        assert_eq!((mark.last.number, mark.position), (3, of_a[2].position));
        assert_eq!((mark.first_number, mark.first_position), (2, of_a[1].position));

        let others: BucketSet =
            BucketSet::ALL.iter().filter(|bucket: &Bucket| *bucket != stripe.bucket()).collect();
        assert_eq!(fixture.store.frontier().stripes(&route, &others).await.unwrap().len(), 1);
        assert_eq!(
            fixture.store.frontier().stripes(&Route::new("audit").unwrap(), &BucketSet::ALL).await.unwrap(),
            []
        );
        fixture.store.rollback(open).await.unwrap();
    }
}

/// A program that appends to a route whose stripes do not exist yet.
#[tokio::test]
async fn the_stripes_of_a_new_route_are_made_before_the_first_message() {
    for fixture in both().await {
        let audit = Route::new("audit").unwrap();
        let mut tx = fixture.store.begin().await.unwrap();
        fixture.store.append(&mut tx, &[Outgoing::from(message("a")).by(audit)]).await.unwrap();
        fixture.store.rollback(tx).await.unwrap();
        let made = "select count(*) from outbox_stripe where route = 'audit' and number = 0";
        assert_eq!(fixture.number(made).await, 1_024, "in a transaction of its own");
    }
}

/// Names stand in statements as literals: no character of them ends one.
#[tokio::test]
async fn a_route_is_named_as_bytes() {
    for fixture in both().await {
        let route = Route::new("r'\"\\`; drop table outbox_message").unwrap();
        let mut tx = fixture.store.begin().await.unwrap();
        let outgoing = Outgoing::from(message("a")).by(route.clone());
        fixture.store.append(&mut tx, &[outgoing]).await.unwrap();
        fixture.store.commit(tx).await.into_result().unwrap();
        assert_eq!(fixture.store.frontier().stripes(&route, &BucketSet::ALL).await.unwrap().len(), 1);
        assert_eq!(fixture.number("select count(*) from outbox_message").await, 1);
    }
}
