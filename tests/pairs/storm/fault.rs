//! Faults of a storm.

use std::time::Duration;

use outbox_tests::kind::{StoreKind, TransportKind};
use outbox_tests::pair::Pair;
use tokio::time::sleep;

use crate::storm::Relays;
use crate::storm::servers::{Broker, Servers};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    KillRelay,
    /// For longer than its leases last.
    PauseRelay,
    CutDatabase,
    CutBroker,
    /// Data sent to it is dropped, and the connections stay.
    SilenceDatabase,
    SilenceBroker,
    CrashDatabase,
    CrashBroker,
    PauseDatabase,
    PauseBroker,
    /// Redis has no memory for anything new.
    FillRedis,
    /// Redis takes no writes, because its replica is down.
    StopReplica,
    /// RabbitMQ is short of memory.
    AlarmRabbitMq,
}

impl Fault {
    /// Returns all faults of such a pair.
    pub(crate) fn of(store: StoreKind, transport: TransportKind) -> Vec<Self> {
        let mut all = vec![
            Self::KillRelay,
            Self::PauseRelay,
            Self::CutBroker,
            Self::SilenceBroker,
            Self::CrashBroker,
            Self::PauseBroker,
        ];
        if store != StoreKind::Sqlite {
            all.extend([Self::CutDatabase, Self::SilenceDatabase, Self::CrashDatabase, Self::PauseDatabase]);
        }
        match transport {
            TransportKind::Redis => all.extend([Self::FillRedis, Self::StopReplica]),
            TransportKind::RabbitMq => all.push(Self::AlarmRabbitMq),
            TransportKind::Kafka | TransportKind::Memory => {}
        }
        all
    }

    /// Injects the fault for this long. When it returns the fault is over, and its consequences may
    /// not be.
    pub(crate) async fn happen(self, servers: &Servers, relays: &mut Relays, lasts: Duration) {
        let (database, broker) = (&servers.database, &servers.broker);
        match self {
            Self::KillRelay => relays.kill(),
            Self::PauseRelay => relays.pause(Pair::LEASE + lasts).await,
            Self::CutDatabase => servers.database_proxy.iter().for_each(|proxy| proxy.cut()),
            Self::CutBroker => servers.broker_proxy.cut(),
            Self::SilenceDatabase => {
                servers.database_proxy.iter().for_each(|proxy| proxy.swallow());
                sleep(lasts).await;
                servers.database_proxy.iter().for_each(|proxy| proxy.pass());
            }
            Self::SilenceBroker => {
                servers.broker_proxy.swallow();
                sleep(lasts).await;
                servers.broker_proxy.pass();
            }
            Self::CrashDatabase => {
                database.kill();
                sleep(lasts).await;
                database.start_again();
            }
            Self::CrashBroker => {
                broker.server().kill();
                sleep(lasts).await;
                broker.server().start_again();
            }
            Self::PauseDatabase => {
                database.pause();
                sleep(lasts).await;
                database.resume();
            }
            Self::PauseBroker => {
                broker.server().pause();
                sleep(lasts).await;
                broker.server().resume();
            }
            Self::FillRedis | Self::StopReplica | Self::AlarmRabbitMq => self.happen_to(broker, lasts).await,
        }
    }

    /// Injects a fault that only one kind of broker has.
    async fn happen_to(self, broker: &Broker, lasts: Duration) {
        match (self, broker) {
            (Self::FillRedis, Broker::Redis(redis, _)) => {
                redis.cli(&["config", "set", "maxmemory", "1"]);
                sleep(lasts).await;
                redis.cli(&["config", "set", "maxmemory", "0"]);
            }
            (Self::StopReplica, Broker::Redis(redis, replica)) => {
                redis.cli(&["config", "set", "min-replicas-max-lag", "1"]);
                redis.cli(&["config", "set", "min-replicas-to-write", "1"]);
                replica.pause();
                sleep(lasts).await;
                replica.resume();
                redis.cli(&["config", "set", "min-replicas-to-write", "0"]);
            }
            (Self::AlarmRabbitMq, Broker::RabbitMq(rabbitmq)) => {
                rabbitmq.ctl(&["set_vm_memory_high_watermark", "absolute", "1"]);
                sleep(lasts).await;
                rabbitmq.ctl(&["set_vm_memory_high_watermark", "absolute", "1GB"]);
            }
            _ => unreachable!("a fault of another broker"),
        }
    }
}
