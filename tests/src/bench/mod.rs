//! Shared parts of the benchmarks: servers, measured processes, and the report. The benchmarks are
//! the folders `relay_bench`, `inbox_bench` and `publish_bench` beside `src`.

#![allow(clippy::must_use_candidate, reason = "only programs of this crate call it")]

pub mod broker;
pub mod child;
pub mod database;
pub mod pair;
pub mod process;
pub mod profile;
pub mod report;
pub mod stats;

/// Evaluates an expression with the type of the store that a URL names:
/// `on_store!(url, S => S::connect(url).await)`.
#[macro_export]
macro_rules! on_store {
    ($url:expr, $store:ident => $with:expr) => {
        match $url.split(':').next() {
            Some("sqlite") => {
                type $store = ::outbox_store_sqlite::SqliteStore;
                $with
            }
            Some("mysql") => {
                type $store = ::outbox_store_mysql::MySqlStore;
                $with
            }
            Some("mongodb") => {
                type $store = ::outbox_store_mongodb::MongoDbStore;
                $with
            }
            _ => {
                type $store = ::outbox_store_postgres::PostgresStore;
                $with
            }
        }
    };
}
