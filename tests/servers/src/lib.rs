//! Real servers for tests: by URL, or as child processes on free ports.
//!
//! A test requests a server and skips, by name, where it is unavailable:
//!
//! ```no_run
//! use outbox_servers::{OrSkip, Postgres};
//!
//! let Some(server) = Postgres::newest().shared().or_skip() else { return };
//! let url = server.fresh_database();
//! ```
//!
//! | request | server |
//! |---|---|
//! | [`Postgres`] | PostgreSQL 18 or 13; a fresh database for each test, a standby |
//! | [`MySql`], [`MariaDb`] | MySQL 9, MariaDB 11.8 or 10.11; a fresh database for each test |
//! | [`Galera`] | three nodes of MariaDB 10.11 with Galera 4; a fresh database for each test |
//! | `MongoDb` (feature `mongodb`) | a stand-in for MongoDB; a fresh database for each test |
//! | [`RabbitMq`] | RabbitMQ 4; a fresh virtual host for each test |
//! | [`Redis`] | Redis 8 or 7, or Valkey 9; a fresh prefix for each test, a replica |
//! | [`RedisCluster`] | three primaries of Redis 8 |
//! | [`Kafka`] | Apache Kafka 4.3, one broker or three; with users and permissions, with proxies |
//! | [`PgBouncer`] | a pool in front of a PostgreSQL |
//! | [`Pgpool`] | a pool that sends reads to a standby |
//! | [`Proxy`] | a TCP proxy that cuts, delays, holds and drops data |
//!
//! `shared()` returns one server for all tests of a test program; `start()` starts one for a single
//! test, which it may stop, kill and pause: see [`Server`]. Everything is synchronous, because a
//! test has nothing else to do meanwhile, and can be called from async tests.
//!
//! Kafka and RabbitMQ take seconds to start, so all test programs of one `tests/run` share one
//! server each: `OUTBOX_SERVERS_POOL` names the folder of the run. `shared()` returns it to
//! requests without special settings. Tests must not disturb it: a test that changes its settings,
//! or looks at everything on it, starts one of its own. The server ends with the run, even if the
//! program that started it has failed; one that has ended earlier is started anew for the next
//! program. Without the variable, each program has its own.
//!
//! Slow setups are cached in `prepared/` beside the servers, and copied: the data folders of
//! PostgreSQL and Kafka, and Kafka's classes. The cache is rebuilt when the programs change, and
//! can be deleted at any time while no tests run.
//!
//! Servers come from
//!
//! 1. a URL in the environment: `OUTBOX_POSTGRES_URL`, `OUTBOX_MYSQL_URL`, `OUTBOX_MARIADB_URL`,
//!    `OUTBOX_RABBITMQ_URL`, `OUTBOX_REDIS_URL`, `OUTBOX_KAFKA_URL`, `OUTBOX_MONGODB_URL`. It
//!    serves only `shared()` without special settings, because tests may not stop or configure
//!    other people's servers;
//! 2. with the feature `containers`, an engine on this machine (`DOCKER_HOST`, or
//!    `/var/run/docker.sock`). Images are the official ones, or those that `OUTBOX_POSTGRES_IMAGE`,
//!    `OUTBOX_POSTGRES_OLDEST_IMAGE`, `OUTBOX_MYSQL_IMAGE`, `OUTBOX_MARIADB_IMAGE`,
//!    `OUTBOX_MARIADB_OLDEST_IMAGE`, `OUTBOX_RABBITMQ_IMAGE`, `OUTBOX_REDIS_IMAGE`,
//!    `OUTBOX_REDIS_OLDEST_IMAGE`, `OUTBOX_VALKEY_IMAGE` and `OUTBOX_KAFKA_IMAGE` name. Containers
//!    use this machine's network, and need Linux. Tried with podman and images that hold Debian's
//!    packages; not with the official images;
//! 3. the folder that `tests/servers/prepare` creates: `target/servers`, or the one that
//!    `OUTBOX_SERVERS_DIR` names. It needs root.
//!
//! Where none has the server, [`OrSkip::or_skip`] skips, and reports what each lacks; with
//! `OUTBOX_REQUIRE_SERVERS=1` it fails. A server that is installed and does not start always fails.
//! The file that `OUTBOX_SERVERS_USED` names records which servers were used.

mod fresh;
mod galera;
mod given;
mod home;
mod kafka;
mod missing;
#[cfg(feature = "mongodb")]
mod mongodb;
mod mysql;
mod notes;
mod own;
mod part;
mod pgbouncer;
mod pgpool;
mod pool;
mod ports;
mod postgres;
mod prepared;
mod processes;
mod program;
mod proxy;
mod rabbitmq;
mod redis;
mod redis_cluster;
#[cfg(feature = "containers")]
mod room;
mod server;
mod tls;
mod tree;
mod until;
mod wishes;

pub use galera::{Galera, GaleraCluster};
pub use kafka::{Kafka, KafkaCluster, KafkaServer};
pub use missing::{Missing, OrSkip, skip};
#[cfg(feature = "mongodb")]
pub use mongodb::{MongoDb, MongoDbServer};
pub use mysql::{MariaDb, MySql, MySqlServer};
#[cfg(feature = "mongodb")]
pub use outbox_mongo_front as mongo_front;
pub use pgbouncer::{PgBouncer, PgBouncerServer};
pub use pgpool::{Pgpool, PgpoolServer};
pub use postgres::{Postgres, PostgresServer};
pub use processes::Usage;
pub use proxy::Proxy;
pub use rabbitmq::{RabbitMq, RabbitMqServer};
pub use redis::{Redis, RedisServer};
pub use redis_cluster::{RedisCluster, RedisClusterServer};
pub use server::Server;
