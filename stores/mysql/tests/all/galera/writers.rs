//! Many writers on all nodes append to few keys: numbers have no gaps, and nothing of a transaction
//! that failed is there.

use std::collections::{BTreeMap, HashMap, HashSet};

use outbox_contract::backend::Committed;
use outbox_contract::{MessageId, Transactional};
use outbox_store_mysql::MySqlStore;

use super::support::{Nodes, message, options};

/// Number of transactions on a connection. An abort that meets a node while it prepares a statement
/// is not reported, so connections are renewed.
const ON_A_CONNECTION: usize = 5;

#[tokio::test(flavor = "multi_thread")]
async fn what_committed_is_there_once_in_the_order_of_commits_and_nothing_else() {
    const EACH: usize = 40;
    let Some(nodes) = Nodes::shared().await else { return };
    nodes.run(0, "create table sold (id binary(16) primary key)").await;
    let mut writing = Vec::new();
    for (writer, url) in nodes.urls.iter().cycle().take(9).cloned().enumerate() {
        writing.push(tokio::spawn(async move {
            let (mut committed, mut refused) = (Vec::new(), HashMap::new());
            for number in 0..EACH {
                let mut store = MySqlStore::connect_with(&url, options()).await.unwrap();
                for attempt in 1.. {
                    if attempt % ON_A_CONNECTION == 0 {
                        store = MySqlStore::connect_with(&url, options()).await.unwrap();
                    }
                    let given = [message(&format!("key-{}", (writer + number) % 3)), message("all")];
                    let mut tx = store.begin().await.unwrap();
                    let outgoing = given.clone().map(Into::into);
                    let appended = store.append(&mut tx, &outgoing).await;
                    // The user's own, prepared on each connection, and passed over as well.
                    for message in &given {
                        let sold = sqlx::query("insert into sold values (?)")
                            .bind(&message.id.as_uuid().as_bytes()[..]);
                        let _ = sold.execute(&mut *tx).await;
                    }
                    let told = format!("{writer} {number} {appended:?}");
                    let done = match appended {
                        // An error that is passed over: the commit has to find out.
                        Err(error) => {
                            let done = store.commit(tx).await;
                            assert!(
                                !matches!(done, Committed::Yes),
                                "half of it was committed, behind {error:?}"
                            );
                            done
                        }
                        Ok(()) => store.commit(tx).await,
                    };
                    if matches!(done, Committed::Yes) {
                        committed.extend(given.iter().map(|message| message.id));
                        break;
                    }
                    refused.extend(given.iter().map(|message| (message.id, format!("{told}, {done:?}"))));
                }
            }
            (committed, refused)
        }));
    }
    let (mut committed, mut refused) = (HashSet::new(), HashMap::<MessageId, String>::new());
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
    .fetch_all(&mut nodes.reader(1).await)
    .await
    .unwrap();
    let there: HashSet<MessageId> = rows.iter().map(|row| uuid_of(&row.0)).collect();
    let lost: Vec<_> = committed.difference(&there).collect();
    let invented: Vec<_> = there.difference(&committed).map(|id| (id, refused.get(id))).collect();
    assert!(lost.is_empty() && invented.is_empty(), "lost: {lost:?}; invented: {invented:#?}");
    assert_eq!(rows.len(), committed.len());
    let sold: Vec<(Vec<u8>,)> =
        sqlx::query_as("select id from sold").fetch_all(&mut nodes.reader(1).await).await.unwrap();
    let sold: HashSet<MessageId> = sold.iter().map(|row| uuid_of(&row.0)).collect();
    assert!(sold == there, "{} were sold, {} were told of", sold.len(), there.len());
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
