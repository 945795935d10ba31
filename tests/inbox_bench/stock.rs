//! Databases of consumers: a table of a stock, of which handlers reserve.

use mongodb::bson::{Document, doc};
use outbox_contract::Transactional;
use outbox_engine::HandlerError;
use outbox_store_mongodb::MongoDbStore;
use outbox_store_mysql::MySqlStore;
use outbox_store_postgres::PostgresStore;
use outbox_store_sqlite::SqliteStore;
use sqlx::Executor as _;

use crate::bench::KEYS;

/// A store in whose database handlers reserve of a stock.
pub(crate) trait Stock: Transactional + Clone {
    /// Opens the database of a URL.
    fn reach(url: &str) -> impl Future<Output = Self> + Send;

    /// Creates the tables of the consumer, and of the loop by hand.
    fn prepare(&self) -> impl Future<Output = ()> + Send;

    /// The handler's one statement, the same for all variants.
    fn reserve(
        connection: &mut Self::Connection,
        item: &str,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;

    /// Returns the number of effects of handlers.
    fn effects(&self) -> impl Future<Output = u64> + Send;
}

pub(crate) mod postgres {
    pub(crate) const UPDATE: &str = "update stock set reserved = reserved + 1 where item = $1";
    pub(super) const SUM: &str = "select cast(sum(reserved) as bigint) from stock";
    pub(super) const TABLES: &str = "
        create table stock (item text primary key, reserved bigint not null) with (fillfactor = 50);
        insert into stock select 'key-' || n, 0 from generate_series(0, 9999) n;
        create table handled (consumer text not null, id uuid not null, handled_at timestamptz not null default now(),
                              primary key (consumer, id));
        analyze stock";
}

pub(crate) mod mysql {
    pub(crate) const UPDATE: &str = "update stock set reserved = reserved + 1 where item = ?";
    pub(super) const SUM: &str = "select cast(sum(reserved) as signed) from stock";
    pub(super) const TABLES: &str = "
        create table stock (item varchar(64) primary key, reserved bigint not null);
        insert into stock
        with digit as (select 0 d union select 1 union select 2 union select 3 union select 4
                       union select 5 union select 6 union select 7 union select 8 union select 9)
        select concat('key-', a.d + 10 * b.d + 100 * c.d + 1000 * e.d), 0 from digit a, digit b, digit c, digit e;
        create table handled (consumer varchar(64) not null, id binary(16) not null,
                              handled_at datetime(6) not null default now(6), primary key (consumer, id));
        analyze table stock";
}

mod sqlite {
    pub(super) const UPDATE: &str = "update stock set reserved = reserved + 1 where item = ?";
    pub(super) const SUM: &str = "select cast(sum(reserved) as bigint) from stock";
    pub(super) const TABLES: &str = "
        create table stock (item text primary key, reserved integer not null);
        with recursive numbers (n) as (select 0 union all select n + 1 from numbers where n < 9999)
        insert into stock select 'key-' || n, 0 from numbers";
}

/// Implements it for a store of SQL.
macro_rules! stock {
    ($store:ty, $sql:ident) => {
        impl Stock for $store {
            async fn reach(url: &str) -> Self {
                Self::connect(url).await.expect("the database answers")
            }

            async fn prepare(&self) {
                self.pool().execute(sqlx::raw_sql($sql::TABLES)).await.expect("the tables are made");
                assert_eq!(KEYS, 10_000, "the tables have as many");
            }

            async fn reserve(connection: &mut Self::Connection, item: &str) -> Result<(), HandlerError> {
                sqlx::query($sql::UPDATE).bind(item).execute(connection).await?;
                Ok(())
            }

            async fn effects(&self) -> u64 {
                let sum = sqlx::query_scalar($sql::SUM).fetch_one(self.pool());
                let sum: i64 = sum.await.expect("counted");
                u64::try_from(sum).expect("a number of effects")
            }
        }
    };
}

stock!(PostgresStore, postgres);
stock!(MySqlStore, mysql);
stock!(SqliteStore, sqlite);

impl Stock for MongoDbStore {
    async fn reach(url: &str) -> Self {
        Self::connect(url).await.expect("the database answers")
    }

    async fn prepare(&self) {
        let database = self.client().default_database().expect("the URL names a database");
        let items = (0..KEYS).map(|number| doc! { "_id": format!("key-{number}"), "reserved": 0_i64 });
        database.collection::<Document>("stock").insert_many(items).await.expect("inserted");
    }

    async fn reserve(session: &mut Self::Connection, item: &str) -> Result<(), HandlerError> {
        let database = session.client().default_database().expect("the URL names a database");
        let (one, more) = (doc! { "_id": item }, doc! { "$inc": { "reserved": 1_i64 } });
        database.collection::<Document>("stock").update_one(one, more).session(session).await?;
        Ok(())
    }

    async fn effects(&self) -> u64 {
        let database = self.client().default_database().expect("the URL names a database");
        let mut items = database.collection::<Document>("stock").find(doc! {}).await.expect("counted");
        let mut sum = 0;
        while items.advance().await.expect("counted") {
            sum += items.current().get_i64("reserved").expect("a number of effects");
        }
        u64::try_from(sum).expect("a number of effects")
    }
}
