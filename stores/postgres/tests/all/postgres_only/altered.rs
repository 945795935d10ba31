//! Tables that were altered by hand: `check` finds the change before a relay works with them, and
//! names it.

use outbox_contract::{Store, StoreErrorKind};

use super::support::Fixture;

#[tokio::test]
async fn a_check_says_what_was_altered() {
    let Some(fixture) = Fixture::new().await else { return };
    fixture.store.check().await.unwrap();
    for (alter, put_back, says) in [
        (
            "alter sequence outbox_message_position cache 20",
            "alter sequence outbox_message_position cache 1",
            "cache 20",
        ),
        (
            "alter table outbox_message disable trigger outbox_message_place",
            "alter table outbox_message enable trigger outbox_message_place",
            "outbox_message_place",
        ),
        (
            "drop index outbox_parked_key",
            "create index outbox_parked_key on outbox_parked (route, topic, order_key, position)",
            "outbox_parked_key",
        ),
        (
            "alter table outbox_message rename column payload to body",
            "alter table outbox_message rename column body to payload",
            "does not fit",
        ),
        (
            "alter table outbox_pause rename to pauses",
            "alter table pauses rename to outbox_pause",
            "does not fit",
        ),
        (
            "alter function outbox_transition rename to transition",
            "alter function transition rename to outbox_transition",
            "outbox_transition",
        ),
        (
            "alter table outbox_message drop constraint outbox_message_pkey",
            "alter table outbox_message add constraint outbox_message_pkey primary key (position)",
            "outbox_message_pkey",
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

#[tokio::test]
async fn tables_of_a_newer_version_are_left_alone() {
    let Some(fixture) = Fixture::new().await else { return };
    fixture.run("insert into outbox_schema (version, name) values (1000, 'later')").await;
    for refused in [fixture.store.check().await, fixture.store.migrate().await] {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::SchemaTooNew);
        assert!(error.to_string().contains("1000"), "{error}");
    }
}

/// A foreign object under a name of the outbox is not built upon.
#[tokio::test]
async fn tables_in_the_way_of_a_migration_are_named_and_nothing_is_half_made() {
    let Some(fixture) = Fixture::new().await else { return };
    fixture
        .run("drop schema public cascade; create schema public; create table outbox_parked (id int)")
        .await;
    let error = fixture.store.migrate().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::SchemaAltered, "{error}");
    assert!(error.to_string().contains("outbox_parked"), "{error}");
    assert_eq!(fixture.number("select count(*) from pg_class where relname = 'outbox_message'").await, 0);
}
