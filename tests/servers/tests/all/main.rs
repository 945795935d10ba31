//! Every test of the servers.

mod ends;
mod kafka;
mod mysql;
mod postgres;
mod proxy;
mod rabbitmq;
mod redis;
