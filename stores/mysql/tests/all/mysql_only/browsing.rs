//! Lists for operators: their statements stay prepared. To close one costs the next statement 40 ms.

use outbox_contract::Admin;
use outbox_contract::admin::Filter;
use outbox_contract::backend::View;
use outbox_servers::{MariaDb, MySql, OrSkip};

use super::support::{Fixture, append, message, options};

#[tokio::test]
async fn a_page_of_a_list_closes_no_statement() {
    // Of the test's own: the servers count for all sessions.
    for wish in [MySql::newest(), MariaDb::newest()] {
        let Some(server) = wish.start().or_skip() else { continue };
        let fixture = Fixture::on(server, options()).await;
        append(&fixture.store, (0..5).map(|n| message(&format!("key-{n}")))).await;
        let closed = async || {
            let status = fixture.server.query(&fixture.url, "show global status like 'Com_stmt_close'");
            status.split_whitespace().last().unwrap().parse::<u64>().unwrap()
        };
        let views = [View::Waiting, View::Parked, View::DeadLetters, View::Scheduled, View::History];
        let looked = async |offset| {
            for filter in [Filter::all_routes(), Filter::route("default").unwrap().with_newest()] {
                let filter = Filter { offset, limit: Some(2 + offset), ..filter };
                fixture.store.failing_keys(&filter).await.unwrap();
                for view in views {
                    fixture.store.browse(view, &filter).await.unwrap();
                }
            }
        };
        let before = closed().await;
        for offset in 0..3 {
            looked(offset).await;
        }
        assert_eq!(closed().await, before);
    }
}
