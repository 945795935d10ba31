#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[doc(no_inline)]
pub use outbox_contract::*;
pub use outbox_derive::DomainEvent;
#[doc(no_inline)]
pub use outbox_engine::*;

// Names used by derived code: see the crate `outbox-derive`.
#[doc(hidden)]
pub use outbox_contract::__private;

/// Publishes to and consumes from Apache Kafka.
#[cfg(feature = "kafka")]
pub mod kafka {
    pub use outbox_transport_kafka::*;
}

/// In-memory backends: for tests and experiments. The transport also connects modules of one
/// process.
pub mod memory {
    pub use outbox_store_memory::{MemoryStore, MemoryStoreBuilder, MemoryTx};
    pub use outbox_transport_memory::{MemoryTransport, MemoryTransportBuilder};
}

/// An outbox in MongoDB.
#[cfg(feature = "mongodb")]
pub mod mongodb {
    pub use outbox_store_mongodb::*;
}

/// An outbox in MySQL or MariaDB.
#[cfg(feature = "mysql")]
pub mod mysql {
    pub use outbox_store_mysql::*;
}

/// An outbox in PostgreSQL.
#[cfg(feature = "postgres")]
pub mod postgres {
    pub use outbox_store_postgres::*;
}

/// Publishes to and consumes from RabbitMQ.
#[cfg(feature = "rabbitmq")]
pub mod rabbitmq {
    pub use outbox_transport_rabbitmq::*;
}

/// Publishes to and consumes from Redis Streams.
#[cfg(feature = "redis")]
pub mod redis {
    pub use outbox_transport_redis::*;
}

/// An outbox in SQLite: on one machine, with nothing to install.
#[cfg(feature = "sqlite")]
pub mod sqlite {
    pub use outbox_store_sqlite::*;
}

/// Common imports of most programs: `use outbox::prelude::*;`.
pub mod prelude {
    #[cfg(feature = "kafka")]
    pub use crate::kafka::KafkaTransport;
    pub use crate::memory::{MemoryStore, MemoryTransport};
    #[cfg(feature = "mongodb")]
    pub use crate::mongodb::MongoDbStore;
    #[cfg(feature = "mysql")]
    pub use crate::mysql::MySqlStore;
    #[cfg(feature = "postgres")]
    pub use crate::postgres::PostgresStore;
    #[cfg(feature = "rabbitmq")]
    pub use crate::rabbitmq::RabbitMqTransport;
    #[cfg(feature = "redis")]
    pub use crate::redis::RedisTransport;
    #[cfg(feature = "sqlite")]
    pub use crate::sqlite::SqliteStore;
    pub use crate::{
        Admin, Aggregate, Consumer, Deliveries, DomainEvent, EventHandler, EventLog, Exhausted,
        HandlerContext, HandlerError, Inbox, InboxHandle, Key, KeyId, Mediator, Message, Outbox, Relay,
        RelayHandle, RetryPolicy, Route, Store, Subscription, Topic, Transactional, Transport, UnitOfWork,
        VersionMismatch, WorkError,
    };
}
