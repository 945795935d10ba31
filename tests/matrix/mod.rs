//! Every database with every broker: a relay and an inbox between them, in one process, and faults
//! of both while writers write.
//!
//! Their own suites prove the promises of each alone, and the suite `pairs` those of a pair whose
//! servers fail. This suite tests what only both together can show: that messages, their keys,
//! their order and their repeats mean the same on both sides.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod foreign;
mod repeats;
mod story;

use outbox_tests::kind::StoreKind::{MariaDb, Memory, MongoDb, MySql, Postgres, Sqlite};
use outbox_tests::kind::TransportKind::{self as by, Kafka, RabbitMq, Redis};

macro_rules! pairs {
    ($($name:ident: $store:expr, $transport:expr;)*) => {$(
        #[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            story::tell($store, $transport).await;
        }
    )*};
}

pairs! {
    memory_to_memory: Memory, by::Memory;
    memory_to_rabbitmq: Memory, RabbitMq;
    memory_to_kafka: Memory, Kafka;
    memory_to_redis: Memory, Redis;
    sqlite_to_memory: Sqlite, by::Memory;
    sqlite_to_rabbitmq: Sqlite, RabbitMq;
    sqlite_to_kafka: Sqlite, Kafka;
    sqlite_to_redis: Sqlite, Redis;
    postgres_to_memory: Postgres, by::Memory;
    postgres_to_rabbitmq: Postgres, RabbitMq;
    postgres_to_kafka: Postgres, Kafka;
    postgres_to_redis: Postgres, Redis;
    mysql_to_memory: MySql, by::Memory;
    mysql_to_rabbitmq: MySql, RabbitMq;
    mysql_to_kafka: MySql, Kafka;
    mysql_to_redis: MySql, Redis;
    mariadb_to_memory: MariaDb, by::Memory;
    mariadb_to_rabbitmq: MariaDb, RabbitMq;
    mariadb_to_kafka: MariaDb, Kafka;
    mariadb_to_redis: MariaDb, Redis;
    mongodb_to_memory: MongoDb, by::Memory;
    mongodb_to_rabbitmq: MongoDb, RabbitMq;
    mongodb_to_kafka: MongoDb, Kafka;
    mongodb_to_redis: MongoDb, Redis;
}
