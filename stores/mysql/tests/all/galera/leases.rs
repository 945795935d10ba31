//! Relays on different nodes share the buckets of one route.

use std::collections::HashMap;
use std::time::Duration;

use outbox_contract::backend::{Bucket, Epoch, RelayId};
use outbox_contract::{Store, StoreErrorKind};
use outbox_store_mysql::MySqlStore;

use super::support::{Nodes, heartbeat, options};

/// Leases are short, so that buckets are taken all the time. Each heartbeat has a connection of its
/// own, on which every statement is prepared anew: an abort that meets a node in that is not
/// reported.
#[tokio::test(flavor = "multi_thread")]
async fn no_two_relays_own_a_bucket_under_one_epoch() {
    let Some(nodes) = Nodes::shared().await else { return };
    let mut beating = Vec::new();
    for url in nodes.urls.iter().cycle().take(6) {
        let url = url.clone();
        beating.push(tokio::spawn(async move {
            let mut request = heartbeat(RelayId::new());
            request.lasts = Duration::from_millis(5);
            let (mut owned, mut conflicts) = (Vec::new(), 0);
            for _ in 0..100 {
                let store = MySqlStore::connect_with(&url, options()).await.unwrap();
                match store.lease(&request).await {
                    Ok(leased) => owned.extend(leased.leases.iter().map(|lease| (lease.bucket, lease.epoch))),
                    Err(error) => {
                        assert_eq!(error.kind(), StoreErrorKind::Conflict, "{error}");
                        conflicts += 1;
                    }
                }
            }
            (request.relay, owned, conflicts)
        }));
    }
    let mut owners: HashMap<(Bucket, Epoch), RelayId> = HashMap::new();
    let mut all_conflicts = 0;
    for beating in beating {
        let (relay, owned, conflicts) = beating.await.unwrap();
        all_conflicts += conflicts;
        for place in owned {
            let owner = *owners.entry(place).or_insert(relay);
            assert_eq!(owner, relay, "{place:?} has two owners");
        }
    }
    assert!(owners.len() > 256, "buckets were taken over");
    eprintln!("{all_conflicts} heartbeats were refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_has_one_holder_though_nodes_elect_at_once() {
    let Some(nodes) = Nodes::shared().await else { return };
    for round in 0..10 {
        let role = format!("janitor-{round}");
        let electing = nodes.stores.iter().cloned().map(|store| {
            let role = role.clone();
            tokio::spawn(async move { store.elect(&role, RelayId::new(), Duration::from_secs(3_600)).await })
        });
        let mut elected = 0;
        for electing in electing.collect::<Vec<_>>() {
            match electing.await.unwrap() {
                Ok(holds) => elected += usize::from(holds),
                Err(error) => assert_eq!(error.kind(), StoreErrorKind::Conflict, "{error}"),
            }
        }
        assert_eq!(elected, 1);
    }
}
