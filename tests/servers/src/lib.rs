//! Real servers for tests: by URL, or as child processes on free ports.
//!
//! A test asks for a server and skips, by name, where there is none:
//!
//! ```no_run
//! use outbox_servers::{OrSkip, Postgres};
//!
//! let Some(server) = Postgres::newest().shared().or_skip() else { return };
//! let url = server.fresh_database();
//! ```
//!
//! | request | what it gives |
//! |---|---|
//! | [`Postgres`] | PostgreSQL 18 or 13; a fresh database for each test, a standby |
//! | [`MySql`], [`MariaDb`] | MySQL 9, MariaDB 11.8 or 10.11; a fresh database for each test |
//! | [`Galera`] | three nodes of MariaDB 10.11 with Galera 4; a fresh database for each test |
//! | `MongoDb` (feature `mongodb`) | a stand-in for MongoDB; a fresh database for each test |
//! | [`RabbitMq`] | RabbitMQ 4; a fresh virtual host for each test |
//! | [`Redis`] | Redis 8 or 7, or Valkey 9; a fresh prefix for each test, a replica |
//! | [`RedisCluster`] | three primaries of Redis 8 |
//! | [`Kafka`] | Apache Kafka 4.3, one broker or three; with users and their rights, with proxies in front |
//! | [`PgBouncer`] | a pool in front of a PostgreSQL |
//! | [`Proxy`] | a TCP proxy that cuts, delays, holds and swallows |
//!
//! `shared()` gives one server to all tests of a test program; `start()` gives a test one of its own, which it may stop, kill and
//! pause: see [`Server`]. Everything is synchronous, for a test has nothing else to do meanwhile, and can be called from async tests.
//!
//! Of Kafka and RabbitMQ, which take seconds to start, all test programs of one `tests/run` share one each: `OUTBOX_SERVERS_POOL` names the folder
//! of the run. `shared()` gives it to whoever wants nothing special of it. It must be left alone even more: a test that changes its settings, or
//! looks at all that is on it, starts one of its own. It ends with the run, whatever becomes of the program that has started it; one that has ended before is
//! started anew for the next program. Without the variable, each program has its own.
//!
//! What takes long to set up is kept in `prepared/` beside the servers, and copied: the data folders of PostgreSQL and Kafka, and Kafka's classes. It is made
//! again when the programs change, and can be deleted at any time while no tests run.
//!
//! Servers come from
//!
//! 1. a URL in the environment: `OUTBOX_POSTGRES_URL`, `OUTBOX_MYSQL_URL`, `OUTBOX_MARIADB_URL`, `OUTBOX_RABBITMQ_URL`, `OUTBOX_REDIS_URL`, `OUTBOX_KAFKA_URL`,
//!    `OUTBOX_MONGODB_URL`. Only `shared()` without
//!    special wishes is served by it, as nobody may stop or configure what belongs to somebody else;
//! 2. with the feature `containers`, an engine on this machine (`DOCKER_HOST`, or `/var/run/docker.sock`). Images are the official ones, or what
//!    `OUTBOX_POSTGRES_IMAGE`, `OUTBOX_POSTGRES_OLDEST_IMAGE`, `OUTBOX_MYSQL_IMAGE`, `OUTBOX_MARIADB_IMAGE`, `OUTBOX_MARIADB_OLDEST_IMAGE`, `OUTBOX_RABBITMQ_IMAGE`, `OUTBOX_REDIS_IMAGE`,
//!    `OUTBOX_REDIS_OLDEST_IMAGE`, `OUTBOX_VALKEY_IMAGE` and `OUTBOX_KAFKA_IMAGE` name. Containers use this machine's network, and need Linux. Tried
//!    with podman and images that hold Debian's packages; not with the official images;
//! 3. the folder that `tests/servers/prepare` makes: `target/servers`, or what `OUTBOX_SERVERS_DIR` names. It needs root.
//!
//! Where none has the server, [`OrSkip::or_skip`] skips, and says what each lacks; with `OUTBOX_REQUIRE_SERVERS=1` it fails. A server that is there
//! and does not start always fails. Which servers were used is noted in the file that `OUTBOX_SERVERS_USED` names.

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
pub use postgres::{Postgres, PostgresServer};
pub use processes::Usage;
pub use proxy::Proxy;
pub use rabbitmq::{RabbitMq, RabbitMqServer};
pub use redis::{Redis, RedisServer};
pub use redis_cluster::{RedisCluster, RedisClusterServer};
pub use server::Server;
