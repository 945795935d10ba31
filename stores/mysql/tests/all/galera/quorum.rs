//! A node that is cut off from the others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use outbox_contract::backend::{Committed, RelayId};
use outbox_contract::{AppendError, MessageId, Store, StoreErrorKind, Transactional};
use outbox_testkit::eventually;

use super::support::{LONG, Nodes, append, heartbeat, message};

#[tokio::test]
async fn a_node_without_a_quorum_is_unavailable_and_comes_back() {
    let Some(nodes) = Nodes::own().await else { return };
    let (store, relay) = (&nodes.stores[2], RelayId::new());
    append(store, &[message("a")]).await;
    store.lease(&heartbeat(relay)).await.unwrap();
    let mut open = store.begin().await.unwrap();
    store.append(&mut open, &[message("lost").into()]).await.unwrap();
    nodes.cluster.isolate(2);

    let refused = store.check().await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Unavailable, "{refused}");
    assert!(refused.to_string().contains("wsrep_cluster_status"), "{refused}");
    let refused = store.lease(&heartbeat(relay)).await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Unavailable, "{refused}");
    assert!(refused.to_string().contains("wsrep_cluster_status"), "{refused}");
    assert_eq!(store.begin().await.unwrap_err().kind(), StoreErrorKind::Unavailable);
    match store.append(&mut open, &[message("lost").into()]).await.unwrap_err() {
        AppendError::Store(error) => assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}"),
        other => panic!("{other}"),
    }
    assert!(!matches!(store.commit(open).await, Committed::Yes));
    append(&nodes.stores[0], &[message("b")]).await;

    nodes.cluster.rejoin(2);
    append(store, &[message("c")]).await;
    assert_eq!(store.lease(&heartbeat(relay)).await.unwrap().leases.len(), 256);
    for node in 0..3 {
        assert_eq!(nodes.number(node, "select count(*) from outbox_message").await, 3);
    }
}

/// A transaction under way when the node is cut off may have reached the others, or not: its
/// outcome is unknown.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_a_cut_ends_is_not_told_to_have_failed() {
    let Some(nodes) = Nodes::own().await else { return };
    let (stop, committed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut unknown = 0;
    let mut writing = Vec::new();
    for writer in 0..8 {
        let (store, stop, committed) = (nodes.stores[2].clone(), Arc::clone(&stop), Arc::clone(&committed));
        writing.push(tokio::spawn(async move {
            let (mut yes, mut no, mut unknown) = (Vec::new(), Vec::new(), Vec::<MessageId>::new());
            while !stop.load(Ordering::Relaxed) {
                let given = message(&format!("key-{writer}"));
                let Ok(mut tx) = store.begin().await else { break };
                if store.append(&mut tx, &[given.clone().into()]).await.is_err() {
                    no.push(given.id);
                    continue;
                }
                match store.commit(tx).await {
                    Committed::Yes => {
                        committed.fetch_add(1, Ordering::Relaxed);
                        yes.push(given.id);
                    }
                    Committed::No(error) => {
                        eprintln!("no: {error:?}");
                        no.push(given.id);
                    }
                    Committed::Unknown(error) => {
                        eprintln!("unknown: {error:?}");
                        unknown.push(given.id);
                    }
                }
            }
            (yes, no, unknown)
        }));
    }
    let flows = eventually(LONG, || async { committed.load(Ordering::Relaxed) >= 50 }).await;
    assert!(flows, "it is cut off in the middle of its work");
    tokio::task::block_in_place(|| nodes.cluster.isolate(2));
    stop.store(true, Ordering::Relaxed);
    let mut done = Vec::new();
    for writing in writing {
        done.push(writing.await.unwrap());
    }
    tokio::task::block_in_place(|| nodes.cluster.rejoin(2));
    let there: Vec<(Vec<u8>,)> =
        sqlx::query_as("select id from outbox_message").fetch_all(&mut nodes.reader(0).await).await.unwrap();
    let there: std::collections::HashSet<Vec<u8>> = there.into_iter().map(|(id,)| id).collect();
    let is_there = |id: &MessageId| there.contains(&id.as_uuid().as_bytes()[..]);
    let mut committed_all_the_same = 0;
    for (yes, no, in_doubt) in &done {
        assert!(yes.iter().all(is_there), "what was confirmed is there");
        assert!(!no.iter().any(is_there), "what was told to have failed is not");
        unknown += in_doubt.len();
        committed_all_the_same += in_doubt.iter().filter(|id| is_there(id)).count();
    }
    eprintln!("{unknown} unknown, {committed_all_the_same} of them committed");
    assert!(unknown > 0, "commits were under way when it was cut off");
}
