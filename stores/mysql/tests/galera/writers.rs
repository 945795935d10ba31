//! Many writers on all nodes append to few keys: numbers have no gaps, and nothing of a transaction that failed is there.

use std::collections::{BTreeMap, HashSet};

use outbox_contract::transactional::Committed;
use outbox_contract::{MessageId, Transactional};

use super::support::{Nodes, message};

#[tokio::test(flavor = "multi_thread")]
async fn what_committed_is_there_once_in_the_order_of_commits_and_nothing_else() {
    const EACH: usize = 40;
    let Some(nodes) = Nodes::shared().await else { return };
    let mut writing = Vec::new();
    for (writer, store) in nodes.stores.iter().cycle().take(9).cloned().enumerate() {
        writing.push(tokio::spawn(async move {
            let (mut committed, mut refused) = (Vec::new(), HashSet::new());
            for number in 0..EACH {
                loop {
                    let given = [message(&format!("key-{}", (writer + number) % 3)), message("all")];
                    let mut tx = store.begin().await.unwrap();
                    let outgoing = given.clone().map(Into::into);
                    let appended = store.append(&mut tx, &outgoing).await;
                    let done = match appended {
                        // An error that is passed over: the commit has to find out.
                        Err(_) => {
                            let done = store.commit(tx).await;
                            assert!(!matches!(done, Committed::Yes), "half of it");
                            done
                        }
                        Ok(()) => store.commit(tx).await,
                    };
                    if matches!(done, Committed::Yes) {
                        committed.extend(given.iter().map(|message| message.id));
                        break;
                    }
                    refused.extend(given.iter().map(|message| message.id));
                }
            }
            (committed, refused)
        }));
    }
    let (mut committed, mut refused) = (HashSet::new(), HashSet::<MessageId>::new());
    for writing in writing {
        let (yes, no) = writing.await.unwrap();
        committed.extend(yes);
        refused.extend(no);
    }
    eprintln!("{} messages were refused", refused.len());
    assert!(!refused.is_empty(), "nodes have been in each other's way");
    let rows: Vec<(Vec<u8>, u16, i64, i64)> = sqlx::query_as(
        "select id, cast(stripe as unsigned), number, position from outbox_message order by stripe, number",
    )
    .fetch_all(nodes.stores[1].pool())
    .await
    .unwrap();
    let there: HashSet<MessageId> = rows.iter().map(|row| uuid_of(&row.0)).collect();
    assert_eq!(there, committed);
    assert_eq!(rows.len(), committed.len());
    let mut stripes: BTreeMap<u16, Vec<(i64, i64)>> = BTreeMap::new();
    for (_, stripe, number, position) in rows {
        stripes.entry(stripe).or_default().push((number, position));
    }
    for (stripe, places) in stripes {
        assert!((1..).zip(&places).all(|(expected, (number, _))| expected == *number), "gaps in {stripe}");
        assert!(places.is_sorted_by_key(|(_, position)| *position), "{stripe}");
    }
}

fn uuid_of(bytes: &[u8]) -> MessageId {
    MessageId::from_uuid(uuid::Uuid::from_slice(bytes).unwrap())
}
