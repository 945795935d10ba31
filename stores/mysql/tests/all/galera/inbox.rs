//! Two nodes handle one message at once: its effect is there once (promise P4).

use outbox_contract::backend::{Committed, Dedup};
use outbox_contract::{Consumer, StoreErrorKind, Transactional};

use super::support::{Nodes, message};

#[tokio::test]
async fn a_message_that_two_nodes_get_at_once_has_its_effect_once() {
    let Some(nodes) = Nodes::shared().await else { return };
    let consumer = Consumer::new("shop").unwrap();
    for round in 0..20 {
        let given = message(&format!("key-{round}"));
        let mut open = Vec::new();
        for store in &nodes.stores[..2] {
            let mut tx = store.begin().await.unwrap();
            let handled = store.deduplicate(&mut tx, &consumer, &[&given]).await.unwrap();
            assert_eq!(handled, [Dedup::New], "neither knows of the other");
            sqlx::query("insert into orders values (?, 1)")
                .bind(100 + 2 * round + i32::try_from(open.len()).unwrap())
                .execute(&mut *tx)
                .await
                .unwrap();
            open.push((store, tx));
        }
        let commits: Vec<_> = open
            .into_iter()
            .map(|(store, tx)| {
                let store = store.clone();
                tokio::spawn(async move { store.commit(tx).await })
            })
            .collect();
        let mut committed = 0;
        for commit in commits {
            match commit.await.unwrap() {
                Committed::Yes => committed += 1,
                // The second, if the abort was not reported.
                Committed::No(error) => assert!(
                    matches!(error.kind(), StoreErrorKind::Conflict | StoreErrorKind::NotInTransaction),
                    "{error}"
                ),
                unknown @ Committed::Unknown(_) => panic!("{unknown:?}"),
            }
        }
        assert_eq!(committed, 1);
        for store in &nodes.stores {
            assert!(store.is_handled(&consumer, given.id).await.unwrap());
            let mut tx = store.begin().await.unwrap();
            assert_eq!(store.deduplicate(&mut tx, &consumer, &[&given]).await.unwrap(), [Dedup::Duplicate]);
            store.rollback(tx).await.unwrap();
        }
    }
    assert_eq!(nodes.number(2, "select count(*) from orders where id >= 100").await, 20);
}
