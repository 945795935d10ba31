//! Helpers shared by the tests: a store on each node of one database, messages, and nodes that lag.

use std::sync::Arc;
use std::time::Duration;

use outbox_contract::backend::{Fetched, FetchedRow, LeaseRequest, RelayId, Stored};
use outbox_contract::{Message, Outgoing, Route, Store, Transactional};
use outbox_servers::{Galera, GaleraCluster, OrSkip};
use outbox_store_mysql::{MySqlOptions, MySqlStore};
use outbox_testkit::eventually;
use sqlx::mysql::MySqlConnection;
use sqlx::{AssertSqlSafe, Connection, Row};
use tokio::sync::Mutex;

/// Longer than anything takes that a test waits for, on however slow a machine.
pub(crate) const LONG: Duration = Duration::from_secs(120);

/// A migrated store on each node, in a database of its own.
pub(crate) struct Nodes {
    pub(crate) cluster: GaleraCluster,
    pub(crate) urls: Vec<String>,
    pub(crate) stores: Vec<MySqlStore>,
}

impl Nodes {
    /// On the cluster that the tests share.
    pub(crate) async fn shared() -> Option<Self> {
        Some(Self::on(Galera::newest().shared().or_skip()?).await)
    }

    /// On a cluster of the test's own.
    pub(crate) async fn own() -> Option<Self> {
        Some(Self::on(Galera::newest().start().or_skip()?).await)
    }

    async fn on(cluster: GaleraCluster) -> Self {
        let urls = cluster.fresh_database();
        let mut stores = Vec::new();
        for url in &urls {
            stores.push(MySqlStore::connect_with(url, options()).await.unwrap());
        }
        stores[0].migrate().await.unwrap();
        for store in &stores {
            store.check().await.unwrap();
        }
        let nodes = Self { cluster, urls, stores };
        nodes.run(0, "create table orders (id int primary key, state int not null); insert into orders values (1, 0), (2, 0)").await;
        nodes
    }

    /// A connection of its own to a node.
    pub(crate) async fn connection(&self, node: usize) -> MySqlConnection {
        MySqlConnection::connect(&self.urls[node]).await.unwrap()
    }

    /// The same, where what is read has been committed on any node before.
    pub(crate) async fn reader(&self, node: usize) -> MySqlConnection {
        let mut connection = self.connection(node).await;
        run(&mut connection, "set wsrep_sync_wait = 15").await;
        connection
    }

    /// Runs statements without values on a node.
    pub(crate) async fn run(&self, node: usize, statements: &str) {
        run(&mut self.connection(node).await, statements).await;
    }

    /// The one number that a statement gives on a node that has caught up.
    pub(crate) async fn number(&self, node: usize, statement: &str) -> i64 {
        let row =
            sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).fetch_one(&mut self.reader(node).await).await;
        row.unwrap().try_get_unchecked(0).unwrap()
    }

    /// Returns the number of transactions of a node that commits of others have aborted.
    pub(crate) async fn aborts(&self, node: usize) -> i64 {
        let mut connection = self.connection(node).await;
        let row = sqlx::raw_sql("show status like 'wsrep_local_bf_aborts'").fetch_one(&mut connection).await;
        let value: String = row.unwrap().try_get_unchecked(1).unwrap();
        value.parse().unwrap()
    }

    /// Waits until a transaction of a node was aborted that was not before.
    pub(crate) async fn until_aborted(&self, node: usize, before: i64) {
        let aborted = eventually(LONG, || async { self.aborts(node).await > before }).await;
        assert!(aborted, "the commit of another node aborts the transaction");
    }
}

/// A node that applies nothing while this value lives, though others go on. Reads are answered.
pub(crate) struct Lag(MySqlConnection);

impl Lag {
    pub(crate) async fn of(nodes: &Nodes, node: usize) -> Self {
        let mut connection = nodes.connection(node).await;
        run(&mut connection, "set global wsrep_desync = 1; flush tables with read lock").await;
        Self(connection)
    }

    pub(crate) async fn end(mut self) {
        run(&mut self.0, "unlock tables; set global wsrep_desync = 0").await;
    }

    /// Waits until a task is done, or waits on this node for what it has not applied.
    pub(crate) async fn until_done_or_waiting<T>(&mut self, task: &tokio::task::JoinHandle<T>) {
        let waiting = "select count(*) from information_schema.processlist where db = database() and id <> connection_id() and command <> 'Sleep' \
                       and time_ms > 500";
        let connection = Mutex::new(&mut self.0);
        let seen = eventually(LONG, || async {
            let row = sqlx::raw_sql(waiting).fetch_one(&mut **connection.lock().await).await.unwrap();
            task.is_finished() || row.try_get_unchecked::<i64, _>(0).unwrap() > 0
        });
        assert!(seen.await, "it is done, or waits");
    }
}

pub(crate) fn options() -> MySqlOptions {
    let mut options = MySqlOptions::default();
    options.connect_timeout = LONG;
    options.transaction_idle_timeout = LONG;
    options.lock_timeout = Duration::from_secs(20);
    options
}

pub(crate) async fn run(connection: &mut MySqlConnection, statements: &str) {
    sqlx::raw_sql(AssertSqlSafe(statements.to_owned())).execute(connection).await.unwrap();
}

pub(crate) fn message(key: &str) -> Message {
    Message::new("orders", "order.placed").unwrap().with_key(key).unwrap().with_payload("{}")
}

/// Appends messages and commits; begins again after conflicts, as a user does.
pub(crate) async fn append(store: &MySqlStore, messages: &[Message]) {
    let outgoing: Vec<Outgoing> = messages.iter().cloned().map(Outgoing::from).collect();
    loop {
        let mut tx = store.begin().await.unwrap();
        if store.append(&mut tx, &outgoing).await.is_ok() && store.commit(tx).await.into_result().is_ok() {
            return;
        }
    }
}

/// A heartbeat on the route `default`, for leases of an hour.
pub(crate) fn heartbeat(relay: RelayId) -> LeaseRequest {
    let mut request = LeaseRequest::new(relay, Route::default(), Duration::from_secs(3_600));
    request.label = "test".to_owned();
    request
}

/// The messages of an answer that has nothing else.
pub(crate) fn messages(fetched: &Fetched) -> Vec<Arc<Stored>> {
    let message = |row: &FetchedRow| match row {
        FetchedRow::Message(stored) => Arc::clone(stored),
        other => panic!("expected a message, got {other:?}"),
    };
    fetched.rows.iter().map(message).collect()
}
