//! A database whose text order differs from byte order: punctuation does not count in it, so that
//! `inbox/inventory` stands behind `inbox0`. The store must compare texts for equality only, never
//! by order.

use std::sync::Arc;

use outbox_servers::{OrSkip, Postgres, PostgresServer};
use outbox_store_postgres::PostgresStore;
use outbox_testkit::store_suite::{self, StoreHarness};

use super::support::{number, open, options};

/// A store in a database that ignores punctuation.
struct Shifted {
    store: Arc<PostgresStore>,
    url: String,
    _server: PostgresServer,
}

impl StoreHarness for Shifted {
    type Store = PostgresStore;

    async fn fresh() -> Self {
        let server = Postgres::newest().shared().expect("it was there when it was asked for");
        let url = format!("{}_shifted", server.fresh_database());
        let name = url.rsplit('/').next().unwrap();
        server.query(
            &server.url(),
            &format!(
                "create database {name} template template0 encoding 'UTF8' locale 'C' locale_provider icu icu_locale 'en-US-u-ka-shifted'"
            ),
        );
        let store = open(&url, options()).await;
        let mut connection = store.pool().acquire().await.unwrap();
        let stands_before =
            number(&mut connection, "select ('inbox/inventory' < 'inbox0')::int::bigint").await;
        assert_eq!(stands_before, 0, "signs count in this database");
        drop(connection);
        Self { store: Arc::new(store), url, _server: server }
    }

    fn store(&self) -> Arc<PostgresStore> {
        Arc::clone(&self.store)
    }

    async fn as_another_process(&self) -> Arc<PostgresStore> {
        Arc::new(open(&self.url, options()).await)
    }

    fn skipped() -> Option<String> {
        Postgres::newest().shared().or_skip().is_none().then(|| "there is no PostgreSQL".to_owned())
    }
}

macro_rules! also_here {
    ($($module:ident { $($name:ident)* })*) => {$($(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            store_suite::run::<Shifted>(stringify!($name), store_suite::$module::$name).await;
        }
    )*)*};
}

also_here! {
    inbox {
        a_batch_is_answered_one_by_one
        a_message_goes_behind_those_that_wait_for_its_consumer
        a_repeat_further_back_lets_nothing_in_front_of_it_pass
        a_message_goes_behind_those_that_are_parked_for_its_consumer
        a_handled_message_is_a_duplicate_even_when_others_wait
    }
    order {
        concurrent_writers_of_a_key_are_in_commit_order
        keys_that_read_alike_are_different_keys
    }
    failing {
        many_steps_in_one_call_are_answered_one_by_one
    }
    operators {
        failing_keys_are_filtered_and_paged
        every_list_begins_at_either_end
        pauses_of_a_route_and_its_topics_are_apart
    }
    schedule {
        due_messages_join_in_the_order_of_their_due_times
    }
}
