//! Relays on different nodes share the buckets of one route.

use std::collections::HashMap;
use std::time::Duration;

use outbox_contract::{Bucket, Epoch, RelayId, Store, StoreErrorKind};

use super::support::{Nodes, heartbeat};

/// Lives are short and heartbeats come late, so that buckets are taken all the time.
#[tokio::test(flavor = "multi_thread")]
async fn no_two_relays_own_a_bucket_under_one_epoch() {
    let Some(nodes) = Nodes::shared().await else { return };
    let mut beating = Vec::new();
    for (number, store) in nodes.stores.iter().cycle().take(6).cloned().enumerate() {
        beating.push(tokio::spawn(async move {
            let mut request = heartbeat(RelayId::new());
            request.lasts = Duration::from_millis(40);
            let (mut owned, mut conflicts) = (Vec::new(), 0);
            for beat in 0..40 {
                match store.lease(&request).await {
                    Ok(leased) => owned.extend(leased.leases.iter().map(|lease| (lease.bucket, lease.epoch))),
                    Err(error) => {
                        assert_eq!(error.kind(), StoreErrorKind::Conflict, "{error}");
                        conflicts += 1;
                    }
                }
                let pause = if (beat + number) % 5 == 0 { 60 } else { 10 };
                tokio::time::sleep(Duration::from_millis(pause)).await;
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
