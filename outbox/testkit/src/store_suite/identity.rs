//! The identity of an outbox: one for all who use it, another for every other outbox.

use futures_util::future::join_all;
use outbox_contract::admin::OutboxId;
use outbox_contract::{Admin, Store};

use super::StoreHarness;
use super::support::prepared;

async fn identity(store: &impl Store) -> OutboxId {
    store.identity().await.expect("a migrated outbox has an identity")
}

/// Programs that migrate and ask at once get one identity, which every later one gets too.
pub async fn programs_that_start_at_once_find_one_identity<H: StoreHarness>(harness: &H) {
    let mut stores = Vec::new();
    for at in 0..4 {
        stores.push(if at % 2 == 0 { harness.store() } else { harness.as_another_process().await });
    }
    let identities = join_all(stores.iter().map(|store| async {
        store.migrate().await.expect("an empty database is migrated");
        identity(&**store).await
    }));
    let identities = identities.await;
    assert!(identities.iter().all(|identity| *identity == identities[0]), "{identities:?}");
    stores[0].migrate().await.expect("a migrated database is migrated again");
    assert_eq!(identity(&*harness.as_another_process().await).await, identities[0], "it is kept");
}

/// Two outboxes never share an identity, and so no source.
pub async fn another_outbox_has_another_identity<H: StoreHarness>(harness: &H) {
    let one = identity(&*prepared(harness).await).await;
    let other = H::fresh().await;
    let other = identity(&*prepared(&other).await).await;
    assert_ne!(one, other);
}

/// A renewal replaces the identity once and for all: for every program, and over later migrations.
pub async fn a_renewed_identity_replaces_the_old_one_for_all<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let old = identity(&*store).await;
    let new = store.renew_identity().await.expect("the identity is renewed");
    assert_ne!(new, old);
    let elsewhere = harness.as_another_process().await;
    assert_eq!(identity(&*elsewhere).await, new);
    elsewhere.migrate().await.expect("a migrated database is migrated again");
    assert_eq!((identity(&*store).await, identity(&*elsewhere).await), (new, new));
    let newer = elsewhere.renew_identity().await.expect("it is renewed again");
    assert!(newer != new && newer != old, "each renewal makes another one");
}
