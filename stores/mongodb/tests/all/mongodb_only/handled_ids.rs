//! HandledIds: a duplicate ends no transaction, and a conflict is no duplicate.

use mongodb::bson::doc;
use outbox_contract::backend::Dedup;
use outbox_contract::{Consumer, StoreErrorKind, Transactional};

use super::support::{Fixture, collection_of, message};

#[tokio::test]
async fn a_duplicate_does_not_end_the_transaction() {
    let Some(fixture) = Fixture::new().await else { return };
    let (store, consumer) = (&fixture.store, Consumer::new("inventory").unwrap());
    let (known, new) = (message("a"), message("b"));
    let mut tx = store.begin().await.unwrap();
    store.deduplicate(&mut tx, &consumer, &[&known]).await.unwrap();
    store.commit(tx).await.into_result().unwrap();

    let effects = fixture.collection("effects");
    let mut tx = store.begin().await.unwrap();
    let handled_ids = store.deduplicate(&mut tx, &consumer, &[&known, &new]).await.unwrap();
    assert_eq!(handled_ids, [Dedup::Duplicate, Dedup::New]);
    effects.insert_one(doc! { "of": "b" }).session(&mut tx).await.unwrap();
    store.commit(tx).await.into_result().unwrap();
    assert_eq!(effects.count_documents(doc! {}).await.unwrap(), 1, "the rest of the batch is committed");
    assert!(store.is_handled(&consumer, new.id).await.unwrap());
}

/// Of two handlers at once, the second can't know how the first ends.
#[tokio::test]
async fn a_handler_that_meets_another_one_conflicts() {
    let Some(fixture) = Fixture::new().await else { return };
    let (store, other) = (&fixture.store, fixture.another().await);
    let consumer = Consumer::new("inventory").unwrap();
    for commits in [false, true] {
        let handled = message("a");
        let (mut first, mut second) = (store.begin().await.unwrap(), other.begin().await.unwrap());
        // It has begun: what is committed from now on it does not see.
        collection_of(&other, "orders").find_one(doc! {}).session(&mut second).await.unwrap();
        assert_eq!(store.deduplicate(&mut first, &consumer, &[&handled]).await.unwrap(), [Dedup::New]);
        if commits {
            store.commit(first).await.into_result().unwrap();
            let error = other.deduplicate(&mut second, &consumer, &[&handled]).await.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Conflict, "{error}");
        } else {
            let error = other.deduplicate(&mut second, &consumer, &[&handled]).await.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Conflict, "{error}");
            store.rollback(first).await.unwrap();
        }
        drop(second);
        let mut again = other.begin().await.unwrap();
        let expected = if commits { Dedup::Duplicate } else { Dedup::New };
        assert_eq!(other.deduplicate(&mut again, &consumer, &[&handled]).await.unwrap(), [expected]);
        other.rollback(again).await.unwrap();
    }
}
