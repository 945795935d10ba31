#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[doc(inline)]
pub use outbox_contract::{
    Admin, AdminExt, AppendError, AppendOptions, Codec, Consumer, DomainEvent, EventKey, Exhausted, Headers,
    Json, Key, KeyId, Message, MessageId, Outbox, RetryPolicy, Route, Store, StoreError, StoreErrorKind,
    Timestamp, Topic, Transactional, Transport, admin, async_trait, backend, inbox_route,
};
pub use outbox_derive::DomainEvent;
#[doc(inline)]
pub use outbox_engine::{
    Aggregate, EventHandler, EventLog, HandlerContext, HandlerError, Health, Inbox, InboxHandle, Mediator,
    Mode, Relay, RelayHandle, Service, ServiceHandle, StartError, Status, UnitOfWork, UnknownType,
    VersionMismatch, WorkError,
};

// Names used by derived code: see the crate `outbox-derive`.
#[doc(hidden)]
pub use outbox_contract::__private;

/// Errors of single parts, and the kinds of those that a store or a transport returns.
pub mod error {
    pub use outbox_contract::{
        AppendError, CodecError, Failure, MessageError, NameError, Rejection, StoreError, StoreErrorKind,
        TransportError, TransportErrorKind,
    };
    pub use outbox_engine::{
        HandlerError, HandlerFailure, ShutdownError, StartError, VersionMismatch, WorkError,
    };
}

/// The inbox: its builder, configuration and figures.
pub mod inbox {
    pub use outbox_contract::backend::{Lag, OffsetReset, Problem, Unit};
    pub use outbox_engine::{
        ForeignRecord, HandlerContext, HandlerFailure, HandlerOptions, Health, Inbox, InboxBuilder,
        InboxConfig, InboxHandle, InboxObserver, InboxStats, MessageHandler, Mode, Reason, ReasonKind,
        Status, UnknownType,
    };
}

/// Messages and events: the parts that most programs need not name.
pub mod message {
    pub use outbox_contract::{AppendSql, Bytes, DueTime, EventType, Headers, Message, MessageId, Outgoing};
    pub use outbox_engine::EventHandlerFn;
}

/// The relay: its builder, configuration, figures and observer, and durations as its configuration
/// writes them.
pub mod relay {
    pub use outbox_contract::backend::{Backlog, RelayId, Unserved};
    pub use outbox_contract::duration;
    pub use outbox_engine::{
        Health, Reason, ReasonKind, Relay, RelayBuilder, RelayConfig, RelayHandle, RelayObserver, RelayStats,
        StartError, Status,
    };
}

/// The retry policy: its rules, and the decision that it makes on a failure.
pub mod retry {
    pub use outbox_contract::retry::{Decision, Exhausted, RetryPolicy, RetryRule, Tried};
}

/// The service: its builder and handle.
pub mod service {
    pub use outbox_engine::{Service, ServiceBuilder, ServiceHandle, ShutdownError};
}

/// Names of all metrics, and the spans of consumers.
pub mod telemetry {
    pub use outbox_contract::metric::{ALL, Kind, Metric};
    pub use outbox_engine::consume_span;
}

/// Publishes to and consumes from Apache Kafka.
#[cfg(feature = "kafka")]
#[cfg_attr(docsrs, doc(cfg(feature = "kafka")))]
pub mod kafka {
    pub use outbox_transport_kafka::{GroupProtocol, KafkaTransport, KafkaTransportBuilder, Mechanism};
}

/// In-memory backends: for tests and experiments. The transport also connects modules of one
/// process.
pub mod memory {
    pub use outbox_store_memory::{MemoryStore, MemoryStoreBuilder, MemoryTx};
    pub use outbox_transport_memory::{MemoryTransport, MemoryTransportBuilder};
}

/// An outbox in MongoDB.
#[cfg(feature = "mongodb")]
#[cfg_attr(docsrs, doc(cfg(feature = "mongodb")))]
pub mod mongodb {
    pub use outbox_store_mongodb::{MongoDbOptions, MongoDbStore};
}

/// An outbox in MySQL or MariaDB.
#[cfg(feature = "mysql")]
#[cfg_attr(docsrs, doc(cfg(feature = "mysql")))]
pub mod mysql {
    pub use outbox_store_mysql::{Migration, MySqlOptions, MySqlStore};
}

/// An outbox in PostgreSQL.
#[cfg(feature = "postgres")]
#[cfg_attr(docsrs, doc(cfg(feature = "postgres")))]
pub mod postgres {
    pub use outbox_store_postgres::{Migration, PostgresOptions, PostgresStore};
}

/// Publishes to and consumes from RabbitMQ.
#[cfg(feature = "rabbitmq")]
#[cfg_attr(docsrs, doc(cfg(feature = "rabbitmq")))]
pub mod rabbitmq {
    pub use outbox_transport_rabbitmq::{RabbitMqTransport, RabbitMqTransportBuilder, Topology};
}

/// Publishes to and consumes from Redis Streams.
#[cfg(feature = "redis")]
#[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
pub mod redis {
    pub use outbox_transport_redis::{RedisTransport, RedisTransportBuilder, Retention, Start};
}

/// An outbox in SQLite: on one machine, with nothing to install.
#[cfg(feature = "sqlite")]
#[cfg_attr(docsrs, doc(cfg(feature = "sqlite")))]
pub mod sqlite {
    pub use outbox_store_sqlite::{Durability, Migration, SqliteOptions, SqliteStore};
}

/// Common imports of most programs, to be imported as a whole.
pub mod prelude {
    pub use crate::backend::{Deliveries, Subscription};
    pub use crate::inbox::HandlerFailure;
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
    pub use crate::retry::RetryRule;
    #[cfg(feature = "sqlite")]
    pub use crate::sqlite::SqliteStore;
    pub use crate::{
        Admin, AdminExt, Aggregate, AppendOptions, Consumer, DomainEvent, EventHandler, EventLog, Exhausted,
        HandlerContext, HandlerError, Inbox, InboxHandle, Key, KeyId, Mediator, Message, Outbox, Relay,
        RelayHandle, RetryPolicy, Route, Service, ServiceHandle, Store, Topic, Transactional, Transport,
        UnitOfWork, VersionMismatch, WorkError,
    };
}
