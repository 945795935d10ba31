//! Tables that somebody altered by hand: `check` finds it before a relay works with them, and says
//! what it is.

use outbox_contract::{Store, StoreErrorKind};

use super::support::both;

#[tokio::test]
async fn a_check_says_what_was_altered() {
    for fixture in both().await {
        fixture.store.check().await.unwrap();
        for (alter, put_back, says) in [
            (
                "alter table outbox_message rename column appended_at to added_at",
                "alter table outbox_message rename column added_at to appended_at",
                "does not fit",
            ),
            ("rename table outbox_pause to pauses", "rename table pauses to outbox_pause", "does not fit"),
            (
                "alter table outbox_scheduled drop index outbox_scheduled_id",
                "alter table outbox_scheduled add index outbox_scheduled_id (id)",
                "outbox_scheduled_id",
            ),
            (
                "alter table outbox_message drop primary key, add primary key (position)",
                "alter table outbox_message drop primary key, add primary key (route, position)",
                "(route,position)",
            ),
            (
                "alter table outbox_pause engine = MyISAM",
                "alter table outbox_pause engine = InnoDB",
                "it needs InnoDB",
            ),
            (
                "alter table outbox_key modify topic varchar(249) character set utf8mb4 not null",
                "alter table outbox_key modify topic varbinary(249) not null",
                "it needs varbinary",
            ),
            (
                "delete from outbox_stripe where stripe = 7",
                "insert into outbox_stripe (route, stripe) values ('default', 7)",
                "1023 rows",
            ),
        ] {
            fixture.run(alter).await;
            let error = fixture.store.check().await.expect_err(alter);
            assert_eq!(error.kind(), StoreErrorKind::SchemaAltered, "{alter}: {error}");
            assert!(error.to_string().contains(says), "{alter}: {error}");
            fixture.run(put_back).await;
            fixture.store.check().await.expect(put_back);
        }
    }
}

#[tokio::test]
async fn tables_of_a_newer_version_are_left_alone() {
    for fixture in both().await {
        fixture.run("insert into outbox_schema (version, name) values (1000, 'later')").await;
        for refused in [fixture.store.check().await, fixture.store.migrate().await] {
            let error = refused.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::SchemaTooNew);
            assert!(error.to_string().contains("1000"), "{error}");
        }
    }
}

/// The server commits each statement by itself: a migration that was cut short goes on from where
/// it was.
#[tokio::test]
async fn a_migration_that_was_cut_short_goes_on() {
    for fixture in both().await {
        fixture.run("drop table outbox_schema, outbox_dead, outbox_handled; delete from outbox_stripe").await;
        assert_eq!(fixture.store.check().await.unwrap_err().kind(), StoreErrorKind::NotMigrated);
        fixture.store.migrate().await.unwrap();
        fixture.store.check().await.unwrap();
    }
}

/// Objects that others made under one of our names are not built upon.
#[tokio::test]
async fn tables_in_the_way_are_found() {
    for fixture in both().await {
        fixture.run("drop table outbox_schema, outbox_parked; create table outbox_parked (id int)").await;
        let found = match fixture.store.migrate().await {
            Ok(()) => fixture.store.check().await.unwrap_err(),
            Err(error) => error,
        };
        assert_eq!(found.kind(), StoreErrorKind::SchemaAltered, "{found}");
        assert!(found.to_string().contains("outbox_parked"), "{found}");
    }
}
